"""Several outputs of one prompt: computed once, shared, and each as it would be alone."""

from __future__ import annotations

import asyncio

import pytest
from engine_toy import assert_idle, check, limits, logits_of, make

from pumice.engine import AsyncEngine, SamplingParams
from pumice.engine.request import Completion
from pumice.errors import UsageError

DRAWN = SamplingParams(temperature=1.0, seed=7, max_tokens=9, ignore_eos=True)


def alone(prompt: list[int], seed: int, count: int = 9) -> list[int]:
    engine, _ = make()
    params = DRAWN.replace(seed=seed, max_tokens=count)
    return engine.generate(prompt, params)[0].token_ids


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("prefix_cache", [False, True])
@pytest.mark.parametrize("length", [1, 7, 8, 9])  # around a block's end
def test_each_output_is_the_one_of_its_seed(length: int, prefix_cache: bool, copies: bool) -> None:
    engine, toy = make(copies=copies, prefix_cache=prefix_cache)
    prompt = list(range(20, 20 + length))
    done = engine.generate(prompt, DRAWN, n=4)
    assert [d.index for d in done] == [0, 1, 2, 3]
    for index, completion in enumerate(done):
        assert completion.token_ids == alone(prompt, 7 + index)
        assert completion.request_id == done[0].request_id
    assert len({tuple(d.token_ids) for d in done}) == 4
    shared = length % 4 if not copies else 0  # of a begun block, when it is computed again
    assert toy.computed == length + 4 * 8 + 3 * shared
    assert engine.cache.copied == (3 if copies and length % 4 else 0)
    assert engine.stats.prompt_tokens == length
    assert_idle(engine)


def test_the_last_owner_of_a_shared_block_writes_without_a_copy() -> None:
    engine, _ = make(copies=True)
    engine.add_request([20, 21, 22, 23, 24, 25], DRAWN, n=3)
    engine.step()
    check(engine)
    running = engine.scheduler.running
    assert len(running) == 3
    assert len({s.blocks[0] for s in running}) == len({s.blocks[1] for s in running}) == 1
    engine.step()
    check(engine)
    assert len({s.blocks[0] for s in running}) == 1
    assert len({s.blocks[1] for s in running}) == 3
    assert engine.cache.copied == 2 and engine.cache.in_use == 4


def test_greedy_outputs_are_equal_and_their_deltas_are_told_apart() -> None:
    engine, _ = make()
    seen: dict[int, list[int]] = {}
    last: dict[int, Completion] = {}
    params = SamplingParams(max_tokens=5, ignore_eos=True)
    for delta in engine.stream([20, 21], params, n=3):
        seen.setdefault(delta.index, []).extend(delta.token_ids)
        if delta.completion is not None:
            last[delta.index] = delta.completion
    assert seen[0] == seen[1] == seen[2]
    assert {i: c.token_ids for i, c in last.items()} == seen
    both = engine.generate([[20, 21], [30]], params, n=2)
    assert [(d.prompt_tokens, d.index) for d in both] == [(2, 0), (2, 1), (1, 0), (1, 1)]


def test_few_blocks_and_few_places() -> None:
    for places in (3, 5):
        engine, _ = make(limits(num_blocks=9, context_length=32, max_tokens=5), max_running=places)
        prompts = [[20 + i, 30, 40] for i in range(4)]
        params = DRAWN.replace(max_tokens=20)
        done = engine.generate(prompts, params, n=3)
        assert engine.scheduler.decisions.preempted > 0
        for number, completion in enumerate(done):
            expected = alone(prompts[number // 3], 7 + number % 3, 20)
            assert completion.token_ids == expected
        assert_idle(engine)


@pytest.mark.parametrize("steps", [0, 1, 2, 4])
def test_cancelling_ends_all_outputs(steps: int) -> None:
    engine, _ = make(limits(max_tokens=4))
    name = engine.add_request(list(range(20, 31)), DRAWN, n=3)
    for _ in range(steps):
        engine.step()
    done = engine.cancel(name)
    assert [d.index for d in done] == [0, 1, 2]
    assert all(d.finish_reason == "cancelled" for d in done)
    assert_idle(engine)


def test_outputs_end_on_their_own() -> None:
    engine, _ = make(eos_bias=2.0)
    params = SamplingParams(temperature=1.5, seed=3, max_tokens=40)
    done = engine.generate([20, 21, 22], params, n=6)
    assert len({len(d.token_ids) for d in done}) > 1
    assert {d.finish_reason for d in done} <= {"stop", "length"}
    assert_idle(engine)


def test_damaged_logits_end_every_output() -> None:
    vocab = limits().vocab_size
    engine, _ = make(logits=lambda tokens: logits_of(tokens, vocab) * float("nan"))
    done = engine.generate([20, 21], DRAWN, n=2)
    assert [d.finish_reason for d in done] == ["error", "error"]
    assert_idle(engine)


def test_more_outputs_than_places_are_refused() -> None:
    engine, _ = make(max_running=3)
    with pytest.raises(UsageError, match="n is 4; 3 outputs"):
        engine.prepare([1], n=4)
    for bad in (0, -1, 1.5, True, "2"):
        with pytest.raises(UsageError, match="n is"):
            engine.prepare([1], n=bad)
    with pytest.raises(UsageError, match=r"seed \+ n"):
        engine.prepare([1], DRAWN.replace(seed=2**63 - 1), n=2)


def test_async_streams_hold_all_outputs() -> None:
    engine, _ = make()

    async def main() -> dict[int, list[int]]:
        seen: dict[int, list[int]] = {}
        async with AsyncEngine(engine) as outer:
            async for delta in outer.stream([20, 21, 22], DRAWN, n=3):
                seen.setdefault(delta.index, []).extend(delta.token_ids)
        return seen

    seen = asyncio.run(main())
    assert seen == {i: alone([20, 21, 22], 7 + i) for i in range(3)}
    assert_idle(engine)

"""Embeddings in the engine: pooling, chunks, company, preemption, failures, the asyncio side."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import numpy as np
import pytest
from embedding_toy import WIDTH, expected, make_embedder, state_of
from engine_toy import assert_idle, check, greedy_reference, limits, make, run_all, tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from pumice.engine import AsyncEngine, Request, SamplingParams, Speculation
from pumice.engine.request import Completion
from pumice.errors import (
    ContextLengthError,
    DeviceError,
    EngineClosedError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)


def prompt(length: int, seed: int = 1) -> list[int]:
    return np.random.default_rng(seed).integers(3, 60, length).tolist()  # type: ignore[no-any-return]


def params(count: int) -> SamplingParams:
    return SamplingParams(max_tokens=count, ignore_eos=True)


@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("normalize", [True, False])
def test_vectors_of_a_ragged_batch(pooling: Literal["mean", "last"], normalize: bool) -> None:
    engine, toy = make_embedder()
    prompts = [prompt(n, n) for n in (1, 2, 31, 32, 33, 64, 5, 4, 7, 1)]
    vectors = engine.embed(prompts, pooling, normalize)
    for tokens, vector in zip(prompts, vectors, strict=True):
        assert vector.dtype == np.float32 and vector.shape == (WIDTH,)
        np.testing.assert_allclose(vector, expected(tokens, pooling, normalize), atol=1e-5)
    assert max(s for _, s in toy.embedded) > 1, "several prompts share a step"
    assert max(t for t, _ in toy.embedded) > engine.limits.max_rows
    assert_idle(engine)
    assert engine.cache.cached == 0 and engine.stats.prefill_tokens == sum(map(len, prompts))


@pytest.mark.parametrize("chunk", [1, 7, 13])
def test_a_prompt_in_chunks_has_the_same_vector(chunk: int) -> None:
    engine, toy = make_embedder(prefill_chunk=chunk)
    tokens = prompt(50)
    for pooling in ("mean", "last"):
        (vector,) = engine.embed(tokens, pooling)
        np.testing.assert_allclose(vector, expected(tokens, pooling), atol=1e-6)
    assert len(toy.embedded) == 2 * -(-50 // chunk)


def test_texts_are_token_ids() -> None:
    engine, _ = make_embedder()
    text = "the quick brown fox"
    ids = tokenizer().with_prefix(tokenizer().encode(text, add_special=False, parse_special=False))
    by_text, by_ids = engine.embed([text, ids])
    np.testing.assert_array_equal(by_text, by_ids)


@pytest.mark.parametrize("mixed", [False, True])
def test_with_running_streams_nothing_changes_for_either(mixed: bool) -> None:
    engine, toy = make_embedder(mixed_steps=mixed)
    generating = [prompt(n, n) for n in (9, 3, 20)]
    names = [engine.add_request(p, params(12)) for p in generating]
    outputs: dict[str, Completion] = {}
    engine.step()
    embedded = [prompt(n, 50 + n) for n in (1, 40, 2)]
    names += [engine.add_request(p, pooling="mean") for p in embedded]
    names.append(engine.add_request(prompt(30, 99), params(5)))
    run_all(engine, outputs)
    for name, tokens in zip(names, [*generating, *embedded, prompt(30, 99)], strict=True):
        done = outputs[name]
        if done.vector is None:
            count = len(done.token_ids)
            assert count in (5, 12)
            assert done.token_ids == greedy_reference(toy.model, tokens, count)
        else:
            want = expected(tokens, normalize=False)
            np.testing.assert_allclose(done.vector, want, atol=1e-5)
            assert (done.token_ids, done.text, done.prompt_tokens) == ([], "", len(tokens))
    assert_idle(engine)


def test_blocks_taken_away_are_computed_again() -> None:
    """Streams grow until the embedding, of the worst rank, has to give up its blocks."""
    bounds = limits(num_blocks=16, max_tokens=8)
    engine, toy = make_embedder(bounds, prefill_chunk=2)
    streams = [engine.add_request(prompt(4, n), params(22)) for n in range(2)]
    for _ in range(4):
        engine.step()
    tokens = prompt(38, 7)
    name = engine.add_request(tokens, pooling="mean")
    outputs: dict[str, Completion] = {}
    run_all(engine, outputs)
    assert engine.scheduler.decisions.preempted >= 1
    assert sum(t for t, _ in toy.embedded) > len(tokens), "it was begun twice"
    vector = outputs[name].vector
    assert vector is not None
    np.testing.assert_allclose(vector, expected(tokens, normalize=False), atol=1e-5)
    for n, stream in enumerate(streams):
        assert outputs[stream].token_ids == greedy_reference(toy.model, prompt(4, n), 22)
    assert_idle(engine)


def test_an_interrupted_step_is_repeated_and_counts_once() -> None:
    engine, toy = make_embedder(prefill_chunk=8)
    engine.add_request(prompt(5), params(6))
    tokens = prompt(30, 3)
    name = engine.add_request(tokens, pooling="mean")

    def fail(number: int) -> None:
        if number % 3 == 0:
            raise KeyboardInterrupt

    toy.before = fail
    outputs: dict[str, Completion] = {}
    for _ in range(60):
        try:
            for delta in engine.step():
                if delta.completion is not None:
                    outputs[delta.request_id] = delta.completion
        except KeyboardInterrupt:
            pass
        check(engine)
    vector = outputs[name].vector
    assert vector is not None
    np.testing.assert_allclose(vector, expected(tokens, normalize=False), atol=1e-5)
    assert_idle(engine)


@settings(max_examples=60, deadline=None)
@given(
    jobs=st.lists(
        st.tuples(
            st.integers(1, 30),  # tokens of the prompt
            st.sampled_from(["mean", "last", None]),
            st.integers(0, 12),  # the step it comes with
            st.none() | st.integers(0, 20),  # the step it is cancelled after
            st.integers(-1, 1),  # priority
        ),
        min_size=1,
        max_size=10,
    ),
    blocks=st.integers(8, 20),
    tokens=st.integers(1, 12),
    chunk=st.none() | st.integers(1, 9),
    mixed=st.booleans(),
    speculate=st.booleans(),
)
def test_random_company_in_small_caches(
    jobs: list[Any], blocks: int, tokens: int, chunk: int | None, mixed: bool, speculate: bool
) -> None:
    """Whatever runs, waits, gives up its blocks or is cancelled: results are those alone."""
    bounds = limits(num_blocks=blocks, max_tokens=tokens, max_sequences=4, max_rows=3)
    engine, toy = make_embedder(
        bounds, prefill_chunk=chunk, mixed_steps=mixed,
        speculation=Speculation(most=2, adaptive=False) if speculate else None,
    )  # fmt: skip
    outputs: dict[str, Completion] = {}
    for step in range(2000):
        for number, (length, pooling, arrives, _, priority) in enumerate(jobs):
            if arrives == step:
                engine.add_request(
                    [3 + number] * length,
                    None if pooling else params(1 + number % 2),
                    request_id=str(number), pooling=pooling, priority=priority,
                )  # fmt: skip
        for delta in engine.step():
            if delta.completion is not None:
                outputs[delta.request_id] = delta.completion
        for number, job in enumerate(jobs):
            if job[3] == step:
                for done in engine.cancel(str(number)):
                    outputs[done.request_id] = done
        check(engine)
        if step > 12 and not engine.has_work:
            break
    assert_idle(engine)
    for number, (length, pooling, _, _, _) in enumerate(jobs):
        done, prompt = outputs[str(number)], [3 + number] * length
        if done.finish_reason == "cancelled":
            continue
        if pooling is None:
            assert done.token_ids == greedy_reference(toy.model, prompt, 1 + number % 2)
        else:
            assert done.vector is not None and done.finish_reason == "stop"
            want = expected(prompt, pooling, normalize=False)
            np.testing.assert_allclose(done.vector, want, atol=1e-5)


def test_the_longest_prompt_fits_and_one_more_does_not() -> None:
    engine, toy = make_embedder()
    tokens = prompt(64)
    np.testing.assert_allclose(engine.embed(tokens)[0], expected(tokens), atol=1e-6)
    before = len(toy.steps)
    with pytest.raises(ContextLengthError, match="65 tokens; the context holds 64"):
        engine.embed([prompt(3), prompt(65)])
    assert len(toy.steps) == before, "all are checked before any runs"
    small, _ = make_embedder(limits(num_blocks=4))
    with pytest.raises(ContextLengthError, match="the whole cache holds 16"):
        small.embed(prompt(17))
    np.testing.assert_allclose(small.embed(prompt(16))[0], expected(prompt(16)), atol=1e-6)


def test_what_is_refused() -> None:
    engine, _ = make_embedder()
    bad: Any = "max"
    with pytest.raises(UsageError, match="'max'; allowed: mean, last"):
        engine.embed(prompt(3), bad)
    with pytest.raises(UsageError, match="empty"):
        engine.embed([prompt(3), []])
    with pytest.raises(UsageError, match="token id 99999"):
        engine.embed([99999])
    with pytest.raises(UsageError, match="no outputs"):
        Request("a", n=2, pooling="mean")
    without, _ = make()
    with pytest.raises(UnsupportedError, match="hidden states"):
        without.embed(prompt(3))
    assert_idle(engine)


def test_states_that_are_not_finite_are_an_error() -> None:
    engine, toy = make_embedder()
    bad = prompt(40, 5)
    toy.hidden = lambda t: state_of(t) * (np.nan if t.tolist() == bad[:3] else 1)
    with pytest.raises(DeviceError, match="before token 28 are not finite"):
        engine.embed([prompt(4), bad])
    assert_idle(engine)
    np.testing.assert_allclose(engine.embed(prompt(4))[0], expected(prompt(4)), atol=1e-6)


def test_a_deadline_that_comes_first() -> None:
    now = [0.0]
    engine, toy = make_embedder(clock=lambda: now[0])

    def late(_: int) -> None:
        now[0] += 2

    toy.before = late
    with pytest.raises(UnavailableError, match="deadline"):
        engine.embed([prompt(60)], deadline_s=1.0)
    assert_idle(engine)


def test_many_at_once_through_asyncio() -> None:
    inner, toy = make_embedder(max_waiting=1)
    prompts = [prompt(1 + n % 20, n) for n in range(40)]

    async def main() -> tuple[list[int], list[np.ndarray]]:
        async with AsyncEngine(inner) as engine:

            async def said() -> list[int]:
                stream = engine.stream(prompt(6), params(10))
                return [t async for d in stream for t in d.token_ids]

            return await asyncio.gather(said(), engine.embed(prompts, "last"))

    text, vectors = asyncio.run(main())
    assert text == greedy_reference(toy.model, prompt(6), 10)
    for tokens, vector in zip(prompts, vectors, strict=True):
        np.testing.assert_allclose(vector, expected(tokens, "last"), atol=1e-6)
    assert len(toy.threads) == 1
    assert_idle(inner)


def test_failures_through_asyncio() -> None:
    inner, toy = make_embedder()

    def fail(number: int) -> None:
        if number == 2:
            raise RuntimeError("boom")

    toy.before = fail

    async def main() -> np.ndarray:
        async with AsyncEngine(inner) as engine:
            with pytest.raises(ContextLengthError):
                await engine.embed([prompt(3), prompt(65)])
            toy.steps.clear()
            with pytest.raises(DeviceError, match="boom"):
                await engine.embed([prompt(60), prompt(50)])
            (vector,) = await engine.embed([prompt(4)])
        with pytest.raises(EngineClosedError):
            await engine.embed([prompt(4)])
        return vector

    np.testing.assert_allclose(asyncio.run(main()), expected(prompt(4)), atol=1e-6)
    assert_idle(inner)


def test_who_leaves_leaves_nothing_behind() -> None:
    inner, _ = make_embedder(limits(context_length=4000, num_blocks=2000, max_tokens=4))

    async def main() -> None:
        async with AsyncEngine(inner) as engine:
            task = asyncio.create_task(engine.embed([prompt(3000, n) for n in range(12)]))
            while not inner.alive:
                await asyncio.sleep(0.005)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            for _ in range(500):
                if not inner.alive:
                    break
                await asyncio.sleep(0.01)
            assert inner.alive == []

    asyncio.run(main())
    assert_idle(inner)

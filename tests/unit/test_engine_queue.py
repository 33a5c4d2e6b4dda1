"""Who runs first, who waits, who is refused: priorities, deadlines, the queue's bound, draining."""

from __future__ import annotations

import asyncio
import threading

import pytest
from engine_toy import assert_idle, check, greedy_ids, limits, make, run_all

from pumice.engine import AsyncEngine, SamplingParams
from pumice.engine.request import Completion
from pumice.engine.scheduler import AGEING_S
from pumice.errors import EngineClosedError, PumiceError, QueueFullError, UsageError

VOCAB = limits().vocab_size


def params(count: int) -> SamplingParams:
    return SamplingParams(max_tokens=count, ignore_eos=True)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_lower_priorities_run_first_and_ties_in_order_of_arrival() -> None:
    engine, _ = make(max_running=1)
    names = {}
    for number, priority in enumerate([0, 5, -1, 0, -1]):
        names[engine.add_request([20 + number], params(2), priority=priority)] = number
    outputs: dict[str, Completion] = {}
    run_all(engine, outputs)
    assert [names[name] for name in outputs] == [2, 4, 0, 3, 1]


def test_a_better_priority_takes_the_place_of_a_worse_one() -> None:
    engine, _ = make(max_running=2)
    low = [engine.add_request([20 + i], params(12), priority=1) for i in range(2)]
    engine.step()
    high = engine.add_request([30], params(4))
    for _ in range(2):
        engine.step()
        check(engine)
    assert [s.request_id for s in engine.scheduler.running] == [high, low[0]]
    outputs: dict[str, Completion] = {}
    run_all(engine, outputs)
    assert list(outputs) == [high, *low]
    assert engine.scheduler.decisions.preempted == 1
    assert outputs[low[1]].token_ids == greedy_ids([21], 12, VOCAB)
    assert_idle(engine)


def test_an_equal_priority_waits() -> None:
    engine, _ = make(max_running=1)
    first = engine.add_request([20], params(5))
    engine.step()
    engine.add_request([21], params(5))
    engine.step()
    assert [s.request_id for s in engine.scheduler.running] == [first]


def test_a_better_priority_takes_blocks() -> None:
    engine, _ = make(limits(num_blocks=8, context_length=32), prefix_cache=False)
    low = engine.add_request([20] * 20, params(8), priority=3)
    engine.step()
    high = engine.add_request(list(range(30, 46)), params(4))
    outputs: dict[str, Completion] = {}
    run_all(engine, outputs)
    assert list(outputs) == [high, low]
    assert outputs[low].token_ids == greedy_ids([20] * 20, 8, VOCAB)


def test_ageing_outweighs_a_stream_of_better_priority() -> None:
    clock = Clock()
    engine, _ = make(max_running=1, clock=clock)
    old = engine.add_request([20], params(2), priority=1)
    outputs: dict[str, Completion] = {}
    waited = 0.0
    for number in range(400):
        engine.add_request([30], params(2))  # never less than one that is better waits
        clock.now += 0.1
        for delta in engine.step():
            if delta.completion is not None:
                outputs[delta.request_id] = delta.completion
        if old in outputs:
            waited = clock.now
            break
        assert number < 399, "it starves"
    assert 0.5 * AGEING_S < waited < 2.5 * AGEING_S


def test_deadlines_end_what_runs_and_what_waits() -> None:
    clock = Clock()
    engine, _ = make(max_running=1, clock=clock)
    runs = engine.add_request([20], params(40), deadline_s=3.0)
    waits = engine.add_request([21], params(40), deadline_s=2.0)
    fine = engine.add_request([22], params(4), deadline_s=1000.0)
    outputs: dict[str, Completion] = {}
    while engine.has_work:
        for delta in engine.step():
            if delta.completion is not None:
                outputs[delta.request_id] = delta.completion
                assert delta.finish_reason == delta.completion.finish_reason
        check(engine)
        clock.now += 0.5
    assert list(outputs) == [waits, runs, fine]
    assert outputs[waits].finish_reason == outputs[runs].finish_reason == "deadline"
    assert outputs[waits].token_ids == []
    assert outputs[runs].token_ids == greedy_ids([20], 6, VOCAB)
    assert outputs[fine].finish_reason == "length"
    assert engine.figures()["deadline"] == 2
    assert_idle(engine)


def test_a_deadline_ends_all_outputs_and_forgets_who_is_gone() -> None:
    clock = Clock()
    engine, _ = make(clock=clock)
    engine.add_request([20], params(40), n=3, deadline_s=1.0, request_id="a")
    engine.step()
    clock.now = 1.5
    deltas = engine.step()
    assert [(d.index, d.finish_reason) for d in deltas] == [(i, "deadline") for i in range(3)]
    engine.add_request([20], params(3), deadline_s=1.0, request_id="a")
    engine.cancel("a")
    engine.add_request([20], params(3), request_id="a")
    clock.now = 9.0
    assert engine.step()[0].token_ids
    run_all(engine, {})
    assert engine.figures()["deadline"] == 1


@pytest.mark.parametrize(
    "option",
    [{"deadline_s": 0}, {"deadline_s": float("inf")}, {"deadline_s": "1"}, {"priority": 1.5},
     {"priority": True}, {"priority": 2**40}],
)  # fmt: skip
def test_bad_options(option: dict[str, object]) -> None:
    engine, _ = make()
    with pytest.raises(UsageError, match=f"{next(iter(option))} is .*allowed"):
        engine.add_request([1], **option)


def test_the_queue_is_bounded() -> None:
    engine, _ = make(max_running=2, max_waiting=3)
    names = [engine.add_request([20 + i], params(3)) for i in range(5)]
    with pytest.raises(QueueFullError, match="3 requests wait already; 3 may") as caught:
        engine.add_request([40], params(3))
    assert (caught.value.waiting, caught.value.bound) == (3, 3)
    engine.step()
    with pytest.raises(QueueFullError):
        engine.add_request([40], params(3))
    engine.cancel(names[4])
    engine.add_request([40], params(3))
    assert engine.figures()["rejected"] == 2
    run_all(engine, {})
    assert_idle(engine)


def test_figures_count_decisions_and_times() -> None:
    engine, _ = make(limits(num_blocks=8, context_length=32))
    names = [engine.add_request([20 + i], params(20)) for i in range(4)]
    engine.step()
    engine.cancel(names[3])
    run_all(engine, {})
    figures = engine.figures()
    assert figures["cancelled"] == 1 and figures["preempted"] > 0
    assert figures["admitted"] == 4 + figures["preempted"] and figures["chunks"] >= 4
    histograms = figures["histograms"]
    assert histograms["ttft_s"]["count"] == 4 and histograms["queue_s"]["count"] == 4
    assert histograms["inter_token_s"]["count"] == 3 * 19
    sizes = histograms["batch_size"]
    assert sizes["count"] == figures["steps"] == sum(sizes["counts"])
    assert len(sizes["counts"]) == len(sizes["bounds"]) + 1


def test_draining_lets_everything_finish_and_admits_nothing() -> None:
    inner, toy = make()
    gate = threading.Event()
    toy.before = lambda step: gate.wait(20) and None

    async def main() -> None:
        engine = AsyncEngine(inner)
        collected: list[list[int]] = [[], []]

        async def read(number: int) -> None:
            async for delta in engine.stream([20 + number], params(8)):
                collected[number] += delta.token_ids

        readers = [asyncio.create_task(read(i)) for i in range(2)]
        while len(inner.alive) < 1:
            await asyncio.sleep(0.01)
        draining = asyncio.create_task(engine.drain(30))
        await asyncio.sleep(0.05)
        with pytest.raises(EngineClosedError):
            await engine.stream([5], params(2)).__anext__()
        gate.set()
        assert await draining
        results = await asyncio.gather(*readers, return_exceptions=True)
        for number, result in enumerate(results):
            # One that was still in the commands when draining began is told so.
            assert result is None or isinstance(result, EngineClosedError)
            if result is None:
                assert collected[number] == greedy_ids([20 + number], 8, VOCAB)
        assert results[0] is None or results[1] is None

    asyncio.run(main())
    assert_idle(inner)


def test_draining_has_an_end() -> None:
    inner, _ = make(limits(context_length=4000, num_blocks=2000))

    async def main() -> None:
        engine = AsyncEngine(inner)
        stream = engine.stream([5], params(3000))
        await stream.__anext__()
        assert not await engine.drain(0.05)
        last = [d async for d in stream][-1]
        assert last.finish_reason == "cancelled"
        with pytest.raises(PumiceError, match="closing"):
            await engine.stream([5]).__anext__()

    asyncio.run(main())
    assert_idle(inner)


def test_draining_an_idle_engine_ends_at_once() -> None:
    inner, _ = make()

    async def main() -> None:
        engine = AsyncEngine(inner)
        assert await asyncio.wait_for(engine.drain(60), 20)

    asyncio.run(main())

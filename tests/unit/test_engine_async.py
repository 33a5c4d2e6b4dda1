"""AsyncEngine: streams at once, consumers that leave, steps that fail, closing."""

from __future__ import annotations

import asyncio
import threading

import pytest
from engine_toy import assert_idle, greedy_ids, limits, make

from pumice.engine.async_engine import AsyncEngine
from pumice.engine.sampling_params import SamplingParams
from pumice.errors import ContextLengthError, PumiceError

VOCAB = limits().vocab_size


def params(count: int) -> SamplingParams:
    return SamplingParams(max_tokens=count, ignore_eos=True)


async def collect(engine: AsyncEngine, prompt: list[int], count: int = 10) -> list[int]:
    return [t async for d in engine.stream(prompt, params(count)) for t in d.token_ids]


def test_several_streams_at_once() -> None:
    inner, fake = make()

    async def main() -> list[list[int]]:
        async with AsyncEngine(inner) as engine:
            return await asyncio.gather(*(collect(engine, [i, 9]) for i in range(20, 32)))

    for i, ids in enumerate(asyncio.run(main())):
        assert ids == greedy_ids([20 + i, 9], 10, VOCAB)
    assert max(map(len, fake.shapes)) > 1 and len(fake.threads) == 1
    assert_idle(inner)


@pytest.mark.parametrize("how", ["cancel", "aclose"])
def test_a_consumer_that_leaves_frees_its_request(how: str) -> None:
    inner, _ = make(limits(context_length=4000, num_blocks=2000))

    async def main() -> None:
        async with AsyncEngine(inner) as engine:
            stream = engine.stream([5], params(3000))
            if how == "aclose":
                await stream.__anext__()
                await stream.aclose()
            else:
                seen = asyncio.Event()

                async def read() -> None:
                    async for _ in stream:
                        seen.set()

                task = asyncio.create_task(read())
                await seen.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await stream.aclose()
            for _ in range(500):
                if not inner.alive:
                    break
                await asyncio.sleep(0.01)
            assert inner.alive == []
            assert await collect(engine, [7], 4) == greedy_ids([7], 4, VOCAB)

    asyncio.run(main())
    assert_idle(inner)


def test_a_failed_step_reaches_every_consumer_and_the_engine_goes_on() -> None:
    inner, fake = make()

    def fail(number: int) -> None:
        if number == 4:
            raise RuntimeError("boom")

    fake.before = fail

    async def main() -> None:
        async with AsyncEngine(inner) as engine:
            jobs = [collect(engine, [i], 30) for i in (20, 21)]
            results = await asyncio.gather(*jobs, return_exceptions=True)
            failed = [r for r in results if isinstance(r, BaseException)]
            assert failed and all(isinstance(r, PumiceError) for r in failed)
            assert "boom" in str(failed[0])
            assert await collect(engine, [7], 4) == greedy_ids([7], 4, VOCAB)

    asyncio.run(main())
    assert_idle(inner)


def test_bad_requests_raise_in_their_stream_only() -> None:
    inner, _ = make()

    async def main() -> None:
        async with AsyncEngine(inner) as engine:
            with pytest.raises(ContextLengthError):
                await collect(engine, [1] * 100)
            assert await collect(engine, [7], 4) == greedy_ids([7], 4, VOCAB)

    asyncio.run(main())


def test_close_ends_what_runs() -> None:
    inner, _ = make(limits(context_length=4000, num_blocks=2000))

    async def main() -> None:
        engine = AsyncEngine(inner)
        stream = engine.stream([5], params(3000))
        await stream.__anext__()
        await engine.close()
        await engine.close()
        last = [d async for d in stream][-1]
        assert last.finish_reason == "cancelled"
        with pytest.raises(PumiceError):
            await collect(engine, [7])

    asyncio.run(main())
    assert_idle(inner)


def test_an_event_loop_that_ends_does_not_end_the_engine() -> None:
    inner, fake = make()
    gate = threading.Event()
    outer: list[AsyncEngine] = []

    async def leave() -> None:
        outer.append(AsyncEngine(inner))
        stream = outer[0].stream([5], params(20))
        await stream.__anext__()
        fake.before = lambda _: gate.wait(20) and None

    asyncio.run(leave())
    gate.set()

    async def later() -> None:
        assert await collect(outer[0], [7], 4) == greedy_ids([7], 4, VOCAB)
        await outer[0].close()

    asyncio.run(later())
    assert_idle(inner)

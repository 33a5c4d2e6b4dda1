"""Loads: so many requests at a time (closed), or new ones at random times (open, Poisson)."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeAlias

from pumice.bench.serving import Measurement, Outcome, Point, Prompt
from pumice.bench.serving_client import Endpoint, ask
from pumice.errors import DeviceError, UsageError

Ask: TypeAlias = Callable[[Prompt], Coroutine[Any, Any, Outcome]]

MAX_CONCURRENCY = 4096


def parse_points(concurrency: str | None, rate: str | None) -> list[Point]:
    """`--concurrency 1,8,32` or `--rate 0.5,2` → loads, in the order given."""
    if concurrency is not None and rate is not None:
        raise UsageError("--concurrency and --rate exclude each other")
    option, text = "--concurrency", "1" if concurrency is None else concurrency
    if rate is not None:
        option, text = "--rate", rate
    points = []
    for part in text.split(","):
        try:
            value = float(part) if rate is not None else int(part)
        except ValueError:
            value = -1
        if not 0 < value <= MAX_CONCURRENCY:
            raise UsageError(
                f"{option} is {text!r}; allowed: numbers above 0 up to {MAX_CONCURRENCY}, "
                "with commas between"
            )
        points.append(Point(rate=value) if rate is not None else Point(concurrency=int(value)))
    return points


async def warm_up(endpoint: Endpoint, prompts: Sequence[Prompt]) -> None:
    """Sends prompts that are not measured, together; DeviceError if none is answered."""
    if not prompts:
        return
    async with endpoint.client() as client:
        outcomes = await asyncio.gather(*(ask(client, endpoint, prompt) for prompt in prompts))
    if all(outcome.error for outcome in outcomes):
        raise DeviceError(
            f"{endpoint.url} answered no request of the warm-up: {outcomes[0].error}",
            hint="--warmup 0 measures the errors.",
        )


async def measure(
    endpoint: Endpoint,
    point: Point,
    prompts: Sequence[Prompt],
    *,
    seed: int,
    progress: Callable[[], None] = lambda: None,
) -> Measurement:
    """Sends every prompt once under a load. seed: of the arrival times. progress: called for every
    answer.
    """
    async with endpoint.client() as client:

        async def one(prompt: Prompt) -> Outcome:
            outcome = await ask(client, endpoint, prompt)
            progress()
            return outcome

        start = time.perf_counter()
        if point.concurrency is not None:
            outcomes = await _closed(one, prompts, point.concurrency)
        else:
            assert point.rate is not None
            outcomes = await _poisson(one, prompts, point.rate, seed)
        return Measurement(point, outcomes, time.perf_counter() - start)


async def _closed(one: Ask, prompts: Sequence[Prompt], concurrency: int) -> list[Outcome]:
    outcomes: list[Outcome] = []
    waiting = iter(prompts)

    async def client() -> None:
        for prompt in waiting:  # shared: whoever is free takes the next
            outcomes.append(await one(prompt))

    await asyncio.gather(*(client() for _ in range(min(concurrency, len(prompts)))))
    return outcomes


async def _poisson(one: Ask, prompts: Sequence[Prompt], rate: float, seed: int) -> list[Outcome]:
    """Times between arrivals are exponential with mean 1 / rate, whatever the server does."""
    draw = random.Random(seed)
    due = time.perf_counter()
    tasks = []
    for prompt in prompts:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(one(prompt)))
        due += draw.expovariate(rate)
    return list(await asyncio.gather(*tasks))

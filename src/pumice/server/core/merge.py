"""Several jobs of one call: all of them or none, and their steps as one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from pumice.server.context import ServerContext
from pumice.server.core.generate import Generation, Step, Steps, start
from pumice.server.core.job import Job
from pumice.server.core.result import Result, collect


async def start_all(context: ServerContext, jobs: Sequence[Job]) -> list[Generation]:
    """When one is refused, or the caller is cancelled, those that run are closed."""
    tasks = [asyncio.ensure_future(start(context, job)) for job in jobs]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        for item in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(item, Generation):
                await item.steps.aclose()
        raise


async def collect_all(generations: Sequence[Generation], choices: int) -> list[list[Result]]:
    """`collect` of each. When one fails the others are closed."""
    tasks = [asyncio.ensure_future(collect(item, choices)) for item in generations]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def merged(several: Sequence[Steps]) -> AsyncGenerator[tuple[int, Step], None]:
    """(which job, step). An error of one ends all; whoever made them closes them."""
    if len(several) == 1:  # no task for each step
        async for step in several[0]:
            yield 0, step
        return
    following: dict[asyncio.Future[Step], int] = {
        asyncio.ensure_future(anext(steps)): i for i, steps in enumerate(several)
    }
    try:
        while following:
            done, _ = await asyncio.wait(following, return_when=asyncio.FIRST_COMPLETED)
            for future in done:
                index = following.pop(future)
                try:
                    step = future.result()
                except StopAsyncIteration:
                    continue
                following[asyncio.ensure_future(anext(several[index]))] = index
                yield index, step
    finally:
        for future in following:
            future.cancel()
        await asyncio.gather(*following, return_exceptions=True)

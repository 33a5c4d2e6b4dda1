"""Several jobs' steps as one stream, in the order in which they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from pumice.server.core.generate import Step, Steps


async def merged(several: Sequence[Steps]) -> AsyncGenerator[tuple[int, Step], None]:
    """(which job, step). An error of one ends all; whoever made them closes them."""
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

"""AsyncEngine: an LLMEngine on a thread of its own, for asyncio."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncGenerator, Callable
from typing import Any

from pumice.engine.engine import LLMEngine, Prompt
from pumice.engine.request import Delta, SamplingParams
from pumice.errors import PumiceError

_Item = Delta | BaseException


class AsyncEngine:
    """`async for delta in engine.stream(prompt, params)`; leaving the loop cancels the request within a step.

    Use as an async context manager, or call `close`.
    """

    def __init__(self, engine: LLMEngine) -> None:
        self.engine = engine
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._sinks: dict[str, Callable[[_Item], None]] = {}
        self._thread = threading.Thread(target=self._run, name="pumice-engine", daemon=True)
        self._closed = False
        self._thread.start()

    async def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        continues_text: bool = True,
    ) -> AsyncGenerator[Delta, None]:
        """One request, delta by delta. Errors of `LLMEngine.add_request` are raised here."""
        if self._closed:
            raise PumiceError("the engine is closed")
        loop = asyncio.get_running_loop()
        items: asyncio.Queue[_Item] = asyncio.Queue()
        started: asyncio.Future[str] = loop.create_future()

        def sink(item: _Item) -> None:
            loop.call_soon_threadsafe(items.put_nowait, item)

        def settle(value: Any, error: BaseException | None = None) -> None:
            if started.done():
                return
            if error is not None:
                started.set_exception(error)
            else:
                started.set_result(value)

        def add() -> None:
            try:
                name = self.engine.add_request(
                    prompt, params, request_id=request_id, continues_text=continues_text
                )
            except BaseException as error:
                loop.call_soon_threadsafe(settle, None, error)
                return
            self._sinks[name] = sink
            loop.call_soon_threadsafe(settle, name)

        self._commands.put(add)
        name: str | None = None
        try:
            # Shielded: were the wait cancelled before the thread answers, the request would run unseen.
            name = await asyncio.shield(started)
            while True:
                item = await items.get()
                if isinstance(item, BaseException):
                    raise item
                yield item
                if item.finish_reason is not None:
                    return
        finally:
            if name is not None:
                self._cancel(name)
            else:
                started.add_done_callback(self._cancel_late)

    def _cancel_late(self, started: asyncio.Future[str]) -> None:
        if not started.cancelled() and started.exception() is None:
            self._cancel(started.result())

    def _cancel(self, name: str) -> None:
        def cancel() -> None:
            self._sinks.pop(name, None)
            self.engine.cancel(name)

        self._commands.put(cancel)

    def _run(self) -> None:
        while True:
            try:
                command = self._commands.get(block=not self.engine.has_work)
                if command is None:
                    return
                command()
                continue  # all commands first, then a step
            except queue.Empty:
                pass
            try:
                deltas = self.engine.step()
            except BaseException as error:
                self._fail(error)
                continue
            for delta in deltas:
                sink = self._sinks.get(delta.request_id)
                if sink is not None:
                    sink(delta)
                if delta.finish_reason is not None:
                    self._sinks.pop(delta.request_id, None)

    def _fail(self, error: BaseException) -> None:
        """A step that failed ends every request with its error; the engine goes on for later ones."""
        for name, sink in list(self._sinks.items()):
            self.engine.cancel(name)
            sink(error)
        self._sinks.clear()

    async def close(self) -> None:
        """Ends all requests and the thread."""
        if self._closed:
            return
        self._closed = True

        def stop() -> None:
            self._fail(PumiceError("the engine was closed"))

        self._commands.put(stop)
        self._commands.put(None)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    async def __aenter__(self) -> AsyncEngine:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

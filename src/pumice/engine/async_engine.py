"""The engine for asyncio: a thread steps, coroutines consume.

Only that thread touches the engine. Coroutines leave commands, which it takes between two steps, so
a request that nobody reads any more is gone within one step.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from collections.abc import Sequence as SequenceOf
from typing import TYPE_CHECKING, Any

from pumice.engine.engine import LLMEngine
from pumice.engine.outputs import last_delta
from pumice.engine.pooling import Pooling, check_pooling, vector_of
from pumice.engine.request import Delta, Prompt
from pumice.engine.sampling_params import SamplingParams
from pumice.engine.sequence import SequenceGroup
from pumice.errors import DeviceError, EngineClosedError

if TYPE_CHECKING:
    import numpy as np

Item = Delta | Exception


class _Mailbox:
    """A coroutine's end of a request: its loop's thread's, but for `left` (outputs that have not
    finished), which is the engine's.
    """

    def __init__(self, outputs: int) -> None:
        self.left = outputs
        self.loop = asyncio.get_running_loop()
        self._items: deque[Item] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: Item) -> None:
        self._items.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> Item:
        while not self._items:
            self._waiter = self.loop.create_future()
            await self._waiter
        return self._items.popleft()


Post = list[tuple[_Mailbox, Item]]


def _post(letters: Post) -> None:
    """Puts each item into its mailbox, from any thread. A call that wakes another thread's loop
    costs as much as all that follows it, so there is one for all streams of a step.
    """
    loops: dict[asyncio.AbstractEventLoop, Post] = {}
    for letter in letters:
        loops.setdefault(letter[0].loop, []).append(letter)
    for loop, part in loops.items():
        try:
            loop.call_soon_threadsafe(_put_all, part)
        except RuntimeError:  # the loop is closed, so nobody waits
            pass


def _put_all(letters: Post) -> None:
    for mailbox, item in letters:
        mailbox.put(item)


class AsyncEngine:
    """Streams of many requests at once, for one or several event loops.

    An async context manager; else call `close`. Until then nobody else may use the engine.
    """

    def __init__(self, engine: LLMEngine) -> None:
        self.engine = engine
        self._mailboxes: dict[str, _Mailbox] = {}  # the thread's
        self._commands: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._draining = self._closed = False
        self._idle = threading.Event()  # nothing is alive
        self._thread = threading.Thread(target=self._work, name="pumice-engine", daemon=True)
        self._thread.start()

    async def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Any
    ) -> AsyncGenerator[Delta, None]:
        """One request, delta by delta; the last one has the completion.

        options: `Request`'s other fields; with n > 1, every output's last delta has its completion.
        Closing the generator (`aclose`), or cancelling the task that reads it, cancels the request.
        Errors are those of `LLMEngine.prepare` and `submit`; DeviceError, in every request, when a
        step fails; EngineClosedError after `drain` or `close`.
        """
        if self._draining or self._closed:
            raise EngineClosedError("the engine is closing and takes no more requests")
        group = await asyncio.to_thread(self.engine.prepare, prompt, params, **options)
        outputs = len(group.open)
        mailbox = _Mailbox(outputs)
        self._command(lambda: self._submit(group, mailbox))
        try:
            while outputs:
                item = await mailbox.get()
                if isinstance(item, Exception):
                    outputs = 0
                    raise item
                outputs -= item.completion is not None
                yield item
        finally:
            if outputs and not self._closed:
                self._command(lambda: self._cancel(group.request_id, mailbox))

    async def embed(
        self,
        prompts: SequenceOf[Prompt],
        pooling: Pooling = "mean",
        normalize: bool = True,
        **options: Any,
    ) -> list[np.ndarray]:
        """A vector float32[H] for each prompt; see `LLMEngine.embed`. No more of them are requests
        at once than can run, so many prompts do not fill the queue.
        """
        check_pooling(pooling)
        places = asyncio.Semaphore(self.engine.scheduler.max_running)

        async def one(prompt: Prompt) -> np.ndarray:
            async with places:
                deltas = self.stream(prompt, pooling=pooling, **options)
                try:
                    async for delta in deltas:
                        if delta.completion is not None:
                            return vector_of(delta.completion, normalize)
                finally:
                    await deltas.aclose()
            raise EngineClosedError("the engine closed before the embedding was computed")

        tasks = [asyncio.ensure_future(one(prompt)) for prompt in prompts]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def figures(self) -> dict[str, Any]:
        """`LLMEngine.figures`. It only reads numbers, so the thread goes on."""
        return self.engine.figures()

    async def drain(self, timeout_s: float) -> bool:
        """Admits nothing more, lets what was admitted finish for at most so many seconds, and
        closes. True when all of it finished; what did not ends as cancelled.
        """
        with self._wake:
            self._draining = True
            self._wake.notify()
        finished = await asyncio.to_thread(self._idle.wait, timeout_s) and not self._closed
        await self.close()
        return finished

    async def close(self) -> None:
        """Ends the thread after its step. Requests that were alive end as cancelled."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join)

    async def __aenter__(self) -> AsyncEngine:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # The coroutines' side

    def _command(self, command: Callable[[], None]) -> None:
        with self._wake:
            if self._closed:
                raise EngineClosedError("the engine is closed")
            self._commands.append(command)
            self._wake.notify()

    # The thread's side

    def _work(self) -> None:
        while self._take_commands():
            try:
                deltas = self.engine.step()
            except Exception as error:  # tell all whose step it was, and be ready for others
                self._fail(error)
                continue
            self._deliver(deltas)
        self.engine.close()
        for request_id in self.engine.alive:
            self._deliver(map(last_delta, self.engine.cancel(request_id)))
        self._idle.set()

    def _take_commands(self) -> bool:
        """Waits for something to do; False when it is time to end."""
        with self._wake:
            while not (self._commands or self.engine.has_work or self._closed):
                if self._draining:
                    self._idle.set()
                self._wake.wait()
            commands = list(self._commands)
            self._commands.clear()
            closed = self._closed
        for command in commands:
            command()
        return not closed

    def _submit(self, group: SequenceGroup, mailbox: _Mailbox) -> None:
        try:
            if self._draining:
                raise EngineClosedError("the engine is closing and takes no more requests")
            self.engine.submit(group)
        except Exception as error:  # who asked must be told, whatever it is
            _post([(mailbox, error)])
        else:
            self._mailboxes[group.request_id] = mailbox

    def _cancel(self, request_id: str, mailbox: _Mailbox) -> None:
        if self._mailboxes.get(request_id) is mailbox:  # else it has finished already
            del self._mailboxes[request_id]
            self.engine.cancel(request_id)

    def _deliver(self, deltas: Iterable[Delta]) -> None:
        letters: Post = []
        for delta in deltas:
            mailbox = self._mailboxes.get(delta.request_id)
            if mailbox is None:
                continue
            mailbox.left -= delta.completion is not None
            if not mailbox.left:
                del self._mailboxes[delta.request_id]
            letters.append((mailbox, delta))
        _post(letters)

    def _fail(self, error: Exception) -> None:
        for request_id in self.engine.alive:
            self.engine.cancel(request_id)
        letters: Post = []
        for mailbox in self._mailboxes.values():
            # One object in several tasks would collect all of their tracebacks.
            told = DeviceError(f"the step failed: {type(error).__name__}: {error}")
            told.__cause__ = error
            letters.append((mailbox, told))
        self._mailboxes = {}
        _post(letters)

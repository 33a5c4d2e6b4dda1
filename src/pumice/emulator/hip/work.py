"""Streams, events and graphs of the stand-in.

Work waits in its stream until somebody asks for it (synchronizes, queries, frees), so a program
that forgets to wait reads stale memory here too. Streams run in the order of their work; an event
that a stream waits for pulls the other stream along.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from pumice.emulator.hip.status import HipError, Status

Work = Callable[[], None]


@contextlib.contextmanager
def interrupts_between() -> Iterator[Work]:
    """Has Ctrl-C wait for the end of a kernel, which it does not end on a real card either: yields
    what raises it then. A second one is raised at once.
    """
    asked = False

    def note(number: int, frame: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    def between() -> None:
        if asked:
            raise KeyboardInterrupt

    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield between  # somebody else hears it
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield between
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass(eq=False)
class Capture:
    """A graph in the making: work in the order of its recording (one of its valid orders)."""

    origin: Stream
    nodes: list[Work] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    unjoined: set[int] = field(default_factory=set)  # id() of streams that joined by an event
    invalid: bool = False
    ended: bool = False


@dataclass(eq=False)
class Event:
    """Happens when `stream` has done `position` pieces of work; never recorded: has happened."""

    timed: bool = True
    stream: Stream | None = None
    position: int = 0
    moment: float = 0.0
    capture: Capture | None = None

    def refuse_captured(self) -> None:
        """A captured event is part of a graph and happens nowhere else."""
        if self.capture is not None:
            raise HipError(Status.CAPTURED_EVENT, "the event was recorded in a capture")

    @property
    def done(self) -> bool:
        return self.stream is None or self.stream.done >= self.position


class Stream:
    """A queue. `done` counts finished work, `given` all work."""

    def __init__(self) -> None:
        self._queue: deque[Work] = deque()
        self.done = 0
        self.capture: Capture | None = None

    @property
    def given(self) -> int:
        return self.done + len(self._queue)

    def put(self, work: Work) -> None:
        """Into the queue, or into the graph that is being captured."""
        if self.capture is not None:
            if self.capture.invalid:
                raise HipError(Status.STREAM_CAPTURE_INVALIDATED)
            self.capture.nodes.append(work)
            return
        self._queue.append(work)

    def run(self, until: int | None = None, between: Work = lambda: None) -> None:
        """Does work up to a position (all). between: called after each piece; what it raises leaves
        the rest for later.
        """
        last = self.given if until is None else until
        while self.done < last and self._queue:
            work = self._queue.popleft()
            self.done += 1
            work()
            between()

    def refuse_capture(self) -> None:
        """Waiting for a stream that is being captured spoils the graph."""
        if self.capture is not None:
            self.capture.invalid = True
            raise HipError(Status.STREAM_CAPTURE_UNSUPPORTED, "the stream is being captured")

    # -- events -----------------------------------------------------------------------------------

    def record(self, event: Event) -> None:
        if self.capture is not None:
            event.capture, event.stream = self.capture, self
            return
        event.capture = None

        def happen() -> None:
            event.moment = time.perf_counter()

        self._queue.append(happen)
        event.stream, event.position = self, self.given

    def wait(self, event: Event) -> None:
        if event.capture is not None:
            if event.capture.ended:
                event.refuse_captured()
            self._join(event.capture, event)
            return
        source, position = event.stream, event.position
        if source is not None and source is not self:
            self.put(lambda: source.run(position))

    def _join(self, capture: Capture, event: Event) -> None:
        """A captured event draws this stream into its graph, or that stream's work back."""
        if self.capture is None:
            self.capture = capture
            capture.streams.append(self)
            capture.unjoined.add(id(self))
        elif self.capture is not capture:
            raise HipError(Status.STREAM_CAPTURE_UNSUPPORTED, "an event of another graph")
        if event.stream is not None:
            capture.unjoined.discard(id(event.stream))


class Graph:
    """Captured work."""

    def __init__(self, nodes: list[Work]) -> None:
        self.nodes = nodes


def begin_capture(stream: Stream) -> None:
    if stream.capture is not None:
        raise HipError(Status.INVALID_VALUE, "the stream is being captured already")
    stream.capture = Capture(stream)


def end_capture(stream: Stream) -> Graph:
    capture = stream.capture
    if capture is None or capture.origin is not stream:
        raise HipError(Status.INVALID_VALUE, "no capture began on this stream")
    capture.ended = True
    for member in [stream, *capture.streams]:
        member.capture = None
    if capture.invalid:
        raise HipError(Status.STREAM_CAPTURE_INVALIDATED)
    if capture.unjoined:
        raise HipError(
            Status.STREAM_CAPTURE_UNJOINED, f"{len(capture.unjoined)} streams did not come back"
        )
    return Graph(capture.nodes)

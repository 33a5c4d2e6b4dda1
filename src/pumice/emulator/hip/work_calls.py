"""Streams, events and captured graphs."""

from __future__ import annotations

from pumice.emulator.hip import abi
from pumice.emulator.hip.memory_calls import MemoryCalls
from pumice.emulator.hip.status import HipError, Status
from pumice.emulator.hip.work import Event, Graph, Stream, begin_capture, end_capture


class WorkCalls(MemoryCalls):
    """hipStream*, hipEvent*, hipGraph*."""

    def _hipStreamCreateWithFlags(self, out: int, flags: int) -> None:
        self._new(Stream(), out)

    def _hipStreamDestroy(self, handle: int) -> None:
        stream = self._get(handle, Stream)
        del self._objects[handle]
        if self._lost is None:  # work that was given is still done
            self._run(stream)

    def _hipStreamSynchronize(self, handle: int) -> None:
        stream = self._stream(handle)
        stream.refuse_capture()
        self._run(stream)

    def _hipStreamWaitEvent(self, stream: int, event: int, flags: int) -> None:
        self._stream(stream).wait(self._get(event, Event))

    def _hipEventCreateWithFlags(self, out: int, flags: int) -> None:
        self._new(Event(timed=not flags & 2), out)

    def _hipEventDestroy(self, handle: int) -> None:
        self._delete(handle, Event)

    def _hipEventRecord(self, event: int, stream: int) -> None:
        self._stream(stream).record(self._get(event, Event))

    def _hipEventSynchronize(self, handle: int) -> None:
        event = self._get(handle, Event)
        event.refuse_captured()
        if event.stream is not None:
            event.stream.refuse_capture()
            self._run(event.stream, event.position)

    def _hipEventQuery(self, handle: int) -> int:
        event = self._get(handle, Event)
        event.refuse_captured()
        if event.stream is None or event.done:
            return Status.SUCCESS
        self._run(event.stream, event.stream.done + 1)  # progress, as time would bring
        return Status.SUCCESS if event.done else Status.NOT_READY

    def _hipEventElapsedTime(self, out: int, start: int, end: int) -> None:
        first, second = self._get(start, Event), self._get(end, Event)
        if not (first.timed and second.timed and first.stream and second.stream):
            raise HipError(Status.INVALID_HANDLE, "an event is not timed or was not recorded")
        if not (first.done and second.done):
            raise HipError(Status.NOT_READY)
        abi.write_float(out, 1000 * (second.moment - first.moment))

    def _hipStreamBeginCapture(self, stream: int, mode: int) -> None:
        if not stream:
            raise HipError(Status.STREAM_CAPTURE_UNSUPPORTED, "the null stream")
        begin_capture(self._stream(stream))

    def _hipStreamEndCapture(self, stream: int, out: int) -> None:
        self._new(end_capture(self._stream(stream)), out)

    def _hipGraphInstantiateWithFlags(self, out: int, graph: int, flags: int) -> None:
        self._new(Graph(list(self._get(graph, Graph).nodes)), out)

    def _hipGraphLaunch(self, executable: int, stream: int) -> None:
        queue = self._stream(stream)
        for node in self._get(executable, Graph).nodes:
            queue.put(node)

    def _hipGraphGetNodes(self, graph: int, nodes: int, count: int) -> None:
        if nodes:
            raise HipError(Status.NOT_SUPPORTED, "only the number of nodes is emulated")
        abi.write_size(count, len(self._get(graph, Graph).nodes))

    def _hipGraphDestroy(self, graph: int) -> None:
        self._delete(graph, Graph)

    def _hipGraphExecDestroy(self, executable: int) -> None:
        self._delete(executable, Graph)

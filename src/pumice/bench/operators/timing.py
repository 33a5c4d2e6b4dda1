"""Times GPU work: captured graphs of many calls over rotating inputs, between two events.

Inputs rotate over more memory than the last cache holds, so that a call reads from memory as it
would in a model; the graph takes the host's part out of the figure. What is to be compared is
replayed in turns: a GPU's clock follows its power and its temperature, and changes within a second.
"""

from __future__ import annotations

import contextlib
import gc
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

FLUSH_BYTES = 1 << 28  # inputs in rotation: several times an H200's second-level cache
MAX_COPIES = 64
ROUNDS = 7


def copies_for(nbytes: int) -> int:
    """Sets of inputs of that size that a rotation needs."""
    return max(1, min(MAX_COPIES, -(-FLUSH_BYTES // max(nbytes, 1))))


@dataclass(frozen=True)
class Captured:
    """A graph of `count` calls."""

    graph: torch.cuda.CUDAGraph
    count: int

    def replay_us(self) -> float:
        """µs of one call in one replay."""
        return event_ms(self.graph.replay) * 1e3 / self.count


def capture(
    call: Callable[[Any], object], inputs: Sequence[Any], *, target_ms: float = 4.0
) -> Captured:
    """A graph of about `target_ms` of calls, replayed once. All inputs are seen before: what a call
    prepares once for each is no part of the graph."""
    call(inputs[0])
    torch.cuda.synchronize()
    once = event_ms(lambda: call(inputs[0]))
    count = int(max(1, min(200, target_ms / max(once, 1e-3))))
    count = max(count, min(len(inputs), 8))
    for one in inputs[1:count]:
        call(one)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with _no_collection(), torch.cuda.graph(graph, stream=stream):
        for index in range(count):
            call(inputs[index % len(inputs)])
    graph.replay()
    return Captured(graph, count)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Nothing is collected within: a graph that goes while another is captured (one of a call that
    failed hangs on its exception) spoils the capture."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def microseconds(
    call: Callable[[Any], object], inputs: Sequence[Any], *, target_ms: float = 4.0, runs: int = 5
) -> float:
    """Median µs of one call over several replays of a graph that goes through the inputs."""
    captured = capture(call, inputs, target_ms=target_ms)
    return statistics.median(captured.replay_us() for _ in range(runs))


def in_turns(graphs: Sequence[Captured], rounds: int = ROUNDS) -> list[float]:
    """Median µs of one call of each graph, replayed one after another in every round."""
    found: list[list[float]] = [[] for _ in graphs]
    for _ in range(rounds):
        for times, captured in zip(found, graphs, strict=True):
            times.append(captured.replay_us())
    return [statistics.median(times) for times in found]


def event_ms(work: Callable[[], object]) -> float:
    """Milliseconds of the device's work between two events."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    work()
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop))


def copy_bandwidth(nbytes: int = 1 << 31) -> float:
    """Bytes read and written a second by a large device-to-device copy."""
    source = torch.empty(nbytes, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    target.copy_(source)
    best = min(event_ms(lambda: target.copy_(source)) for _ in range(7))
    return 2 * nbytes / (best * 1e-3)


def matmul_peak(dtype: torch.dtype = torch.bfloat16, size: int = 8192) -> float:
    """Operations a second of PyTorch's own product of random square matrices."""
    a = torch.randn(size, size, device="cuda").to(dtype)
    b = torch.randn(size, size, device="cuda").to(dtype)
    a @ b
    return 2 * size**3 / (statistics.median(event_ms(lambda: a @ b) for _ in range(9)) * 1e-3)

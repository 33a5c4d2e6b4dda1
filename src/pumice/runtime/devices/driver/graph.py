"""Captured graphs: work recorded once from a stream, launched with one call."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from pumice.runtime.devices.driver.stream import Stream

if TYPE_CHECKING:
    from pumice.runtime.devices.driver.library import Driver

_THREAD_LOCAL = 1  # capture mode: other threads' calls are none of its business


class Graph:
    """An executable graph; nodes: how many pieces of work it holds."""

    def __init__(self, driver: Driver, handle: int | None, nodes: int) -> None:
        self._driver, self.handle, self.nodes = driver, handle, nodes
        self._finalizer = weakref.finalize(
            self, driver.status, "graph_executable_destroy", self.handle
        )

    def launch(self, stream: Stream) -> None:
        """Puts all of it into a stream."""
        self._driver.call(
            "graph_launch", self.handle, stream.handle, attempted="launching a captured graph"
        )

    def close(self) -> None:
        self._finalizer()


def capture(driver: Driver, stream: Stream, record: Callable[[], None]) -> Graph:
    """Records what `record` puts into a stream, without running it. An exception of `record` ends
    the capture and goes on.
    """
    driver.call(
        "capture_begin", stream.handle, _THREAD_LOCAL, attempted="beginning to capture a graph"
    )
    graph = ctypes.c_void_p()
    try:
        record()
    except BaseException:
        driver.status("capture_end", stream.handle, ctypes.byref(graph))
        if graph.value:
            driver.status("graph_destroy", graph)
        raise
    driver.call(
        "capture_end", stream.handle, ctypes.byref(graph), attempted="ending a graph's capture"
    )
    try:
        count = ctypes.c_size_t()
        driver.call(
            "graph_nodes", graph, None, ctypes.byref(count), attempted="counting a graph's nodes"
        )
        executable = ctypes.c_void_p()
        driver.call(
            "graph_instantiate",
            ctypes.byref(executable),
            graph,
            0,
            attempted=f"instantiating a captured graph of {count.value} nodes",
        )
    finally:
        driver.status("graph_destroy", graph)
    return Graph(driver, executable.value, count.value)

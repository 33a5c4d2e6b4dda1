#!/usr/bin/env python3
"""Tries the driver-level runtime on an NVIDIA GPU: memory, copies, launches, graphs, errors, times.

    python tests/codegen/cuda_cubin.py sm_90 /tmp/add.cubin      # anywhere; needs Triton
    PYTHONPATH=src python scripts/try_driver_cuda.py /tmp/add.cubin      # on the GPU's machine

Needs NumPy and the driver; compiles nothing. Prints one line a check; the last is JSON with the
times. Exits with 1 at the first check that fails.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from pumice.errors import DeviceError, OutOfMemoryError
from pumice.runtime.devices.driver.choose import open_device
from pumice.runtime.devices.driver.device import DriverDevice
from pumice.runtime.devices.driver.launch import Arguments, Launch
from pumice.runtime.devices.driver.stream import Stream
from pumice.runtime.devices.driver.upload import Uploader

BLOCK, THREADS = 1024, 128  # of tests/codegen/cuda_cubin.py
KINDS = ("pointer", "pointer", "pointer", "int32", "pointer", "pointer")
CHAIN = 100  # launches of a graph


def check(what: str, good: bool) -> None:
    print(f"{'ok  ' if good else 'FAIL'} {what}", flush=True)
    if not good:
        raise SystemExit(1)


def fails(what: str, call: Callable[[], object], kind: type[Exception], text: str) -> None:
    """A call that must fail with an exception of a kind whose message holds a text."""
    try:
        call()
    except kind as error:
        check(f"{what}: {str(error).splitlines()[0]}", text in str(error))
    else:
        check(f"{what}: nothing was raised", False)


def device_ms(device: DriverDevice, stream: Stream, work: Callable[[], None], repeat: int) -> float:
    """Median device time of a piece of work, in milliseconds."""
    times = []
    for _ in range(repeat):
        start, end = device.event(), device.event()
        stream.record(start)
        work()
        stream.record(end)
        end.synchronize()
        times.append(end.milliseconds_since(start))
    return float(np.median(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cubin", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--elements", type=int, default=(1 << 26) + 3)
    options = parser.parse_args()
    n = options.elements
    device = open_device(options.device)
    p = device.properties
    print(f"     {device}: {p}")
    check("the architecture is named", p.arch.startswith("sm_") and p.wave == 32)
    same = open_device(f"cuda:{p.pci}")
    check("the PCI id finds the same device", same.properties == p)
    memory = device.memory()
    check(f"memory {memory}", 0 < memory.free <= memory.total)

    stream = device.stream()
    random = np.random.default_rng(0)
    x, y = (random.standard_normal(n, dtype=np.float32) for _ in range(2))
    buffers = [device.allocate(4 * n) for _ in range(3)]
    check("allocations count", device.memory().free <= memory.free - 12 * n + (1 << 26))
    for buffer, array in zip(buffers, (x, y), strict=False):
        device.upload(buffer.address, array, stream)
    device.fill(buffers[2].address, 0xFF, 4 * n, stream)  # NaN
    module = device.load_kernels(options.cubin.read_bytes(), options.cubin.name)
    function = module.function("vector_add")
    registers = function.attribute("registers")
    check(f"registers {registers}, spills {function.attribute('local_bytes')}", registers > 0)
    arguments = Arguments(KINDS)
    arguments.set_all([*(b.address for b in buffers), n, 0, 0])
    launch = Launch(function, arguments, (-(-n // BLOCK), 1, 1), (THREADS, 1, 1))
    launch.issue(stream)
    stream.synchronize()
    out = device.read(buffers[2].address, (n,), np.float32)
    check(f"a vector addition of {n:,}", bool(np.array_equal(out, x + y)))

    small = Arguments(KINDS)
    small.set_all([*(b.address for b in buffers), BLOCK, 0, 0])
    tiny = Launch(function, small, (1, 1, 1), (THREADS, 1, 1))

    def chain() -> None:
        for _ in range(CHAIN):
            tiny.issue(stream)

    graph = device.capture(stream, chain)
    check(f"a graph of {graph.nodes} nodes", graph.nodes == CHAIN)
    device.fill(buffers[2].address, 0xFF, 4 * BLOCK, stream)
    graph.launch(stream)
    head = device.read(buffers[2].address, (BLOCK,), np.float32)
    check("a graph's results", bool(np.array_equal(head, (x + y)[:BLOCK])))

    blocks = function.blocks_per_unit(THREADS)
    check(f"{blocks} blocks on each of {p.units} units", blocks > 0)
    together = Launch(
        function, arguments, (blocks * p.units, 1, 1), (THREADS, 1, 1), cooperative=True
    )
    together.issue(stream)
    stream.synchronize()
    check(f"a cooperative launch of {blocks * p.units} blocks", True)
    crowd = Launch(
        function, arguments, (blocks * p.units + 1, 1, 1), (THREADS, 1, 1), cooperative=True
    )
    fails("one block more", lambda: crowd.issue(stream), DeviceError,
          "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE")  # fmt: skip
    early = Launch(function, small, (1, 1, 1), (THREADS, 1, 1), programmatic=True)

    def early_chain() -> None:
        for _ in range(CHAIN):
            early.issue(stream)

    early_graph = device.capture(stream, early_chain)
    early_graph.launch(stream)
    stream.synchronize()
    check(f"a graph of {early_graph.nodes} programmatic launches", early_graph.nodes == CHAIN)

    side = device.stream()
    fork, join = device.event(timed=False), device.event(timed=False)

    def two_streams() -> None:
        stream.record(fork)
        side.wait(fork)
        device.fill(buffers[2].address, 1, 4, side)
        device.fill(buffers[2].address + 4, 2, 4, stream)
        side.record(join)
        stream.wait(join)

    both = device.capture(stream, two_streams)
    both.launch(stream)
    parts = device.read(buffers[2].address, (8,), np.uint8).tolist()
    check(f"a graph over two streams: {parts}", parts == [1] * 4 + [2] * 4)

    fails("too much memory", lambda: device.allocate(1 << 50), OutOfMemoryError,
          "CUDA_ERROR_OUT_OF_MEMORY")  # fmt: skip
    fails("no cubin", lambda: device.load_kernels(b"nothing".ljust(64, b"\0")), DeviceError,
          "CUDA_ERROR_")  # fmt: skip
    fails("no such kernel", lambda: module.function("gemm"), DeviceError,
          "CUDA_ERROR_NOT_FOUND")  # fmt: skip
    wide = Launch(function, arguments, (1, 1, 1), (4096, 1, 1))
    fails("a block too large", lambda: wide.issue(stream), DeviceError, "CUDA_ERROR_INVALID_VALUE")
    fails("waiting while capturing", lambda: device.capture(stream, stream.synchronize),
          DeviceError, "CUDA_ERROR_STREAM_CAPTURE")  # fmt: skip
    launch.issue(stream)
    stream.synchronize()
    check("the device works after all these", True)

    times: dict[str, float | str] = {"device": p.name, "arch": p.arch, "elements": n}
    add_ms = device_ms(device, stream, lambda: launch.issue(stream), 20)
    times["add_gb_per_s"] = 12 * n / add_ms / 1e6
    times["launches_us_each"] = 1000 * device_ms(device, stream, chain, 20) / CHAIN
    graph_ms = device_ms(device, stream, lambda: graph.launch(stream), 20)
    times["graph_nodes_us_each"] = 1000 * graph_ms / CHAIN
    early_ms = device_ms(device, stream, lambda: early_graph.launch(stream), 20)
    times["graph_programmatic_us_each"] = 1000 * early_ms / CHAIN
    begin = time.perf_counter()
    for _ in range(CHAIN):
        tiny.issue(stream)
    times["issue_host_us"] = (time.perf_counter() - begin) / CHAIN * 1e6
    stream.synchronize()
    begin = time.perf_counter()
    for _ in range(CHAIN):
        graph.launch(stream)
    times["graph_launch_host_us"] = (time.perf_counter() - begin) / CHAIN * 1e6
    stream.synchronize()
    with device.allocate_host(4 * n) as pinned:
        up = device_ms(
            device, stream, lambda: device.upload(buffers[0].address, pinned.array, stream), 5
        )
        times["pinned_upload_gb_per_s"] = 4 * n / up / 1e6
    with Uploader(device, stream) as uploader:
        uploader.upload(buffers[0].address, y)
        stream.synchronize()
        begin = time.perf_counter()
        uploader.upload(buffers[0].address, x)
        stream.synchronize()
        times["staged_upload_gb_per_s"] = 4 * n / (time.perf_counter() - begin) / 1e9
    back = device.read(buffers[0].address, (n,), np.float32)
    check("an upload in parts", bool(np.array_equal(back, x)))
    pageable = device_ms(device, stream, lambda: device.upload(buffers[0].address, x, stream), 5)
    times["pageable_upload_gb_per_s"] = 4 * n / pageable / 1e6
    print(json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in times.items()}))


if __name__ == "__main__":
    main()

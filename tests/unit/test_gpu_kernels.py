"""An artifact's kernels on a device: how they are launched."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_driver_cuda import image, opened

from pumice.artifact import KernelRecord, Launch
from pumice.runtime.gpu_kernels import Kernels


@pytest.mark.parametrize("programmatic", [True, False])
def test_kernels_that_wait_themselves_begin_early(programmatic: bool, tmp_path: Path) -> None:
    device, library = opened()
    stream, buffer = device.stream(), device.allocate(8)
    device.fill(buffer.address, 0, 8, stream)
    (tmp_path / "axpy.cubin").write_bytes(image())
    record = KernelRecord(
        "axpy_1", "axpy", "axpy.by.hand", "the only one", file="axpy.cubin", entry="axpy",
        kinds=("int32", "float32", "pointer", "pointer"), threads=64, programmatic=programmatic,
    )  # fmt: skip
    manifest: Any = SimpleNamespace(kernels=(record,))
    kernels = Kernels(device, tmp_path, manifest)
    launch = Launch("axpy_1", (), "axpy", (1, 1, 1))
    library.log.clear()
    kernels.bind(launch, [1, 1, buffer.address, buffer.address + 4]).issue(stream)
    stream.synchronize()
    assert library.log.count(("attributes", [(6, 1)])) == programmatic

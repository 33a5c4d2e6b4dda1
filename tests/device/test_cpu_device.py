"""The CPU device through ctypes: a compiled kernel captured in a plan's table and replayed."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from pumice.compiler.codegen import build_library
from pumice.errors import ArtifactError, DeviceError, UsageError
from pumice.operators.base import OperatorCall
from pumice.operators.concat.kernel_tir import Concat
from pumice.runtime.devices.cpu import CapturedPlan, CpuDevice, physical_cpus
from pumice.runtime.devices.tvm_ffi import KernelLibrary, call, global_function
from pumice.targets.detect import detect_cpu

CALL = OperatorCall("concat", {"widths": (3, 5)})
SYMBOL = Concat().source(CALL, detect_cpu(), {}).symbol


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    source = Concat().source(CALL, detect_cpu(), {})
    build_library([source], detect_cpu(), folder / "model.so", workers=1)
    return folder / "model.so"


def _captured(library: Path, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> CapturedPlan:
    pointers = [array.ctypes.data for array in (a, b, out)]
    return CapturedPlan(KernelLibrary(library), [SYMBOL] * 2, [[*pointers, None]] * 2)


def test_replay_runs_every_launch_with_its_integers(library: Path) -> None:
    device = CpuDevice()
    device.ready()
    a = np.arange(21, dtype=np.float32).reshape(7, 3)
    b = -np.arange(35, dtype=np.float32).reshape(7, 5)
    out = np.full((7, 8), np.nan, dtype=np.float32)
    plan = _captured(library, a, b, out)
    for rows in (0, 1, 7):
        out[:] = np.nan
        plan.set_integers(np.array([3, 7]), rows)
        plan.replay()
        np.testing.assert_array_equal(out[:rows], np.concatenate([a, b], axis=1)[:rows])
        assert np.isnan(out[rows:]).all()


def test_a_failing_kernel_is_named(library: Path) -> None:
    a = np.zeros((1, 8), dtype=np.float32)
    plan = _captured(library, a, a, a)
    plan.values["type"][3] = 11  # a string where the kernel wants an integer
    with pytest.raises(DeviceError, match=SYMBOL):
        plan.replay()


def test_unknown_symbol_and_damaged_library(library: Path, tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="no_such_kernel"):
        KernelLibrary(library).function("no_such_kernel")
    broken = tmp_path / "model.so"
    broken.write_bytes(b"not a library")
    with pytest.raises(ArtifactError, match=r"model\.so cannot be loaded"):
        KernelLibrary(broken)


def test_threads_are_set_for_each_calling_thread() -> None:
    device = CpuDevice(threads=len(physical_cpus()))
    seen = []

    def work() -> None:
        device.ready()
        seen.append(call(global_function("runtime.NumThreads")))

    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert seen == [device.threads] * 2


def test_absurd_thread_counts_are_refused() -> None:
    for threads in (0, -1, 100_000):
        with pytest.raises(UsageError, match="threads"):
            CpuDevice(threads=threads)


def test_runtime_imports_no_tvm_module() -> None:
    code = (
        "import sys, pumice.runtime.load, pumice.runtime.devices.tvm_ffi as f; f._libraries();"
        "assert not {'tvm', 'tvm_ffi', 'torch'} & set(sys.modules), sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_weights_file_faults_are_named(tmp_path: Path) -> None:
    from pumice.compiler.storage import WeightWriter
    from pumice.runtime.weights import MappedWeights

    path = tmp_path / "weights.safetensors"
    arrays = {"a": np.arange(7, dtype=np.uint8), "b": np.arange(64, dtype=np.float32)}
    with WeightWriter(path, [(n, x.nbytes) for n, x in arrays.items()]) as writer:
        for name, array in arrays.items():
            writer.write(name, array)
    weights = MappedWeights(path)
    for name, array in arrays.items():
        assert weights.address(name) % 64 == 0
        stored = weights.bytes_of(name)[: array.nbytes]
        np.testing.assert_array_equal(stored, array.view(np.uint8).reshape(-1))
    with pytest.raises(ArtifactError, match="'c'"):
        weights.address("c")
    data = path.read_bytes()
    path.write_bytes(data[:-64])
    with pytest.raises(ArtifactError, match="truncated"):
        MappedWeights(path)
    for header in (b"[]", b'{"a": {"dtype": "U8"}}', b'{"a": {"data_offsets": [0]}}', b'{"a": 1}'):
        path.write_bytes(len(header).to_bytes(8, "little") + header)
        with pytest.raises(ArtifactError, match="damaged header"):
            MappedWeights(path)
    path.write_bytes(b"")
    with pytest.raises(ArtifactError, match="cannot be mapped"):
        MappedWeights(path)


def test_a_narrow_pool_does_not_narrow_later_devices() -> None:
    before = len(physical_cpus())
    CpuDevice(threads=1).ready()
    assert len(physical_cpus()) == before
    CpuDevice(threads=before).ready()

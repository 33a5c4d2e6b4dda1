"""Deliberate bugs in kernels are found, named and placed; correct kernels are left alone."""

from __future__ import annotations

import inspect
import re

import emulator_kernels as kernels
import numpy as np
import pytest
import triton
import triton.language as tl
from emulator_assembly import code_object, kernel

from pumice.emulator.emulator import Emulator
from pumice.emulator.report import LaunchReport
from pumice.errors import (
    ArtifactError,
    KernelFaultError,
    UnimplementedInstructionError,
    UnsupportedError,
    UsageError,
)


@pytest.fixture(autouse=True)
def line_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_DISABLE_LINE_INFO")


SOFTMAX = (("x", "*fp32"), ("out", "*fp32"), ("n", "i32"), ("stride", "i32"))


@triton.jit
def undefined(x, out, n, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    v = tl.load(x + o, mask=o < n, other=1.0)
    tl.store(out + o, tl.sqrt(v), mask=o < n)


def line_of(fn: triton.JITFunction, text: str) -> str:
    """ "emulator_kernels.py:12" of the line of `fn` that holds a text."""
    lines, first = inspect.getsourcelines(fn.fn)
    number = next(i for i, line in enumerate(lines) if text in line)
    return f"{fn.fn.__code__.co_filename.rsplit('/', 1)[-1]}:{first + number}"


def run_softmax(arch: str, edit: str, replacement: str) -> LaunchReport:
    """Softmax of 5 rows with its assembly changed by a regular expression."""
    done = kernels.compiled(kernels.softmax, arch, SOFTMAX, (("BLOCK", 256),))
    text, changes = re.subn(edit, replacement, done.asm["amdgcn"], flags=re.MULTILINE)
    assert changes
    gpu = Emulator(arch, capacity=1 << 24)
    gpu.load(code_object(text, arch))
    x = np.random.default_rng(0).standard_normal((5, 200)).astype(np.float32)
    a, out = gpu.upload(x), gpu.upload(np.full_like(x, np.nan))
    wave = 64 if arch.startswith("gfx9") else 32
    return gpu.launch(
        "softmax", (5,), (4 * wave,), [a, out, 200, 200], lds_bytes=done.metadata.shared
    )


@pytest.mark.parametrize("arch", kernels.MAIN_ARCHS)
def test_a_missing_barrier_is_a_race(arch: str) -> None:
    report = run_softmax(arch, r"^\s*s_barrier(_wait -1|_signal -1)?\s*$", "")
    races = [fault for fault in report.faults if fault.kind in ("race", "uninitialized-lds")]
    assert races
    assert {fault.kernel for fault in races} == {"softmax"}
    assert any("standard.py" in str(f.line) or "emulator_kernels.py" in str(f.line) for f in races)
    with pytest.raises(KernelFaultError, match=r"kernel softmax, .*\.py:\d+, ds_"):
        report.check()


@pytest.mark.parametrize("arch", kernels.MAIN_ARCHS)
def test_reading_lds_that_was_never_written(arch: str) -> None:
    report = run_softmax(arch, r"^\s*ds_(write|store)_b32.*$", "")
    assert "uninitialized-lds" in {fault.kind for fault in report.faults}


def test_an_unchanged_kernel_has_no_faults() -> None:
    assert run_softmax("gfx1100", r"^softmax:", "softmax:").check().faults == []


@pytest.mark.parametrize("arch", kernels.MAIN_ARCHS)
def test_an_off_by_one_mask_is_out_of_bounds(arch: str) -> None:
    n = 130
    x, y = np.ones(n, np.float32), np.ones(n, np.float32)
    out = np.zeros(n, np.float32)
    fn = kernels.vector_add_without_mask
    report = kernels.launch(fn, arch, (1,), [x, y, out, n], {"BLOCK": 256})
    found = [fault for fault in report.faults if fault.kind == "out-of-bounds"]
    assert len(found) == 3  # two loads and a store
    wave, lane = divmod(n, 64 if arch.startswith("gfx9") else 32)
    if arch.startswith("gfx9"):
        assert {(fault.wave, fault.lane) for fault in found} == {(wave, lane)}
    assert {fault.workgroup for fault in found} == {(0, 0, 0)}
    assert any(str(fault.line).endswith(line_of(fn, "tl.store")) for fault in found)
    np.testing.assert_array_equal(out, 2)  # what was in bounds is right
    with pytest.raises(KernelFaultError, match="out-of-bounds: 4 bytes at global address 0x7"):
        report.check()


def test_out_of_bounds_without_the_sanitizer_stops_the_launch() -> None:
    arrays = [np.ones(130, np.float32) for _ in range(3)]
    fn = kernels.vector_add_without_mask
    with pytest.raises(KernelFaultError, match="global_load_b32"):
        kernels.launch(fn, "gfx1100", (1,), [*arrays, 130], {"BLOCK": 256}, sanitize=False)


@pytest.mark.parametrize("arch", kernels.MAIN_ARCHS)
def test_nan_out_of_finite_numbers(arch: str) -> None:
    x = np.array([4.0, 9.0, -1.0, 16.0], np.float32)
    out = np.zeros(4, np.float32)
    report = kernels.launch(undefined, arch, (1,), [x, out, 4], {"BLOCK": 256})
    found = [fault for fault in report.faults if fault.kind == "nan"]
    assert found and found[0].lane == 2
    assert "NaN out of -1" in found[0].message
    assert str(found[0].line).endswith(line_of(undefined, "tl.sqrt"))
    np.testing.assert_allclose(out[[0, 1, 3]], [2, 3, 4])
    assert np.isnan(out[2])


def test_infinity_minus_infinity_is_advice_only() -> None:
    x, out = np.full((1, 200), -np.inf, np.float32), np.zeros((1, 200), np.float32)
    report = kernels.launch(kernels.softmax, "gfx1100", (1,), [x, out, 200, 200], {"BLOCK": 256})
    assert {fault.kind for fault in report.faults} == {"nan-from-infinity"}
    assert report.check() is report


DIVERGENT = """
  v_cmp_gt_u32 vcc_lo, 32, v0
  s_cbranch_vccz .Lother
  s_barrier
  s_branch .Ldone
.Lother:
  s_nop 0
  s_barrier
.Ldone:
"""


def test_a_divergent_barrier() -> None:
    gpu = Emulator("gfx1100", capacity=1 << 24)
    gpu.load(kernel(DIVERGENT, "gfx1100"))
    report = gpu.launch("test", (3,), (64,), [0, 0, 0])
    assert [fault.kind for fault in report.faults] == ["divergent-barrier"]
    assert "different barriers" in report.faults[0].message


def test_a_wave_that_ends_before_the_barrier() -> None:
    body = "v_cmp_gt_u32 vcc_lo, 32, v0\n s_cbranch_vccz .Lout\n s_barrier\n.Lout:\n"
    gpu = Emulator("gfx1100", capacity=1 << 24)
    gpu.load(kernel(body, "gfx1100"))
    report = gpu.launch("test", (1,), (64,), [0, 0, 0])
    assert "1 waves of the workgroup ended" in report.faults[0].message


def test_lds_out_of_bounds() -> None:
    body = "v_lshlrev_b32 v1, 2, v0\n ds_store_b32 v1, v0 offset:256\n s_waitcnt lgkmcnt(0)\n"
    gpu = Emulator("gfx1100", capacity=1 << 24)
    gpu.load(kernel(body, "gfx1100", lds=320))
    report = gpu.launch("test", (1,), (32,), [0, 0, 0])
    (fault,) = report.faults
    assert fault.kind == "out-of-bounds" and fault.lane == 16
    assert "LDS address 0x140" in fault.message


def test_an_unknown_instruction_names_itself() -> None:
    gpu = Emulator("gfx1100", capacity=1 << 24)
    gpu.load(kernel("v_cubeid_f32 v1, v2, v3, v4\n", "gfx1100"))
    with pytest.raises(
        UnimplementedInstructionError,
        match=r"v_cubeid_f32 \(VOP3 [0-9a-f]{16}\) at 0x0, in kernel test for gfx1100",
    ):
        gpu.launch("test", (1,), (32,), [0, 0, 0])


@pytest.mark.parametrize("arch", ["gfx908", "gfx1030", "gfx1250", "sm_90"])
def test_an_architecture_that_is_not_emulated(arch: str) -> None:
    with pytest.raises(UnsupportedError, match=f"no {arch}; it has CDNA2 to 4"):
        Emulator(arch)


def test_what_a_launch_refuses() -> None:
    gpu = Emulator("gfx1100", capacity=1 << 24)
    with pytest.raises(ArtifactError, match="for gfx942, this emulated GPU is a gfx1100"):
        gpu.load(kernel("", "gfx942"))
    module = gpu.load(kernel("", "gfx1100"))
    with pytest.raises(UsageError, match="kernel 'other' is not loaded; loaded: test"):
        gpu.launch("other", (1,), (32,), [])
    with pytest.raises(UsageError, match="2048 threads"):
        gpu.launch("test", (1,), (2048,), [])
    with pytest.raises(UsageError, match="4 arguments given, it takes 3"):
        gpu.launch((module, "test"), (1,), (32,), [0, 0, 0, 0])
    with pytest.raises(UsageError, match="LDS"):
        gpu.launch("test", (1,), (32,), [], lds_bytes=1 << 20)
    with pytest.raises(UsageError, match="grid"):
        gpu.launch("test", (-1,), (32,), [])
    assert gpu.launch("test", (0,), (32,), []).waves == 0

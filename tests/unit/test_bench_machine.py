"""The roofline's kernels compute what they say, and the self-test finds a kernel that does not."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from pumice.bench import microkernels, roofline, selftest
from pumice.bench.costs import Cost
from pumice.bench.model import TestResult
from pumice.bench.plot import check_plot, draw
from pumice.bench.profile import StepProfile, write_trace
from pumice.bench.roofline import Roofline
from pumice.bench.selftest_cases import cases_of
from pumice.bench.tests import ModelTest
from pumice.errors import StorageError, UsageError
from pumice.operators.registry import get_spec
from pumice.runtime.devices.cpu import CapturedPlan, CpuDevice
from pumice.targets import CPU_TARGETS, Target
from pumice.targets.detect import detect_cpu


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def _registers(symbol: str, dtype: str, steps: int, folder: Path) -> np.ndarray:
    target, device = detect_cpu(), CpuDevice()
    device.ready()
    library = device.load_kernels(folder / "model.so")
    count = microkernels.chains(target) * target.vector_bits // 8
    out = device.allocate(2 * count).view(dtype)
    plan = CapturedPlan(library, [symbol], [[out.ctypes.data, None, None]])
    plan.set_integers(np.array([1]), 2)
    plan.set_integers(np.array([2]), steps)
    plan.replay()
    return out.reshape(2, microkernels.chains(target), -1)


def test_dot_kernel(cache_dir: Path) -> None:
    target = detect_cpu()
    dtype, chains = microkernels.dot_dtype(target), microkernels.chains(target)
    out = _registers(microkernels.DOT, dtype, 5, roofline.kernels(target, cache_dir))
    expected = np.repeat(np.arange(1, chains + 1, dtype=dtype)[:, None], out.shape[2], axis=1)
    signed = microkernels.dot_instruction(target) == "sdot"
    for _ in range(5):
        parts = expected.view(np.int8 if signed else np.uint8)
        width = expected.dtype.itemsize
        expected = expected + parts.reshape(*expected.shape, width).sum(-1).astype(dtype)
    np.testing.assert_array_equal(out, np.stack([expected, expected]))


def test_fma_kernel(cache_dir: Path) -> None:
    target = detect_cpu()
    out = _registers(microkernels.FMA, "float32", 5, roofline.kernels(target, cache_dir))
    expected = np.arange(3, 3 + microkernels.chains(target), dtype=np.float32)
    for _ in range(5):
        expected = expected / 2 + 1
    np.testing.assert_array_equal(out, np.broadcast_to(expected[:, None], out.shape))


def test_a_measurement(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "_SECONDS", 0.01)
    monkeypatch.setattr(roofline, "_MIN_BUFFER", 4 << 20)
    monkeypatch.setattr(roofline, "last_cache_bytes", lambda: 1 << 19)
    found = roofline.measure(detect_cpu(), cache_dir=cache_dir)
    # Figures of any machine, however busy: which of them is the largest is not asked, for a
    # measurement of 10 ms on a shared core says nothing about that.
    for figure in (found.read_bytes_per_s, found.fp32_ops_per_s, found.int8_ops_per_s):
        assert 0 < figure < 1e16
    assert found.as_dict()["threads"] == CpuDevice().threads


@pytest.mark.parametrize("target", CPU_TARGETS, ids=lambda t: t.name)
def test_every_target_keeps_its_accumulators_in_registers(target: Target) -> None:
    """The loops hold one dot product (or multiply-add) a chain and no access to memory."""
    from pumice.compiler.codegen import compile_function

    instruction = {"vpmaddubsw + vpaddw": "vpmaddubsw"}.get(
        microkernels.dot_instruction(target), microkernels.dot_instruction(target)
    )
    fma = "fmla" if target.has("neon") else "vfmadd"
    for source, name in (
        (microkernels.dot_kernel(target), instruction),
        (microkernels.fma_kernel(target), fma),
    ):
        module = compile_function(source.function.with_attr("global_symbol", source.symbol), target)
        lines = [line.strip() for line in module.inspect_source("asm").splitlines()]
        found = [line for line in lines if name in line.split("#")[0]]
        assert len(found) >= microkernels.chains(target), (target.name, name)
        assert len(found) % microkernels.chains(target) == 0
        assert not [line for line in found if "(" in line or ("[" in line and "]" not in line)]


def test_selftest_passes_and_finds_a_wrong_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    (good,) = selftest.selftest(detect_cpu(), ("add",))
    assert good.cases >= 4 and not good.fault and good.worst == 0
    spec = get_spec("add")

    def wrong(attrs: object, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        out = inputs["a"] + inputs["b"]
        if out.size > 1:
            out[-1, -1] += 0.01
        return {"out": out}

    bad_spec = dataclasses.replace(spec, reference=wrong)
    monkeypatch.setattr("pumice.bench.selftest_cases.get_spec", lambda name: bad_spec)
    (bad,) = selftest.selftest(detect_cpu(), ("add",))
    assert "times the tolerated error" in bad.fault


def test_an_output_that_is_not_written_is_an_error() -> None:
    case = next(c for c in cases_of("silu_mul", detect_cpu()) if c.expected["out"].size)
    outputs = {"out": np.full_like(case.expected["out"], np.nan)}
    assert selftest.error_of(case, outputs) == float("inf")


def test_decode_cases_are_one_token_a_sequence() -> None:
    cases = [c for c in cases_of("attention", detect_cpu()) if c.call.entry == "decode"]
    assert cases
    assert all((np.diff(c.inputs["query_start"]) == 1).all() for c in cases)


def test_a_trace(tmp_path: Path) -> None:
    profile = StepProfile("tg1", (), (("a", "kernel_a", 2e-6), ("b", "kernel_b", 1e-6)))
    write_trace(tmp_path / "trace.json", [profile])
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    boxes = [(e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert boxes == [("a", 0.0, 2.0), ("b", 2.0, 1.0)]
    with pytest.raises(StorageError):
        write_trace(tmp_path / "missing" / "trace.json", [profile])


def test_a_picture(tmp_path: Path) -> None:
    result = TestResult(ModelTest("tg", 8), (10.0, 11.0), Cost(8e6, 16e6, 0.0), 0.5)
    path = tmp_path / "roofline.svg"
    check_plot(path)
    draw(path, [result], Roofline("t", 2, 1e10, 1e12, 1e11, "dot"), title="model")
    assert "<svg" in path.read_text()
    for bad in (tmp_path / "x.gif", tmp_path / "missing" / "x.svg"):
        with pytest.raises(UsageError, match="--plot is"):
            check_plot(bad)

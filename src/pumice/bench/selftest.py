"""The operators' kernels on this very machine, against their NumPy references.

`python -m pumice.bench.selftest TARGET` prints one JSON object a kernel. It runs in a process of
its own: a kernel that crashes
takes that process along, and `pumice doctor` says so. A case is compiled, run through the runtime
on poisoned outputs, and compared.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pumice.bench.selftest_cases import Case, cases_of
from pumice.errors import CompileError, PumiceError
from pumice.operators.quantized import dequantize_rows
from pumice.operators.registry import OPERATORS
from pumice.runtime.devices.cpu import CapturedPlan, CpuDevice
from pumice.runtime.devices.tvm_ffi import KernelLibrary
from pumice.targets import Target, get_target
from pumice.verify.judge import relative_error

_MAY_DIFFER = 0.05  # share of codes
_AXIS = re.compile(r"[A-Za-z_]\w*\Z")


@dataclass
class KernelResult:
    """cases: how many ran. worst: largest error over what is tolerated. fault: what went wrong."""

    operator: str
    kernel: str
    cases: int = 0
    worst: float = 0.0
    fault: str = ""


def sizes_of(case: Case) -> dict[str, int]:
    """Named sizes of a call: the spec's "float32[T, H]" beside the arrays' shapes, and integer
    attributes.
    """
    sizes = {k: v for k, v in case.call.attrs.items() if type(v) is int}
    for name, text in case.spec.inputs.items():
        if name not in case.inputs:
            continue
        axes = text.partition("[")[2].partition("]")[0].split(",")
        for axis, length in zip(axes, case.inputs[name].shape, strict=False):
            if _AXIS.match(axis.strip()):
                sizes.setdefault(axis.strip(), length)
    return sizes


def run_case(case: Case, library: KernelLibrary, device: CpuDevice) -> dict[str, np.ndarray]:
    """Runs a case on outputs full of NaN (integers: −128); returns them by name."""
    sizes = sizes_of(case)
    arrays: dict[str, np.ndarray] = {}
    arguments: list[int | None] = []
    integers: list[tuple[int, int]] = []

    def place(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        nbytes = int(np.prod(shape)) * dtype.itemsize
        raw = device.allocate(max(1, nbytes))
        arrays[name] = raw[:nbytes].view(dtype).reshape(shape)
        arguments.append(int(raw.ctypes.data))
        return arrays[name]

    for name in case.source.arguments:
        if name in case.expected:
            want = case.expected[name]
            # References compute in float64; a kernel's floating-point output is float32 or float16.
            dtype = np.dtype(np.float32) if want.dtype == np.float64 else want.dtype
            out = place(name, want.shape, dtype)
            if name in case.inputs:  # updated in place
                out[...] = case.inputs[name]
            else:
                out[...] = np.nan if out.dtype.kind == "f" else -128
        elif name in case.inputs:
            place(name, case.inputs[name].shape, case.inputs[name].dtype)[...] = case.inputs[name]
        elif name == "workspace" and case.source.workspace is not None:
            place(name, (case.source.workspace(sizes),), np.dtype(np.uint8))
        elif name in sizes:
            integers.append((len(arguments), sizes[name]))
            arguments.append(None)
        else:
            raise CompileError(f"{case.kernel.name} wants {name!r}, which its spec does not give")
    plan = CapturedPlan(library, [case.source.symbol], [arguments])
    for slot, value in integers:
        plan.set_integers(np.array([slot]), value)
    plan.replay()
    return {name: arrays[name] for name in case.expected}


def error_of(case: Case, outputs: Mapping[str, np.ndarray]) -> float:
    """The largest error over the outputs, as a fraction of the tolerance: above 1 is wrong."""
    expected = dict(case.expected)
    worst = 0.0
    if "x_codes" in expected:
        worst = _quantized_error(outputs, expected)
        del expected["x_codes"], expected["x_sums"]
    for name, want in expected.items():
        if want.size == 0:
            continue
        tolerance = case.spec.tolerance.get(str(outputs[name].dtype), 0.0)
        # A cache holds NaN where nothing was written.
        relative = relative_error(outputs[name], want, unwritten=True)
        worst = max(worst, relative / tolerance if tolerance else 2.0 * (relative != 0))
    return worst


def _quantized_error(got: Mapping[str, np.ndarray], want: Mapping[str, np.ndarray]) -> float:
    """Integer codes: at most one step off, on few elements (float32 may round a tie the other way);
    their sums exact.
    """
    unit = {
        name: {**part, "x_scales": np.ones_like(part["x_scales"])}
        for name, part in (("got", got), ("want", want))
    }
    codes, exact = dequantize_rows(unit["got"]), dequantize_rows(unit["want"])
    if codes.size == 0:
        return 0.0
    sums = codes.reshape(*got["x_sums"].shape, -1).sum(axis=-1)
    off = np.abs(codes - exact)
    if not (sums == got["x_sums"]).all() or off.max() > 1:
        return float("inf")
    return float((off > 0).mean()) / _MAY_DIFFER


def selftest(target: Target, operators: tuple[str, ...] | None = None) -> list[KernelResult]:
    """Compiles and runs the cases of the operators (all of them by default)."""
    from pumice.compiler.codegen import build_library

    cases = [case for name in operators or tuple(OPERATORS) for case in cases_of(name, target)]
    sources = {case.source.symbol: case.source for case in cases}
    device = CpuDevice()
    device.ready()
    results: dict[str, KernelResult] = {}
    with tempfile.TemporaryDirectory(prefix="pumice-") as folder:
        path = Path(folder) / "model.so"
        build_library(list(sources.values()), target, path, workers=device.threads)
        library = device.load_kernels(path)
        for case in cases:
            name = case.kernel.name
            result = results.setdefault(name, KernelResult(case.spec.name, name))
            result.cases += 1
            try:
                error = error_of(case, run_case(case, library, device))
            except PumiceError as fault:
                result.fault = result.fault or str(fault)
                continue
            result.worst = max(result.worst, error)
            if error > 1 and not result.fault:
                result.fault = f"{case.source.symbol}: {error:.3g} times the tolerated error"
    return list(results.values())


if __name__ == "__main__":
    for row in selftest(get_target(sys.argv[1]), tuple(sys.argv[2:]) or None):
        print(json.dumps(row.__dict__), flush=True)

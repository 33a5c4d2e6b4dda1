"""quantize_fp8: rows to 8-bit floats or int8 with float32 scales.

attrs: quantize "tensor" (one scale: the given `scale`, else found), "token",
"group" (128 along the row); out_dtype, power_of_two as in `rows.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from pumice.operators.base import OperatorSpec
from pumice.operators.quantize_fp8.rows import quantize_rows, row_outputs, scales_of, to_codes
from pumice.operators.triton.plan import Problem, TensorSpec, Work

Case = tuple[dict[str, Any], dict[str, np.ndarray]]


def reference(
    attrs: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    x = inputs["x"].astype(np.float64)
    if attrs["quantize"] != "tensor":
        return quantize_rows(attrs, x, inputs["x"].dtype.name)
    name = str(attrs["out_dtype"])
    if "scale" in inputs:
        return {"out": to_codes(x / inputs["scale"].astype(np.float64), name)}
    amax = np.abs(x).max(initial=0.0).reshape(1)
    scales = scales_of(amax, name, bool(attrs.get("power_of_two")))
    return {"out": to_codes(x / scales.astype(np.float64), name), "scales": scales}


def output_specs(
    attrs: Mapping[str, Any], specs: Mapping[str, TensorSpec]
) -> Mapping[str, TensorSpec]:
    x = specs["x"]
    if attrs["quantize"] != "tensor":
        return row_outputs(attrs, x.shape[0], x.shape[1], x.dtype)
    out = {"out": TensorSpec(x.shape, str(attrs["out_dtype"]))}
    return out if "scale" in specs else out | {"scales": TensorSpec((1,), "float32")}


def work(problem: Problem) -> Work:
    """Every tensor once; x twice where its maximum is needed before any code can be made."""
    nbytes = sum(spec.nbytes for spec in problem.tensors.values())
    if problem.attrs.get("quantize") == "tensor" and "scale" not in problem:
        nbytes += problem["x"].nbytes
    return Work(nbytes)


def cases(rng: np.random.Generator) -> list[Case]:
    """Odd widths, no rows, a row of zeros, values beyond a static scale's reach."""
    found: list[Case] = []
    half, brain = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
    fp8, fnuz = "float8_e4m3fn", "float8_e4m3fnuz"
    for rows, width, dtype, mode, name, power in (
        (5, 123, half, "token", fp8, False),
        (0, 128, half, "token", fp8, False),
        (1, 1, half, "group", fp8, False),
        (3, 769, brain, "group", fp8, False),
        (3, 769, brain, "token", "int8", False),
        (9, 256, half, "group", "int8", False),
        (3, 2560, brain, "group", fp8, True),
        (5, 123, brain, "tensor", fp8, False),
        (3, 300, half, "tensor", "int8", False),
        (3, 256, half, "token", fnuz, False),
    ):
        x = (rng.standard_normal((rows, width)) * 3).astype(dtype)
        if rows > 2:
            x[1] = 0
        attrs = {"quantize": mode, "out_dtype": name, "power_of_two": power}
        found.append((attrs, {"x": x}))
        if mode == "tensor":
            scale = np.array([0.01], np.float32)
            found.append((attrs, {"x": x, "scale": scale}))
    return found


def _bench(rows: int, width: int, mode: str, name: str = "float8_e4m3fn") -> Any:
    x = {"x": TensorSpec((rows, width), "bfloat16")}
    return f"{name} a {mode} {rows}x{width}", {"quantize": mode, "out_dtype": name}, x


BENCH = (
    _bench(1, 7168, "group"),  # DeepSeek-V3
    _bench(4096, 7168, "group"),
    _bench(4096, 18432, "group"),
    _bench(4096, 4096, "token"),  # Llama-3-8B
    _bench(4096, 14336, "token"),
    _bench(4096, 8192, "token", "int8"),  # Llama-3-70B
    _bench(4096, 28672, "token"),
    _bench(4096, 8192, "tensor"),
)

TOLERANCE = {
    "float32": 1e-6, "float16": 1e-3, "bfloat16": 5e-3, "int8": 5e-3,
    "float8_e4m3fn": 5e-3, "float8_e4m3fnuz": 5e-3,
}  # fmt: skip

SPEC = OperatorSpec(
    name="quantize_fp8",
    formula="out = round(x / scale), scale = max|x| / largest code over a tensor, token or group",
    axes={"T": "rows", "H": "width", "G": "scales a row"},
    inputs={"x": "float[T, H]", "scale": "float32 [] | [1] (optional: static, a tensor)"},
    outputs={"out": "float8 or int8 [T, H]", "scales": "float32[T, G], [1] for a tensor"},
    reference=reference,
    tolerance=TOLERANCE,
    cases=cases,
    triton_kernels=(
        "pumice.operators.quantize_fp8.triton_plan:MapTiles",
        "pumice.operators.quantize_fp8.triton_plan:MapLoop",
        "pumice.operators.quantize_fp8.triton_plan:QuantizeTensor",
    ),
    output_specs=output_specs,
    work=work,
)

"""dequantize_fp8: 8-bit codes times the scale of their block.

attrs: out_dtype; row_group, column_group: rows and columns that share a scale, 0 for all of them
(DeepSeek-V3's weights: 128, 128).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pumice.dtypes import numpy_dtype
from pumice.operators.base import OperatorSpec
from pumice.operators.quantize_fp8.rows import to_codes
from pumice.operators.quantize_fp8.spec import TOLERANCE, Case, work
from pumice.operators.triton.plan import TensorSpec


def reference(
    attrs: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    x, scales = inputs["x"].astype(np.float64), inputs["scales"].astype(np.float64)
    rows, width = x.shape
    row = np.arange(rows) // (attrs["row_group"] or max(rows, 1))
    column = np.arange(width) // (attrs["column_group"] or max(width, 1))
    value = x * scales[row[:, None], column[None, :]]
    return {"out": value.astype(np.float32).astype(numpy_dtype(str(attrs["out_dtype"])))}


def output_specs(
    attrs: Mapping[str, Any], specs: Mapping[str, TensorSpec]
) -> Mapping[str, TensorSpec]:
    return {"out": TensorSpec(specs["x"].shape, str(attrs["out_dtype"]))}


def cases(rng: np.random.Generator) -> list[Case]:
    found: list[Case] = []
    for rows, width, row_group, column_group, name in (
        (5, 123, 1, 0, "int8"),
        (0, 128, 1, 0, "int8"),
        (130, 300, 128, 128, "float8_e4m3fn"),
        (3, 769, 1, 128, "float8_e4m3fn"),
        (7, 40, 0, 0, "float8_e4m3fnuz"),
    ):
        codes = to_codes(rng.standard_normal((rows, width)) * 60, name)
        shape = (
            -(-rows // (row_group or max(rows, 1))), -(-width // (column_group or width)),
        )  # fmt: skip
        scales = rng.random(shape, np.float32) + np.float32(0.1)
        for out in ("bfloat16", "float16"):
            attrs = {"out_dtype": out, "row_group": row_group, "column_group": column_group}
            found.append((attrs, {"x": codes, "scales": scales}))
    return found


SPEC = OperatorSpec(
    name="dequantize_fp8",
    formula="out[t, h] = x[t, h] · scales[t / row_group, h / column_group]",
    axes={"T": "rows", "H": "width"},
    inputs={"x": "float8 or int8 [T, H]", "scales": "float32[⌈T / rows⌉, ⌈H / columns⌉]"},
    outputs={"out": "float[T, H]"},
    reference=reference,
    tolerance=TOLERANCE,
    cases=cases,
    triton_kernels=("pumice.operators.quantize_fp8.triton_plan:DequantizeTiles",),
    output_specs=output_specs,
    work=work,
)
BENCH = (
    (
        "blocks of 128 7168x18432",  # DeepSeek-V3
        {"out_dtype": "bfloat16", "row_group": 128, "column_group": 128},
        {
            "x": TensorSpec((7168, 18432), "float8_e4m3fn"),
            "scales": TensorSpec((56, 144), "float32"),
        },
    ),
)

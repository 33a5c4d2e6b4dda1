"""dequantize_w4: packed 4-bit weights to 16-bit ones, for products by a library. attrs: those of
gemm_w4, and out_dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pumice.dtypes import numpy_dtype
from pumice.operators.base import OperatorSpec
from pumice.operators.gemm_w4.spec import (
    LLAMA2_7B,
    Case,
    dense_weight,
    make_weight,
    weight_specs,
)
from pumice.operators.triton.plan import Problem, TensorSpec, Work


def reference(
    attrs: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    weight = dense_weight(attrs, inputs).astype(np.float32)
    return {"out": weight.astype(numpy_dtype(str(attrs["out_dtype"])))}


def output_specs(
    attrs: Mapping[str, Any], specs: Mapping[str, TensorSpec]
) -> Mapping[str, TensorSpec]:
    n, words = specs["w"].shape
    return {"out": TensorSpec((n, words * 8), str(attrs["out_dtype"]))}


def cases(rng: np.random.Generator) -> list[Case]:
    found: list[Case] = []
    for n, k, group, offset, dtype, packing in (
        (5, 96, 32, "", "float16", "rows"),
        (0, 64, 32, "", "float16", "rows"),
        (9, 256, 32, "", "float16", "blocks"),
        (33, 384, 128, "zeros", "bfloat16", "blocks"),
        (5, 352, 32, "mins", "float16", "rows"),
        (9, 256, 64, "mins", "bfloat16", "blocks"),
    ):
        zero = 0 if offset == "mins" else 7
        attrs = {"group": group, "zero": zero, "out_dtype": dtype, "packing": packing}
        found.append((attrs, make_weight(rng, n, k, group, offset, packing)))
    return found


def work(problem: Problem) -> Work:
    return Work(sum(spec.nbytes for spec in problem.tensors.values()))


BENCH = tuple(
    (
        f"{n}x{k}",
        {"group": 32, "zero": 7, "out_dtype": "float16", "packing": "blocks"},
        weight_specs(n, k, 32),
    )
    for n, k in LLAMA2_7B[:4]
)
SPEC = OperatorSpec(
    name="dequantize_w4",
    formula="out[n, k] = (code[n, k] − zero) · scale[n, k / group] − min[n, k / group]",
    axes={"N": "outputs", "K": "inputs", "G": "groups along K"},
    inputs={
        "w": "int32[N, K/8]", "scales": "float16[N, G]", "zeros": "uint8[N, G] (optional)",
        "mins": "float16[N, G] (optional, without zeros)",
    },
    outputs={"out": "float16 or bfloat16 [N, K]"},
    reference=reference,
    tolerance={"float16": 1e-3, "bfloat16": 5e-3},
    cases=cases,
    triton_kernels=("pumice.operators.gemm_w4.triton_plan:Dequantize",),
    output_specs=output_specs,
    work=work,
)  # fmt: skip

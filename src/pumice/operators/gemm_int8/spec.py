"""gemm_int8: x·wᵀ of 8-bit integers, summed in 32 bits; scales as in `gemm_fp8` (SmoothQuant,
arXiv:2211.10438). attrs: out_dtype ("bfloat16" by default), activation as in `gemm`."""

from __future__ import annotations

import numpy as np

from pumice.operators.base import OperatorSpec
from pumice.operators.gemm.spec import TOLERANCE, Cases, work
from pumice.operators.gemm_fp8.spec import (
    AXES,
    FORMULA,
    bench,
    output_specs,
    reference,
    scaled_cases,
)


def cases(rng: np.random.Generator) -> Cases:
    """As of `gemm_fp8`, and sums that float32 does not hold exactly."""
    full = np.full((2, 2048), -128, np.int8)
    largest = {"x": full, "w": full, "x_scale": np.asarray(np.float32(2.0**-20))}
    return [*scaled_cases(rng, (np.int8,)), ({"out_dtype": "float32"}, largest)]


SPEC = OperatorSpec(
    name="gemm_int8",
    formula=FORMULA,
    axes=AXES,
    inputs={
        "x": "int8 [M, K]", "w": "int8 [N, K]",
        "x_scale": "float32 of 1 or M elements, optional",
        "w_scale": "float32 of 1 or N elements, optional",
        "bias": "any float [N], optional", "residual": "any float [M, N], optional",
    },
    outputs={"out": "out_dtype [M, N]"},
    reference=reference,
    tolerance=TOLERANCE,
    cases=cases,
    triton_kernels=(
        "pumice.operators.gemm_fp8.hopper_plan:Int8Specialized",
        "pumice.operators.gemm_int8.triton_plan:Int8Tiled",
        "pumice.operators.gemm_int8.triton_plan:Int8SplitK",
        "pumice.operators.gemm_int8.triton_plan:Int8StreamK",
        "pumice.operators.gemm_int8.triton_plan:Int8Vector",
    ),
    output_specs=output_specs,
    work=work,
)  # fmt: skip

BENCH = bench("int8", (1, 16, 32, 64, 512, 4096))

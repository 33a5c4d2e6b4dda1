"""What can't be a call of an operator is refused before any kernel is asked, with the reason."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pumice.errors import UsageError
from pumice.operators.registry import GPU_OPERATORS, get_spec
from pumice.operators.signature import check_inputs
from pumice.operators.triton.plan import TensorSpec


def cases(operator: str) -> list[dict[str, TensorSpec]]:
    made = get_spec(operator).cases(np.random.default_rng(0))
    return [{n: TensorSpec(a.shape, a.dtype.name) for n, a in arrays.items()} for _, arrays in made]


@pytest.mark.parametrize("operator", GPU_OPERATORS)
def test_every_case_fits(operator: str) -> None:
    for specs in cases(operator):
        check_inputs(get_spec(operator), specs)


@pytest.mark.parametrize("operator", GPU_OPERATORS)
def test_other_ranks_types_and_names_do_not(operator: str) -> None:
    spec = get_spec(operator)
    for specs in cases(operator):
        for name, tensor in specs.items():
            if "[" in spec.inputs[name]:
                longer = TensorSpec((1, 1, *tensor.shape), tensor.dtype)
                with pytest.raises(UsageError, match=f"^{operator}: "):
                    check_inputs(spec, {**specs, name: longer})
            for dtype in ("complex64", "bool", "float64"):
                with pytest.raises(UsageError, match=f"{name} is {dtype}.*; allowed: "):
                    check_inputs(spec, {**specs, name: TensorSpec(tensor.shape, dtype)})
        with pytest.raises(UsageError, match="has no tensor 'other'; its tensors are"):
            check_inputs(spec, {**specs, "other": TensorSpec((1,), "float32")})
        first = next(iter(spec.inputs))
        with pytest.raises(UsageError, match=f"{first} is missing; it is"):
            check_inputs(spec, {n: t for n, t in specs.items() if n != first})


def f(*shape: int) -> TensorSpec:
    return TensorSpec(shape, "float16")


@pytest.mark.parametrize(
    ("operator", "given", "text"),
    [
        ("gemm", {"x": f(2, 4), "w": f(3, 5)},
         "gemm: w is float16[3, 5]; allowed: as x [N, K]; here M = 2, K = 4"),
        ("gemm", {"x": f(2, 4), "w": TensorSpec((3, 4), "float32")}, "w is float32[3, 4]"),
        ("gemm", {"x": f(2, 4), "w": f(3, 4), "bias": f(4)}, "bias is float16[4]; allowed: any"),
        ("norm", {"x": f(2, 4), "weight": f(5)}, "weight is float16[5]; allowed: float[H]"),
        ("norm", {"x": f(2, 4), "residual": f(3, 4)}, "residual is float16[3, 4]"),
        ("activation_mul", {"x": f(2, 5)}, "x is float16[2, 5]; allowed: float[T, 2F]"),
        ("gemm_w4", {"x": f(2, 64), "w": TensorSpec((3, 9), "int32"), "scales": f(3, 2)},
         "w is int32[3, 9]; allowed: int32[N, K/8]"),
        ("flash_attention",
         {"q": f(5, 2, 64), "k": f(5, 3, 64), "v": f(5, 2, 64),
          "cu_seqlens_q": TensorSpec((2,), "int32"), "cu_seqlens_k": TensorSpec((2,), "int32")},
         "v is float16[5, 2, 64]; allowed: dtype[Tk, Hk, Dv]; here T = 5"),
        ("paged_prefill",
         {"q": f(5, 2, 64), "k_cache": f(9, 16, 2, 64), "v_cache": f(9, 16, 2, 64),
          "block_table": TensorSpec((3, 2), "int32"), "context_len": TensorSpec((3,), "int32"),
          "query_start": TensorSpec((3,), "int32")},
         "query_start is int32[3]; allowed: int32[S+1]"),
        ("gemm_fp8_block",
         {"x": TensorSpec((2, 200), "float8_e4m3fn"), "w": TensorSpec((3, 200), "float8_e4m3fn"),
          "x_scale": TensorSpec((2, 2), "float32"), "w_scale": TensorSpec((1, 1), "float32")},
         "w_scale is float32[1, 1]; allowed: float32 [ceil(N/128), ceil(K/128)]"),
    ],
)  # fmt: skip
def test_the_reason(operator: str, given: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError) as error:
        check_inputs(get_spec(operator), given)
    assert text in str(error.value)


def test_symbolic_sizes_fit() -> None:
    """While PyTorch traces, a size may be no number."""
    rows: Any = object()
    x = SimpleNamespace(shape=(rows, 4), dtype="float16")
    check_inputs(get_spec("norm"), {"x": x, "weight": f(4), "residual": f(7, 4)})
    with pytest.raises(UsageError, match=r"pumice\.rms_norm: scale is float16"):
        check_inputs(
            get_spec("norm"), {"x": x, "weight": f(5)}, "pumice.rms_norm", {"weight": "scale"}
        )

"""`torch.ops.pumice.*` without a GPU: what fake implementations promise, and what all refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pumice.errors import DeviceError, UsageError
from pumice.torch import explain

ops = torch.ops.pumice
HALF, FULL = torch.float16, torch.float32


def meta(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def whole(*shape: int) -> torch.Tensor:
    return meta(*shape, dtype=torch.int32)


def words(text: str) -> Callable[[Any], Any]:
    """The call that a line of the table below stands for."""
    return lambda: eval(
        text, {"ops": ops, "meta": meta, "whole": whole, "torch": torch, "FULL": FULL}
    )


@pytest.mark.parametrize(
    ("call", "shape", "dtype"),
    [
        ("ops.gemm(meta(5, 4), meta(3, 4))", (5, 3), HALF),
        ("ops.gemm(meta(5, 4), meta(3, 4), None, None, 'silu', FULL)", (5, 3), FULL),
        ("ops.rms_norm(meta(4, 6).t(), meta(4))", (6, 4), HALF),
        ("ops.layer_norm(meta(4, 6).t(), None, None, 1e-5)", (6, 4), HALF),
        ("ops.add_rms_norm_(meta(4, 6), meta(4, 6, dtype=FULL), None)", (4, 6), HALF),
        ("ops.activation_mul(meta(5, 14))", (5, 7), HALF),
        ("ops.quantize_fp8(meta(5, 300), 'group')[1]", (5, 3), FULL),
        ("ops.quantize_fp8(meta(5, 300), 'token', torch.int8)[0]", (5, 300), torch.int8),
        ("ops.gemm_w4(meta(5, 64), whole(3, 8), meta(3, 2))", (5, 3), HALF),
        ("ops.flash_attention(meta(5, 4, 64), meta(7, 2, 64), meta(7, 2, 32), whole(3), whole(3))",
         (5, 4, 32), HALF),
    ],
)  # fmt: skip
def test_fake_results(call: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """As kernels make them: in C order, whatever the inputs' strides are."""
    got = words(call)()
    assert (tuple(got.shape), got.dtype, got.is_contiguous()) == (shape, dtype, True)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("ops.gemm(meta(2, 4), meta(3, 5))", "gemm: w is float16[3, 5]; allowed: as x [N, K]"),
        ("ops.gemm(meta(2, 2, 4), meta(3, 4))", "x is float16[2, 2, 4]"),
        ("ops.gemm(meta(2, 4), meta(3, 4), meta(9))", "bias is float16[9]"),
        ("ops.gemm(meta(2, 4), meta(3, 4), None, None, 'tanh')", "is 'tanh'; allowed: none"),
        ("ops.gemm(meta(2, 4), meta(3, 4), None, None, 'none', torch.int8)", "out_dtype is"),
        ("ops.rms_norm(meta(5), None)", "pumice.rms_norm: x is float16[5]; allowed: float[T, H]"),
        ("ops.rms_norm(meta(2, 5), meta(3))", "weight is float16[3]"),
        ("ops.add_rms_norm_(meta(2, 5), meta(1, 5).expand(2, 5), None)", "several elements in one"),
        ("ops.activation_mul(meta(2, 5))", "x is float16[2, 5]; allowed: float[T, 2F]"),
        ("ops.activation_mul(meta(2, 6), 'tanh')", "activation is 'tanh'; allowed: silu, gelu"),
        ("ops.quantize_fp8(meta(2, 5), 'row')", "mode is 'row'; allowed: tensor, token, group"),
        ("ops.quantize_fp8(meta(2, 5), 'token', torch.int32)", "dtype is torch.int32; allowed"),
        ("ops.gemm_w4(meta(2, 64), whole(3, 9), meta(3, 2))", "w is int32[3, 9]"),
        ("ops.gemm_w4(meta(2, 64), whole(3, 8), meta(3, 2), None, None, 48)", "group is 48"),
        ("ops.gemm_w4(meta(2, 64), whole(3, 8), meta(3, 2), None, None, 32, 7, 'x')", "packing is"),
        ("ops.flash_attention(meta(5, 2, 64), meta(5, 3, 64), meta(5, 2, 64), whole(2), whole(2))",
         "v is float16[5, 2, 64]"),
    ],
)  # fmt: skip
def test_refused(call: str, text: str) -> None:
    with pytest.raises(UsageError) as error:
        words(call)()
    assert text in str(error.value)


def test_a_gpu_is_needed() -> None:
    with pytest.raises(DeviceError, match=r"pumice\.rms_norm runs on a GPU; x is on cpu"):
        ops.rms_norm(torch.randn(2, 8), None)
    x, w = torch.randn(2, 8), torch.randn(3, 8)
    with pytest.raises(DeviceError, match="runs on a GPU; x is on cpu"):
        explain("gemm", {"x": x, "w": w})


@pytest.mark.parametrize("activation", ["none", "silu", "gelu", "gelu_tanh", "relu"])
def test_gemm_on_the_cpu(activation: str) -> None:
    torch.manual_seed(0)
    x, w, bias, residual = (torch.randn(s) for s in ((5, 17), (9, 17), (9,), (5, 9)))
    inside = torch.nn.functional.linear(x.double(), w.double(), bias.double())
    act = {
        "none": lambda y: y,
        "gelu_tanh": lambda y: torch.nn.functional.gelu(y, approximate="tanh"),
    }
    expected = act.get(activation, getattr(torch.nn.functional, activation, None))(inside)
    got = ops.gemm(x, w, bias, residual.half(), activation, torch.float32)
    assert torch.allclose(got.double(), expected + residual.half().double(), atol=1e-5)
    with pytest.raises(UsageError, match=r"pumice\.gemm: w is float32\[3, 16\]"):
        ops.gemm(x, torch.randn(3, 16))


@pytest.mark.parametrize(
    ("operator", "tensors", "attrs", "text"),
    [
        ("gem", ("x", "w"), {}, "operator 'gem' has no GPU kernels; there are"),
        ("gemm", (), {}, "no tensor is given"),
        ("gemm", ("x",), {}, "w is missing; it is as x [N, K]"),
        ("gemm", ("x", "weight"), {}, "has no tensor 'weight'; its tensors are x, w, bias"),
        ("gemm", ("x", "w"), {"activaton": "silu"}, "no attribute 'activaton'; its attributes are"),
        ("quantize_fp8", ("x",), {}, "cannot have attributes {}: 'quantize' is missing"),
        ("rms_norm", ("x", "w"), {}, "has no tensor 'w'"),
    ],
)  # fmt: skip
def test_explain_refuses(
    operator: str, tensors: tuple[str, ...], attrs: dict[str, Any], text: str
) -> None:
    with pytest.raises(UsageError) as error:
        explain(operator, {name: torch.randn(3, 8) for name in tensors}, attrs)
    assert text in str(error.value)

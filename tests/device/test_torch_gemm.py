"""tgemm on CPU tensors: values, gradients, the classic linear layer, errors."""

from __future__ import annotations

import pytest
import torch

from pumice.errors import UsageError
from pumice.torch import tgemm

TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}


def relative(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.double() - expected).norm() / (expected.norm() + 1e-30))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", [(1, 64, 128), (3, 7, 5), (17, 129, 33), (32, 64, 128)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_values(dtype: torch.dtype, shape: tuple[int, int, int], with_bias: bool) -> None:
    m, n, k = shape
    torch.manual_seed(m)
    x, w = torch.randn(m, k).to(dtype), torch.randn(n, k).to(dtype)
    bias = torch.randn(n).to(dtype) if with_bias else None
    expected = x.double() @ w.double().t() + (0 if bias is None else bias.double())
    out = tgemm.mm(x, w, bias, None, None)
    assert out.dtype == dtype
    assert relative(out, expected) <= TOLERANCE[dtype]


def test_leading_axes_and_strides() -> None:
    x = torch.randn(2, 3, 40)[..., ::2]
    w = torch.randn(20, 9).t()
    assert tgemm.mm(x, w).shape == (2, 3, 9)
    assert relative(tgemm.mm(x, w), x.double() @ w.double().t()) <= 2e-6


@pytest.mark.parametrize("shape", [(0, 4, 8), (4, 0, 8), (4, 8, 0)])
def test_empty(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    bias = torch.ones(n)
    expected = torch.zeros(m, n) + bias
    assert torch.equal(tgemm.mm(torch.randn(m, k), torch.randn(n, k), bias), expected)


class Linear(torch.nn.Module):
    """The linear layer that users of AITER know, with the import changed."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(outputs, inputs) * inputs**-0.5)
        self.bias = torch.nn.Parameter(torch.randn(outputs))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return tgemm.mm(input, self.weight, self.bias, None, None)


def test_linear_layer_and_its_gradients() -> None:
    torch.manual_seed(0)
    layer = Linear(128, 64)
    x = torch.randn(32, 128, requires_grad=True)
    target = torch.randn(32, 64)
    ((layer(x) - target) ** 2).mean().backward()
    weight, bias = layer.weight.detach().double(), layer.bias.detach().double()
    again = [t.clone().requires_grad_() for t in (x.detach().double(), weight, bias)]
    out = again[0] @ again[1].t() + again[2]
    ((out - target.double()) ** 2).mean().backward()
    for got, expected in zip((x, layer.weight, layer.bias), again, strict=True):
        assert got.grad is not None and expected.grad is not None
        assert relative(got.grad, expected.grad) <= 1e-5


def test_a_changed_weight_is_packed_again() -> None:
    x, layer = torch.randn(4, 16), Linear(16, 8)
    with torch.no_grad():
        layer(x)
        layer.weight.mul_(2)
        expected = x @ layer.weight.t() + layer.bias
        assert relative(layer(x), expected.double()) <= 1e-6


@pytest.mark.parametrize(
    ("x", "w", "bias", "text"),
    [
        (torch.randn(2, 4), torch.randn(3, 5), None, "x is [2, 4] and weight [3, 5]"),
        (torch.randn(2, 4), torch.randn(3, 4).half(), None, "weight torch.float16"),
        (torch.randn(2, 4), torch.randn(3, 4), torch.randn(4), "bias is [4]; allowed: [3]"),
        (torch.ones(2, 4).int(), torch.ones(3, 4).int(), None, "allowed: float16"),
        (torch.randn(2, 4), torch.randn(3, 4, device="meta"), None, "several devices"),
    ],
)
def test_errors_name_the_argument(x: object, w: object, bias: object, text: str) -> None:
    with pytest.raises(UsageError) as error:
        tgemm.mm(x, w, bias)  # type: ignore[arg-type]
    assert text in str(error.value)

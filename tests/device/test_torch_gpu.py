"""The operators through PyTorch on a real GPU; skipped where there is none."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pumice.errors import DeviceError, UsageError
from pumice.torch import accelerate, explain, tgemm
from pumice.torch.modules import QuantLinear

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that PyTorch sees")
ops = torch.ops.pumice
TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}


def relative(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.double() - expected).norm() / (expected.norm() + 1e-30))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("m", [1, 3, 17, 129, 304, 336])
def test_tgemm(dtype: torch.dtype, m: int) -> None:
    torch.manual_seed(m)
    n, k = 769, 123
    x, w = torch.randn(m, k, device="cuda").to(dtype), torch.randn(n, k, device="cuda").to(dtype)
    bias = torch.randn(n, device="cuda").to(dtype)
    out = tgemm.mm(x, w, bias, None, None)
    assert relative(out, x.double() @ w.double().t() + bias.double()) <= TOLERANCE[dtype]
    strided = torch.randn(2 * m, k, device="cuda").to(dtype)[::2]
    assert relative(tgemm.mm(strided, w), strided.double() @ w.double().t()) <= TOLERANCE[dtype]


def test_gradients_of_the_linear_layer() -> None:
    torch.manual_seed(0)
    w = (torch.randn(64, 128, device="cuda") * 0.1).requires_grad_()
    b = torch.randn(64, device="cuda").requires_grad_()
    x = torch.randn(32, 128, device="cuda").requires_grad_()
    (tgemm.mm(x, w, b, None, None) ** 2).mean().backward()
    again = [t.detach().double().requires_grad_() for t in (x, w, b)]
    ((again[0] @ again[1].t() + again[2]) ** 2).mean().backward()
    for got, expected in zip((x, w, b), again, strict=True):
        assert got.grad is not None and expected.grad is not None
        assert relative(got.grad, expected.grad) <= 1e-5


def test_compile_and_graphs() -> None:
    w = torch.randn(256, 128, device="cuda", dtype=torch.bfloat16)
    g = torch.randn(128, device="cuda", dtype=torch.bfloat16)

    def step(x: torch.Tensor) -> torch.Tensor:
        y = ops.gemm(ops.rms_norm(x, g, 1e-6), w, None, None, "silu", None)
        return ops.activation_mul(y, "silu") * 2

    x = torch.randn(33, 128, device="cuda", dtype=torch.bfloat16)
    expected = step(x)
    assert torch.equal(torch.compile(step, fullgraph=True)(x), expected)
    graph, out = torch.cuda.CUDAGraph(), None
    with torch.cuda.graph(graph):
        out = step(x)
    x.copy_(torch.randn_like(x))
    graph.replay()
    assert torch.equal(out, step(x))


def test_accelerate_on_a_gpu() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=4, vocab_size=4099,
    )  # fmt: skip
    net = LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()
    ids = torch.randint(0, 4099, (2, 77), device="cuda")
    with torch.no_grad():
        exact = LlamaForCausalLM(config).to("cuda").eval()
        exact.load_state_dict(net.state_dict())
        reference = exact(ids).logits.double()
        before = relative(net(ids).logits, reference)
        report = accelerate(net)
        after = relative(net(ids).logits, reference)
    assert report.swapped["Linear"] == 4 * 4 + 1
    assert after <= 1.2 * before  # as near to float32 as PyTorch's own bfloat16


@pytest.mark.parametrize("packing", ["rows", "blocks", None])
def test_four_bits(packing: str | None) -> None:
    layer = nn.Linear(256, 96, bias=False, device="cuda", dtype=torch.float16)
    quantized = QuantLinear.from_linear(layer, packing=packing)
    dense = quantized(torch.eye(256, device="cuda", dtype=torch.float16)).double()
    assert relative(dense.t(), layer.weight.detach().double()) < 0.1
    x = torch.randn(5, 256, device="cuda", dtype=torch.float16)
    assert relative(quantized(x), x.double() @ dense) <= 2e-3


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8], ids=str)
@pytest.mark.parametrize("whole", [True, False])
def test_scaled_products(dtype: torch.dtype, whole: bool) -> None:
    torch.manual_seed(0)
    m, n, k = 33, 257, 512
    x, w = (torch.randn(rows, k, device="cuda").mul(20).to(dtype) for rows in (m, n))
    a = torch.rand((), device="cuda") if whole else torch.rand(m, 1, device="cuda")
    b = torch.rand((), device="cuda") if whole else torch.rand(n, device="cuda")
    out = tgemm.mm(x, w, None, a, b)
    columns = b.double() if whole else b.double()[None, :]
    expected = (x.double() @ w.double().t()) * a.double() * columns
    assert out.dtype == torch.bfloat16 and relative(out, expected) <= 6e-3


def test_many_elements() -> None:
    """More than 2³¹ of them: offsets are 64 bits wide."""
    rows = 2**31 // 8192 + 3
    x = torch.randn(rows, 8192, device="cuda", dtype=torch.bfloat16)
    out = ops.rms_norm(x, None, 1e-6)
    tail = x[-2:].double()
    expected = tail / (tail.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    assert relative(out[-2:], expected) <= 6e-3


def test_twice_the_same_bits() -> None:
    x = torch.randn(16, 11008, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(4096, 11008, device="cuda", dtype=torch.bfloat16)
    assert torch.equal(tgemm.mm(x, w), tgemm.mm(x, w))


def test_errors_name_operator_and_argument() -> None:
    x, w = torch.randn(2, 8, device="cuda"), torch.randn(3, 8)
    with pytest.raises(UsageError, match="several devices"):
        tgemm.mm(x, w)
    with pytest.raises(UsageError, match="gemm"):
        ops.gemm(x.double(), w.cuda().double())
    with pytest.raises(DeviceError, match="runs on a GPU"):
        ops.rms_norm(torch.randn(2, 8), None, 1e-6)
    with pytest.raises(UsageError, match="activation"):
        ops.activation_mul(x, "tanh")


def test_the_choice_says_why() -> None:
    x = torch.randn(1, 4096, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    assert "gemm." in explain("gemm", {"x": x, "w": w}) or "vendor." in explain(
        "gemm", {"x": x, "w": w}
    )

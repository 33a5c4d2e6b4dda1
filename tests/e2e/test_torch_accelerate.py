"""accelerate() on Transformers models with random weights: the same logits, and a true report."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from pumice.torch import accelerate, tgemm

SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 101, "max_position_embeddings": 64,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "model"), [(LlamaConfig, LlamaForCausalLM), (Qwen2Config, Qwen2ForCausalLM)]
)
def test_same_logits(config: type, model: type) -> None:
    torch.manual_seed(0)
    net = model(config(**SIZES)).eval()
    ids = torch.randint(0, 101, (2, 13))
    with torch.no_grad():
        expected = net(ids).logits.double()
        report = accelerate(net)
        got = net(ids).logits.double()
    assert (got - expected).norm() <= 1e-5 * expected.norm()
    assert sum(report.swapped.values()) == 2 * (4 + 2 + 1) + 2
    assert report.kept == {}


def test_compile_sees_an_operator() -> None:
    x, w = torch.randn(3, 8), torch.randn(5, 8)
    fake = torch.ops.pumice.gemm(x.to("meta"), w.to("meta"))
    assert tuple(fake.shape) == (3, 5)
    assert tgemm.mm(x, w).shape == (3, 5)

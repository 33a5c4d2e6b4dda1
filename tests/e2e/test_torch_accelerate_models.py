"""accelerate() on models that differ in a detail, and with what users hang onto layers."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from pumice.errors import UsageError
from pumice.torch import accelerate
from pumice.torch.modules import GatedMLP, Linear, QuantLinear, RMSNorm

# Of PyTorch about itself.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 101, "max_position_embeddings": 64, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
IDS = torch.arange(3, 20).view(1, -1)


def relative(got: Tensor, expected: Tensor) -> float:
    got, expected = got.detach().double(), expected.detach().double()
    return float((got - expected).norm() / (expected.norm() + 1e-30))


def llama(**more: Any) -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**{**SIZES, **more})).eval()


@pytest.mark.parametrize(
    ("family", "more", "swapped", "kept"),
    [
        ("Llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
         {"Linear": 15, "LlamaRMSNorm": 5}, "a gated block with biases"),
        ("Mistral", {"sliding_window": 4}, {"Linear": 9, "MistralMLP": 2, "MistralRMSNorm": 5}, ""),
        ("Qwen3", {"head_dim": 16}, {"Linear": 9, "Qwen3MLP": 2, "Qwen3RMSNorm": 9}, ""),
        ("Gemma", {"head_dim": 16}, {"Linear": 15}, "multiplies by 1 + weight"),
        ("FalconH1", {"mlp_multipliers": [2.0, 0.5], "mamba_d_ssm": 64, "mamba_n_heads": 4,
                      "mamba_d_head": 16}, {"Linear": 19, "FalconH1RMSNorm": 5},
         "FalconH1MLP computes something else"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_same_answers(
    family: str, more: dict[str, Any], swapped: dict[str, int], kept: str, dtype: torch.dtype
) -> None:
    """A padded batch, and generation with a cache."""
    if not hasattr(transformers, f"{family}Config"):
        pytest.skip(f"this Transformers has no {family}")
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **more})
    net = getattr(transformers, f"{family}ForCausalLM")(config).eval().to(dtype)
    for name, weight in net.named_parameters():
        if "norm" in name:
            weight.data.add_(0.1 * torch.randn(weight.shape))
    exact = copy.deepcopy(net).float()
    ids, mask = torch.randint(3, 101, (2, 9)), torch.ones(2, 9, dtype=torch.int64)
    ids[1, :4], mask[1, :4] = 0, 0
    with torch.no_grad():
        expected = exact(ids, attention_mask=mask).logits[mask.bool()]
        before = relative(net(ids, attention_mask=mask).logits[mask.bool()], expected)
        report = accelerate(net)
        after = relative(net(ids, attention_mask=mask).logits[mask.bool()], expected)
        assert after <= max(1.3 * before, 1e-5)
        if dtype == torch.float32:
            options: dict[str, Any] = {
                "attention_mask": mask, "max_new_tokens": 4, "do_sample": False,
            }  # fmt: skip
            assert torch.equal(net.generate(ids, **options), exact.generate(ids, **options))
    assert report.swapped == swapped
    assert kept in str(report) and bool(report.kept) == bool(kept)
    again = accelerate(net)
    assert again.swapped == {} and again.kept == report.kept


def test_checkpoints_go_both_ways(tmp_path: Path) -> None:
    net, other = llama(), llama()
    for weight in other.parameters():
        weight.data.normal_()
    with torch.device("meta"):
        empty = llama()
    for one in (net, empty):
        accelerate(one)
        assert set(one.state_dict()) == set(other.state_dict())
    net.load_state_dict(other.state_dict())
    assert relative(net(IDS).logits, other(IDS).logits) <= 1e-5
    net.save_pretrained(tmp_path)
    back = LlamaForCausalLM.from_pretrained(tmp_path)
    assert relative(back(IDS).logits, other(IDS).logits) <= 1e-6
    empty.load_state_dict(other.state_dict(), assign=True)
    assert torch.equal(empty.model.layers[1].mlp.gate_up, net.model.layers[1].mlp.gate_up)
    for made in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(made(IDS).logits, net(IDS).logits)


class Adapter(nn.Linear):
    """As LoRA's layers that inherit."""

    def __init__(self, of: nn.Linear) -> None:
        super().__init__(of.in_features, of.out_features, bias=False)
        self.weight, self.down = of.weight, nn.Parameter(torch.randn(4, of.in_features))
        self.up = nn.Parameter(torch.randn(of.out_features, 4))

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + input @ self.down.t() @ self.up.t()


def test_what_users_hang_onto_layers_stays() -> None:
    net = llama()
    first, second = net.model.layers
    first.mlp.gate_proj, first.self_attn.q_proj = map(
        Adapter, (first.mlp.gate_proj, first.self_attn.q_proj)
    )
    seen: list[str] = []
    second.mlp.down_proj.register_forward_hook(lambda *_: seen.append("down"))
    net.model.norm.register_forward_pre_hook(lambda *_: seen.append("norm"))
    plain = net.lm_head.forward
    net.lm_head.forward = lambda x: plain(x) * 2
    expected = net(IDS).logits
    seen.clear()
    report = accelerate(net)
    assert relative(net(IDS).logits, expected) <= 1e-5
    assert seen == ["down", "norm"]
    assert report.kept["lm_head"] == "its forward was replaced"
    assert report.kept["model.norm"] == "it has hooks"
    assert "it has hooks" in report.kept["model.layers.1.mlp"]
    assert isinstance(first.self_attn.q_proj, Adapter) and isinstance(first.mlp.gate_proj, Adapter)


def test_layers_of_other_kinds() -> None:
    class Special(Tensor):
        pass

    shared = nn.Linear(8, 8)
    odd = nn.Linear(8, 8)
    odd.weight = nn.Parameter(torch.randn(8, 8).as_subclass(Special))
    net = nn.Sequential(
        shared, nn.Sequential(shared), odd, nn.Linear(8, 8).double(), nn.RMSNorm((2, 8), 1e-5),
        nn.RMSNorm(8, 1e-5), nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)),
    )  # fmt: skip
    report = accelerate(net)
    assert report.swapped == {"Linear": 1, "RMSNorm": 1}
    assert net[0] is net[1][0] and isinstance(net[0], Linear)
    assert report.kept["2"] == "its weight is a Special"
    assert report.kept["3"] == "weights of torch.float64"
    assert report.kept["4"] == "RMSNorm without weight and eps"


def test_training_and_autocast_and_resizing() -> None:
    net, exact = llama().train(), llama().train()
    accelerate(net)
    assert net.model.layers[0].mlp.training
    for one in (net, exact):
        one(IDS, labels=IDS).loss.backward()
    for a, b in zip(net.model.layers, exact.model.layers, strict=True):
        pair = torch.cat([b.mlp.gate_proj.weight.grad, b.mlp.up_proj.weight.grad])
        assert relative(a.mlp.gate_up.grad, pair) <= 1e-5
        assert relative(a.self_attn.q_proj.weight.grad, b.self_attn.q_proj.weight.grad) <= 1e-5
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        got, expected = net(IDS).logits, exact(IDS).logits
    assert got.dtype == expected.dtype and relative(got, expected) <= 1e-2
    net.resize_token_embeddings(120)
    assert net(IDS).logits.shape[-1] == 120


def test_a_whole_model_is_compiled() -> None:
    net = llama(num_hidden_layers=1)
    accelerate(net)
    compiled = torch.compile(net, fullgraph=True, dynamic=True, backend="aot_eager")
    with torch.no_grad():
        for ids in (IDS, IDS[:, :5]):
            assert relative(compiled(ids).logits, net(ids).logits) <= 1e-6


def test_only_modules() -> None:
    for value, word in ((3, "int"), (nn.Linear, "class Linear")):
        with pytest.raises(UsageError, match=f"accelerate: model is a {word}; allowed"):
            accelerate(value)  # type: ignore[arg-type]
    assert accelerate(nn.Linear(3, 3)).kept == {
        "(the model itself)": "a layer alone has nothing that it could be swapped in"
    }


WORDS = torch.zeros(3, 8, dtype=torch.int32)
SCALES = torch.ones(3, 2, dtype=torch.float16)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Linear(torch.randn(5)), "Linear: weight is [5]; allowed: a tensor [N, K]"),
        (lambda: Linear(torch.randn(5, 4), torch.randn(3)), "Linear: bias is [3]; allowed"),
        (lambda: RMSNorm(torch.randn(2, 4), 1e-6), "RMSNorm: weight is [2, 4]; allowed"),
        (lambda: RMSNorm(torch.randn(4), 1e-6)(torch.randn(2, 5)), "x is [2, 5]; allowed: [..."),
        (lambda: RMSNorm(torch.randn(4), 1e-6)(torch.tensor(1.0)), "x is []; allowed: [..., 4]"),
        (lambda: GatedMLP(torch.randn(7, 5), torch.randn(6, 5), torch.randn(5, 7), None), "up is"),
        (lambda: QuantLinear(WORDS, SCALES, group=48), "group is 48 with K = 64; allowed: a multi"),
        (lambda: QuantLinear(WORDS, SCALES, group=64), "scales is [3, 2]; allowed: a tens"),
        (lambda: QuantLinear(WORDS, SCALES.float()), "scales is torch.float32; allow"),
        (lambda: QuantLinear(WORDS, SCALES, packing="x"), "packing is 'x'; allowed: 'r"),
        (lambda: QuantLinear(WORDS, SCALES, WORDS[:, :2]), "zeros is torch.int32; allow"),
        (lambda: QuantLinear.from_linear(nn.Linear(40, 5)), "group is 32 with K = 40"),
        (lambda: QuantLinear.from_linear(nn.Linear(64, 5), 0), "group is 0 with K = 64"),
        (lambda: QuantLinear.from_linear(nn.Linear(64, 5, device="meta")), "on meta; allowed"),
        (lambda: QuantLinear.from_linear(nn.Conv1d(64, 5, 1)), "layer.weight is [5, 64, 1]"),
        (lambda: QuantLinear.from_linear(nn.Linear(64, 5), packing="blocks"), "K = 64; allowed"),
        (lambda: QuantLinear.from_linear(Linear(torch.full((3, 64), 1e9))), "weight holds 100"),
        (lambda: QuantLinear.from_linear(Linear(torch.full((3, 64), torch.nan))), "holds nan"),
    ],
)  # fmt: skip
def test_layers_name_what_is_wrong(make: Any, text: str) -> None:
    with pytest.raises(UsageError) as error:
        make()
    assert text in str(error.value)


def test_scales_stay_what_kernels_read() -> None:
    layer = QuantLinear.from_linear(nn.Linear(64, 5))
    scales = layer.scales.clone()
    for moved in (layer.bfloat16(), layer.float(), copy.deepcopy(layer).to("cpu", torch.float64)):
        assert moved.scales.dtype == torch.float16 and torch.equal(moved.scales, scales)
    assert layer.to_empty(device="meta").scales.dtype == torch.float16
    assert layer.to("meta")(torch.empty(2, 0, 64, device="meta").half()).shape == (2, 0, 5)


def test_no_rows_anywhere() -> None:
    for device in ("cpu", "meta"):
        norm, gated = (
            RMSNorm(torch.ones(5), 1e-6),
            GatedMLP(*(torch.ones(7, 5),) * 2, torch.ones(5, 7), None),
        )
        for layer in (norm, gated):
            assert layer.to(device)(torch.empty(0, 3, 5, device=device)).shape == (0, 3, 5)


def test_a_norm_keeps_its_inputs_type() -> None:
    """As the kernels do, whatever its weight is."""
    x, weight = torch.randn(3, 8).half(), torch.randn(8)
    got = RMSNorm(weight, 1e-5)(x)
    expected = x.double() / (x.double().pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight
    assert got.dtype == torch.float16 and relative(got, expected) <= 1e-3

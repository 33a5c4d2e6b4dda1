"""AITER's kernels as peers, with stand-ins for its functions: which problems have one, and what
the functions are given."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest
import torch

from pumice.bench.operators import aiter
from pumice.bench.operators.aiter import module
from pumice.bench.operators.aiter.module import Prepared
from pumice.bench.operators.inputs import make_tensors
from pumice.bench.operators.measure import rows_of
from pumice.operators.flash_attention.spec import attend
from pumice.operators.moe_gemm.spec import tensors as expert_tensors
from pumice.operators.paged_attention.spec import context_of
from pumice.operators.registry import GPU_OPERATORS, get_spec
from pumice.operators.rope_cache.spec import rotate
from pumice.operators.triton.plan import Problem, TensorSpec, make_problem

MODULES = (
    "activation", "batched_gemm_bf16", "fused_fp8_quant", "fused_kv_cache", "gemm_a16w16",
    "gemm_a16w16_gated", "gemm_a8w8", "gemm_a8w8_blockscale", "mha", "mla_decode_rope",
    "moe_align_block_size", "moe_op", "moe_op_silu_fused", "norm", "pa_decode", "quant", "rmsnorm",
    "softmax", "unified_attention", "utils.device_info", "utils.moe_config_utils",
    "utils._triton.arch_info",
)  # fmt: skip


class Calls(list[tuple[str, tuple[Any, ...], dict[str, Any]]]):
    """What stand-ins were called with; `results` by a function's name."""

    def __init__(self) -> None:
        self.results: dict[str, Any] = {}

    def function(self, name: str) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            self.append((name, args, options))
            return self.results.get(name)

        return call


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    found = Calls()
    for name in ("aiter", "aiter.ops", "aiter.ops.triton"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    for name in MODULES:
        made: Any = types.ModuleType(f"aiter.ops.triton.{name}")
        if name != "utils._triton.arch_info":
            made.__getattr__ = found.function
        monkeypatch.setitem(sys.modules, made.__name__, made)
    found.results["get_num_sms"] = 132
    found.results["get_optimal_moe_config"] = {"BLOCK_SIZE_M": 64}
    return found


def row(operator: str, label: str) -> tuple[Problem, Any]:
    return next((p, i) for _, name, p, i in rows_of(operator) if name == label)


def problem_of(operator: str, attrs: dict[str, Any], inputs: dict[str, TensorSpec]) -> Problem:
    return make_problem(get_spec(operator), attrs, inputs)


def tensors_of(problem: Problem) -> dict[str, torch.Tensor]:
    return make_tensors(problem.operator, problem, problem.inputs, "cpu", 0)


# Of each operator's benchmark rows, those without a peer.
DECLINED = {
    "activation_mul": lambda p: p.attrs.get("quantize") != "group",
    "decode_attention": lambda p: "q_weight" in p,
    "flash_attention": lambda p: bool({"softcap", "window_left"} & set(p.attrs)),
    "gated_gemm": lambda p: p["x"].dtype.startswith("float8"),
    "rope_cache": lambda p: "q_weight" in p,
}
WITHOUT = {
    "dequantize_fp8", "dequantize_w4", "fused_w4", "gemm_w4", "gemm_w8", "sample_tokens",
    "token_embedding", "topk_softmax",
}  # fmt: skip


def test_rows_with_a_peer(calls: Calls) -> None:
    for operator in GPU_OPERATORS:
        for _, label, problem, _ in rows_of(operator):
            none = operator in WITHOUT or DECLINED.get(operator, lambda _: False)(problem)
            assert (aiter.peer_of(problem) is None) == none, (operator, label)


def test_other_work_has_no_peer(calls: Calls) -> None:
    x, w = TensorSpec((2, 4, 64), "bfloat16"), TensorSpec((2, 8, 64), "bfloat16")
    gaps = TensorSpec((2, 4, 64), "bfloat16", (64, 128, 1))
    bias = TensorSpec((8,), "bfloat16")
    flat = {"x": TensorSpec((4, 64), "bfloat16"), "w": TensorSpec((8, 64), "bfloat16")}
    assert aiter.peer_of(problem_of("batched_gemm", {}, {"x": x, "w": w})) is not None
    for operator, attrs, inputs in (
        ("batched_gemm", {}, {"x": gaps, "w": w}),
        ("batched_gemm", {}, {"x": x, "w": w, "bias": bias}),
        ("batched_gemm", {"activation": "relu"}, {"x": x, "w": w}),
        ("gemm", {}, {**flat, "residual": TensorSpec((4, 8), "bfloat16")}),
        ("gemm", {"precision": "tf32"}, flat),
        ("softmax", {"log": True}, {"x": flat["x"]}),
        ("moe_gemm", {"activation": "gelu"}, expert_tensors(3, 4, 2, 64, 32, "bfloat16")),
        ("quantize_fp8", {"quantize": "tensor", "out_dtype": "int8"},
         {"x": flat["x"], "scale": TensorSpec((1,), "float32")}),
    ):  # fmt: skip
        assert aiter.peer_of(problem_of(operator, attrs, inputs)) is None, (operator, attrs)
    assert not calls


def test_no_module_no_peer(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, _ = row("softmax", "4096x4096 bfloat16")
    monkeypatch.setitem(sys.modules, "aiter.ops.triton.softmax", None)
    assert aiter.peer_of(problem) is None


def test_without_the_package_nothing_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiter", None)
    assert not aiter.available()


def test_tile_sizes_are_found_without_an_amd_card(calls: Calls) -> None:
    module.function("gemm_a16w16", "gemm_a16w16")
    facts: Any = sys.modules["aiter.ops.triton.utils._triton.arch_info"]
    assert facts.get_device() == "MI350X"


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_experts_are_sorted_multiplied_and_summed(calls: Calls, dtype: str) -> None:
    problem = problem_of("moe_gemm", {}, expert_tensors(3, 4, 2, 256, 128, dtype))
    t = tensors_of(problem)
    eight = dtype != "bfloat16"
    quantized = torch.zeros(6, 128).to(t["x"].dtype), torch.ones(6, 1)
    calls.results["fused_flatten_fp8_group_quant"] = quantized
    peer = aiter.peer_of(problem)
    assert peer is not None
    assert peer(t).shape == (3, 256)
    by_name = {name: args for name, args, _ in calls}
    ids, experts, rows, order, owners, used = by_name["moe_align_block_size_triton"]
    assert ids is t["ids"] and (experts, rows, used.shape) == (4, 64, (1,))
    # Six entries, of four experts: each may leave 63 of its last block's places empty.
    assert order.shape == ((6 + 4 * 63) // 64 * 64,) and owners.shape == (order.shape[0] // 64,)
    assert (order == 6).all()
    a, w, h, x_scale, w_scale, _, *_, weigh, top = by_name["fused_moe_silu"][:13]
    assert a is t["x"] and w is t["w1"] and h.shape == (6, 128) and h.dtype == torch.bfloat16
    assert x_scale is t.get("x_scale") and w_scale is t.get("w1_scale")
    assert (weigh, top) == (False, 2)
    a, w, y, h_scale, w_scale, _, *_, weigh, top = by_name["fused_moe"][:13]
    assert w is t["w2"] and y.shape == (3, 2, 256) and w_scale is t.get("w2_scale")
    assert (weigh, top) == (True, 1)
    assert (a is quantized[0], h_scale is quantized[1]) == (eight, eight)
    assert by_name["fused_moe"][-2] == ([128, 128] if eight else None)
    names = [name for name, _, _ in calls]
    assert ("fused_flatten_fp8_group_quant" in names) == eight


def test_lists_of_keys_are_those_of_the_block_table(calls: Calls) -> None:
    spec = get_spec("mla_decode")
    attrs, inputs = spec.cases(np.random.default_rng(0))[1]
    given = {name: TensorSpec(a.shape, a.dtype.name) for name, a in inputs.items()}
    problem = problem_of("mla_decode", attrs, given)
    t = {name: torch.from_numpy(a) for name, a in inputs.items()}
    t["out"] = torch.zeros(problem["out"].shape, dtype=torch.float16)
    peer = aiter.peer_of(problem)
    assert peer is not None and peer(t) is t["out"]
    (_, args, _) = next(call for call in calls if call[0].startswith("decode_attention"))
    q, keys, values, out, starts, places, _, rank, rotated, *_, sums, parts, scale = args
    assert q is t["q"] and out is t["out"] and (rank, rotated) == (128, 32)
    assert sums.shape == (*q.shape[:2], parts, rank + 1) and scale == pytest.approx(160**-0.5)
    assert starts.dtype == places.dtype == torch.int32
    paged = {**inputs, "k_cache": inputs["k_cache"][:, :, None]}
    for s in range(len(q)):
        mine = places[starts[s] : starts[s + 1]].long()
        rows = context_of(paged, "k_cache", "", s)
        np.testing.assert_array_equal(keys[mine, 0].double().numpy(), rows[:, 0])
        got = attend(attrs, inputs["q"][s : s + 1], rows, rows[:, :, :rank])[0][0]
        k, v = keys[mine].double().numpy(), values[mine].double().numpy()
        wanted = attend(attrs, inputs["q"][s : s + 1], k, v)[0][0]
        np.testing.assert_allclose(got, wanted)


def test_paged_attention_has_its_window_cap_and_scales(calls: Calls) -> None:
    cache = TensorSpec((8, 16, 2, 64), "bfloat16")
    inputs = {
        "q": TensorSpec((7, 4, 64), "bfloat16"), "k_cache": cache, "v_cache": cache,
        "block_table": TensorSpec((2, 4), "int32"), "context_len": TensorSpec((2,), "int32"),
        "query_start": TensorSpec((3,), "int32"),
    }  # fmt: skip
    problem = problem_of("paged_prefill", {"window_left": 9, "softcap": 3.0}, inputs)
    t = tensors_of(problem) | {"query_start": torch.tensor([0, 2, 7], dtype=torch.int32)}
    peer = aiter.peer_of(problem)
    assert peer is not None and peer(t) is t["out"]
    ((_, args, options),) = calls
    assert args[:4] == (t["q"], t["k_cache"], t["v_cache"], t["out"])
    assert args[4] is t["query_start"] and args[5] == 5 and args[7] == 64
    assert args[9:11] == (True, (9, 0)) and args[12] == 3.0 and args[13] is None
    assert float(args[14]) == float(args[15]) == 1.0 and options == {"sinks": None}
    heads = {"k_scale": TensorSpec((2,), "float32"), "v_scale": TensorSpec((2,), "float32")}
    assert aiter.peer_of(problem_of("paged_prefill", {}, inputs | heads)) is None


@pytest.mark.parametrize(
    ("sequences", "attrs", "name"),
    [
        (8, {}, "unified_attention"),
        (128, {}, "paged_attention_decode"),
        (128, {"window_left": 31}, "unified_attention"),
    ],
)
def test_decode_takes_the_kernel_for_its_number_of_sequences(
    calls: Calls, sequences: int, attrs: dict[str, Any], name: str
) -> None:
    cache = TensorSpec((sequences, 16, 8, 64), "bfloat16")
    inputs = {
        "q": TensorSpec((sequences, 32, 64), "bfloat16"), "k_cache": cache, "v_cache": cache,
        "block_table": TensorSpec((sequences, 1), "int32"),
        "context_len": TensorSpec((sequences,), "int32"),
    }  # fmt: skip
    problem = problem_of("paged_attention", attrs, inputs)
    t = tensors_of(problem)
    peer = aiter.peer_of(problem)
    assert peer is not None and peer(t) is t["out"]
    ((called, args, _),) = [call for call in calls if call[0] != "get_num_sms"]
    assert called == name
    if name == "paged_attention_decode":
        assert args[0] is t["out"] and args[1] is t["q"]
        assert args[2].is_contiguous() and torch.equal(args[2], t["k_cache"].transpose(1, 2))
        assert args[3].is_contiguous() and torch.equal(args[3], t["v_cache"].transpose(1, 2))
        assert args[9].device.type == "cpu"  # it is read on the host
    else:
        assert args[4].tolist() == list(range(sequences + 1)) and args[5] == 1


@pytest.mark.parametrize("interleaved", [False, True])
def test_tables_of_cosines_are_those_of_the_frequencies(calls: Calls, interleaved: bool) -> None:
    pages = TensorSpec((4, 16, 1, 32), "float16")
    inputs = {
        "q": TensorSpec((3, 2, 32), "float16"), "k": TensorSpec((3, 1, 32), "float16"),
        "v": TensorSpec((3, 1, 32), "float16"), "positions": TensorSpec((3,), "int32"),
        "inv_freq": TensorSpec((16,), "float32"), "slots": TensorSpec((3,), "int32"),
        "k_cache": pages, "v_cache": pages,
    }  # fmt: skip
    attrs = {"interleaved": interleaved, "factor": 1.5}
    problem = problem_of("rope_cache", attrs, inputs)
    t = tensors_of(problem) | {"positions": torch.tensor([7, 0, 3], dtype=torch.int32)}
    calls.results["fused_qk_rope_reshape_and_cache"] = (t["q_out"],)
    peer = aiter.peer_of(problem)
    assert peer is not None and peer(t) is t["q_out"]
    ((_, args, options),) = calls
    cos, sin = args[7:9]
    assert cos.dtype == sin.dtype == torch.float16 and cos.shape == sin.shape == (8, 16)
    # Rotating (1, 0) pairs gives a position's cosines and sines.
    ones = np.zeros((3, 1, 32))
    ones[..., 0 :: 2 if interleaved else 1] = 1
    if not interleaved:
        ones[..., 16:] = 0
    turned = rotate(attrs, ones, None, t["positions"].numpy(), t["inv_freq"].numpy())[:, 0]
    halves = (turned[:, 0::2], turned[:, 1::2]) if interleaved else np.split(turned, 2, 1)
    for table, wanted in zip((cos, sin), halves, strict=True):
        np.testing.assert_allclose(table[t["positions"].long()].numpy(), wanted, atol=1e-3)
    assert args[11:13] == (not interleaved, True) and options["output_zeros"] is False


def test_a_form_is_made_once_and_not_in_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []

    def make(tensors: Any) -> int:
        made.append(tensors)
        return len(made)

    form = Prepared(make)
    first: dict[str, torch.Tensor] = {}
    second: dict[str, torch.Tensor] = {}
    third: dict[str, torch.Tensor] = {}
    assert [form(first), form(second), form(first)] == [1, 2, 1]
    monkeypatch.setattr(module, "_capturing", lambda: True)
    assert [form(third), form(first)] == [2, 1] and len(made) == 2
    monkeypatch.setattr(module, "_capturing", lambda: False)
    assert form(third) == 3

"""moe_gemm: the feed-forward block of a mixture of experts (Shazeer et al., arXiv:1701.06538).

Each token's chosen experts (from `topk_softmax`) are gated feed-forward blocks: w1 [E, 2F, K] holds
gate's rows, then up's; w2 [E, K, F] leads back. attrs: activation ("silu"). An id outside 0 … E-1
is an expert of another device and adds nothing here. 8-bit floats have block scales as in
`gemm_fp8_block`, with F a multiple of 128; the values between the two products are then quantized
as well, one scale a row of 128 (DeepSeek-V3, arXiv:2412.19437, 3.3.2). Sums over experts
are float32, in the order of ids: two runs are bit-equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from pumice.dtypes import numpy_dtype
from pumice.operators.base import OperatorSpec
from pumice.operators.gemm.spec import Cases, activate
from pumice.operators.gemm_fp8_block.spec import GROUP, expand
from pumice.operators.triton.plan import Problem, TensorSpec, Work, cdiv


def _quantized(h: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Values as they are after quantization, a scale a row of 128."""
    blocks = h.reshape(h.shape[0], -1, GROUP)
    largest = float(ml_dtypes.finfo(dtype).max)
    scale = np.maximum(np.abs(blocks).max(-1, keepdims=True), 1e-10) / largest
    codes = (blocks / scale).astype(np.float32).astype(dtype).astype(np.float64)
    return np.asarray((codes * scale).reshape(h.shape))


def reference(
    attrs: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    x, ids, w1, w2 = (inputs[name] for name in ("x", "ids", "w1", "w2"))
    blocks = "x_scale" in inputs
    wide = x.astype(np.float64)
    if blocks:
        wide *= expand(inputs["x_scale"], x.shape[0], x.shape[1], 1)
    out = np.zeros(x.shape)
    for expert in range(w1.shape[0]):
        tokens, slots = np.nonzero(ids == expert)
        if not len(tokens):
            continue
        up, down = w1[expert].astype(np.float64), w2[expert].astype(np.float64)
        if blocks:
            up *= expand(inputs["w1_scale"][expert], up.shape[0], up.shape[1], GROUP)
            down *= expand(inputs["w2_scale"][expert], down.shape[0], down.shape[1], GROUP)
        width = up.shape[0] // 2
        rows = wide[tokens]
        h = activate(rows @ up[:width].T, str(attrs.get("activation", "silu")))
        h = h * (rows @ up[width:].T)
        if blocks:
            h = _quantized(h, x.dtype)
        np.add.at(out, tokens, (h @ down.T) * inputs["weights"][tokens, slots][:, None])
    return {"out": out}


def output_specs(
    attrs: Mapping[str, Any], specs: Mapping[str, TensorSpec]
) -> Mapping[str, TensorSpec]:
    x = specs["x"]
    return {"out": TensorSpec(x.shape, "bfloat16" if x.dtype.startswith("float8") else x.dtype)}


def reached(tokens: int, top: int, experts: int) -> float:
    """How many experts tokens reach, on average, where all are alike likely and one token's `top`
    are different."""
    return experts * (1.0 - (1.0 - top / max(experts, 1)) ** tokens)


def work(problem: Problem) -> Work:
    """Weights of the experts that tokens reach on average, once."""
    tokens, k = problem["x"].shape
    experts, rows, _ = problem["w1"].shape
    entries = tokens * problem["ids"].shape[1]
    touched = reached(tokens, problem["ids"].shape[1], experts) / max(experts, 1)
    weights = sum(problem[name].nbytes for name in problem.tensors if name[:2] in ("w1", "w2"))
    other = sum(problem[name].nbytes for name in problem.tensors if name[:2] not in ("w1", "w2"))
    return Work(int(weights * touched) + other, 3.0 * entries * rows * k, problem["x"].dtype)


def tensors(
    tokens: int, experts: int, topk: int, k: int, f: int, dtype: str
) -> dict[str, TensorSpec]:
    """Inputs; 8-bit floats with their scales."""
    found = {
        "x": TensorSpec((tokens, k), dtype), "w1": TensorSpec((experts, 2 * f, k), dtype),
        "w2": TensorSpec((experts, k, f), dtype), "weights": TensorSpec((tokens, topk), "float32"),
        "ids": TensorSpec((tokens, topk), "int32"),
    }  # fmt: skip
    if dtype.startswith("float8"):
        deep = cdiv(k, GROUP)
        found["x_scale"] = TensorSpec((tokens, deep), "float32")
        found["w1_scale"] = TensorSpec((experts, 2 * f // GROUP, deep), "float32")
        found["w2_scale"] = TensorSpec((experts, deep, f // GROUP), "float32")
    return found


def values_of(specs: Mapping[str, TensorSpec], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Random inputs but for ids: weights and scales around 0.1, products of about 1."""
    found: dict[str, np.ndarray] = {}
    for name, spec in specs.items():
        if spec.dtype == "float32":
            found[name] = rng.random(spec.shape, np.float32) / 9 + np.float32(0.05)
        elif name != "ids":
            values = rng.standard_normal(spec.shape, np.float32)
            plain = name == "x" or spec.dtype.startswith("float8")
            values /= np.float32(1.0 if plain else spec.shape[-1] ** 0.5)
            found[name] = values.astype(numpy_dtype(spec.dtype))
    return found


def cases(rng: np.random.Generator) -> Cases:
    """No token, one, experts without tokens, experts elsewhere, odd widths, block scales."""
    found: Cases = []
    for tokens, experts, topk, k, f, dtype in (
        (5, 4, 2, 123, 77, "bfloat16"), (0, 4, 2, 32, 32, "bfloat16"), (1, 8, 3, 96, 40, "float16"),
        (70, 5, 2, 64, 33, "bfloat16"), (3, 40, 8, 48, 24, "float16"),
        (9, 3, 2, 256, 128, "float8_e4m3fn"), (40, 2, 1, 200, 256, "float8_e4m3fn"),
    ):  # fmt: skip
        inputs = values_of(tensors(tokens, experts, topk, k, f, dtype), rng)
        chosen = [rng.permutation(experts)[:topk] for _ in range(tokens)]
        ids = np.array(chosen, np.int32).reshape(tokens, topk)
        if tokens > 4:
            ids[1, 0], ids[2] = -1, experts  # elsewhere: one of a token's experts, all of them
        inputs["ids"] = ids
        found.append(({}, inputs))
    return found


SPEC = OperatorSpec(
    name="moe_gemm",
    formula="out[t] = Σ_j weights[t, j]·w2[e]·(silu(gate[e]·x[t]) ⊙ up[e]·x[t]), e = ids[t, j]",
    axes={"T": "tokens", "E": "experts", "k": "experts of a token", "K": "model's width",
          "F": "an expert's width"},
    inputs={
        "x": "bfloat16 | float16 | float8_e4m3fn | float8_e4m3fnuz [T, K]",
        "w1": "as x [E, 2F, K]", "w2": "as x [E, K, F]",
        "weights": "float32 [T, k]", "ids": "int32 [T, k]",
        "x_scale": "float32 [T, ceil(K/128)], with 8-bit floats",
        "w1_scale": "float32 [E, 2F/128, ceil(K/128)], with 8-bit floats",
        "w2_scale": "float32 [E, ceil(K/128), F/128], with 8-bit floats",
    },
    outputs={"out": "as x, bfloat16 for 8-bit floats [T, K]"},
    reference=reference,
    tolerance={"float16": 2e-3, "bfloat16": 1e-2},
    cases=cases,
    triton_kernels=(
        "pumice.operators.moe_gemm.hopper_plan:MoeSpecialized",
        "pumice.operators.moe_gemm.triton_plan:MoeGrouped",
    ),
    output_specs=output_specs,
    work=work,
)  # fmt: skip

BENCH: tuple[tuple[str, Mapping[str, Any], Mapping[str, TensorSpec]], ...] = tuple(
    (f"{label} T={tokens}", {}, tensors(tokens, *shape))
    for label, shape in (
        ("Mixtral 8x7B", (8, 2, 4096, 14336, "bfloat16")),
        ("Qwen3-30B-A3B", (128, 8, 2048, 768, "bfloat16")),
        ("DeepSeek-V3", (256, 8, 7168, 2048, "float8_e4m3fn")),
    )
    for tokens in (1, 16, 128, 1024, 8192)
)


def bench_integers(
    attrs: Mapping[str, Any], specs: Mapping[str, TensorSpec]
) -> dict[str, np.ndarray]:
    """The experts of a benchmark: a token's are different ones, all experts alike likely, and as
    many are reached as on average."""
    (tokens, top), experts = specs["ids"].shape, specs["w1"].shape[0]
    aim = round(reached(tokens, top, experts))
    found: list[np.ndarray] = []
    for seed in range(16):
        scores = np.random.default_rng(seed).random((tokens, experts), np.float32)
        found.append(np.argsort(scores, axis=1)[:, :top].astype(np.int32))
        if len(np.unique(found[-1])) == aim:
            break
    return {"ids": min(found, key=lambda ids: abs(len(np.unique(ids)) - aim))}

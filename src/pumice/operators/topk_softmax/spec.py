"""topk_softmax: every token's experts and their weights, from the router's logits.

attrs: topk; scoring ("softmax" by default, or "sigmoid"); renormalize (True by default: weights of
a token add up to 1); scale (1.0: a factor of the weights); groups and groups_kept (1 and 1):
experts stand in equal groups, and only the best groups' experts are chosen from. With `bias`,
choices (not weights) are made by score + bias, and a group counts by its two best (DeepSeek-V3,
arXiv:2412.19437, 2.1.2); without, by its best (DeepSeek-V2, arXiv:2405.04434). Of equal scores the
lower expert comes first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from pumice.operators.base import OperatorSpec
from pumice.operators.gemm.spec import Cases
from pumice.operators.triton.plan import Problem, TensorSpec, Work


def reference(
    attrs: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    logits = inputs["logits"].astype(np.float64)
    tokens, experts = logits.shape
    if attrs.get("scoring", "softmax") == "sigmoid":
        scores = 1.0 / (1.0 + np.exp(-logits))
    else:
        scores = np.exp(logits - logits.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
    choice = scores + inputs["bias"].astype(np.float64) if "bias" in inputs else scores.copy()
    groups = int(attrs.get("groups", 1))
    if groups > 1:
        inside = np.sort(choice.reshape(tokens, groups, experts // groups), -1)
        worth = inside[..., -2:].sum(-1) if "bias" in inputs else inside[..., -1]
        order = np.argsort(-worth, -1, kind="stable")
        dropped = order[:, int(attrs.get("groups_kept", 1)) :]
        grouped = choice.reshape(tokens, groups, -1)
        np.put_along_axis(grouped, dropped[..., None], -np.inf, 1)
        choice = grouped.reshape(tokens, experts)
    ids = np.argsort(-choice, -1, kind="stable")[:, : attrs["topk"]]
    weights = np.take_along_axis(scores, ids, -1)
    if attrs.get("renormalize", True):
        weights = weights / weights.sum(-1, keepdims=True)
    return {"weights": weights * float(attrs.get("scale", 1.0)), "ids": ids.astype(np.int32)}


def output_specs(
    attrs: Mapping[str, Any], specs: Mapping[str, TensorSpec]
) -> Mapping[str, TensorSpec]:
    shape = (specs["logits"].shape[0], int(attrs["topk"]))
    return {"weights": TensorSpec(shape, "float32"), "ids": TensorSpec(shape, "int32")}


def work(problem: Problem) -> Work:
    return Work(sum(tensor.nbytes for tensor in problem.tensors.values()))


def cases(rng: np.random.Generator) -> Cases:
    """No token, one, odd numbers of experts, groups, equal scores."""

    def logits(tokens: int, experts: int, dtype: Any = np.float32) -> np.ndarray:
        return rng.standard_normal((tokens, experts), np.float32).astype(dtype)

    deepseek = {
        "topk": 8, "scoring": "sigmoid", "groups": 8, "groups_kept": 4, "scale": 2.5,
    }  # fmt: skip
    bias = rng.standard_normal(256, np.float32) / 10
    return [
        ({"topk": 2}, {"logits": logits(5, 8)}),
        ({"topk": 2}, {"logits": logits(0, 8)}),
        ({"topk": 3, "renormalize": False}, {"logits": logits(33, 13)}),
        ({"topk": 8}, {"logits": logits(7, 128, ml_dtypes.bfloat16)}),
        (deepseek, {"logits": logits(9, 256), "bias": bias}),
        ({"topk": 6, "groups": 8, "groups_kept": 3}, {"logits": logits(3, 64, np.float16)}),
        ({"topk": 4}, {"logits": np.ones((2, 16), np.float32)}),
        ({"topk": 1, "scoring": "sigmoid"}, {"logits": logits(4, 1)}),
    ]


SPEC = OperatorSpec(
    name="topk_softmax",
    formula="ids[t] = top-k of score(logits[t]) + bias within the best groups; "
    "weights[t] = scale·score[ids[t]] / Σ",
    axes={"T": "tokens", "E": "experts", "k": "experts of a token"},
    inputs={
        "logits": "bfloat16 | float16 | float32 [T, E]", "bias": "float32 [E], optional",
    },
    outputs={"weights": "float32 [T, k]", "ids": "int32 [T, k]"},
    reference=reference,
    tolerance={"float32": 1e-5, "int32": 0.0},
    cases=cases,
    triton_kernels=("pumice.operators.topk_softmax.triton_plan:TopkRows",),
    output_specs=output_specs,
    work=work,
)  # fmt: skip

_DEEPSEEK: Mapping[str, Any] = {
    "topk": 8, "scoring": "sigmoid", "groups": 8, "groups_kept": 4, "scale": 2.5,
}  # fmt: skip
BENCH: tuple[tuple[str, Mapping[str, Any], Mapping[str, TensorSpec]], ...] = tuple(
    row
    for tokens in (1, 64, 4096, 65536)
    for row in (
        (f"Mixtral T={tokens}", {"topk": 2}, {"logits": TensorSpec((tokens, 8), "float32")}),
        (f"Qwen3-30B T={tokens}", {"topk": 8}, {"logits": TensorSpec((tokens, 128), "float32")}),
        (f"DeepSeek-V3 T={tokens}", _DEEPSEEK, {
            "logits": TensorSpec((tokens, 256), "float32"), "bias": TensorSpec((256,), "float32"),
        }),
    )
)  # fmt: skip

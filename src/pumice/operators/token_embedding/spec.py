"""token_embedding: rows of a table, times a factor (Gemma's √width).

attrs: scale (default 1). A token outside the table gives zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from pumice.operators.base import OperatorSpec
from pumice.operators.triton.plan import Problem, TensorSpec, Work


def reference(
    attrs: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    table, tokens = inputs["weight"], inputs["tokens"].astype(np.int64)
    inside = (tokens >= 0) & (tokens < len(table))
    rows = table[np.where(inside, tokens, 0)].astype(np.float64) * attrs.get("scale", 1.0)
    return {"out": (rows * inside[:, None]).astype(np.float32).astype(table.dtype)}


def output_specs(
    attrs: Mapping[str, Any], specs: Mapping[str, TensorSpec]
) -> Mapping[str, TensorSpec]:
    weight = specs["weight"]
    return {"out": TensorSpec((specs["tokens"].shape[0], weight.shape[1]), weight.dtype)}


def work(problem: Problem) -> Work:
    """The rows that are read, not the table."""
    return Work(2 * problem["out"].nbytes + problem["tokens"].nbytes)


def cases(rng: np.random.Generator) -> list[tuple[dict[str, Any], dict[str, np.ndarray]]]:
    found: list[tuple[dict[str, Any], dict[str, np.ndarray]]] = []
    half, brain = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
    for tokens, vocabulary, width, dtype, index, attrs in (
        (5, 13, 123, half, np.int32, {}),
        (0, 13, 64, half, np.int32, {}),
        (7, 300, 769, brain, np.int64, {"scale": 3.0}),
        (1, 2, 1, np.dtype(np.float32), np.int64, {}),
    ):
        ids = rng.integers(0, vocabulary, tokens).astype(index)
        if tokens > 3:
            ids[:4] = (0, vocabulary - 1, -1, vocabulary)
        weight = rng.standard_normal((vocabulary, width)).astype(dtype)
        found.append((dict(attrs), {"tokens": ids, "weight": weight}))
    return found


BENCH: tuple[tuple[str, dict[str, Any], dict[str, TensorSpec]], ...] = tuple(
    (
        f"{tokens} tokens of {vocabulary}x{width}",
        {},
        {
            "tokens": TensorSpec((tokens,), "int32"),
            "weight": TensorSpec((vocabulary, width), "bfloat16"),
        },
    )
    for tokens, vocabulary, width in ((32, 128256, 4096), (4096, 128256, 4096))
)


def bench_integers(
    attrs: Mapping[str, Any], inputs: Mapping[str, TensorSpec]
) -> dict[str, np.ndarray]:
    """Tokens inside the table."""
    count, vocabulary = inputs["tokens"].shape[0], inputs["weight"].shape[0]
    return {"tokens": np.random.default_rng(1).integers(0, vocabulary, count).astype(np.int32)}


SPEC = OperatorSpec(
    name="token_embedding",
    formula="out[t] = scale · weight[tokens[t]]",
    axes={"T": "tokens", "V": "vocabulary", "H": "width"},
    inputs={"tokens": "int32 or int64 [T]", "weight": "float[V, H]"},
    outputs={"out": "as weight, [T, H]"},
    reference=reference,
    tolerance={"float32": 1e-6, "float16": 1e-3, "bfloat16": 5e-3},
    cases=cases,
    triton_kernels=("pumice.operators.token_embedding.triton_plan:TokenEmbedding",),
    output_specs=output_specs,
    work=work,
)

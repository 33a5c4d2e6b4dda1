"""sample_tokens: one token a row of logits, without sorting the vocabulary.

In this order: penalties (repetition as in CTRL, arXiv:1909.05858, then frequency and presence),
temperature, top-k, top-p (nucleus, arXiv:1904.09751) of what top-k left, min-p (arXiv:2407.01082),
then a draw. A filter keeps whole ties: it is a threshold on the logit. Temperature 0 takes the
greatest, the first of equals.

The draw is the inverse of the kept probabilities' running sum in the vocabulary's order at
philox(seed, position): a row's token depends on nothing but its own logits and parameters.
logprob is that of the token under softmax(logits), before penalties and temperature.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from pumice.operators.base import OperatorSpec
from pumice.operators.sample_tokens.philox import philox, uniform
from pumice.operators.triton.plan import Problem, TensorSpec, Work


def penalized(logits: np.ndarray, row: int, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """A row after penalties, float64. counts: how often each token was generated; prompt: whether
    it stands in the prompt."""
    if "counts" not in inputs:
        return logits
    counts = inputs["counts"][row].astype(np.float64)
    seen = (counts > 0) | (inputs["prompt"][row] > 0)
    repetition = float(inputs["repetition"][row])
    divided = np.where(logits > 0, logits / repetition, logits * repetition)
    logits = np.where(seen, divided, logits)
    logits = logits - float(inputs["frequency"][row]) * counts
    return np.asarray(logits - float(inputs["presence"][row]) * (counts > 0))


def keep(x: np.ndarray, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """bool[V]: what the filters leave of scaled logits."""
    order = np.sort(x)[::-1]
    threshold = -np.inf
    if 0 < top_k < len(x):
        threshold = order[top_k - 1]
    weights = np.where(x >= threshold, np.exp(x - order[0]), 0.0)
    if top_p < 1:
        running = np.cumsum(np.sort(weights)[::-1])
        reached = int(np.searchsorted(running, top_p * running[-1]))
        threshold = max(threshold, order[min(reached, len(x) - 1)])
    if min_p > 0:
        threshold = max(threshold, order[0] + np.log(min_p))
    return np.asarray(x >= threshold)


def reference(
    attrs: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    raw = inputs["logits"].astype(np.float64)
    rows = len(raw)
    tokens, logprobs = np.zeros(rows, np.int32), np.zeros(rows, np.float32)
    for row in range(rows):
        logits = penalized(raw[row], row, inputs)
        temperature = float(inputs["temperature"][row]) if "temperature" in inputs else 0.0
        token = int(np.argmax(logits))
        if temperature > 0:
            x = logits / temperature
            top_k = int(inputs["top_k"][row]) if "top_k" in inputs else 0
            top_p = float(inputs["top_p"][row]) if "top_p" in inputs else 1.0
            min_p = float(inputs["min_p"][row]) if "min_p" in inputs else 0.0
            weights = np.where(keep(x, top_k, top_p, min_p), np.exp(x - x.max()), 0.0)
            bits = philox(inputs["seeds"][row], inputs["positions"][row])
            target = float(uniform(bits)) * weights.sum()
            before = np.cumsum(weights) - weights
            token = int(np.flatnonzero((weights > 0) & (before <= target))[-1])
        top = raw[row].max()
        tokens[row] = token
        logprobs[row] = raw[row, token] - top - np.log(np.exp(raw[row] - top).sum())
    return {"tokens": tokens, "logprobs": logprobs}


def output_specs(
    attrs: Mapping[str, Any], specs: Mapping[str, TensorSpec]
) -> Mapping[str, TensorSpec]:
    rows = specs["logits"].shape[0]
    return {"tokens": TensorSpec((rows,), "int32"), "logprobs": TensorSpec((rows,), "float32")}


def work(problem: Problem) -> Work:
    """Every tensor once."""
    return Work(sum(spec.nbytes for spec in problem.tensors.values()))


def cases(rng: np.random.Generator) -> list[tuple[dict[str, Any], dict[str, np.ndarray]]]:
    """No rows, one token, ties, masked tokens, every filter alone and together."""
    found: list[tuple[dict[str, Any], dict[str, np.ndarray]]] = []
    full, half, brain = np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
    for rows, vocabulary, dtype, sampled, filters, penalties in (
        (3, 123, full, False, (), False),
        (0, 50, full, True, ("top_k",), False),
        (2, 1, full, True, ("top_k", "top_p"), False),
        (5, 769, full, True, (), False),
        (4, 300, half, True, ("top_k",), False),
        (4, 513, full, True, ("top_p",), False),
        (4, 400, brain, True, ("min_p",), False),
        (6, 1000, full, True, ("top_k", "top_p", "min_p"), True),
        (3, 200, half, False, (), True),
    ):
        logits = rng.standard_normal((rows, vocabulary)) * 3
        if rows > 2:
            logits[0, : vocabulary // 3] = -np.inf
            logits[1, : vocabulary // 2] = np.round(logits[1, : vocabulary // 2])  # ties
        inputs = {"logits": logits.astype(dtype)}
        if sampled:
            temperature = rng.uniform(0.3, 1.5, rows).astype(np.float32)
            temperature[1:2] = 0
            inputs["temperature"] = temperature
            inputs["seeds"] = rng.integers(-(2**62), 2**62, rows)
            inputs["positions"] = rng.integers(0, 5000, rows).astype(np.int32)
        if "top_k" in filters:
            inputs["top_k"] = rng.integers(0, max(vocabulary // 4, 2), rows).astype(np.int32)
        if "top_p" in filters:
            inputs["top_p"] = rng.uniform(0.2, 1.0, rows).astype(np.float32)
        if "min_p" in filters:
            inputs["min_p"] = rng.uniform(0.0, 0.2, rows).astype(np.float32)
        if penalties:
            counts = rng.integers(0, 3, (rows, vocabulary)) * (rng.random((rows, vocabulary)) < 0.2)
            inputs["counts"] = counts.astype(np.int32)
            inputs["prompt"] = (rng.random((rows, vocabulary)) < 0.1).astype(np.uint8)
            inputs["repetition"] = rng.uniform(0.8, 1.5, rows).astype(np.float32)
            inputs["frequency"] = rng.uniform(-0.5, 1.0, rows).astype(np.float32)
            inputs["presence"] = rng.uniform(-0.5, 1.0, rows).astype(np.float32)
        found.append(({}, inputs))
    return found


def _bench(rows: int, vocabulary: int, *filters: str) -> Any:
    inputs = {"logits": TensorSpec((rows, vocabulary), "float32")}
    if filters != ("greedy",):
        inputs["temperature"] = TensorSpec((rows,), "float32")
        inputs["seeds"] = TensorSpec((rows,), "int64")
        inputs["positions"] = TensorSpec((rows,), "int32")
        for name in filters:
            inputs[name] = TensorSpec((rows,), "int32" if name == "top_k" else "float32")
    return f"{rows}x{vocabulary} {' '.join(filters) or 'temperature'}", {}, inputs


BENCH = (
    _bench(1, 32000, "greedy"),
    _bench(1, 128256, "greedy"),
    _bench(64, 128256, "greedy"),
    _bench(1, 128256),
    _bench(1, 128256, "top_k", "top_p"),
    _bench(64, 128256, "top_k", "top_p"),
    _bench(64, 152064, "top_p", "min_p"),
)


def bench_integers(
    attrs: Mapping[str, Any], inputs: Mapping[str, TensorSpec]
) -> dict[str, np.ndarray]:
    """Parameters as people set them."""
    rows = inputs["logits"].shape[0]
    usual: dict[str, np.ndarray] = {
        "temperature": np.full(rows, 0.7, np.float32), "top_k": np.full(rows, 50, np.int32),
        "top_p": np.full(rows, 0.9, np.float32), "min_p": np.full(rows, 0.05, np.float32),
        "seeds": np.arange(rows, dtype=np.int64), "positions": np.full(rows, 100, np.int32),
    }  # fmt: skip
    return {name: array for name, array in usual.items() if name in inputs}


SPEC = OperatorSpec(
    name="sample_tokens",
    formula="tokens[r] ~ filtered softmax(penalized(logits[r]) / temperature[r])",
    axes={"R": "rows", "V": "vocabulary"},
    inputs={
        "logits": "float[R, V]", "temperature": "float32[R] (optional: greedy without)",
        "seeds": "int64[R] (with temperature)", "positions": "int32[R] (with temperature)",
        "top_k": "int32[R] (optional; 0: all)", "top_p": "float32[R] (optional)",
        "min_p": "float32[R] (optional)", "counts": "int32[R, V] (optional)",
        "prompt": "uint8[R, V] (with counts)", "repetition": "float32[R] (with counts)",
        "frequency": "float32[R] (with counts)", "presence": "float32[R] (with counts)",
    },
    outputs={"tokens": "int32[R]", "logprobs": "float32[R]"},
    reference=reference,
    tolerance={"int32": 0.0, "float32": 1e-5},
    cases=cases,
    triton_kernels=("pumice.operators.sample_tokens.triton_plan:SampleTokens",),
    output_specs=output_specs,
    work=work,
)  # fmt: skip

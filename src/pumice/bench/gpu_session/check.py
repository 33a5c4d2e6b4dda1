"""A GPU's answers against those that a CPU gave when the run was prepared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from pumice.bench.gpu_session.contents import TINY_CHUNKS
from pumice.bench.gpu_session.greedy import Answer, alone, drawn, lanes, mixed, ragged
from pumice.runtime.step import Executable, SamplingExecutable

LIMIT = 5e-3  # of logits: activations are float16, over some twenty products
REAL_LIMIT = 2e-2  # of a real model's: as many layers more


def check_answers(
    executor: Executable, expected: Sequence[dict[str, Any]], first: np.ndarray, limit: float
) -> list[dict[str, Any]]:
    """Prompts alone, in a mixed batch, and drawn on a device that can. expected: {"prompt",
    "tokens", "margins"} of each; first: the CPU's logits after each prompt, float32[prompts, V].
    """
    prompts = [row["prompt"] for row in expected]
    count = max(1, *(len(row["tokens"]) for row in expected))
    found = []
    for way, run in (("alone", alone), ("mixed batch", mixed)):
        for row, logits, answer in zip(expected, first, run(executor, prompts, count), strict=True):
            found.append({"way": way, **compare(row, logits, answer, limit)})
    if getattr(executor, "samples", False):
        sampling = cast(SamplingExecutable, executor)
        for row, tokens in zip(
            expected, drawn(sampling, executor.limits, prompts, count), strict=True
        ):
            found.append({"way": "drawn on the device", **compare_tokens(row, tokens)})
    return found


def compare(
    expected: dict[str, Any], first: np.ndarray, answer: Answer, limit: float
) -> dict[str, Any]:
    """One answer. different: index of the first token that is not the CPU's, with the CPU's margin
    there (its logit less the second best's): a small one says that both tokens are as good."""
    found = compare_tokens(expected, answer.tokens)
    assert answer.first is not None
    error = relative_error(answer.first, first)
    return {
        **found,
        "logits_error": round(error, 6),
        "passed": found["passed"] and error <= limit,
    }


def compare_tokens(expected: dict[str, Any], tokens: Sequence[int]) -> dict[str, Any]:
    """As `compare`, of tokens alone. The CPU's end at a near tie; what follows does not count."""
    wanted = expected["tokens"]
    different = next((i for i, token in enumerate(wanted) if token != tokens[i]), None)
    return {
        "tokens": len(wanted),
        "different": different,
        "margin": None if different is None else round(expected["margins"][different], 4),
        "logits_error": None,
        "passed": different is None,
    }


def relative_error(found: np.ndarray, wanted: np.ndarray) -> float:
    """‖found − wanted‖ / ‖wanted‖, in float64; infinite where something is not finite."""
    if not np.isfinite(found).all():
        return float("inf")
    wanted = wanted.astype(np.float64)
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def check_logits(executor: Executable, tokens: Sequence[int], wanted: np.ndarray) -> float:
    """The largest relative error over the chunks of a prompt, one of them longer than a block.
    wanted: float32[tokens, V]."""
    (lane,) = lanes(executor.limits, 1, len(tokens))
    at, worst = 0, 0.0
    for count in TINY_CHUNKS:
        part = tokens[at : at + count]
        got = executor.step(ragged([(lane, part)], executor.limits, every=True))
        worst = max(worst, relative_error(got, wanted[at : at + count]))
        at += count
    return worst

"""embedding: out[t] = W[tokens[t]], from a table in any weight format (often the one that the
logits' linear reads too).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pumice.operators.base import OperatorSpec


def reference(
    attrs: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    """inputs["weight"] is the dequantized table."""
    return {"out": inputs["weight"][inputs["tokens"]].astype(np.float64)}


def cases(rng: np.random.Generator) -> list[tuple[dict[str, Any], dict[str, np.ndarray]]]:
    """Vocabularies that are no multiple of a row block; repeated, first and last tokens; no
    tokens.
    """
    out = []
    for vocabulary, width in ((13, 32), (123, 96), (320, 576)):
        for tokens in (0, 1, 5, 67):
            ids = rng.integers(0, vocabulary, tokens).astype(np.int32)
            ids[:2] = (0, vocabulary - 1)[: len(ids[:2])]
            weight = rng.standard_normal((vocabulary, width), dtype=np.float32)
            out.append(({"V": vocabulary, "H": width}, {"tokens": ids, "weight": weight}))
    return out


SPEC = OperatorSpec(
    name="embedding",
    formula="out[t] = W[tokens[t]]",
    axes={"T": "tokens", "V": "vocabulary", "H": "width of the model"},
    inputs={"tokens": "int32[T]", "weight": "any format[V, H]"},
    outputs={"out": "float32[T, H]"},
    reference=reference,
    tolerance={"float32": 1e-6},
    cases=cases,
    kernels=("pumice.operators.embedding.kernel_tir:Embedding",),
)

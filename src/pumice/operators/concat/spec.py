"""concat: out[t] = a[t] | b[t] | c[t], columns side by side.

Used where linears that share an input cannot be merged into one because their weights have
different formats.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pumice.operators.base import OperatorSpec


def reference(
    attrs: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    """Columns of the parts in order."""
    parts = [inputs[name] for name in ("a", "b", "c")[: len(attrs["widths"])]]
    return {"out": np.concatenate(parts, axis=1)}


def cases(rng: np.random.Generator) -> list[tuple[dict[str, Any], dict[str, np.ndarray]]]:
    """Odd row counts, widths that are no multiple of a vector."""
    out = []
    for tokens in (0, 1, 5, 33):
        for widths in ((3, 5), (576, 192, 192), (96, 32, 7)):
            attrs = {"widths": widths}
            arrays = {
                name: rng.standard_normal((tokens, width), dtype=np.float32)
                for name, width in zip("abc", widths, strict=False)
            }
            out.append((attrs, arrays))
    return out


SPEC = OperatorSpec(
    name="concat",
    formula="out[t] = a[t] | b[t] | c[t]",
    axes={"T": "tokens", "A": "columns of a", "B": "columns of b", "C": "columns of c"},
    inputs={"a": "float32[T, A]", "b": "float32[T, B]", "c": "float32[T, C]"},
    outputs={"out": "float32[T, A+B+C]"},
    reference=reference,
    tolerance={"float32": 0.0},
    cases=cases,
    kernels=("pumice.operators.concat.kernel_tir:Concat",),
)

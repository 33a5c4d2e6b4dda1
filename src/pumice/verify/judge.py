"""Is a result right? One judge for `pumice verify`, `pumice doctor`, benchmarks and tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pumice.dtypes import numpy_dtype
from pumice.operators.base import OperatorSpec
from pumice.operators.triton.plan import Problem


def relative_error(got: np.ndarray, expected: Any, *, unwritten: bool = False) -> float:
    """‖got − expected‖ / ‖expected‖ in float64 (‖got − expected‖ where all expected is 0).

    An infinity is right where that very infinity is expected. Infinite when shapes differ, for any
    other infinity, and for NaN on either side: NaN is never right. unwritten: NaN in `expected`
    marks what nobody may have written, where NaN must still be.
    """
    a, b = np.asarray(got).astype(np.float64), np.asarray(expected).astype(np.float64)
    if a.shape != b.shape:
        return float("inf")
    same = a == b  # equal infinities too, whose difference would be NaN
    if unwritten:
        same |= np.isnan(a) & np.isnan(b)
    difference = np.subtract(a, b, out=np.zeros_like(a), where=~same)
    norm = float(np.linalg.norm(b[np.isfinite(b)])) or 1.0
    error = float(np.linalg.norm(difference)) / norm
    return error if np.isfinite(error) else float("inf")


def tolerance_of(spec: OperatorSpec, problem: Problem, output: str) -> float:
    """Of an output: by its dtype; for floats loosened to that of the inputs where they are
    coarser.
    """
    own = problem[output].dtype
    if numpy_dtype(own).kind in "iu" and own in spec.tolerance:
        return float(spec.tolerance[own])
    names = {own}
    names |= {t.dtype for t in problem.inputs.values() if numpy_dtype(t.dtype).kind not in "iu"}
    if problem.attrs.get("precision") == "tf32":
        names.add("tf32")
    known = [spec.tolerance[name] for name in names if name in spec.tolerance]
    return float(max(known)) if known else 1e-2


def judge(
    spec: OperatorSpec,
    problem: Problem,
    got: Mapping[str, np.ndarray],
    expected: Mapping[str, Any],
) -> tuple[float, float]:
    """(error, tolerance) of the output that uses most of its tolerance; an output that is missing
    has an infinite error.
    """
    worst, found = -1.0, (float("inf"), 0.0)
    for name, reference in expected.items():
        limit = tolerance_of(spec, problem, name)
        error = relative_error(got[name], reference) if name in got else float("inf")
        share = error / limit if limit else (float("inf") if error else 0.0)
        if share > worst:
            worst, found = share, (error, limit)
    return found

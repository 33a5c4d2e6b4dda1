"""What is said of an operator's cases: the worst part of a tolerance, where there is one."""

from __future__ import annotations

import math

import pytest

from pumice.bench.operators.cases import CaseResult, _part


@pytest.mark.parametrize(
    ("error", "tolerance", "part"),
    [(0.5, 2.0, 0.25), (0.0, 0.0, 0.0), (1.0, 0.0, math.inf), (0.0, 1.0, 0.0)],
)
def test_parts_of_a_tolerance(error: float, tolerance: float, part: float) -> None:
    found = CaseResult("sample_tokens", 0, "k", {}, "tokens", error, tolerance, error <= tolerance)
    assert _part(found) == part

"""How long a call takes: as it was measured, or as bytes and launches say.

The estimate compares ways to compute the same on one device, no more: a launch costs what the
smallest kernels took on an H200 in a captured graph, memory gives a share of its bandwidth, and
what every program reads again comes from the last cache.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pumice.compiler.gpu.select import Selection
from pumice.compiler.gpu.translate import Call
from pumice.dtypes import itemsize
from pumice.operators.registry import get_spec
from pumice.operators.triton.plan import Problem
from pumice.tuning.database import MeasuredRow
from pumice.tuning.similar import similar

LAUNCH_US = 1.3  # activation_mul and norm of one row on an H200: 1.3 and 1.7 µs
BANDWIDTH_SHARE = 0.85  # of the data sheet's: 4.3 of an H200's 4.8 TB/s are copied
CACHE_BYTES_PER_US = 96e3  # to one compute unit: 64 bytes a clock at 1.5 GHz
FARTHEST = 0.5  # doublings of all sizes together up to which a measured time is scaled


@dataclass(frozen=True)
class Cost:
    """µs of a call; measured: None where no row is near."""

    estimated: float
    measured: float | None


def cost_of(call: Call, selection: Selection) -> Cost:
    """UnsupportedError when no kernel runs the call."""
    selected = selection.of(call)
    problem, target = selected.problem, selection.target
    spec = get_spec(call.operator)
    assert spec.work is not None and target.bandwidth is not None
    us = len(selected.plan.launches) * LAUNCH_US
    us += spec.work(problem).bytes / (target.bandwidth * BANDWIDTH_SHARE) * 1e6
    if "norm_weight" in problem:
        rows, width = problem["x"].shape
        each = selected.plan.launches[0].grid[0] / target.compute_units
        us += math.ceil(each) * (rows + 1) * width * 4 / CACHE_BYTES_PER_US
    return Cost(us, _measured(problem, selection))


def _measured(problem: Problem, selection: Selection) -> float | None:
    for candidate in (problem, *(other for _, other in similar(problem))):
        found = selection.database.nearest(candidate)
        if found is not None and found[1] <= FARTHEST:
            row = found[0]
            share = sum(t.nbytes for t in candidate.inputs.values()) / _bytes(row)
            return row.us * share
    return None


def _bytes(row: MeasuredRow) -> float:
    return float(sum(math.prod(d) * itemsize(row.dtypes[n]) for n, d in row.dims.items()))

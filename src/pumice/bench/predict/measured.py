"""The tensor engine's measured rows as a line: time = start + slope · least time.

R. W. Hockney, "Characterization of parallel computers and algorithms", 1982: work of size n takes
(n + n½) / r∞. Here n is the least time that the card allows (`floor_seconds`), so that a line that
was fitted on one card says something of another: `start` is what a launch costs whatever its size,
1 / slope the part of the floor that large problems reach.

A line belongs to one kernel at one arithmetic intensity: rows count the more, the nearer their
operations per byte are (a Gaussian of half a doubling).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pumice.bench.predict.cards import Card, card_named
from pumice.bench.predict.model import Shape, floor_seconds
from pumice.operators.registry import GPU_OPERATORS, get_spec, triton_kernels_of
from pumice.operators.triton.plan import Problem, TensorSpec, make_problem
from pumice.targets import get_target
from pumice.tuning.database import DATA, Database, MeasuredRow

MEASURED_ON = "H200"  # whose rows are in tuning/data/sm_90
START = 1.5e-6  # seconds: a small kernel of a captured graph, where no row says more
EFFICIENCY = 0.7  # of the floor, where no row says more
#: Operators that do another's work among their own: its rows count until there are some of theirs.
RELATIVES = {
    "decode_attention": "paged_attention.triton.split", "fused_w4": "gemm_w4.triton.gemv",
}  # fmt: skip
_PRIOR = 0.02  # weight of START beside rows
FAR = 1.5  # doublings of the intensity beyond which a line is an extrapolation
_WIDTH = 0.5  # doublings of the intensity


@dataclass(frozen=True)
class Sample:
    """One measured problem. intensity: operations per byte. floor: least seconds on that card."""

    kernel: str
    intensity: float
    floor: float
    seconds: float


@dataclass(frozen=True)
class Line:
    """time = start + slope · floor. rows: how many it comes from; distance: doublings of intensity
    to the nearest of them (infinite without rows). relative: the kernel whose rows they are, where
    they are another's."""

    start: float
    slope: float
    rows: int
    distance: float
    relative: str = ""

    @property
    def measured(self) -> bool:
        """Whether there are rows of this kernel, and near enough that this is no extrapolation."""
        return self.distance <= FAR and not self.relative

    def seconds(self, floor: float) -> float:
        return self.start + self.slope * floor


ASSUMED = Line(START, 1 / EFFICIENCY, 0, math.inf)


def line_of(samples: Sequence[Sample], intensity: float) -> Line:
    """The line through samples of one kernel at an intensity: least squares of relative errors."""
    if not samples:
        return ASSUMED
    distances = [_doublings(sample.intensity, intensity) for sample in samples]
    nearest = min(distances)
    # Σ w ((start + slope·floor − seconds) / seconds)², and start near START where rows leave it
    # open.
    a = _PRIOR / START**2
    b = c = q = 0.0
    p = _PRIOR / START
    for sample, distance in zip(samples, distances, strict=True):
        w = math.exp(-((distance**2 - nearest**2) / (2 * _WIDTH**2))) / sample.seconds**2
        a += w
        b += w * sample.floor
        c += w * sample.floor**2
        p += w * sample.seconds
        q += w * sample.floor * sample.seconds
    start, slope = (p * c - q * b) / (a * c - b * b), (a * q - b * p) / (a * c - b * b)
    if start < 0:
        start, slope = 0.0, q / c
    if slope < 0:
        start, slope = p / a, 0.0
    return Line(start, slope, len(samples), nearest)


def _doublings(a: float, b: float) -> float:
    return abs(math.log2((a + 0.1) / (b + 0.1)))


@functools.cache
def line_for(kernel: str, intensity: float) -> Line:
    """A kernel's line at an intensity, of its own rows, else of a relative's, else assumed."""
    samples = samples_of(kernel)
    relative = RELATIVES.get(_operator(kernel), "")
    if samples or not relative:
        return line_of(samples, intensity)
    return replace(line_of(samples_of(relative), intensity), relative=relative)


@functools.cache
def samples_of(kernel: str) -> tuple[Sample, ...]:
    """The measured problems that a kernel was the fastest of. Imports Triton."""
    return tuple(sample for sample in _samples(_operator(kernel)) if sample.kernel == kernel)


def _operator(kernel: str) -> str:
    """ "gemm_w4.triton.gemv" → "gemm_w4"."""
    return kernel.split(".", 1)[0]


@functools.cache
def _samples(operator: str) -> tuple[Sample, ...]:
    if operator not in GPU_OPERATORS:
        return ()
    card = card_named(MEASURED_ON)
    rows: Iterable[MeasuredRow] = Database(card.arch, (DATA,)).rows(operator)
    found = (_sample(row, card) for row in rows)
    return tuple(sample for sample in found if sample is not None)


def _sample(row: MeasuredRow, card: Card) -> Sample | None:
    """None for a vendor's kernel, which no plan launches."""
    spec = get_spec(row.operator)
    kernel = next((k for k in triton_kernels_of(row.operator) if k.name == row.kernel), None)
    if kernel is None or spec.work is None:
        return None
    inputs = {name: TensorSpec(dims, row.dtypes[name]) for name, dims in row.dims.items()}
    problem = make_problem(spec, row.attrs, inputs)
    work = spec.work(problem)
    shape = _shape(kernel, problem, row, card)
    floor = floor_seconds(work.bytes, work.flops, shape, card)
    return Sample(row.kernel, work.flops / max(1, work.bytes), floor, row.us * 1e-6)


def _shape(kernel: object, problem: Problem, row: MeasuredRow, card: Card) -> Shape:
    target = get_target(card.arch)
    plan = kernel.plan(problem, target, row.config)  # type: ignore[attr-defined]
    main = max(plan.launches, key=lambda launch: launch.num_warps)
    # Registers are known after a compile only: about 64 a thread leave room for 32 warps.
    return Shape(math.prod(main.grid), main.num_warps, max(1, 32 // main.num_warps))

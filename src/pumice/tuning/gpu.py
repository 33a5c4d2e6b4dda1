"""Which kernel computes a problem on a GPU, with the reason: a pure function of the problem, the
architecture and measured rows, without a device and without PyTorch.

A measured row of this very architecture first; else the kernel that was fastest on another one of
the same vendor; else what the analytic model finds fastest (`tuning/model.py`), or the kernel that
was fastest elsewhere for operators that are not modelled; else the first of the operator's order.
The reason says which.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pumice.errors import UnsupportedError
from pumice.operators.registry import triton_kernels_of
from pumice.operators.triton.plan import Config, Problem, TritonKernel
from pumice.targets import Target, get_target
from pumice.tuning import model
from pumice.tuning.database import DATA, Database, MeasuredRow

MEASURED_FIRST = "sm_90"  # the architecture whose rows are borrowed where one has none


@dataclass(frozen=True)
class GpuChoice:
    """A kernel under a configuration. kernel: None for a provider's call, whose name is
    kernel_name. reason: for a person. rejected: kernel → why it was passed over. measured: on this
    architecture, under this configuration."""

    kernel_name: str
    kernel: TritonKernel | None
    config: Config
    reason: str
    rejected: Mapping[str, str] = field(default_factory=dict)
    measured: bool = False


@functools.cache
def database(arch: str, mine: Path | None = None) -> Database:
    """The rows of an architecture: a user's, as `pumice tune` wrote them into `mine`, and the
    shipped ones."""
    return Database(arch, (DATA,) if mine is None else (mine, DATA))


def supporting(
    problem: Problem, target: Target
) -> tuple[dict[str, TritonKernel], Mapping[str, str]]:
    """The operator's kernels that run the problem, in order of preference, and why the others do
    not."""
    kernels: dict[str, TritonKernel] = {}
    rejected: dict[str, str] = {}
    for kernel in triton_kernels_of(problem.operator):
        against = kernel.supports(problem, target)
        if against is None:
            kernels[kernel.name] = kernel
        else:
            rejected[kernel.name] = against
    return kernels, rejected


def candidates(problem: Problem, target: Target) -> list[tuple[TritonKernel, Config]]:
    """Every kernel under every configuration it offers, in order of preference. UnsupportedError
    gives each kernel's reason when there is none."""
    kernels, rejected = supporting(problem, target)
    if not kernels:
        raise _unsupported(problem, target, rejected)
    return [(k, config) for k in kernels.values() for config in k.configs(problem, target)]


def choose_kernel(
    problem: Problem, target: Target, rows: Database, *, vendors: frozenset[str] = frozenset()
) -> GpuChoice:
    """The kernel of a problem on a target.

    rows: those of the target's architecture. vendors: providers that compute this problem here;
    rows of other providers are passed over. UnsupportedError says each kernel's reason when no
    kernel supports the problem and no provider's row is near.
    """
    kernels, rejected = supporting(problem, target)
    for row, distance in rows.near(problem):
        if row.kernel in vendors:
            reason = _measured(row, distance, target)
            return GpuChoice(row.kernel, None, {}, reason, rejected, measured=True)
        kernel = kernels.get(row.kernel)
        if kernel is None:
            continue
        reason = _measured(row, distance, target)
        if dict(row.config) in [dict(c) for c in kernel.configs(problem, target)]:
            return GpuChoice(kernel.name, kernel, row.config, reason, rejected, measured=True)
        reason += "; its configuration does not fit here, so that of the "
        return _judged([kernel], problem, target, reason, rejected)
    if not kernels:
        raise _unsupported(problem, target, rejected)
    reason = ""
    if target.name != MEASURED_FIRST:
        reason = f"no row for {target.name}; "
        same = target.api == get_target(MEASURED_FIRST).api
        for row, _ in rows.of(MEASURED_FIRST).near(problem):
            kernel = kernels.get(row.kernel)
            if kernel is not None and (same or problem.operator not in model.OPERATORS):
                reason += f"this kernel is the fastest on {MEASURED_FIRST}, its configuration the "
                return _judged([kernel], problem, target, reason, rejected)
    reason = reason or "no row measured near; "
    return _judged(list(kernels.values()), problem, target, reason, rejected)


def _judged(
    kernels: list[TritonKernel],
    problem: Problem,
    target: Target,
    reason: str,
    rejected: Mapping[str, str],
) -> GpuChoice:
    """What the model finds fastest, else the first."""
    offered = [(k, config) for k in kernels for config in k.configs(problem, target)]
    found = model.favourite(problem, target, offered)
    if found is not None:
        kernel, config, seconds = found
        reason += f"analytic model's favourite of {len(offered)} ({seconds * 1e6:.1f} µs estimated)"
        return GpuChoice(kernel.name, kernel, config, reason, rejected)
    kernel, config = offered[0]
    reason += "first of the operator's order, which its own analytic model sorts"
    return GpuChoice(kernel.name, kernel, config, reason, rejected)


def _measured(row: MeasuredRow, distance: float, target: Target) -> str:
    where = f"measured for {row.sizes} on {row.device or target.name}"
    how = "the same sizes" if distance == 0 else f"{distance:.1f} doublings away"
    return f"fastest {where} ({row.us:.1f} µs, {row.floor:.0%} of the floor), {how}"


def _unsupported(problem: Problem, target: Target, rejected: Mapping[str, str]) -> UnsupportedError:
    reasons = "; ".join(f"{name}: {why}" for name, why in rejected.items()) or "it has no kernels"
    return UnsupportedError(
        f"no kernel of {problem.operator!r} runs this problem on {target.name}: {reasons}"
    )

"""Which kernel computes a problem on a GPU, with the reason.

A measured row of this very architecture first; else the kernel that another architecture measured,
under its analytic configuration; else the first of the operator's order. It says which.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from pumice.operators.triton.plan import Config, Problem, TritonKernel
from pumice.targets import Target
from pumice.torch.launch import BoundPlan, candidates
from pumice.torch.vendor import vendor_call
from pumice.tuning.database import DATA, Database

Call = Callable[[Mapping[str, torch.Tensor]], None]
MEASURED_FIRST = "sm_90"  # the architecture whose rows are borrowed where one has none


@dataclass(frozen=True)
class Chosen:
    """A bound kernel or vendor call. reason: for a person."""

    kernel: str
    config: Config
    reason: str
    call: Call = field(repr=False, compare=False)


@functools.cache
def database(arch: str) -> Database:
    """The user's rows of an architecture, as `pumice tune` wrote them, and the shipped ones."""
    from pumice.settings import Settings

    mine = Settings.from_environment().cache_dir / "tuning"
    return Database(arch, (mine, DATA))


def choose(problem: Problem, target: Target) -> Chosen:
    """UnsupportedError says each kernel's reason when none supports the problem."""
    found = database(target.name).nearest(problem)
    if found is not None:
        row, distance = found
        where = f"measured for {row.sizes} on {row.device or target.name}"
        how = "the same sizes" if distance == 0 else f"{distance:.1f} doublings away"
        reason = f"fastest {where} ({row.us:.1f} µs, {row.floor:.0%} of the floor), {how}"
        if row.kernel.startswith("vendor."):
            call = vendor_call(row.kernel, problem)
            if not isinstance(call, str):
                return Chosen(row.kernel, {}, reason, call)
        kernel = _named(row.kernel, problem, target)
        if kernel is not None:
            config = row.config
            if dict(config) not in [dict(c) for c in kernel.configs(problem, target)]:
                config = kernel.configs(problem, target)[0]
                reason += "; its configuration does not fit here, so the analytic one"
            return _bound(kernel, config, reason, problem, target)
    if target.name != MEASURED_FIRST:
        found = database(MEASURED_FIRST).nearest(problem)
        kernel = None if found is None else _named(found[0].kernel, problem, target)
        if kernel is not None:
            reason = (
                f"no row for {target.name}; this kernel is the fastest on {MEASURED_FIRST}, "
                "its configuration is from the analytic model"
            )
            return _bound(kernel, kernel.configs(problem, target)[0], reason, problem, target)
    kernel, config = candidates(problem, target)[0]
    reason = "no row measured near; first of the operator's order, analytic configuration"
    return _bound(kernel, config, reason, problem, target)


def _named(name: str, problem: Problem, target: Target) -> TritonKernel | None:
    """The kernel of that name, if it supports the problem."""
    from pumice.operators.registry import triton_kernels_of

    for kernel in triton_kernels_of(problem.operator):
        if kernel.name == name and kernel.supports(problem, target) is None:
            return kernel
    return None


def _bound(
    kernel: TritonKernel, config: Config, reason: str, problem: Problem, target: Target
) -> Chosen:
    plan = kernel.plan(problem, target, config)
    return Chosen(kernel.name, config, reason, BoundPlan(problem, plan, target))

"""The kernel of a problem (`tuning/gpu.py`) or a provider's call, bound to be launched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from pumice.operators.triton.plan import Config, Problem
from pumice.targets import Target
from pumice.torch.launch import BoundPlan
from pumice.torch.vendor import vendors_of
from pumice.tuning.database import Database
from pumice.tuning.gpu import database
from pumice.tuning.settle import compile_choice
from pumice.tuning.similar import choose_near

Call = Callable[[Mapping[str, torch.Tensor]], None]


@dataclass(frozen=True)
class Chosen:
    """A bound kernel or vendor call. reason: for a person."""

    kernel: str
    config: Config
    reason: str
    call: Call = field(repr=False, compare=False)


def rows_here(target: Target) -> Database:
    """What `pumice tune` measured for this user, before the shipped rows."""
    from pumice.settings import Settings

    return database(target.name, Settings.from_environment().cache_dir / "tuning")


def choose(problem: Problem, target: Target) -> Chosen:
    """UnsupportedError says each kernel's reason when none supports the problem."""
    vendors = vendors_of(problem)
    choice = choose_near(problem, target, rows_here(target), vendors=frozenset(vendors))
    if choice.kernel is None:
        return Chosen(choice.kernel_name, {}, choice.reason, vendors[choice.kernel_name])
    choice, binaries = compile_choice(problem, target, choice)
    assert choice.kernel is not None
    bound = BoundPlan(problem, choice.kernel.plan(problem, target, choice.config), target, binaries)
    return Chosen(choice.kernel_name, choice.config, choice.reason, bound)

"""A provider: a library that computes some operators beside Pumice's kernels.

It says whether it can be used on this machine, and why not; whether it computes a problem, and why
not; and gives a call that writes into the given outputs, as a kernel does.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from pumice.operators.triton.plan import Problem

Tensors = Mapping[str, torch.Tensor]
Call = Callable[[Tensors], None]
Make = Callable[[Problem], Call | str]


@dataclass(frozen=True)
class Provider:
    """name: begins with "vendor.", as in the rows of `tuning/database.py`. operators: operator →
    (problem) → its call, or why there is none. unavailable: None, or why the library cannot be used
    here; asked before an operator is."""

    name: str
    operators: Mapping[str, Make]
    unavailable: Callable[[], str | None] = lambda: None

    def call(self, problem: Problem) -> Call | str:
        """The call for a problem, or why there is none."""
        make = self.operators.get(problem.operator)
        if make is None:
            return f"{self.name} has no {problem.operator}"
        against = self.unavailable()
        if against is not None:
            return f"{self.name}: {against}"
        found = make(problem)
        return f"{self.name}: {found}" if isinstance(found, str) else found


@functools.cache
def import_fault(package: str) -> str | None:
    """None when a package can be imported; asked once a process, as some take seconds."""
    try:
        if importlib.util.find_spec(package) is None:
            return f"the package {package} is not installed"
        importlib.import_module(package)
    except Exception as error:  # such packages compile and look for devices when imported
        return f"the package {package} is installed but does not import: {error}"
    return None


def member(package: str, name: str) -> Any:
    """A function of a package, None in versions without it."""
    return getattr(importlib.import_module(package), name, None)

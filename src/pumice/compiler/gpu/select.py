"""A call of the tensor engine → the launches of the kernel that was measured fastest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pumice.compiler.gpu.translate import Call
from pumice.errors import UnsupportedError
from pumice.operators.triton.plan import Plan, Problem
from pumice.targets import Target
from pumice.tuning.database import Database
from pumice.tuning.gpu import choose_kernel


@dataclass(frozen=True)
class Selected:
    """A kernel under a configuration: what to launch, and why this one."""

    problem: Problem
    plan: Plan
    kernel: str
    config: Mapping[str, int]
    reason: str
    rejected: Mapping[str, str]


def problem_of(call: Call) -> Problem:
    tensors = {name: value.spec for name, value in call.tensors.items()}
    return Problem(call.operator, tensors, call.attrs, call.outputs)


@dataclass
class Selection:
    """Choices of one target, each made once: layers repeat their calls."""

    target: Target
    database: Database
    _made: dict[Problem, Selected] = field(default_factory=dict)

    def of(self, call: Call) -> Selected:
        """UnsupportedError says why no kernel runs a call."""
        problem = problem_of(call)
        if problem not in self._made:
            choice = choose_kernel(problem, self.target, self.database)
            if choice.kernel is None:
                raise UnsupportedError(f"{call.label}: {choice.reason}")
            self._made[problem] = Selected(
                problem,
                choice.kernel.plan(problem, self.target, choice.config),
                choice.kernel_name,
                choice.config,
                choice.reason,
                choice.rejected,
            )
        return self._made[problem]

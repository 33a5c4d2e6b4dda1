"""A call of the tensor engine → the launches of the kernel that was measured fastest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pumice.compiler.gpu.translate import Call
from pumice.errors import CompileError, UnsupportedError
from pumice.operators.triton.plan import Plan, Problem
from pumice.targets import Target
from pumice.tuning.database import Database
from pumice.tuning.gpu import GpuChoice, supporting
from pumice.tuning.similar import choose_near

TWO_STEP = "gemm_w4.triton.two_step"


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
            choice = self._choose(problem)
            if choice.kernel is None:
                raise UnsupportedError(f"{call.label}: {choice.reason}")
            plan = choice.kernel.plan(problem, self.target, choice.config)
            used = {v for launch in plan.launches for v in launch.arguments.values()}
            if unread := sorted(set(problem.tensors) - used):
                raise CompileError(
                    f"{call.label}: kernel {choice.kernel_name} leaves out {', '.join(unread)}"
                )
            self._made[problem] = Selected(
                problem,
                plan,
                choice.kernel_name,
                choice.config,
                choice.reason,
                choice.rejected,
            )
        return self._made[problem]

    def unpacked(self, call: Call) -> Selected | None:
        """The launches that unpack the weights of a call into memory, for a dense product that
        something else computes: `plan.product`. None where the call has no packed weights, or too
        few tokens."""
        problem = problem_of(call)
        if problem.operator != "gemm_w4":
            return None
        kernel = supporting(problem, self.target)[0].get(TWO_STEP)
        if kernel is None:
            return None
        whole = kernel.plan(problem, self.target, kernel.configs(problem, self.target)[0])
        if whole.product is None:
            return None
        launches = whole.launches[: whole.product.first]
        used = {value for launch in launches for value in launch.arguments.values()}
        spaces = {name: spec for name, spec in whole.workspaces.items() if name in used}
        plan = Plan(launches, spaces, product=whole.product)
        return Selected(problem, plan, TWO_STEP, {}, "for a vendor's library", {})

    @property
    def problems(self) -> list[Problem]:
        """All that were asked for, in order; among them those of fusions that were given up."""
        return list(self._made)

    def _choose(self, problem: Problem) -> GpuChoice:
        return choose_near(problem, self.target, self.database)

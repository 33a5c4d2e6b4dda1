"""A call of the tensor engine → the launches of the kernel that was measured fastest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from pumice.compiler.gpu.translate import Call
from pumice.errors import CompileError, UnsupportedError
from pumice.operators.triton.plan import Plan, Problem, TensorSpec
from pumice.targets import Target
from pumice.tuning.database import Database
from pumice.tuning.gpu import GpuChoice, choose_kernel, supporting

TWO_STEP = "gemm_w4.triton.two_step"
_HALF = ("float16", "bfloat16")


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


def similar(problem: Problem) -> Iterator[tuple[str, Problem]]:
    """Problems whose measured rows say something about this one, the nearest first, each with what
    differs. None of that changes what a kernel reads or computes by much."""
    plain = replace(problem, attrs={k: v for k, v in problem.attrs.items() if k != "out_dtype"})
    if plain != problem:
        yield "measured with outputs of the inputs' type", plain
    for dtype in _HALF:
        tensors = {name: _as_measured(name, t, dtype) for name, t in problem.tensors.items()}
        attrs = plain.attrs
        if problem.operator == "fused_w4":  # its residual stream is float32 everywhere
            tensors |= {n: t for n, t in problem.tensors.items() if t.dtype == "float32"}
            attrs = {**attrs, "dtype": dtype} if "dtype" in attrs else attrs
        other = replace(plain, tensors=tensors, attrs=attrs)
        if other != plain:
            yield f"measured in {dtype}", other
        if problem.attrs.get("packing") == "rows":
            packed = {**attrs, "packing": "blocks"}
            yield "measured with the other packing", replace(other, attrs=packed)


def _as_measured(name: str, spec: TensorSpec, dtype: str) -> TensorSpec:
    """A tensor as the rows have it: activations of 16 bits, the residual stream and the norms'
    weights as well."""
    half = spec.dtype in _HALF and name not in ("scales", "mins")
    wide = spec.dtype == "float32" and name in ("residual", "weight", "q_weight", "k_weight")
    return replace(spec, dtype=dtype) if half or wide else spec


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
        choice = choose_kernel(problem, self.target, self.database)
        if choice.measured:
            return choice
        for difference, other in similar(problem):
            try:
                found = choose_kernel(other, self.target, self.database)
            except UnsupportedError:
                continue
            kernel = found.kernel
            if not found.measured or kernel is None or kernel.supports(problem, self.target):
                continue
            if dict(found.config) in [dict(c) for c in kernel.configs(problem, self.target)]:
                return replace(
                    found, reason=f"{found.reason}, {difference}", rejected=choice.rejected
                )
        return choice

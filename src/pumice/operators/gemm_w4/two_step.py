"""gemm_w4 for many tokens: weights to 16 bits once, then the dense product.

A tile of the fused kernel dequantizes the weights that it needs, so a weight is decoded as often as
there are blocks of tokens; beyond a few blocks a pass of its own costs less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pumice.operators.gemm.hopper_plan import GemmSpecialized, GemmStreamed
from pumice.operators.gemm.triton_plan import GemmTiled
from pumice.operators.gemm_w4.triton_plan import Dequantize, gemm_reason
from pumice.operators.triton.plan import (
    Config,
    Launch,
    Plan,
    Problem,
    ProductStep,
    TensorSpec,
    TritonKernel,
)
from pumice.targets import Target

LEAST_TOKENS = 128


def _parts(problem: Problem) -> tuple[Problem, Problem]:
    """The dequantization, and the product with its result as "w"."""
    n, words = problem["w"].shape
    dtype = problem["x"].dtype
    dense = TensorSpec((n, words * 8), dtype)
    names = ("w", "scales", "zeros", "mins")
    packed = {name: problem[name] for name in names if name in problem}
    first = Problem(
        "dequantize_w4", {**packed, "out": dense}, {**problem.attrs, "out_dtype": dtype}
    )
    given = {name: problem[name] for name in ("x", "bias", "out") if name in problem}
    return first, Problem("gemm", {**given, "w": dense}, {}, frozenset({"out"}))


def _renamed(launch: Launch, name: str) -> Launch:
    arguments = {k: "dense" if v == name else v for k, v in launch.arguments.items()}
    return replace(launch, arguments=arguments)


class TwoStep:
    """Dequantization into a workspace of N · K 16-bit floats, then `gemm` by one of its kernels.
    config: that kernel's."""

    name = "gemm_w4.triton.two_step"
    product: TritonKernel = GemmTiled()

    def supports(self, problem: Problem, target: Target) -> str | None:
        if (reason := gemm_reason(problem, target)) is not None:
            return reason
        if problem["x"].shape[0] < LEAST_TOKENS:
            return f"gemm_w4: {problem['x'].shape[0]} tokens; two steps pay from {LEAST_TOKENS} on"
        return self.product.supports(_parts(problem)[1], target)

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        return self.product.configs(_parts(problem)[1], target)

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        first, second = _parts(problem)
        step = Dequantize()
        unpack = step.plan(first, target, step.configs(first, target)[0])
        product = self.product.plan(second, target, config)
        launches = [_renamed(launch, "out") for launch in unpack.launches]
        launches += [_renamed(launch, "w") for launch in product.launches]
        workspaces = {**product.workspaces, "dense": first["out"]}
        names = {name: "dense" if name == "w" else name for name in second.tensors}
        dense = ProductStep(len(unpack.launches), second, names)
        return Plan(tuple(launches), workspaces, product.zeroed, product.restored, product=dense)


class TwoStepSpecialized(TwoStep):
    name = "gemm_w4.triton.two_step_specialized"
    product = GemmSpecialized()


class TwoStepStreamed(TwoStep):
    name = "gemm_w4.triton.two_step_streamed"
    product = GemmStreamed()

"""Plans of fused_w4 for more tokens, on Hopper's matrix units: `gemm_w4/hopper_triton.py`."""

from __future__ import annotations

from collections.abc import Sequence

from pumice.operators.fused_w4.triton_plan import fused_reason
from pumice.operators.gemm_w4.hopper import stream_configs, stream_plan, stream_reason
from pumice.operators.triton.plan import Config, Plan, Problem
from pumice.targets import Target


class FusedStream:
    """2 to 64 tokens that need no norm. config: as of gemm_w4's `Stream`."""

    name = "fused_w4.triton.stream"

    def supports(self, problem: Problem, target: Target) -> str | None:
        if (reason := fused_reason(problem, target)) is not None:
            return reason
        if "norm_weight" in problem:
            return "fused_w4: this kernel does not norm activations"
        return stream_reason(problem, target)

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        return stream_configs(problem, target)

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        return stream_plan(problem, target, config)

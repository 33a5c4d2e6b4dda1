"""Launches of `topk_softmax`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pumice.operators.topk_softmax.kernel_triton import topk_rows
from pumice.operators.triton.plan import Config, Launch, Plan, Problem, cdiv, next_power_of_2
from pumice.targets import Target

_MOST_EXPERTS = 1024


class TopkRows:
    """A few tokens a program."""

    name = "topk_softmax.triton.rows"

    def supports(self, problem: Problem, target: Target) -> str | None:
        logits, attrs = problem["logits"], problem.attrs
        if len(logits.shape) != 2 or not 1 <= logits.shape[1] <= _MOST_EXPERTS:
            return f"logits have shape {logits.shape}; [T, 1 to {_MOST_EXPERTS}] is needed"
        experts, topk, groups = logits.shape[1], int(attrs["topk"]), int(attrs.get("groups", 1))
        kept = int(attrs.get("groups_kept", 1))
        if logits.dtype not in ("float32", "bfloat16", "float16"):
            return f"logits are {logits.dtype}; float32, bfloat16 or float16 are needed"
        if logits.shape[1] > 1 and logits.stride[1] != 1:
            return f"logits' last axis has stride {logits.stride[1]}; 1 is needed"
        if attrs.get("scoring", "softmax") not in ("softmax", "sigmoid"):
            return f"scoring is {attrs['scoring']!r}; known: softmax, sigmoid"
        if groups > 1 and (experts & (experts - 1) or groups & (groups - 1) or groups > experts):
            return f"{experts} experts in {groups} groups; both must be powers of two"
        if not 1 <= kept <= groups or not 1 <= topk <= experts // groups * kept:
            return f"topk is {topk} of {experts} experts in {kept} of {groups} groups"
        if "bias" in problem:
            bias = problem["bias"]
            if bias.shape != (experts,) or bias.dtype != "float32" or not bias.contiguous:
                return f"bias is {bias.dtype} {bias.shape}; float32 ({experts},) is needed"
            if groups > 1 and experts == groups:
                return "a group of one expert has no two best"
        for name, kind in (("weights", "float32"), ("ids", "int32")):
            if problem[name].dtype != kind or not problem[name].contiguous:
                return f"{name} must be {kind}, contiguous"
        return None

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        width = next_power_of_2(problem["logits"].shape[1])
        found: list[Config] = []
        for elements, warps in ((512, 1), (1024, 4), (256, 1), (2048, 4)):
            config = {"BT": max(1, elements // width), "warps": warps}
            if config not in found:
                found.append(config)
        return found

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        tokens, experts = problem["logits"].shape
        attrs, topk = problem.attrs, int(problem.attrs["topk"])
        if tokens == 0:
            return Plan(())
        arguments: dict[str, str | int | float] = {
            "logits": "logits", "weights": "weights", "ids": "ids", "T": tokens, "E": experts,
            "stride_t": problem["logits"].stride[0],
        }  # fmt: skip
        constants: dict[str, Any] = {
            "K": topk, "BK": next_power_of_2(topk), "BT": config["BT"],
            "BE": next_power_of_2(experts), "GROUPS": int(attrs.get("groups", 1)),
            "KEPT": int(attrs.get("groups_kept", 1)),
            "SIGMOID": attrs.get("scoring", "softmax") == "sigmoid",
            "RENORMALIZE": bool(attrs.get("renormalize", True)),
            "SCALE": float(attrs.get("scale", 1.0)),
        }  # fmt: skip
        if "bias" in problem:
            arguments["bias"] = "bias"
        else:
            constants["bias"] = None
        grid = (cdiv(tokens, config["BT"]), 1, 1)
        launch = Launch(
            topk_rows, grid, arguments, constants, num_warps=config["warps"], num_stages=1
        )
        return Plan((launch,))

"""What every TensorIR kernel for the CPU shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pumice.operators.base import OperatorCall
from pumice.targets import Target


class CpuKernel:
    """A kernel for `api == "cpu"` with one configuration. A subclass gives `name`, `reason` and
    `source`."""

    name = ""

    def supports(self, call: OperatorCall, target: Target) -> str | None:
        if target.api != "cpu":
            return f"made for the CPU, not for {target.api}"
        return self.reason(call.attrs, target)

    def reason(self, attrs: Mapping[str, Any], target: Target) -> str | None:
        """Why the attributes cannot be compiled; None when they can."""
        return None

    def configs(self, call: OperatorCall, target: Target) -> Sequence[Mapping[str, int]]:
        return ({},)


def quantized_reason(attrs: Mapping[str, Any], width: int) -> str | None:
    """Why a width cannot be quantized in groups of 32, when the call asks for that."""
    if not attrs.get("quantize"):
        return None
    if width % 32:
        return f"int8 output needs a width that is a multiple of 32, not {width}"
    if attrs.get("sum_group", 32) not in (16, 32):
        return f"code sums come per 16 or 32, not {attrs['sum_group']}"
    if attrs.get("planes", 1) not in (1, 2):
        return f"codes have 1 or 2 planes, not {attrs['planes']}"
    return None

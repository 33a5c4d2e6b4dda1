"""Chooses a kernel for a call: a pure function of operator, shapes, formats, target and measured
rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pumice.errors import UnsupportedError
from pumice.operators.base import Kernel, KernelSource, OperatorCall
from pumice.operators.registry import kernels_of
from pumice.targets import Target


@dataclass(frozen=True)
class Choice:
    """A kernel under a configuration, with the reason for people and the reasons against the
    others."""

    kernel: Kernel
    config: Mapping[str, int]
    source: KernelSource
    reason: str
    rejected: Mapping[str, str] = field(default_factory=dict)


def choose(call: OperatorCall, target: Target, kernels: Sequence[Kernel] | None = None) -> Choice:
    """The first kernel of the operator's order that supports the call, in its analytic favourite
    configuration.

    UnsupportedError lists every kernel's reason when none does.
    """
    candidates = kernels_of(call.operator) if kernels is None else kernels
    rejected: dict[str, str] = {}
    for kernel in candidates:
        against = kernel.supports(call, target)
        if against is not None:
            rejected[kernel.name] = against
            continue
        config = kernel.configs(call, target)[0]
        reason = (
            "only kernel for this call"
            if len(candidates) == 1
            else (
                "first of the operator's order"
                if not rejected
                else f"first that supports the call; passed over: {', '.join(rejected)}"
            )
        )
        reason += "; configuration from the analytic model"
        return Choice(kernel, config, kernel.source(call, target, config), reason, rejected)
    reasons = "; ".join(f"{name}: {why}" for name, why in rejected.items()) or "it has no kernels"
    raise UnsupportedError(
        f"no kernel of operator {call.operator!r} runs on {target.name} with "
        f"{dict(call.attrs)}: {reasons}"
    )

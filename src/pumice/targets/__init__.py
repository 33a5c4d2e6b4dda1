"""The devices that Pumice knows, as frozen rows, and the detection of those that are there."""

from __future__ import annotations

from pumice.errors import UsageError
from pumice.targets.cpu import CPU_TARGETS
from pumice.targets.gpu import CUDA_TARGETS, GPU_TARGETS, ROCM_TARGETS
from pumice.targets.target import Target

__all__ = [
    "CPU_TARGETS",
    "CUDA_TARGETS",
    "GPU_TARGETS",
    "ROCM_TARGETS",
    "TARGETS",
    "Target",
    "get_target",
]

TARGETS: tuple[Target, ...] = (*CPU_TARGETS, *GPU_TARGETS)


def get_target(name: str) -> Target:
    """The row of that name, in whatever case; UsageError names the known ones."""
    for target in TARGETS:
        if target.name == name.strip().lower():
            return target
    raise UsageError(
        f"target {name!r} is unknown; known: {', '.join(t.name for t in TARGETS)}",
        hint="`pumice doctor` shows the targets of this machine.",
    )

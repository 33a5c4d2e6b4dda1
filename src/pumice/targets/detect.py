"""Which target this machine's CPU satisfies."""

from __future__ import annotations

import platform
from pathlib import Path

from pumice.errors import UnsupportedError
from pumice.targets.cpu import CPU_TARGETS
from pumice.targets.target import Target

# Feature of ours → the flags of /proc/cpuinfo that it needs.
_X86_FLAGS: dict[str, tuple[str, ...]] = {
    "avx2": ("avx2", "bmi2"),
    "fma": ("fma",),
    "f16c": ("f16c",),
    "avx512": ("avx512f", "avx512bw", "avx512vl", "avx512dq"),
    "vnni": ("avx512_vnni",),
    "avxvnni": ("avx_vnni",),
}
_ARM_FLAGS: dict[str, tuple[str, ...]] = {
    "neon": ("asimd",),
    "dotprod": ("asimddp",),
    "fp16": ("asimdhp",),
}


def _flags() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return set()
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return set(value.split())
    return set()


def cpu_features() -> frozenset[str]:
    """Features of this CPU in the targets' names."""
    flags = _flags()
    table = _ARM_FLAGS if platform.machine() in ("aarch64", "arm64") else _X86_FLAGS
    return frozenset(name for name, needed in table.items() if flags.issuperset(needed))


def detect_cpu() -> Target:
    """The best CPU target that this machine satisfies; UnsupportedError when none."""
    features = cpu_features()
    arm = platform.machine() in ("aarch64", "arm64")
    for target in CPU_TARGETS:
        if ("neon" in target.features) == arm and target.features <= features:
            return target
    raise UnsupportedError(
        f"this CPU ({platform.machine()}; features: "
        f"{', '.join(sorted(features)) or 'none'}) is below "
        "every CPU target; x86-64 needs AVX2, FMA and F16C, Arm needs dot products",
    )


def cpu_name() -> str:
    """The processor's name for people."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()

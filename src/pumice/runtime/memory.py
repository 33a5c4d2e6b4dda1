"""How much memory this process may still take."""

from __future__ import annotations

from pathlib import Path

from pumice.errors import ContextLengthError, UsageError


def available_bytes() -> int | None:
    """Bytes that can be had without swapping: the smaller of the system's and the control group's
    figure; None if unknown."""
    candidates = [n for n in (_system(), _control_group()) if n is not None]
    return min(candidates) if candidates else None


def _system() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def _control_group() -> int | None:
    folder = Path("/sys/fs/cgroup")
    for limit_file, used_file in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            limit = (folder / limit_file).read_text().strip()
            if limit == "max":
                return None
            used = int((folder / used_file).read_text())
            # Page cache counts as used but is given back: the system's own figure already allows
            # for it.
            return int(limit) - used if int(limit) < 1 << 60 else None
        except (OSError, ValueError):
            continue
    return None


def check_context(asked: int, longest: int, whose: str) -> None:
    """UsageError when a context has no token, ContextLengthError when it has more than `longest`;
    whose: a few words on where that bound comes from.
    """
    if asked < 1:
        raise UsageError(f"context is {asked:,}; it must be at least 1 token")
    if asked > longest:
        raise ContextLengthError(
            f"a context of {asked:,} tokens was asked for; {longest:,} are allowed, {whose}"
        )

"""Loads an artifact on a device, after comparing what it needs with what there is."""

from __future__ import annotations

from pathlib import Path

from pumice.artifact import Manifest
from pumice.errors import ArtifactError, OutOfMemoryError, UsageError
from pumice.runtime.devices.cpu import CpuDevice
from pumice.runtime.executor import Executor
from pumice.runtime.memory import available_bytes
from pumice.targets.detect import cpu_features

DEFAULT_CONTEXT = 8192  # tokens of cache when nobody says otherwise and the model allows as many


def load(
    directory: Path,
    *,
    device: str = "cpu",
    threads: int | None = None,
    num_blocks: int | None = None,
    context_length: int | None = None,
) -> Executor:
    """Loads an artifact.

    num_blocks: blocks of the key/value cache (default: one context of `context_length`).
    context_length: longest sequence; default the smaller of the model's and 8192.
    Raises ArtifactError (damaged, or made for another device), OutOfMemoryError (before anything is
    loaded), UsageError.
    """
    if device not in ("cpu", "auto"):
        raise UsageError(f"device {device!r} cannot run this artifact; it was compiled for the CPU")
    directory = Path(directory)
    manifest = Manifest.load(directory / "manifest.json")
    _check_target(manifest)
    longest = manifest.model.context_length
    if context_length is None:
        context_length = min(longest, DEFAULT_CONTEXT)
    elif not 1 <= context_length <= longest:
        raise UsageError(
            f"context length {context_length:,} is outside 1 to {longest:,}, the model's own"
        )
    cache = manifest.cache
    if num_blocks is None:
        num_blocks = -(-context_length // cache.block_size) + 1
    if num_blocks < 1:
        raise UsageError(f"num_blocks is {num_blocks}; it must be at least 1")
    arena = max(plan.arena_bytes for plan in manifest.entries.values())
    try:
        weights = (directory / "weights.safetensors").stat().st_size
    except OSError as error:
        raise ArtifactError(
            f"{directory} has no weights.safetensors: {error.strerror}",
            hint="Compile the model again: pumice compile MODEL --rebuild",
        ) from None
    need = weights + num_blocks * cache.bytes_per_block() + arena
    free = available_bytes()
    if free is not None and need > free:
        raise OutOfMemoryError(
            f"{manifest.model.name} needs {need / 1e9:.2f} GB (weights {weights / 1e9:.2f}, cache "
            f"{num_blocks * cache.bytes_per_block() / 1e9:.2f}, work {arena / 1e9:.2f}); "
            f"{free / 1e9:.2f} GB are free",
            hint="Choose a shorter context (--context) or a smaller model.",
        )
    return Executor(
        directory,
        manifest,
        CpuDevice(threads),
        num_blocks=num_blocks,
        context_length=context_length,
    )


def _check_target(manifest: Manifest) -> None:
    target = manifest.target
    if target.get("api") != "cpu":
        raise ArtifactError(
            f"the artifact was compiled for {target.get('name')} ({target.get('api')}), "
            "not for a CPU"
        )
    missing = sorted(set(target.get("features", ())) - cpu_features())
    if missing:
        raise ArtifactError(
            f"the artifact was compiled for {target.get('name')}; "
            f"this CPU lacks {', '.join(missing)}",
            hint="Compile the model for this machine: pumice compile MODEL --target native",
        )

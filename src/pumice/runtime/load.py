"""Loads an artifact on a device, after comparing what it needs with what there is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from pumice.artifact import AGAIN, Manifest
from pumice.artifact_files import check_files
from pumice.errors import ArtifactError, OutOfMemoryError, UsageError
from pumice.runtime.devices.cpu import CpuDevice
from pumice.runtime.executor import Executor
from pumice.runtime.gpu_executor import GpuExecutor
from pumice.runtime.gpu_load import load_gpu
from pumice.runtime.memory import available_bytes, check_context
from pumice.targets.detect import cpu_features

DEFAULT_CONTEXT = 8192  # tokens of cache when nobody says otherwise and the model allows as many


Loaded = Executor | GpuExecutor


def load(
    directory: Path,
    *,
    device: str = "auto",
    threads: int | None = None,
    num_blocks: int | None = None,
    context_length: int | None = None,
    contexts: int | None = None,
    random_weights: bool = False,
    progress: Callable[[int, int], None] | None = None,
    library_homes: Sequence[Path] = (),
) -> Loaded:
    """Loads an artifact.

    device: "auto" is the one that the artifact was compiled for; else "cpu", or a GPU's name
    (`devices.driver.choose`). threads: of a CPU.
    num_blocks: blocks of the key/value cache. By default a CPU gets one context of `context_length`
    (or as many as `contexts` says); a GPU too when `context_length` is given, else what memory is
    left, for at most `contexts` of the longest.
    context_length: longest sequence; by default the model's, on a CPU at most 8192.
    random_weights: of a GPU's artifact, what its file lacks is made up. progress: bytes of weights
    done and in all, while a GPU's are copied. library_homes: folders of vendors' libraries of
    products, looked into before the usual places.
    Raises ArtifactError (damaged, or made for another device), DeviceError (no such driver or
    device), OutOfMemoryError (before anything is loaded), UsageError.
    """
    directory = Path(directory)
    manifest = Manifest.load(directory / "manifest.json")
    check_files(directory, manifest, without_weights=random_weights)
    if contexts is not None and contexts < 1:
        raise UsageError(f"contexts is {contexts}; it must be at least 1")
    if manifest.target.get("api") != "cpu":
        if threads is not None:
            raise UsageError(
                f"threads is {threads}; they are the CPU's, and the artifact was compiled for "
                f"{manifest.target['name']}"
            )
        return load_gpu(
            directory,
            manifest,
            device=device,
            num_blocks=num_blocks,
            context_length=context_length,
            contexts=contexts,
            random_weights=random_weights,
            progress=progress,
            library_homes=library_homes,
        )
    if device not in ("cpu", "auto"):
        raise ArtifactError(
            f"device {device!r} cannot run this artifact; it was compiled for the CPU",
            hint=f"Compile the model for it: pumice compile MODEL --device {device}",
        )
    if random_weights:
        raise UsageError(
            "random_weights is for a GPU's artifacts; this one was compiled for the CPU",
            hint="Compile random:SHAPE instead.",
        )
    _check_features(manifest)
    longest = manifest.model.context_length
    if context_length is None:
        context_length = min(longest, DEFAULT_CONTEXT)
    else:
        check_context(context_length, longest, "the model's own")
    cache = manifest.cache
    given = num_blocks is not None
    if num_blocks is None:
        num_blocks = (contexts or 1) * -(-context_length // cache.block_size) + 1
    if num_blocks < 1:
        raise UsageError(f"num_blocks is {num_blocks}; it must be at least 1")
    arena = max(plan.arena_bytes for plan in manifest.entries.values())
    try:
        weights = (directory / "weights.safetensors").stat().st_size
    except OSError as error:
        raise ArtifactError(
            f"{directory} has no weights.safetensors: {error.strerror}",
            hint=AGAIN,
        ) from None
    need = weights + num_blocks * cache.bytes_per_block() + arena
    free = available_bytes()
    if free is not None and need > free:
        hint = "Choose a shorter context (--context) or a smaller model."
        fits = (free - weights - arena) // cache.bytes_per_block()
        if given and fits > 0:
            tokens = fits * cache.block_size
            hint = (
                f"A cache of {tokens:,} tokens fits: serve --cache-tokens, or a shorter --context."
            )
        raise OutOfMemoryError(
            f"{manifest.model.name} needs {need / 1e9:,.2f} GB (weights {weights / 1e9:.2f}, cache "
            f"of {num_blocks * cache.block_size:,} tokens "
            f"{num_blocks * cache.bytes_per_block() / 1e9:,.2f}, work {arena / 1e9:.2f}); "
            f"{free / 1e9:.2f} GB are free",
            hint=hint,
        )
    return Executor(
        directory,
        manifest,
        CpuDevice(threads),
        num_blocks=num_blocks,
        context_length=context_length,
    )


def _check_features(manifest: Manifest) -> None:
    target = manifest.target
    missing = sorted(set(target.get("features", ())) - cpu_features())
    if missing:
        raise ArtifactError(
            f"the artifact was compiled for {target.get('name')}; "
            f"this CPU lacks {', '.join(missing)}",
            hint="Compile the model for this machine: pumice compile MODEL --target native",
        )

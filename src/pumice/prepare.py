"""From a model's name to a compiled artifact: found in the cache, or compiled in a child process.

The child keeps the compiler's memory and imports out of the process that runs the model, and a kill
in the middle costs nothing:
the artifact takes its name only when it is whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pumice import errors
from pumice._version import __version__
from pumice.artifact import Manifest
from pumice.errors import CompileError, PumiceError, StorageError, UsageError
from pumice.files import atomic_write_text, locked
from pumice.targets import Target, get_target
from pumice.targets.detect import detect_cpu

Progress = Callable[[str, int, int], None]  # what, done, total
# Activations of CPUs that mean others on GPUs.
GPU_MEANING = {"int16": "float16"}


# Tokens of the largest step. A CPU's prefill is as fast in steps of 512. On a GPU a step of 2048
# fills the matrix units better and reads (or unpacks) the weights a quarter as often, for a larger
# arena; streams that run beside it are no slower, as the engine's pace bounds a step by measured
# time (docs/gpu.md has the figures).
MAX_TOKENS = {"cpu": 512, "rocm": 2048, "cuda": 2048}


def activations_for(target: Target, asked: str | None) -> str:
    """Of quantized products: what was asked for means this on a target; None is the default."""
    activations = asked or "int16"
    return activations if target.api == "cpu" else GPU_MEANING.get(activations, activations)


@dataclass(frozen=True)
class PrepareSettings:
    """Everything that decides what the artifact is, and where it is kept."""

    cache_dir: Path
    target: str = "native"
    quantization: str | None = None  # None: as the file has it (a float checkpoint becomes q4f16_1)
    activations: str = "int16"
    max_tokens: int = 512
    max_sequences: int = 64
    max_rows: int = 64
    block_size: int = 32
    workers: int | None = None
    rebuild: bool = False
    quiet: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    def compile_options(self) -> dict[str, Any]:
        """The part that a compile depends on."""
        return {
            "quantization": self.quantization,
            "activations": self.activations,
            "max_tokens": self.max_tokens,
            "max_sequences": self.max_sequences,
            "max_rows": self.max_rows,
            "block_size": self.block_size,
            **self.options,
        }


def resolve_target(name: str, device: str = "auto") -> Target:
    """`native` is the best row for a device: the GPU that `device` names, else this CPU. Anything
    else is a row's name. DeviceError when there is no such GPU.
    """
    if name.lower() != "native":
        return get_target(name)
    if device in ("auto", "cpu"):
        return detect_cpu()
    from pumice.runtime.gpu_load import find_device, target_of

    return target_of(find_device(device).arch)


def is_artifact(model: str) -> bool:
    """Whether a model's name is an artifact's directory."""
    return (Path(model) / "manifest.json").is_file()


def check_artifact_options(
    model: str,
    manifest: Manifest,
    *,
    target: str | None = None,
    quantization: str | None = None,
    activations: str | None = None,
) -> None:
    """UsageError when an artifact is asked to be what it was not compiled to be."""
    if target is not None and target.lower() == "native":
        target = None
    default = "int16"
    if manifest.target["api"] != "cpu":
        default = GPU_MEANING[default]
        activations = activations and GPU_MEANING.get(activations, activations)
    for option, asked, found in (
        ("target", target and target.lower(), manifest.target["name"]),
        ("quant", quantization, manifest.model.quantization),
        ("activations", activations, manifest.options.get("activations", default)),
    ):
        if asked is not None and asked != found:
            raise UsageError(
                f"{model} is an artifact; it was compiled with --{option} {found}, which "
                f"--{option} {asked} cannot change",
                hint=f"Compile its model: pumice compile MODEL --{option} {asked}",
            )


def source_digest() -> str:
    """A digest of this package's own code: an artifact of an older tree is never taken for a new
    one."""
    digest = hashlib.sha256()
    root = Path(__file__).parent
    rooms = (
        "targets",
        "quantization",
        "operators",
        "tuning",
        "models",
        "weights",
        "compiler",
        "text",
    )
    files = [path for room in rooms for path in sorted((root / room).rglob("*.py"))]
    for path in [*files, root / "artifact.py", root / "plans.py"]:
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def file_digest(path: Path, cache_dir: Path) -> str:
    """SHA-256 of a file or of a directory's model files; remembered by path, size and time of
    change."""
    files = (
        [path]
        if path.is_file()
        else sorted(
            p for p in path.iterdir() if p.suffix in (".safetensors", ".json", ".jinja", ".model")
        )
    )
    if path.suffix == ".gguf" and "-of-" in path.name:
        files = sorted(path.parent.glob(path.name.rsplit("-", 3)[0] + "-*-of-*.gguf"))
    stamp = [[str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns] for p in files]
    key = hashlib.sha256(json.dumps(stamp).encode()).hexdigest()[:32]
    memo = cache_dir / "digests" / key
    try:
        return memo.read_text().strip()
    except OSError:
        pass
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode())
        with file.open("rb") as handle:
            while chunk := handle.read(1 << 22):
                digest.update(chunk)
    value = digest.hexdigest()
    with contextlib.suppress(OSError):  # a read-only cache only makes the next start slower
        atomic_write_text(memo, value)
    return value


def artifact_key(model_digest: str, target: Target, settings: PrepareSettings) -> str:
    """Names an artifact by all that decides its content."""
    parts = {
        "pumice": __version__,
        "source": source_digest(),
        "tvm": importlib.metadata.version("apache-tvm"),
        "triton": triton_version() if target.api in ("rocm", "cuda") else "",
        "target": [target.name, target.api, target.arch, sorted(target.features)],
        "model": model_digest,
        "options": settings.compile_options(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:24]


def triton_version() -> str:
    """Of the compiler that GPU targets need; UsageError when it is not installed."""
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        raise UsageError(
            "compiling for a GPU needs the package triton, which is not installed",
            hint="pip install 'pumice[gpu]'",
        ) from None


def prepare(
    model: str,
    *,
    settings: PrepareSettings,
    progress: Progress | None = None,
    check: Callable[[str], None] | None = None,
) -> Path:
    """The artifact directory of a model, compiled now when the cache has none.

    model: a catalogue name, `hf:org/name`, a directory of safetensors, a `.gguf` file, an artifact
    directory, or
    `random:<shape>` for random weights of a published model's shapes.
    progress: called while files are fetched; the child prints the compiler's own progress on
    standard error.
    check: called with the model's path before a compile begins; what it raises ends the attempt
    (memory, disk).
    """
    if is_artifact(model):
        return Path(model)
    target = resolve_target(settings.target)
    if model.startswith("random:"):
        source, digest, name = model, model, model.removeprefix("random:")
    else:
        from pumice.weights.hub import resolve

        found = resolve(model, settings.cache_dir, progress=progress)
        source, digest = str(found), file_digest(found, settings.cache_dir)
        name = found.stem if found.is_file() else found.name
    key = artifact_key(digest, target, settings)
    final = settings.cache_dir / "artifacts" / f"{_safe(name)}-{target.name}-{key}"
    if (final / "manifest.json").is_file() and not settings.rebuild:
        return final
    with locked(settings.cache_dir / "locks" / f"{final.name}.lock"):
        if (final / "manifest.json").is_file() and not settings.rebuild:
            return final  # another process made it while this one waited
        if check is not None:
            check(source)
        _compile_in_child(source, digest, target, final, settings)
    return final


def _safe(name: str) -> str:
    return (
        "".join(c if c.isalnum() or c in "-._" else "-" for c in name)[:60].strip(".-") or "model"
    )


def _compile_in_child(
    source: str, digest: str, target: Target, final: Path, settings: PrepareSettings
) -> None:
    job = {
        "source": source,
        "digest": digest,
        "target": target.name,
        "output": str(final),
        "options": settings.compile_options() | {"workers": settings.workers},
        "quiet": settings.quiet,
        "cache_dir": str(settings.cache_dir),
        "parent": os.getpid(),
    }
    child = subprocess.Popen(
        [sys.executable, "-m", "pumice.compile_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        answer, _ = child.communicate(json.dumps(job))
    except BaseException:
        child.terminate()  # an interrupt may have been sent to this process alone
        child.wait()  # it removes what it has begun
        raise
    if child.returncode == 130:
        raise KeyboardInterrupt
    if child.returncode != 0:
        raise _child_error(answer, child.returncode)


def _child_error(answer: str, status: int) -> PumiceError:
    """The child's exception, as the class that it was there."""
    try:
        data = json.loads(answer.strip().splitlines()[-1])
        kind = getattr(errors, data["kind"])
        if not issubclass(kind, PumiceError):
            kind = CompileError
        error: PumiceError = kind(data["message"], hint=data["hint"])
        return error
    except (IndexError, ValueError, KeyError, AttributeError, TypeError):
        if status < 0:
            return CompileError(
                f"the compiler was ended by signal {-status}",
                hint="Signal 9 usually means that the system ran out of memory.",
            )
        return CompileError(f"the compiler ended with status {status} and without a message")


def remove_artifacts(cache_dir: Path) -> int:
    """Deletes every cached artifact; returns how many."""
    import shutil

    folder = cache_dir / "artifacts"
    if not folder.is_dir():
        return 0
    count = 0
    for path in folder.iterdir():
        try:
            shutil.rmtree(path)
        except OSError as error:
            raise StorageError(f"{path} cannot be removed: {error}") from error
        count += 1
    return count

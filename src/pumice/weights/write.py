"""`pumice quantize`: a float checkpoint written as a quantized directory, whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from pumice._version import __version__
from pumice.errors import StorageError, UnsupportedError, UsageError
from pumice.files import make_directory, require_space, storage_error
from pumice.quantization import AffineWeight, QuantFormat, get_format
from pumice.quantization.formats import quantizable
from pumice.weights import stored
from pumice.weights.checkpoint import INDEX
from pumice.weights.quantize import Quantized, is_float
from pumice.weights.safetensors import PlannedTensor, write, written_size
from pumice.weights.source import CheckpointSource, open_source

Progress = Callable[[str, int, int], None]  # what, tensors done, tensors in all

_COPIED = (".json", ".jinja", ".model", ".txt", ".tiktoken")


def write_quantized(
    source: str | Path, format_name: str, out_dir: str | Path, progress: Progress | None = None
) -> Path:
    """Quantizes the directory `source` into the new directory `out_dir`; returns its path.

    One tensor is in memory at a time. The result loads like any model directory. Interrupted or
    failed, it leaves nothing behind.

    Raises UsageError (format, out_dir in use), UnsupportedError (a source
    that is no float checkpoint), ModelFileError, StorageError (no space, not writable).
    """
    fmt = get_format(format_name)
    if fmt.name not in quantizable():
        raise UsageError(
            f"format {fmt.name} is GGUF's own and cannot be made; allowed: "
            f"{', '.join(quantizable())}"
        )
    final = Path(out_dir)
    if final.exists() and (not final.is_dir() or any(final.iterdir())):
        raise UsageError(
            f"{final} exists already", hint="Name a directory that does not exist or is empty."
        )
    with open_source(source) as opened:
        if not isinstance(opened, CheckpointSource):
            raise UnsupportedError(
                f"{source} is a GGUF file; only directories of safetensors are written anew",
                hint="A GGUF file's weights are used as they are: no conversion is needed.",
            )
        if not is_float(opened):
            raise UnsupportedError(
                f"{source} is quantized already; quantizing twice loses accuracy",
                hint="Use the float checkpoint.",
            )
        _write(opened, fmt, final, progress or (lambda what, done, total: None))
    return final


def _plan(source: Quantized) -> list[tuple[str, list[PlannedTensor]]]:
    plan = []
    for name in source.names():
        fmt, shape = source.format(name), source.shape(name)
        if fmt.affine:
            plan.append((name, stored.planned(name, fmt, (shape[0], shape[1]))))
        else:
            assert fmt.dense_dtype is not None
            plan.append((name, [PlannedTensor(name, fmt.dense_dtype, shape)]))
    return plan


def _write(source: CheckpointSource, fmt: QuantFormat, final: Path, progress: Progress) -> None:
    converted = Quantized(source, fmt)
    if fmt.affine and not any(converted.format(name).affine for name in converted.names()):
        raise UnsupportedError(
            f"no matrix of {source.path} can be {fmt.name}: rows of a multiple of {fmt.group} "
            "weights are needed",
            hint="--quant f16 takes any.",
        )
    plan = _plan(converted)
    flat = [tensor for _, tensors in plan for tensor in tensors]
    make_directory(final.parent)
    require_space(final.parent, written_size(flat) + (1 << 24))
    work = final.with_name(f".{final.name}.{os.getpid()}.tmp")
    try:
        work.mkdir()
    except OSError as error:
        raise storage_error(error, work) from error
    try:
        path = work / "model.safetensors"
        last = {tensors[-1].name: index for index, (_, tensors) in enumerate(plan, start=1)}
        with path.open("wb") as handle:
            for name in write(handle, path, flat, _contents(converted, plan)):
                if name in last:
                    progress("quantize", last[name], len(plan))
            handle.flush()
            os.fsync(handle.fileno())
        _write_config(source, fmt, work)
        _copy_rest(source.path, work)
        os.replace(work, final)
    except OSError as error:
        shutil.rmtree(work, ignore_errors=True)
        if isinstance(error, StorageError):
            raise
        raise storage_error(error, final) from error
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


def _contents(
    source: Quantized, plan: list[tuple[str, list[PlannedTensor]]]
) -> Iterator[np.ndarray]:
    for name, _ in plan:
        fmt, value = source.affine_or_dense(name)
        if isinstance(value, AffineWeight):
            yield from stored.arrays(fmt, value)
        else:
            yield value


def _write_config(source: CheckpointSource, fmt: QuantFormat, work: Path) -> None:
    config = dict(source.config)
    if fmt.affine:
        config["quantization"] = stored.entry(fmt) | {"made_by": f"pumice {__version__}"}
    else:
        config["torch_dtype"] = fmt.dense_dtype
    text = json.dumps(config, indent=2, ensure_ascii=False)
    (work / "config.json").write_text(text + "\n", encoding="utf-8")


def _copy_rest(source: Path, work: Path) -> None:
    """Tokenizer, templates, generation settings and licences."""
    for path in sorted(source.iterdir()):
        if path.name in ("config.json", INDEX) or path.name.endswith(".index.json"):
            continue
        if path.is_file() and (path.suffix in _COPIED or path.name.upper().startswith("LICENSE")):
            shutil.copyfile(path, work / path.name)

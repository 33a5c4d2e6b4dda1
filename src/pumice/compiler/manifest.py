"""Phase 7's end: what every target's manifest says, and the files that it vouches for."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pumice._version import __version__
from pumice.artifact import CacheSpec, KernelRecord, Manifest, ModelInfo, Plan, WeightRecord
from pumice.artifact_files import MANIFEST, record_files
from pumice.compiler.dump import Dump
from pumice.compiler.source import ModelSource
from pumice.files import storage_error
from pumice.targets import Target

if TYPE_CHECKING:
    from pumice.compiler.compile import CompileOptions


@dataclass(frozen=True)
class Contents:
    """What the phases made of a model for a target.

    single: the plan of one decoded token. weight_bytes: of all weights, as packed. packages: that
    compiled it, whose versions are kept. options: how it was compiled, beside the sizes of the
    largest step.
    """

    plans: Mapping[str, Plan]
    single: Plan
    kernels: Iterable[KernelRecord]
    cache: CacheSpec
    weight_bytes: int
    packages: tuple[str, ...]
    options: dict[str, Any]
    weights: tuple[WeightRecord, ...] = field(default=())


def write_manifest(
    work: Path,
    model: ModelSource,
    target: Target,
    options: CompileOptions,
    contents: Contents,
    dump: Dump,
    digest: str,
) -> Manifest:
    """Writes manifest.json beside the artifact's other files, which are whole by now."""
    config = model.config
    read = [launch.bytes_read for launch in contents.single.launches]
    try:
        files = record_files(work)
        manifest = Manifest(
            pumice=__version__,
            target={
                "name": target.name,
                "api": target.api,
                "arch": target.arch,
                "features": sorted(target.features),
            },
            model=ModelInfo(
                name=model.name,
                architecture=model.record.model_type,
                vocab_size=config.vocab_size,
                context_length=config.context_length,
                parameters=sum(math.prod(shape) for shape in model.shapes.values()),
                weight_bytes=contents.weight_bytes,
                bytes_per_token=sum(n for n in read if isinstance(n, int)),
                quantization=model.quantization,
                source=str(model.path),
                digest=digest,
                config=config.as_dict(),
            ),
            cache=contents.cache,
            entries=dict(contents.plans),
            kernels=tuple(contents.kernels),
            versions={"numpy": np.__version__} | _versions(contents.packages),
            memory={
                "weights": contents.weight_bytes,
                "arena": max(plan.arena_bytes for plan in contents.plans.values()),
                "cache_block": contents.cache.bytes_per_block(),
            },
            options={
                "max_tokens": options.max_tokens,
                "max_sequences": options.max_sequences,
                "max_rows": options.max_rows,
                **contents.options,
            },
            weights=contents.weights,
            files=files,
        )
        manifest.save(work / MANIFEST)
        if dump.root is not None:
            shutil.copy(work / MANIFEST, dump.root / "7-manifest.json")
    except OSError as error:
        raise storage_error(error, work / MANIFEST) from error
    return manifest


def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    """By the names that people use: tvm, triton."""
    return {package.removeprefix("apache-"): version(package) for package in packages}

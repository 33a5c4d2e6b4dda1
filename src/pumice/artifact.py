"""The artifact's manifest: the only thing that the side that builds and the side that runs share.

An artifact is a directory:
    manifest.json   this file's `Manifest`
    model.so        (cpu) kernels; *.hsaco, *.cubin, *.wgsl, *.cl for other devices
    weights.safetensors   weights in the target's packed layout, mapped and not read
    tokenizer.json, chat_template.jinja, generation.json
The manifest vouches for the other files (`artifact_files`), and its checksum for itself.

A *plan* is an ordered list of launches over one arena. Its integers are expressions of the batch's
symbols:
    T tokens   S sequences   M blocks a row of the block table holds   R rows of the result
An expression is an int, a symbol, or `[operator, a, b]` with operator one of + - * // ceildiv min
max.

A CPU's artifact has one plan an entry point ("decode", "extend", "embed"), for any sizes up to its
bounds. A GPU's has one for each of some shapes, whose every integer is a number: its name is
"<entry>@<T>x<S>x<M>", its bounds are that shape, and a smaller batch is padded to it: tokens and
positions 0, slots −1, empty sequences without context, sample_rows 0. A decode plan's result has
its tokens' rows, in order, whatever sample_rows says. A launch whose kernel is
FILL sets bytes: (buffer, bytes, value). One with a `product` may be left to a vendor's library.

A GPU's plans "sample@<R>" draw a token from each row of logits that a plan of R rows has left, one
for every such R. They read output "logits" float32[R, V] and the inputs "temperature" float32[R],
"seeds" int64[R], "draws" int32[R], "top_k" int32[R], "top_p" float32[R], "min_p" float32[R] (as
`sample_tokens` does, draws being its positions), and write output "tokens" int32[R] and output
"logprobs" float32[R], which is not finite where the row is damaged. They use no arena.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pumice.errors import ArtifactError
from pumice.plans import (
    FILL,
    BufferRef,
    Expr,
    Launch,
    LibraryProduct,
    Plan,
    evaluate,
    plan_text,
    read_plan,
)

__all__ = [
    "AGAIN", "CACHE_ITEMSIZE", "FILL", "SCHEMA", "BufferRef", "CacheSpec", "Expr", "FileRecord",
    "KernelRecord", "Launch", "LibraryProduct", "Manifest", "ModelInfo", "Plan", "WeightRecord",
    "evaluate",
]  # fmt: skip

SCHEMA = 2
CACHE_ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4}  # bytes, by element type
AGAIN = "Compile the model again: pumice compile MODEL --rebuild"
_UNKNOWN = "0" * 64  # where the checksum of a text goes


@dataclass(frozen=True)
class KernelRecord:
    """What was chosen for a symbol, and why."""

    symbol: str
    operator: str
    kernel: str
    reason: str
    config: dict[str, int] = field(default_factory=dict)
    rejected: dict[str, str] = field(default_factory=dict)  # kernel → why not
    file: str = "model.so"
    arguments: tuple[str, ...] = ()
    resources: dict[str, int] = field(default_factory=dict)  # registers, spills, LDS: GPUs
    # GPUs: the kernel's name in the file; of each argument "pointer", "int32", "int64", "float32"
    # …; threads of a block; dynamic shared memory of one, in bytes.
    entry: str = ""
    kinds: tuple[str, ...] = ()
    threads: int = 0
    shared_bytes: int = 0
    # NVIDIA: it may begin before the launch in front of it has ended; the kernel waits for it.
    programmatic: bool = False


@dataclass(frozen=True)
class WeightRecord:
    """A tensor of weights.safetensors, for GPUs. An artifact without (all of) its weights is filled
    when it is loaded with random weights: with `fill` (`signs`: of either sign at random), or where
    that is None with random bits (integers) or small random numbers (floats)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    fill: float | None = None
    signs: bool = False


@dataclass(frozen=True)
class FileRecord:
    """A file of the artifact as it was written. sha256: of its bytes; head: of the first MiB."""

    name: str  # below the artifact, with /
    bytes: int
    sha256: str
    head: str


@dataclass(frozen=True)
class CacheSpec:
    """The paged key/value cache. Shapes are a block's, for one layer; a device multiplies by blocks
    and layers."""

    layers: int
    block_size: int  # tokens in a block
    # CPU: [kv_heads, head_dim, block_size] and [kv_heads, block_size, head_dim]; GPUs: both
    # [block_size, kv_heads, head_dim].
    k_block_shape: tuple[int, ...]
    v_block_shape: tuple[int, ...]
    dtype: str = "float16"
    window: int | None = None  # sliding window of every layer, when the model has one

    def bytes_per_block(self) -> int:
        """Bytes of one block over all layers, keys and values."""
        elements = math.prod(self.k_block_shape) + math.prod(self.v_block_shape)
        return self.layers * elements * self.itemsize

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return CACHE_ITEMSIZE[self.dtype]


@dataclass(frozen=True)
class ModelInfo:
    """What the run side must know of a model."""

    name: str
    architecture: str
    vocab_size: int
    context_length: int
    parameters: int  # weights counted once
    weight_bytes: int  # as packed
    bytes_per_token: int  # weights a decoded token must read
    quantization: str
    source: str = ""
    digest: str = ""
    config: dict[str, Any] = field(default_factory=dict)  # the model's own settings, for people


@dataclass(frozen=True)
class Manifest:
    """manifest.json."""

    pumice: str
    target: dict[str, Any]  # name, api, arch, features
    model: ModelInfo
    cache: CacheSpec
    entries: dict[str, Plan]  # "decode", "extend", "embed"; on GPUs "decode@8x8x64" …
    kernels: tuple[KernelRecord, ...]
    schema: int = SCHEMA
    versions: dict[str, str] = field(default_factory=dict)  # tvm, triton, numpy
    memory: dict[str, int] = field(default_factory=dict)  # weights, arena, cache_block
    options: dict[str, Any] = field(default_factory=dict)  # how it was compiled: activations …
    weights: tuple[WeightRecord, ...] = ()  # GPUs
    files: tuple[FileRecord, ...] = ()  # all but the manifest

    def save(self, path: Path) -> None:
        """Writes it: a launch or a weight a line, the rest indented. Its checksum is the SHA-256
        of the text with a checksum of zeros.
        """
        rest = dataclasses.replace(self, entries={}, weights=())
        data: dict[str, Any] = {"checksum": _UNKNOWN, **dataclasses.asdict(rest)}
        data["entries"] = {name: f"<plan {name}>" for name in self.entries}
        data["weights"] = "<weights>"
        text = json.dumps(data, indent=1)
        for name, plan in self.entries.items():
            text = text.replace(json.dumps(f"<plan {name}>"), plan_text(plan), 1)
        weights = [json.dumps(dataclasses.astuple(weight)) for weight in self.weights]
        text = text.replace('"<weights>"', "[" + ",\n  ".join(weights) + "]", 1)
        path.write_text(text.replace(_UNKNOWN, _checksum(text), 1), encoding="utf-8")

    @staticmethod
    def load(path: Path) -> Manifest:
        """Reads a manifest. ArtifactError when it is missing, damaged or of another schema."""
        try:
            text = path.read_text(encoding="utf-8")
            data = json.loads(text)
        except FileNotFoundError:
            raise ArtifactError(f"{path.parent} is no artifact: it has no {path.name}") from None
        except (OSError, ValueError) as error:
            raise ArtifactError(f"{path} cannot be read: {error}", hint=AGAIN) from None
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            found = data.get("schema") if isinstance(data, dict) else None
            raise ArtifactError(
                f"{path} has schema {found!r}; this version reads {SCHEMA}",
                hint=AGAIN,
            )
        known = data.get("checksum")
        # Those of versions before it was kept have none, and list no files either.
        if ("files" in data or known is not None) and known != _checksum(
            text.replace(str(known), _UNKNOWN, 1)
        ):
            raise ArtifactError(
                f"{path} is damaged: its contents are not those that were written", hint=AGAIN
            )
        try:
            return _manifest(data)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ArtifactError(f"{path} is damaged: {error!r}", hint=AGAIN) from None


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _check_parts(data: dict[str, Any]) -> None:
    """ValueError for what others take for granted: a target's names, the cache's block."""
    for key in ("name", "api", "arch"):
        if not isinstance(data["target"][key], str):
            raise ValueError(f"target {key} is {data['target'][key]!r}, which is no name")
    cache = data["cache"]
    if not (isinstance(cache["block_size"], int) and cache["block_size"] > 0):
        raise ValueError(f"cache block_size is {cache['block_size']!r}; at least 1 is needed")
    if cache.get("dtype", "float16") not in CACHE_ITEMSIZE:
        raise ValueError(f"cache dtype is {cache['dtype']!r}; known: {', '.join(CACHE_ITEMSIZE)}")
    for key in ("versions", "memory", "options"):
        if not isinstance(data.get(key, {}), dict):
            raise ValueError(f"{key} is {data[key]!r}, which is no object")


def _manifest(data: dict[str, Any]) -> Manifest:
    known: dict[Any, BufferRef] = {}
    _check_parts(data)
    cache = dict(data["cache"])
    cache["k_block_shape"] = tuple(cache["k_block_shape"])
    cache["v_block_shape"] = tuple(cache["v_block_shape"])
    kernels = tuple(
        KernelRecord(
            **{
                **k,
                "arguments": tuple(k.get("arguments", ())),
                "kinds": tuple(k.get("kinds", ())),
            }
        )
        for k in data["kernels"]
    )
    return Manifest(
        pumice=data["pumice"],
        target=data["target"],
        model=ModelInfo(**data["model"]),
        cache=CacheSpec(**cache),
        entries={name: read_plan(plan, known) for name, plan in data["entries"].items()},
        kernels=kernels,
        schema=data["schema"],
        versions=data.get("versions", {}),
        memory=data.get("memory", {}),
        options=data.get("options", {}),
        weights=tuple(
            WeightRecord(name, dtype, tuple(shape), *rest)
            for name, dtype, shape, *rest in data.get("weights", ())
        ),
        files=tuple(FileRecord(**record) for record in data.get("files", ())),
    )

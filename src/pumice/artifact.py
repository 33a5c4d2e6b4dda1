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
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pumice.errors import ArtifactError

SCHEMA = 2
CACHE_ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4}  # bytes, by element type
FILL = "fill"
AGAIN = "Compile the model again: pumice compile MODEL --rebuild"
_UNKNOWN = "0" * 64  # where the checksum of a text goes
Expr = Any  # int | str | list[Expr]; recursive aliases are beyond Python 3.10's mypy


def evaluate(expr: Expr, symbols: Mapping[str, int]) -> int:
    """The value of an expression; ArtifactError when it is malformed or a symbol is unknown."""
    if isinstance(expr, int):
        return expr
    if isinstance(expr, str):
        if expr in symbols:
            return symbols[expr]
        raise ArtifactError(f"the plan uses symbol {expr!r}; known: {', '.join(symbols)}")
    if isinstance(expr, list | tuple) and len(expr) == 3:
        a, b = evaluate(expr[1], symbols), evaluate(expr[2], symbols)
        match expr[0]:
            case "+":
                return a + b
            case "-":
                return a - b
            case "*":
                return a * b
            case "//":
                return a // b
            case "ceildiv":
                return -(-a // b)
            case "min":
                return min(a, b)
            case "max":
                return max(a, b)
    raise ArtifactError(f"the plan holds {expr!r}, which is no expression")


@dataclass(frozen=True)
class BufferRef:
    """A pointer argument. space: arena | weight | input | cache | output.

    arena, weight, input: `offset` bytes into it. weight: `name` is a tensor of weights.safetensors.
    input: `name` is one of the step's inputs. cache: `name` is "k" or "v", `layer` says whose.
    output: `name` is "logits", "tokens" or "logprobs", of a sampling plan.
    """

    space: str
    name: str = ""
    offset: int = 0
    layer: int = 0


@dataclass(frozen=True)
class LibraryProduct:
    """GPUs: out[m, n] = x[m, k] · w[n, k]ᵀ, which a vendor's library may compute in place of a
    launch and those after it, `launches` in all. x and w are `dtype`; strides are elements from a
    row to the next; the library may use `workspace_bytes` at `workspace`."""

    x: BufferRef
    w: BufferRef
    out: BufferRef
    workspace: BufferRef
    workspace_bytes: int
    m: int
    n: int
    k: int
    dtype: str
    out_dtype: str
    x_stride: int
    w_stride: int
    out_stride: int
    launches: int = 1


@dataclass(frozen=True)
class Launch:
    """One kernel call. `arguments` holds a BufferRef or an expression each; `label` names it in a
    profile."""

    kernel: str
    arguments: tuple[Any, ...]
    label: str
    grid: tuple[int, int, int] | None = None  # GPUs only
    bytes_read: Expr = 0  # estimate, for profiles and predictions
    operations: Expr = 0  # multiply and add count as two
    # GPUs: bytes of intermediate tensors that its call reads and writes.
    activation_bytes: int = 0
    product: LibraryProduct | None = None  # GPUs: a plan is whole without it


@dataclass(frozen=True)
class Plan:
    """An entry point: what to launch, and how much arena it needs at the bounds."""

    launches: tuple[Launch, ...]
    arena_bytes: int
    bounds: dict[str, int]  # symbol → its largest value
    output: BufferRef  # float32[R, width]: logits, or hidden states for "embed"
    width: int | None = None  # columns of the output; None: the vocabulary's size


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
    when it is loaded with random weights: with `fill`, or where that is None with random bits
    (integers) or small random numbers (floats)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    fill: float | None = None


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
            text = text.replace(json.dumps(f"<plan {name}>"), _plan_text(plan), 1)
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


def _argument_text(value: Any) -> Any:
    if isinstance(value, BufferRef):
        return [value.space, value.name, value.offset, value.layer]
    return value


def _plan_text(plan: Plan) -> str:
    """A plan as JSON. An argument that is a buffer is [space, name, offset, layer]."""
    lines = []
    for launch in plan.launches:
        row = dict(vars(launch))
        row["arguments"] = [_argument_text(a) for a in launch.arguments]
        del row["product"]
        if launch.product is not None:
            row["product"] = {k: _argument_text(v) for k, v in vars(launch.product).items()}
        lines.append(json.dumps(row, separators=(",", ":")))
    head = {**vars(plan), "output": vars(plan.output), "launches": "<launches>"}
    text = ",\n    ".join(lines)
    return json.dumps(head).replace('"<launches>"', f"[\n    {text}]", 1)


def _plan(data: dict[str, Any], known: dict[Any, BufferRef]) -> Plan:
    """known: buffers that were read before; layers and plans share most of theirs."""

    def argument(value: Any) -> Any:
        if not (isinstance(value, list) and len(value) == 4):
            return value
        key = tuple(value)
        if key not in known:
            known[key] = BufferRef(*value)
        return known[key]

    def product(value: Any) -> LibraryProduct | None:
        if value is None:
            return None
        return LibraryProduct(**{name: argument(v) for name, v in value.items()})

    launches = tuple(
        Launch(
            **{
                **item,
                "arguments": tuple(argument(a) for a in item["arguments"]),
                "grid": None if item.get("grid") is None else tuple(item["grid"]),
                "product": product(item.get("product")),
            }
        )
        for item in data["launches"]
    )
    return Plan(
        launches=launches,
        arena_bytes=int(data["arena_bytes"]),
        bounds=dict(data["bounds"]),
        output=BufferRef(**data["output"]),
        width=data.get("width"),
    )


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
        entries={name: _plan(plan, known) for name, plan in data["entries"].items()},
        kernels=kernels,
        schema=data["schema"],
        versions=data.get("versions", {}),
        memory=data.get("memory", {}),
        options=data.get("options", {}),
        weights=tuple(
            WeightRecord(name, dtype, tuple(shape), fill)
            for name, dtype, shape, fill in data.get("weights", ())
        ),
        files=tuple(FileRecord(**record) for record in data.get("files", ())),
    )

"""Plans: ordered lists of launches over one arena, and their text in a manifest (`artifact.py` says
what they mean)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pumice.errors import ArtifactError

FILL = "fill"
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
    before: tuple[Launch, ...] = ()  # what the library needs first


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


def _text(value: Any) -> Any:
    """An argument for JSON: a buffer is [space, name, offset, layer]."""
    if isinstance(value, BufferRef):
        return [value.space, value.name, value.offset, value.layer]
    return value


def _launch_row(launch: Launch) -> dict[str, Any]:
    row = dict(vars(launch))
    row["arguments"] = [_text(argument) for argument in launch.arguments]
    del row["product"]
    if launch.product is not None:
        row["product"] = {name: _text(value) for name, value in vars(launch.product).items()}
        row["product"]["before"] = [_launch_row(one) for one in launch.product.before]
    return row


def plan_text(plan: Plan) -> str:
    """A plan as JSON, a launch a line."""
    lines = [json.dumps(_launch_row(launch), separators=(",", ":")) for launch in plan.launches]
    head = {**vars(plan), "output": vars(plan.output), "launches": "<launches>"}
    text = ",\n    ".join(lines)
    return json.dumps(head).replace('"<launches>"', f"[\n    {text}]", 1)


def read_plan(data: dict[str, Any], known: dict[Any, BufferRef]) -> Plan:
    """A plan of JSON. known: buffers that were read before; layers and plans share most of theirs.

    KeyError, TypeError, ValueError or AttributeError when it is damaged.
    """

    def argument(value: Any) -> Any:
        if not (isinstance(value, list) and len(value) == 4):
            return value
        key = tuple(value)
        if key not in known:
            known[key] = BufferRef(*value)
        return known[key]

    def product(value: dict[str, Any] | None) -> LibraryProduct | None:
        if value is None:
            return None
        given = {name: argument(v) for name, v in value.items() if name != "before"}
        return LibraryProduct(**given, before=tuple(launch(v) for v in value.get("before", ())))

    def launch(item: dict[str, Any]) -> Launch:
        made = {
            **item,
            "arguments": tuple(argument(a) for a in item["arguments"]),
            "grid": None if item.get("grid") is None else tuple(item["grid"]),
            "product": product(item.get("product")),
        }
        return Launch(**made)

    return Plan(
        launches=tuple(launch(item) for item in data["launches"]),
        arena_bytes=int(data["arena_bytes"]),
        bounds=dict(data["bounds"]),
        output=BufferRef(**data["output"]),
        width=data.get("width"),
    )

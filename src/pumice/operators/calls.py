"""How an operator of ours stands in a Relax graph, in one place.

`call_dps_packed("pumice.<operator>", (tensor, …), out_ty=…)` with a dictionary of attributes: the
operator's static ones, and
`inputs`, the argument names of the tensors in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PREFIX = "pumice."


@dataclass(frozen=True)
class GraphCall:
    """A call read back: operator, tensors by argument name, static attributes."""

    operator: str
    inputs: dict[str, Any]
    attrs: dict[str, Any]


def make_call(
    operator: str, inputs: Mapping[str, Any], attrs: Mapping[str, Any], out_types: Sequence[Any]
) -> Any:
    """A Relax call of an operator. out_types: one TensorType, or several for a tuple."""
    from tvm import relax
    from tvm.ir import Op

    plain = {k: v for k, v in attrs.items() if v is not None}
    out = out_types[0] if len(out_types) == 1 else relax.TupleType(list(out_types))
    return relax.Call(
        Op.get("relax.call_dps_packed"),
        [relax.ExternFunc(PREFIX + operator), relax.Tuple(list(inputs.values()))],
        attrs={"inputs": list(inputs), **plain},
        ty_args=[out],
    )


def read_call(call: Any) -> GraphCall | None:
    """The operator call that a Relax expression is, or None when it is something else."""
    from tvm import relax

    if not isinstance(call, relax.Call) or getattr(call.op, "name", "") != "relax.call_dps_packed":
        return None
    name = str(call.args[0].global_symbol)
    if not name.startswith(PREFIX):
        return None
    attrs = {str(k): _plain(v) for k, v in dict(call.attrs or {}).items()}
    names = attrs.pop("inputs")
    return GraphCall(name[len(PREFIX) :], dict(zip(names, call.args[1].fields, strict=True)), attrs)


def _plain(value: Any) -> Any:
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return str(value)
    return tuple(_plain(item) for item in value)

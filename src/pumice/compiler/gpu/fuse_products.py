"""Fewer launches in a decode plan: what stands around a product with 4-bit weights joins it.

    product, norm that adds its result, product  →  product += residual; norm and product
    norm, product                                →  norm and product
    product, silu(gate) · up                     →  product with that at its end

Each place is decided for itself: what was measured counts, and where a row lacks on either side,
the estimate of `cost.py`. The reason is kept in the manifest, whichever way it went.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pumice.compiler.gpu.cost import Cost, cost_of
from pumice.compiler.gpu.select import Selection
from pumice.compiler.gpu.translate import Call
from pumice.compiler.gpu.values import Value
from pumice.errors import UnsupportedError

PRODUCT, FUSED = "gemm_w4", "fused_w4"
_WEIGHT = ("w", "scales", "zeros", "mins", "bias")


@dataclass(frozen=True)
class _Way:
    """One way to compute a place's calls: those at `indexes` become `calls`, at the last of them
    each. name: what it is, for a person."""

    name: str
    calls: Mapping[int, Call]  # index → what stands there; indexes that lack here are left out


def fuse_products(calls: Sequence[Call], selection: Selection) -> tuple[list[Call], str]:
    """The calls of a decode plan, fewer where that is faster; and what was done, for a person, ""
    where there is nothing of the kind."""
    made: dict[int, Call | None] = dict(enumerate(calls))
    decided: set[int] = set()
    said: dict[str, int] = {}
    for place in _places(calls, _uses(calls)):
        indexes = {index for way in place for index in way.calls}
        if indexes & decided:
            continue
        decided |= indexes
        best, reason, rejected = _decide(place, selection)
        said[best.name] = said.get(best.name, 0) + 1
        for index in indexes:
            call = best.calls.get(index)
            made[index] = call and replace(call, reason=reason, rejected=rejected)
    kept = [call for call in made.values() if call is not None]
    return kept, ", ".join(f"{count} × {name}" for name, count in said.items())


def _uses(calls: Iterable[Call]) -> dict[tuple[str, str], list[int]]:
    """(space, name) of a tensor → the calls that read or write (a part of) it."""
    found: dict[tuple[str, str], list[int]] = {}
    for index, call in enumerate(calls):
        for key in {(value.space, value.name) for value in call.tensors.values()}:
            found.setdefault(key, []).append(index)
    return found


def _places(calls: Sequence[Call], uses: Mapping[Any, list[int]]) -> Iterable[list[_Way]]:
    """The places where there is a choice: their ways, the first that of the calls as they are."""
    for index, call in enumerate(calls):
        if call.operator != PRODUCT:
            continue
        gate = _reader(calls, uses, index, "out", "activation_mul", "x")
        if gate is not None and (dict(calls[gate].attrs) != {"activation": "silu"}):
            gate = None
        norm = _writer(calls, uses, index)
        before = None if norm is None else _producer(calls, uses, norm)
        if norm is not None and "residual" in calls[norm].tensors and before is None:
            norm = None
        if gate is None and norm is None:
            if _reader(calls, uses, index, "out", "norm", "x") is None:
                yield [_Way("alone", {index: call}), _alone(index, call)]
            elif not _is_producer(calls, uses, index):
                yield [_Way("alone", {index: call}), _alone(index, call)]
            continue
        plain = {i: calls[i] for i in (before, norm, index, gate) if i is not None}
        ways = [_Way("launches of their own", plain)]
        if gate is not None:
            kept = {i: c for i, c in plain.items() if i != gate}
            kept[index] = _fused(call, gate=calls[gate])
            ways.append(_Way("product and gate in one", kept))
        if norm is not None:
            ways += _normed(calls, plain, before, norm, index, gate)
        yield ways


def _normed(
    calls: Sequence[Call], plain: Mapping[int, Call], before: int | None, norm: int, index: int,
    gate: int | None,
) -> list[_Way]:  # fmt: skip
    """With the norm as part of the product; with the gate, too, where there is one."""
    found = []
    for end in dict.fromkeys((None, gate)):
        kept = {i: c for i, c in plain.items() if i not in (norm, end)}
        product = _fused(calls[index], norm=calls[norm], gate=None if end is None else calls[end])
        kept[index] = product
        name = "norm and product in one" if end is None else "norm, product and gate in one"
        if before is not None:
            kept[before] = _fused(calls[before], residual=calls[norm].tensors["residual"])
            name = f"residual added by the product before, {name}"
        found.append(_Way(name, kept))
    return found


def _alone(index: int, call: Call) -> _Way:
    return _Way("persistent programs", {index: _fused(call)})


def _fused(
    call: Call, norm: Call | None = None, gate: Call | None = None, residual: Value | None = None
) -> Call:
    """The product with what stands beside it."""
    parts = [part for part in (norm, call, gate) if part is not None]
    tensors = {name: call.tensors[name] for name in _WEIGHT if name in call.tensors}
    attrs = dict(call.attrs)
    if norm is None:
        tensors["x"] = call.tensors["x"]
    else:
        # A norm that adds wrote the sum into the residual stream; the product before does now.
        tensors["x"] = norm.tensors.get("residual", norm.tensors["x"])
        tensors["norm_weight"] = norm.tensors["weight"]
        attrs |= {"eps": norm.attrs["eps"], "dtype": call.tensors["x"].spec.dtype}
    outputs = frozenset({"out"})
    if residual is not None:
        tensors["residual"], outputs = residual, frozenset()
    elif gate is not None:
        tensors["out"] = gate.tensors["out"]
        attrs["activation"] = gate.attrs["activation"]
    else:
        tensors["out"] = call.tensors["out"]
    label = " + ".join(part.label for part in parts) + (" + residual" if residual else "")
    return replace(call, operator=FUSED, attrs=attrs, tensors=tensors, outputs=outputs, label=label)


def _reader(
    calls: Sequence[Call], uses: Mapping[Any, list[int]], index: int, name: str, operator: str,
    argument: str,
) -> int | None:  # fmt: skip
    """The call that alone reads what call `index` writes, as `argument` of `operator`."""
    value = calls[index].tensors[name]
    places = uses[(value.space, value.name)]
    if value.space != "arena" or len(places) != 2 or places[0] != index:
        return None
    reader = calls[places[1]]
    found = reader.operator == operator and reader.tensors.get(argument) == value
    return places[1] if found else None


def _writer(calls: Sequence[Call], uses: Mapping[Any, list[int]], index: int) -> int | None:
    """The RMS norm whose float32 row the product `index` alone reads normed."""
    x = calls[index].tensors["x"]
    places = uses[(x.space, x.name)]
    if len(places) != 2 or calls[places[0]].operator != "norm":
        return None
    norm = calls[places[0]]
    source = norm.tensors.get("residual", norm.tensors["x"])
    plain = norm.attrs["kind"] == "rms" and set(norm.attrs) <= {"kind", "eps", "out_dtype"}
    if not plain or norm.tensors.get("out") != x or source.spec.dtype != "float32":
        return None
    weight = norm.tensors.get("weight")
    return places[0] if weight is not None and weight.spec.dtype == "float32" else None


def _producer(calls: Sequence[Call], uses: Mapping[Any, list[int]], norm: int) -> int | None:
    """The product whose result the norm alone reads and adds; nothing in between knows the residual
    stream."""
    if "residual" not in calls[norm].tensors:
        return None
    x, residual = calls[norm].tensors["x"], calls[norm].tensors["residual"]
    places = uses[(x.space, x.name)]
    if x.space != "arena" or len(places) != 2 or calls[places[0]].operator != PRODUCT:
        return None
    between = uses[(residual.space, residual.name)]
    return None if any(places[0] <= i < norm for i in between) else places[0]


def _is_producer(calls: Sequence[Call], uses: Mapping[Any, list[int]], index: int) -> bool:
    """Whether a place with a norm decides about this product."""
    norm = _reader(calls, uses, index, "out", "norm", "x")
    if norm is None:
        return False
    after = _reader(calls, uses, norm, "out", PRODUCT, "x")
    return after is not None and _writer(calls, uses, after) == norm and (
        _producer(calls, uses, norm) == index
    )  # fmt: skip


def _decide(ways: Sequence[_Way], selection: Selection) -> tuple[_Way, str, Mapping[str, str]]:
    """The fastest way, the reason, and why the others are not."""
    costs: list[list[Cost]] = []
    possible: list[_Way] = []
    rejected: dict[str, str] = {}
    for way in ways:
        try:
            costs.append([cost_of(call, selection) for call in way.calls.values()])
            possible.append(way)
        except UnsupportedError as error:
            if way is ways[0]:
                raise
            rejected[way.name] = str(error)
    known = [[cost.measured for cost in row] for row in costs]
    measured = [None if None in row else sum(us for us in row if us is not None) for row in known]
    best, times, how = 0, [sum(cost.estimated for cost in row) for row in costs], "estimated"
    if measured[0] is not None and any(us is not None for us in measured[1:]):
        # What was not measured does not compete with what was.
        times, how = [float("inf") if us is None else us for us in measured], "measured"
    elif ways[0].name == "alone":
        return ways[0], "", rejected
    best = min(range(len(times)), key=lambda i: (times[i], i))
    for index, way in enumerate(possible):
        if index != best:
            us = f"{times[index]:.1f} µs" if times[index] < float("inf") else "no measured row"
            rejected[way.name] = f"{how} {us}, {possible[best].name} {times[best]:.1f} µs"
    reason = f"{possible[best].name}: {how} {times[best]:.1f} µs"
    if best:
        reason += f" against {times[0]:.1f} µs"
    return possible[best], reason, rejected

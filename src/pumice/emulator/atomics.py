"""Atomic read-modify-write of vector memory, in the order of lanes.

Lanes that meet at one address take turns: rounds of lanes with different addresses, the lowest lane
of each address first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pumice.emulator import float_math as fm
from pumice.emulator.decode import Instruction
from pumice.emulator.spaces import Space
from pumice.emulator.state import Array, State, Values
from pumice.emulator.traffic import Shape, Traffic, count_traffic
from pumice.errors import UnimplementedInstructionError

_U32, _U64, _I32, _I64, _F32, _F64 = (
    np.uint32, np.uint64, np.int32, np.int64, np.float32, np.float64,
)  # fmt: skip


def _pk_f16(old: Array, new: Array) -> Array:
    a, b = old.view(np.uint16).view(np.float16), new.view(np.uint16).view(np.float16)
    return (a.astype(_F32) + b).astype(np.float16).view(_U32)


def _pk_bf16(old: Array, new: Array) -> Array:
    result = np.zeros_like(old)
    for shift in (np.uint32(0), np.uint32(16)):
        a = (old >> shift << np.uint32(16)).view(_F32)
        b = (new >> shift << np.uint32(16)).view(_F32)
        result |= fm.brain_bits(a + b) << shift
    return result


# Operation → (element kind, new value of (old, data)).
_OPERATIONS: dict[str, tuple[Any, Callable[[Array, Array], Array]]] = {
    "add_u32": (_U32, np.add), "sub_u32": (_U32, np.subtract),
    "rsub_u32": (_U32, lambda o, d: d - o),
    "min_i32": (_I32, np.minimum), "max_i32": (_I32, np.maximum),
    "min_u32": (_U32, np.minimum), "max_u32": (_U32, np.maximum),
    "and_b32": (_U32, np.bitwise_and), "or_b32": (_U32, np.bitwise_or),
    "xor_b32": (_U32, np.bitwise_xor), "swap_b32": (_U32, lambda o, d: d),
    "inc_u32": (_U32, lambda o, d: np.where(o >= d, _U32(0), o + _U32(1))),
    "dec_u32": (_U32, lambda o, d: np.where((o == 0) | (o > d), d, o - _U32(1))),
    "csub_u32": (_U32, lambda o, d: np.where(o < d, _U32(0), o - d)),
    "sub_clamp_u32": (_U32, lambda o, d: np.where(o < d, _U32(0), o - d)),
    "cond_sub_u32": (_U32, lambda o, d: np.where(o < d, o, o - d)),
    "add_f32": (_F32, np.add), "min_f32": (_F32, fm.minimum), "max_f32": (_F32, fm.maximum),
    "pk_add_f16": (_U32, _pk_f16), "pk_add_bf16": (_U32, _pk_bf16),
    "add_u64": (_U64, np.add), "sub_u64": (_U64, np.subtract),
    "rsub_u64": (_U64, lambda o, d: d - o),
    "min_i64": (_I64, np.minimum), "max_i64": (_I64, np.maximum),
    "min_u64": (_U64, np.minimum), "max_u64": (_U64, np.maximum),
    "and_b64": (_U64, np.bitwise_and), "or_b64": (_U64, np.bitwise_or),
    "xor_b64": (_U64, np.bitwise_xor), "swap_b64": (_U64, lambda o, d: d),
    "inc_u64": (_U64, lambda o, d: np.where(o >= d, _U64(0), o + _U64(1))),
    "dec_u64": (_U64, lambda o, d: np.where((o == 0) | (o > d), d, o - _U64(1))),
    "add_f64": (_F64, np.add), "min_f64": (_F64, fm.minimum), "max_f64": (_F64, fm.maximum),
}  # fmt: skip
_COMPARE_SWAP = {"cmpswap_b32": _U32, "cmpswap_b64": _U64, "cmpswap_f32": _F32, "cmpswap_f64": _F64}


def rounds(addresses: Array) -> list[Array]:
    """Positions of `addresses` in groups without a repetition, each address in order."""
    order = np.argsort(addresses, kind="stable")
    ordered = addresses[order]
    fresh = np.ones(ordered.size, bool)
    fresh[1:] = ordered[1:] != ordered[:-1]
    if fresh.all():
        return [slice(None)]  # type: ignore[list-item]
    starts = np.flatnonzero(fresh)
    run = np.cumsum(fresh) - 1
    rank = np.arange(ordered.size) - starts[run]
    by_rank = np.argsort(rank, kind="stable")
    edges = np.cumsum(np.bincount(rank))[:-1]
    return [order[part] for part in np.split(by_rank, edges)]


def atomic(
    state: State,
    inst: Instruction,
    space: Space,
    operation: str,
    data: int,
    result: int | None,
    traffic: Traffic,
    compare: int | None = None,
) -> Callable[[Array, Array], None]:
    """A function of (addresses, flat lanes) for one atomic.

    data, result, compare: registers; result None when the old value is not wanted. The memory form
    of compare-and-swap holds the new value in `data` and what it is compared with in `compare`.
    """
    swap = operation in _COMPARE_SWAP
    if swap:
        kind: Any = _COMPARE_SWAP[operation]
        function: Any = None
    elif operation in _OPERATIONS:
        kind, function = _OPERATIONS[operation]
    else:
        raise UnimplementedInstructionError(f"the atomic operation {operation}")
    size = np.dtype(kind).itemsize
    bits: Any = np.uint32 if size == 4 else np.uint64
    view = space.views[size]
    shape = Shape(4, size // 4)

    def values(register: int, flat: Array) -> Values:
        low = state.v[register].reshape(-1)[flat]
        if size == 4:
            return low
        high = state.v[register + 1].reshape(-1)[flat]
        return low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32)

    def run(addresses: Array, flat: Array) -> None:
        offsets, good = space.locate(inst, addresses, flat, size)
        if good is not None:
            offsets, flat = offsets[good], flat[good]
        count_traffic(traffic, state, space, offsets, flat, shape, True)
        crooked = offsets & (size - 1) != 0
        if crooked.any():
            space.refuse(inst, flat[crooked], offsets[crooked], size, "misaligned")
            offsets, flat = offsets[~crooked], flat[~crooked]
        at = offsets // size
        new = values(data, flat)
        wanted = values(compare, flat) if compare is not None else new
        old = np.empty(at.shape, bits)
        for part in rounds(at):
            where = at[part]
            before = view[where]
            if swap:
                same = before.view(kind) == wanted[part].view(kind)
                view[where] = np.where(same, new[part], before)
            else:
                after = function(before.view(kind), new[part].view(kind))
                view[where] = np.asarray(after).astype(kind, copy=False).view(bits)
            old[part] = before
        if space.watched:
            space.note_atomic(inst, offsets, flat, size)
        if result is not None:
            state.v[result].reshape(-1)[flat] = old.astype(np.uint32)
            if size == 8:
                state.v[result + 1].reshape(-1)[flat] = (old >> np.uint64(32)).astype(np.uint32)

    return run

"""What each scalar operation computes: kinds of result and sources, function, and what SCC becomes.

Follows the "RDNA3 ISA", sections 16.1 to 16.4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pumice.emulator import float_math as fm
from pumice.emulator import int_math as im

_i64, _u64 = np.int64, np.uint64


def _wide(a: Any) -> Any:
    return a.astype(np.int64)


def _overflow(a: Any, b: Any, exact: Any) -> Any:
    return (exact > 2**31 - 1) | (exact < -(2**31))


# name → (kinds "dst src src", function); SCC = result is not 0.
LOGIC: dict[str, tuple[str, Callable[..., Any]]] = {
    "and": ("u u u", np.bitwise_and),
    "or": ("u u u", np.bitwise_or),
    "xor": ("u u u", np.bitwise_xor),
    "and_not1": ("u u u", lambda a, b: a & ~b),
    "or_not1": ("u u u", lambda a, b: a | ~b),
    "and_not0": ("u u u", lambda a, b: ~a & b),
    "or_not0": ("u u u", lambda a, b: ~a | b),
    "nand": ("u u u", lambda a, b: ~(a & b)),
    "nor": ("u u u", lambda a, b: ~(a | b)),
    "xnor": ("u u u", lambda a, b: ~(a ^ b)),
}


def _bfe64(a: Any, b: Any, signed: bool) -> Any:
    offset, width = b & np.uint32(63), b >> np.uint32(16) & np.uint32(127)
    width = np.minimum(width, 64).astype(np.int64)
    left = np.maximum(64 - width - offset.astype(np.int64), 0)
    if signed:
        moved = np.left_shift(a.view(np.int64), left)
        return np.where(width == 0, 0, moved >> np.minimum(left + offset, 63))
    ones = np.where(
        width >= 64, _u64(2**64 - 1), (_u64(1) << np.minimum(width, 63).astype(_u64)) - _u64(1)
    )
    return a >> offset.astype(_u64) & ones


def _split(b: Any) -> tuple[Any, Any]:
    return b & np.uint32(31), b >> np.uint32(16) & np.uint32(127)


def _bfe32(a: Any, b: Any) -> Any:
    offset, width = _split(b)
    whole = a >> offset
    ones = (_u64(1) << np.minimum(width, 32).astype(_u64)) - _u64(1)
    return (whole & ones).astype(np.uint32)


def _bfe32s(a: Any, b: Any) -> Any:
    offset, width = _split(b)
    up = 64 - np.minimum(width, 32).astype(np.int64)
    value = a.view(np.int32).astype(np.int64) >> offset
    return np.where(width == 0, 0, value << np.minimum(up, 63) >> np.minimum(up, 63)).astype(
        np.int32
    )


def _wqm(a: Any) -> Any:
    bits = a.dtype.itemsize * 8
    four = a.dtype.type(15)
    result = a - a
    for i in range(0, bits, 4):
        result = result | np.where(a >> a.dtype.type(i) & four != 0, four << a.dtype.type(i), 0)
    return result


def _quads(a: Any, bits: int) -> Any:
    """Bit i: whether any of the bits 4i to 4i + 3 is set."""
    wide = a.astype(_u64)
    result = wide - wide
    for i in range(bits // 4):
        result = result | (wide >> _u64(4 * i) & _u64(15) != 0).astype(_u64) << _u64(i)
    return result


def _replicated(a: Any) -> Any:
    """Every bit twice."""
    wide = a.astype(_u64)
    for shift, mask in (
        (16, 0x0000FFFF0000FFFF), (8, 0x00FF00FF00FF00FF), (4, 0x0F0F0F0F0F0F0F0F),
        (2, 0x3333333333333333), (1, 0x5555555555555555),
    ):  # fmt: skip
        wide = (wide | wide << _u64(shift)) & _u64(mask)
    return wide | wide << _u64(1)


# Operations whose SCC is (result != 0).
NONZERO: dict[str, tuple[str, Callable[..., Any]]] = {
    **{
        f"s_{name}_b{size}": (signature.replace("u", f"u{size}"), function)
        for name, (signature, function) in LOGIC.items()
        for size in (32, 64)
    },
    "s_lshl_b32": ("u32 u32 u32", im.shl),
    "s_lshr_b32": ("u32 u32 u32", im.shr),
    "s_ashr_i32": ("i32 u32 u32", im.sar),
    "s_lshl_b64": ("u64 u64 u32", im.shl64),
    "s_lshr_b64": ("u64 u64 u32", im.shr64),
    "s_ashr_i64": ("i64 u64 u32", im.sar64),
    "s_bfe_u32": ("u32 u32 u32", _bfe32),
    "s_bfe_i32": ("i32 u32 u32", _bfe32s),
    "s_bfe_u64": ("u64 u64 u32", lambda a, b: _bfe64(a, b, False)),
    "s_bfe_i64": ("i64 u64 u32", lambda a, b: _bfe64(a, b, True)),
    "s_absdiff_i32": ("u32 i32 i32", lambda a, b: np.abs(a - b).view(np.uint32)),
    "s_not_b32": ("u32 u32", np.invert),
    "s_not_b64": ("u64 u64", np.invert),
    "s_bcnt0_i32_b32": ("u32 u32", lambda a: im.popcount(~a)),
    "s_bcnt1_i32_b32": ("u32 u32", im.popcount),
    "s_bcnt0_i32_b64": ("u32 u64", lambda a: im.popcount(~a)),
    "s_bcnt1_i32_b64": ("u32 u64", im.popcount),
    "s_wqm_b32": ("u32 u32", _wqm),
    "s_wqm_b64": ("u64 u64", _wqm),
    "s_abs_i32": ("i32 i32", np.abs),
    "s_quadmask_b32": ("u32 u32", lambda a: _quads(a, 32).astype(np.uint32)),
    "s_quadmask_b64": ("u64 u64", lambda a: _quads(a, 64)),
}

# Operations that leave SCC alone.
PLAIN: dict[str, tuple[str, Callable[..., Any]]] = {
    "s_mov_b32": ("u32 u32", lambda a: a),
    "s_mov_b64": ("u64 u64", lambda a: a),
    "s_mul_i32": ("u32 u32 u32", np.multiply),
    "s_mul_hi_u32": ("u32 u32 u32", im.mul_hi_u32),
    "s_mul_hi_i32": ("i32 i32 i32", im.mul_hi_i32),
    "s_add_nc_u64": ("u64 u64 u64", np.add),
    "s_sub_nc_u64": ("u64 u64 u64", np.subtract),
    "s_mul_u64": ("u64 u64 u64", np.multiply),
    "s_bfm_b32": ("u32 u32 u32", im.bfm),
    "s_bfm_b64": ("u64 u32 u32", lambda a, b: im.shl64(im.shl64(_u64(1), a) - _u64(1), b)),
    "s_brev_b32": ("u32 u32", im.reverse),
    "s_brev_b64": (
        "u64 u64",
        lambda a: im.reverse(a.astype(np.uint32)).astype(_u64) << _u64(32)
        | im.reverse((a >> _u64(32)).astype(np.uint32)),
    ),
    "s_clz_i32_u32": ("i32 u32", im.leading_zeros),
    "s_clz_i32_u64": ("i32 u64", im.leading_zeros),
    "s_ctz_i32_b32": ("i32 u32", im.trailing_zeros),
    "s_ctz_i32_b64": ("i32 u64", im.trailing_zeros),
    "s_ff0_i32_b32": ("i32 u32", lambda a: im.trailing_zeros(~a)),
    "s_ff0_i32_b64": ("i32 u64", lambda a: im.trailing_zeros(~a)),
    "s_bitreplicate_b64_b32": ("u64 u32", lambda a: _replicated(a)),
    "s_cls_i32": ("i32 i32", im.leading_signs),
    "s_cls_i32_i64": ("i32 i64", im.leading_signs),
    "s_sext_i32_i8": ("i32 u32", im.sext8),
    "s_sext_i32_i16": ("i32 u32", im.sext16),
    "s_pack_ll_b32_b16": ("u32 u32 u32", im.pack16),
    "s_pack_lh_b32_b16": ("u32 u32 u32", lambda a, b: im.pack16(a, b >> np.uint32(16))),
    "s_pack_hl_b32_b16": ("u32 u32 u32", lambda a, b: im.pack16(a >> np.uint32(16), b)),
    "s_pack_hh_b32_b16": (
        "u32 u32 u32", lambda a, b: im.pack16(a >> np.uint32(16), b >> np.uint32(16)),
    ),
    "s_add_f32": ("f32 f32 f32", np.add),
    "s_sub_f32": ("f32 f32 f32", np.subtract),
    "s_mul_f32": ("f32 f32 f32", np.multiply),
    "s_max_f32": ("f32 f32 f32", fm.maximum),
    "s_min_f32": ("f32 f32 f32", fm.minimum),
    "s_cvt_f32_i32": ("f32 i32", lambda a: a.astype(np.float32)),
    "s_cvt_f32_u32": ("f32 u32", lambda a: a.astype(np.float32)),
    "s_cvt_i32_f32": ("i32 f32", fm.to_i32),
    "s_cvt_u32_f32": ("u32 f32", fm.to_u32),
    "s_ceil_f32": ("f32 f32", np.ceil),
    "s_floor_f32": ("f32 f32", np.floor),
    "s_trunc_f32": ("f32 f32", np.trunc),
    "s_rndne_f32": ("f32 f32", np.rint),
    "s_maximum_f32": ("f32 f32 f32", fm.maximum_ieee),
    "s_minimum_f32": ("f32 f32 f32", fm.minimum_ieee),
    "s_cvt_f16_f32": ("h f32", lambda a: a),
    "s_cvt_f32_f16": ("f32 h", lambda a: a),
    "s_cvt_hi_f32_f16": (
        "f32 u32", lambda a: (a >> np.uint32(16)).astype(np.uint16).view(np.float16),
    ),
    "s_add_f16": ("h h h", np.add),
    "s_sub_f16": ("h h h", np.subtract),
    "s_mul_f16": ("h h h", np.multiply),
    "s_max_f16": ("h h h", fm.maximum),
    "s_min_f16": ("h h h", fm.minimum),
    "s_maximum_f16": ("h h h", fm.maximum_ieee),
    "s_minimum_f16": ("h h h", fm.minimum_ieee),
    "s_ceil_f16": ("h h", np.ceil),
    "s_floor_f16": ("h h", np.floor),
    "s_trunc_f16": ("h h", np.trunc),
    "s_rndne_f16": ("h h", np.rint),
    "s_cvt_pk_rtz_f16_f32": (
        "u32 f32 f32", lambda a, b: im.pack16(fm.half_toward_zero(a), fm.half_toward_zero(b)),
    ),
}  # fmt: skip

# Operations with an SCC of their own: the function gives (result, SCC).
OWN_SCC: dict[str, tuple[str, Callable[..., Any]]] = {
    "s_add_u32": ("u32 u32 u32", lambda a, b: (a + b, a + b < a)),
    "s_sub_u32": ("u32 u32 u32", lambda a, b: (a - b, b > a)),
    "s_add_i32": ("i32 i32 i32", lambda a, b: (a + b, _overflow(a, b, _wide(a) + b))),
    "s_sub_i32": ("i32 i32 i32", lambda a, b: (a - b, _overflow(a, b, _wide(a) - b))),
    "s_max_i32": ("i32 i32 i32", lambda a, b: (np.maximum(a, b), a >= b)),
    "s_min_i32": ("i32 i32 i32", lambda a, b: (np.minimum(a, b), a < b)),
    "s_max_u32": ("u32 u32 u32", lambda a, b: (np.maximum(a, b), a >= b)),
    "s_min_u32": ("u32 u32 u32", lambda a, b: (np.minimum(a, b), a < b)),
}
for _n in range(1, 5):
    OWN_SCC[f"s_lshl{_n}_add_u32"] = (
        "u32 u32 u32",
        lambda a, b, _k=_n: (
            (a << np.uint32(_k)) + b, (a.astype(_u64) << _u64(_k)) + b > 0xFFFFFFFF
        ),
    )  # fmt: skip

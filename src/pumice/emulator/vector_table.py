"""What each vector operation computes: result kind, source kinds, function.

Kinds are those of `operands`. Functions take one array a source. An operation not listed here is
handled by a module of its own: compares, lane moves, packed operations, matrix operations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pumice.emulator import float_math as fm
from pumice.emulator import int_math as im


@dataclass(frozen=True)
class Operation:
    """result kind; source kinds; function. accumulate: the destination is the last source."""

    result: str
    sources: tuple[str, ...]
    function: Callable[..., Any]
    accumulate: bool = False


def _op(signature: str, function: Callable[..., Any], accumulate: bool = False) -> Operation:
    result, *sources = signature.split()
    return Operation(result, tuple(sources), function, accumulate)


_K = np.uint32
_i64 = np.int64


def _wide(a: Any) -> Any:
    return a.astype(np.int64)


def _float_family(kind: str, suffix: str) -> dict[str, Operation]:
    one, two, three = f"{kind} {kind}", f"{kind} {kind} {kind}", f"{kind} {kind} {kind} {kind}"
    fma = {"f32": fm.fma32, "h": fm.fma16, "f64": fm.fma64}[kind]
    table = {
        "add": _op(two, np.add),
        "sub": _op(two, np.subtract),
        "subrev": _op(two, lambda a, b: b - a),
        "mul": _op(two, np.multiply),
        "max": _op(two, fm.maximum),
        "min": _op(two, fm.minimum),
        "maximum": _op(two, fm.maximum_ieee),
        "minimum": _op(two, fm.minimum_ieee),
        "fma": _op(three, fma),
        "fmac": _op(three, fma, True),
        "fmamk": _op(three, fma),
        "fmaak": _op(three, fma),
        "max3": _op(three, lambda a, b, c: fm.maximum(fm.maximum(a, b), c)),
        "min3": _op(three, lambda a, b, c: fm.minimum(fm.minimum(a, b), c)),
        "maximum3": _op(three, lambda a, b, c: fm.maximum_ieee(fm.maximum_ieee(a, b), c)),
        "minimum3": _op(three, lambda a, b, c: fm.minimum_ieee(fm.minimum_ieee(a, b), c)),
        "med3": _op(three, fm.median),
        "maxmin": _op(three, lambda a, b, c: fm.minimum(fm.maximum(a, b), c)),
        "minmax": _op(three, lambda a, b, c: fm.maximum(fm.minimum(a, b), c)),
        "maximumminimum": _op(three, lambda a, b, c: fm.minimum_ieee(fm.maximum_ieee(a, b), c)),
        "minimummaximum": _op(three, lambda a, b, c: fm.maximum_ieee(fm.minimum_ieee(a, b), c)),
        "div_fixup": _op(three, fm.div_fixup),
        "ceil": _op(one, np.ceil),
        "floor": _op(one, np.floor),
        "trunc": _op(one, np.trunc),
        "rndne": _op(one, np.rint),
        "fract": _op(one, fm.fraction),
        "frexp_mant": _op(one, fm.frexp_mantissa),
        "sqrt": _op(one, fm.root),
    }
    return {f"v_{name}_{suffix}": row for name, row in table.items()}


def _half_unary(function: Any) -> Operation:
    return _op("h h", lambda a: function(a.astype(np.float64)))


VECTOR: dict[str, Operation] = {
    **_float_family("f32", "f32"),
    **_float_family("h", "f16"),
    **_float_family("f64", "f64"),
    # float32
    "v_exp_f32": _op("f32 f32", fm.exp2),
    "v_log_f32": _op("f32 f32", fm.log2),
    "v_rcp_f32": _op("f32 f32", fm.reciprocal),
    "v_rcp_iflag_f32": _op("f32 f32", fm.reciprocal),
    "v_rsq_f32": _op("f32 f32", fm.reciprocal_root),
    "v_sin_f32": _op("f32 f32", fm.sine),
    "v_cos_f32": _op("f32 f32", fm.cosine),
    "v_mul_dx9_zero_f32": _op("f32 f32 f32", fm.mul_dx9),
    "v_fma_dx9_zero_f32": _op("f32 f32 f32 f32", fm.fma_dx9),
    "v_fmac_dx9_zero_f32": _op("f32 f32 f32 f32", fm.fma_dx9, True),
    "v_ldexp_f32": _op("f32 f32 i32", fm.ldexp),
    "v_frexp_exp_i32_f32": _op("i32 f32", fm.frexp_exponent),
    # float64
    "v_rcp_f64": _op("f64 f64", np.reciprocal),
    "v_rsq_f64": _op("f64 f64", lambda a: 1.0 / np.sqrt(a)),
    "v_ldexp_f64": _op("f64 f64 i32", fm.ldexp),
    "v_frexp_exp_i32_f64": _op("i32 f64", fm.frexp_exponent),
    # float16
    "v_exp_f16": _half_unary(np.exp2),
    "v_log_f16": _half_unary(np.log2),
    "v_rcp_f16": _half_unary(np.reciprocal),
    "v_rsq_f16": _half_unary(lambda a: 1.0 / np.sqrt(a)),
    "v_sin_f16": _half_unary(fm.sine),
    "v_cos_f16": _half_unary(fm.cosine),
    "v_ldexp_f16": _op("h h i16", lambda a, e: fm.ldexp(a, e.astype(np.int32))),
    "v_frexp_exp_i16_f16": _op("i16 h", fm.frexp_exponent),
    # conversions
    "v_cvt_f32_i32": _op("f32 i32", lambda a: a.astype(np.float32)),
    "v_cvt_f32_u32": _op("f32 u32", lambda a: a.astype(np.float32)),
    "v_cvt_i32_f32": _op("i32 f32", fm.to_i32),
    "v_cvt_u32_f32": _op("u32 f32", fm.to_u32),
    "v_cvt_floor_i32_f32": _op("i32 f32", lambda a: fm.to_i32(np.floor(a))),
    "v_cvt_nearest_i32_f32": _op("i32 f32", lambda a: fm.to_i32(np.floor(_f64(a) + 0.5))),
    "v_cvt_f32_f64": _op("f32 f64", lambda a: a),
    "v_cvt_f64_f32": _op("f64 f32", lambda a: a.astype(np.float64)),
    "v_cvt_f64_i32": _op("f64 i32", lambda a: a.astype(np.float64)),
    "v_cvt_f64_u32": _op("f64 u32", lambda a: a.astype(np.float64)),
    "v_cvt_i32_f64": _op("i32 f64", fm.to_i32),
    "v_cvt_u32_f64": _op("u32 f64", fm.to_u32),
    "v_cvt_f16_f32": _op("h f32", lambda a: a),
    "v_cvt_f32_f16": _op("f32 h", lambda a: a),
    "v_cvt_f16_i16": _op("h i16", lambda a: a.astype(np.float32)),
    "v_cvt_f16_u16": _op("h u16", lambda a: a.astype(np.float32)),
    "v_cvt_i16_f16": _op("i16 h", lambda a: fm.to_integer(a, -32768, 32767, np.int16)),
    "v_cvt_u16_f16": _op("u16 h", lambda a: fm.to_integer(a, 0, 65535, np.int32)),
    "v_cvt_i32_i16": _op("i32 i16", lambda a: a.astype(np.int32)),
    "v_cvt_u32_u16": _op("u32 u16", lambda a: a.astype(np.uint32)),
    "v_cvt_f32_bf16": _op("f32 u16", lambda a: (a.astype(_K) << _K(16)).view(np.float32)),
    "v_cvt_pk_rtz_f16_f32": _op(
        "u32 f32 f32", lambda a, b: im.pack16(fm.half_toward_zero(a), fm.half_toward_zero(b))
    ),
    "v_cvt_pk_f16_f32": _op(
        "u32 f32 f32", lambda a, b: im.pack16(fm.half_bits(a), fm.half_bits(b))
    ),
    "v_cvt_pk_bf16_f32": _op(
        "u32 f32 f32", lambda a, b: im.pack16(fm.brain_bits(a), fm.brain_bits(b))
    ),
    "v_cvt_pk_i16_f32": _op("u32 f32 f32", lambda a, b: _pack_i16(fm.to_i32(a), fm.to_i32(b))),
    "v_cvt_pk_u16_f32": _op(
        "u32 f32 f32",
        lambda a, b: im.pack16(
            fm.to_integer(a, 0, 65535, np.uint32), fm.to_integer(b, 0, 65535, np.uint32)
        ),
    ),
    "v_cvt_pk_i16_i32": _op("u32 i32 i32", lambda a, b: _pack_i16(a, b)),
    "v_cvt_pk_u16_u32": _op(
        "u32 u32 u32", lambda a, b: im.pack16(np.minimum(a, _K(65535)), np.minimum(b, _K(65535)))
    ),
    "v_cvt_pk_norm_i16_f32": _op(
        "u32 f32 f32", lambda a, b: im.pack16(fm.snorm16(a), fm.snorm16(b))
    ),
    "v_cvt_pk_norm_u16_f32": _op(
        "u32 f32 f32", lambda a, b: im.pack16(fm.unorm16(a), fm.unorm16(b))
    ),
    "v_cvt_pk_u8_f32": _op("u32 f32 u32 u32", lambda a, b, c: _pack_byte(a, b, c)),
    "v_cvt_off_f32_i4": _op(
        "f32 u32", lambda a: (((a & _K(15)) ^ _K(8)).astype(np.float32) - np.float32(8)) / 16
    ),
    "v_pack_b32_f16": _op("u32 u16 u16", lambda a, b: im.pack16(a.astype(_K), b.astype(_K))),
    # moves and bits
    "v_mov_b32": _op("u32 u32", lambda a: a),
    "v_mov_b64": _op("u64 u64", lambda a: a),
    "v_mov_b16": _op("u16 u16", lambda a: a),
    "v_not_b32": _op("u32 u32", np.invert),
    "v_not_b16": _op("u16 u16", np.invert),
    "v_bfrev_b32": _op("u32 u32", im.reverse),
    "v_clz_i32_u32": _op("i32 u32", im.leading_zeros),
    "v_ctz_i32_b32": _op("i32 u32", im.trailing_zeros),
    "v_cls_i32": _op("i32 i32", im.leading_signs),
    "v_and_b32": _op("u32 u32 u32", np.bitwise_and),
    "v_or_b32": _op("u32 u32 u32", np.bitwise_or),
    "v_xor_b32": _op("u32 u32 u32", np.bitwise_xor),
    "v_xnor_b32": _op("u32 u32 u32", lambda a, b: ~(a ^ b)),
    "v_and_b16": _op("u16 u16 u16", np.bitwise_and),
    "v_or_b16": _op("u16 u16 u16", np.bitwise_or),
    "v_xor_b16": _op("u16 u16 u16", np.bitwise_xor),
    "v_lshlrev_b32": _op("u32 u32 u32", lambda a, b: im.shl(b, a)),
    "v_lshrrev_b32": _op("u32 u32 u32", lambda a, b: im.shr(b, a)),
    "v_ashrrev_i32": _op("i32 u32 u32", lambda a, b: im.sar(b, a)),
    "v_lshlrev_b64": _op("u64 u32 u64", lambda a, b: im.shl64(b, a)),
    "v_lshrrev_b64": _op("u64 u32 u64", lambda a, b: im.shr64(b, a)),
    "v_ashrrev_i64": _op("i64 u32 u64", lambda a, b: im.sar64(b, a)),
    "v_lshlrev_b16": _op("u16 u16 u16", lambda a, b: b << (a & np.uint16(15))),
    "v_lshrrev_b16": _op("u16 u16 u16", lambda a, b: b >> (a & np.uint16(15))),
    "v_ashrrev_i16": _op("i16 i16 i16", lambda a, b: b >> (a & np.int16(15))),
    "v_bcnt_u32_b32": _op("u32 u32 u32", lambda a, b: im.popcount(a) + b),
    "v_bfe_u32": _op("u32 u32 u32 u32", im.bfe_u32),
    "v_bfe_i32": _op("i32 i32 u32 u32", im.bfe_i32),
    "v_bfi_b32": _op("u32 u32 u32 u32", im.bfi),
    "v_bfm_b32": _op("u32 u32 u32", im.bfm),
    "v_perm_b32": _op("u32 u32 u32 u32", im.perm),
    "v_alignbit_b32": _op("u32 u32 u32 u32", im.alignbit),
    "v_alignbyte_b32": _op("u32 u32 u32 u32", im.alignbyte),
    "v_and_or_b32": _op("u32 u32 u32 u32", lambda a, b, c: (a & b) | c),
    "v_or3_b32": _op("u32 u32 u32 u32", lambda a, b, c: a | b | c),
    "v_xor3_b32": _op("u32 u32 u32 u32", lambda a, b, c: a ^ b ^ c),
    "v_lshl_or_b32": _op("u32 u32 u32 u32", lambda a, b, c: im.shl(a, b) | c),
    "v_lshl_add_u32": _op("u32 u32 u32 u32", lambda a, b, c: im.shl(a, b) + c),
    "v_add_lshl_u32": _op("u32 u32 u32 u32", lambda a, b, c: im.shl(a + b, c)),
    "v_xad_u32": _op("u32 u32 u32 u32", lambda a, b, c: (a ^ b) + c),
    "v_lshl_add_u64": _op(
        "u64 u64 u32 u64", lambda a, b, c: (a << (b & _K(7)).astype(np.uint64)) + c
    ),
    # integers
    "v_add_nc_u32": _op("u32 u32 u32", np.add),
    "v_sub_nc_u32": _op("u32 u32 u32", np.subtract),
    "v_subrev_nc_u32": _op("u32 u32 u32", lambda a, b: b - a),
    "v_add_nc_i32": _op("i32 i32 i32", np.add),
    "v_sub_nc_i32": _op("i32 i32 i32", np.subtract),
    "v_add_nc_u16": _op("u16 u16 u16", np.add),
    "v_sub_nc_u16": _op("u16 u16 u16", np.subtract),
    "v_subrev_nc_u16": _op("u16 u16 u16", lambda a, b: b - a),
    "v_add_nc_i16": _op("i16 i16 i16", np.add),
    "v_sub_nc_i16": _op("i16 i16 i16", np.subtract),
    "v_add3_u32": _op("u32 u32 u32 u32", lambda a, b, c: a + b + c),
    "v_mul_lo_u32": _op("u32 u32 u32", np.multiply),
    "v_mul_lo_u16": _op("u16 u16 u16", np.multiply),
    "v_mul_hi_u32": _op("u32 u32 u32", im.mul_hi_u32),
    "v_mul_hi_i32": _op("i32 i32 i32", im.mul_hi_i32),
    "v_mul_u32_u24": _op("u32 u32 u32", lambda a, b: im.u24(a) * im.u24(b)),
    "v_mul_i32_i24": _op("i32 i32 i32", lambda a, b: im.i24(a) * im.i24(b)),
    "v_mul_hi_u32_u24": _op("u32 u32 u32", lambda a, b: im.mul_hi_u32(im.u24(a), im.u24(b))),
    "v_mul_hi_i32_i24": _op("i32 i32 i32", lambda a, b: im.mul_hi_i32(im.i24(a), im.i24(b))),
    "v_mad_u32_u24": _op("u32 u32 u32 u32", lambda a, b, c: im.u24(a) * im.u24(b) + c),
    "v_mad_i32_i24": _op("i32 i32 i32 i32", lambda a, b, c: im.i24(a) * im.i24(b) + c),
    "v_mad_u16": _op("u16 u16 u16 u16", lambda a, b, c: a * b + c),
    "v_mad_i16": _op("i16 i16 i16 i16", lambda a, b, c: a * b + c),
    "v_mad_u32_u16": _op("u32 u16 u16 u32", lambda a, b, c: a.astype(_K) * b.astype(_K) + c),
    "v_mad_i32_i16": _op("i32 i16 i16 i32", lambda a, b, c: _i32(a) * _i32(b) + c),
    "v_max_i32": _op("i32 i32 i32", np.maximum),
    "v_min_i32": _op("i32 i32 i32", np.minimum),
    "v_max_u32": _op("u32 u32 u32", np.maximum),
    "v_min_u32": _op("u32 u32 u32", np.minimum),
    "v_max_i16": _op("i16 i16 i16", np.maximum),
    "v_min_i16": _op("i16 i16 i16", np.minimum),
    "v_max_u16": _op("u16 u16 u16", np.maximum),
    "v_min_u16": _op("u16 u16 u16", np.minimum),
    "v_sad_u8": _op("u32 u32 u32 u32", im.sad_u8),
    "v_sad_hi_u8": _op("u32 u32 u32 u32", lambda a, b, c: (im.sad_u8(a, b, c - c) << _K(16)) + c),
    "v_msad_u8": _op("u32 u32 u32 u32", im.msad_u8),
    "v_sad_u16": _op("u32 u32 u32 u32", im.sad_u16),
    "v_sad_u32": _op(
        "u32 u32 u32 u32", lambda a, b, c: np.where(a > b, a - b, b - a) + c
    ),
    "v_lerp_u8": _op("u32 u32 u32 u32", im.lerp_u8),
    "v_sat_pk_u8_i16": _op("u16 u32", lambda a: _saturate_bytes(a)),
    "v_ashr_pk_i8_i32": _op("u16 i32 i32 u32", lambda a, b, c: _shift_bytes(a, b, c, -128, 127)),
    "v_ashr_pk_u8_i32": _op("u16 i32 i32 u32", lambda a, b, c: _shift_bytes(a, b, c, 0, 255)),
    "v_cvt_norm_i16_f16": _op("u16 h", lambda a: fm.snorm16(a).astype(np.uint16)),
    "v_cvt_norm_u16_f16": _op("u16 h", lambda a: fm.unorm16(a).astype(np.uint16)),
}  # fmt: skip

for _i in range(4):
    VECTOR[f"v_cvt_f32_ubyte{_i}"] = _op(
        "f32 u32", lambda a, _down=8 * _i: (a >> _K(_down) & _K(255)).astype(np.float32)
    )
for _kind in ("i32", "u32", "i16", "u16"):
    _three = f"{_kind} {_kind} {_kind} {_kind}"
    VECTOR[f"v_max3_{_kind}"] = _op(_three, lambda a, b, c: np.maximum(np.maximum(a, b), c))
    VECTOR[f"v_min3_{_kind}"] = _op(_three, lambda a, b, c: np.minimum(np.minimum(a, b), c))
    VECTOR[f"v_med3_{_kind}"] = _op(_three, im.median)
    VECTOR[f"v_maxmin_{_kind}"] = _op(_three, lambda a, b, c: np.minimum(np.maximum(a, b), c))
    VECTOR[f"v_minmax_{_kind}"] = _op(_three, lambda a, b, c: np.maximum(np.minimum(a, b), c))

# RDNA4's transcendental operations on scalar registers.
for _name in ("exp", "log", "rcp", "rsq", "sqrt"):
    for _suffix in ("f32", "f16"):
        VECTOR[f"v_s_{_name}_{_suffix}"] = VECTOR[f"v_{_name}_{_suffix}"]

# Integer additions and subtractions whose clamp bit means saturation: bounds of the result.
SATURATES: dict[str, tuple[Callable[[Any, Any], Any], int, int]] = {
    "v_add_nc_u32": (lambda a, b: _wide(a) + b, 0, 2**32 - 1),
    "v_sub_nc_u32": (lambda a, b: _wide(a) - b, 0, 2**32 - 1),
    "v_subrev_nc_u32": (lambda a, b: _wide(b) - a, 0, 2**32 - 1),
    "v_add_nc_i32": (lambda a, b: _wide(a) + b, -(2**31), 2**31 - 1),
    "v_sub_nc_i32": (lambda a, b: _wide(a) - b, -(2**31), 2**31 - 1),
    "v_add_nc_u16": (lambda a, b: _wide(a) + b, 0, 65535),
    "v_sub_nc_u16": (lambda a, b: _wide(a) - b, 0, 65535),
    "v_add_nc_i16": (lambda a, b: _wide(a) + b, -32768, 32767),
    "v_sub_nc_i16": (lambda a, b: _wide(a) - b, -32768, 32767),
}


def _f64(a: Any) -> Any:
    return a.astype(np.float64)


def _i32(a: Any) -> Any:
    return a.astype(np.int32)


def _pack_i16(a: Any, b: Any) -> Any:
    low, high = np.clip(a, -32768, 32767), np.clip(b, -32768, 32767)
    return im.pack16(low.astype(np.int32).view(_K), high.astype(np.int32).view(_K))


def _pack_byte(a: Any, b: Any, c: Any) -> Any:
    byte = fm.to_integer(np.rint(a), 0, 255, np.uint32)
    shift = (b & _K(3)) * _K(8)
    return (c & ~(_K(255) << shift)) | byte << shift


def _saturate_bytes(a: Any) -> Any:
    low = np.clip((a & _K(0xFFFF)).astype(np.uint16).view(np.int16), 0, 255)
    high = np.clip((a >> _K(16)).astype(np.uint16).view(np.int16), 0, 255)
    return (low.astype(np.uint16) | high.astype(np.uint16) << np.uint16(8)).astype(np.uint16)


def _shift_bytes(a: Any, b: Any, c: Any, low: int, high: int) -> Any:
    shift = (c & _K(31)).astype(np.int32)
    first, second = np.clip(a >> shift, low, high) & 255, np.clip(b >> shift, low, high) & 255
    return (first | second << 8).astype(np.uint16)

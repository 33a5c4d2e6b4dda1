"""Integer and bit operations of the vector and scalar units, on NumPy arrays.

uint32 arithmetic wraps in NumPy as it does on the hardware; shifts take their count modulo the
width, as the hardware does and NumPy does not.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pumice.emulator.state import Values

_31, _63, _15 = np.uint32(31), np.uint64(63), np.uint16(15)
_BYTES = tuple(np.uint32(8 * i) for i in range(4))
_FF = np.uint32(0xFF)


def shl(a: Values, n: Values) -> Values:
    return np.left_shift(a, n & _31)


def shr(a: Values, n: Values) -> Values:
    return np.right_shift(a, n & _31)


def sar(a: Values, n: Values) -> Values:
    return np.right_shift(a.view(np.int32), (n & _31).astype(np.int32))


def shl64(a: Values, n: Values) -> Values:
    return np.left_shift(a, n.astype(np.uint64) & _63)


def shr64(a: Values, n: Values) -> Values:
    return np.right_shift(a, n.astype(np.uint64) & _63)


def sar64(a: Values, n: Values) -> Values:
    return np.right_shift(a.view(np.int64), (n.astype(np.int64)) & 63)


def mul_hi_u32(a: Values, b: Values) -> Values:
    return (a.astype(np.uint64) * b >> np.uint64(32)).astype(np.uint32)


def mul_hi_i32(a: Values, b: Values) -> Values:
    return (a.astype(np.int64) * b >> 32).astype(np.int32)


def u24(a: Values) -> Values:
    return a & np.uint32(0xFFFFFF)


def i24(a: Values) -> Values:
    return np.left_shift(a, 8) >> 8


def bfe_u32(a: Values, offset: Values, width: Values) -> Values:
    mask = np.left_shift(np.uint32(1), width & _31) - np.uint32(1)
    return np.right_shift(a, offset & _31) & mask


def bfe_i32(a: Values, offset: Values, width: Values) -> Values:
    """A signed field: width 0 gives 0; bits beyond 31 are the sign's."""
    width = (width & _31).astype(np.int64)
    value = a.astype(np.int64) >> (offset & _31).astype(np.int64)
    up = 64 - width
    return np.where(width == 0, 0, value << np.minimum(up, 63) >> np.minimum(up, 63)).astype(
        np.int32
    )


def bfi(mask: Values, a: Values, b: Values) -> Values:
    return (mask & a) | (~mask & b)


def bfm(width: Values, offset: Values) -> Values:
    ones = np.left_shift(np.uint32(1), width & _31) - np.uint32(1)
    return np.left_shift(ones, offset & _31)


def popcount(a: Values) -> Values:
    return np.bitwise_count(a).astype(np.uint32)


def reverse(a: Values) -> Values:
    """The 32 bits in reverse order."""
    for shift, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F)):
        m, s = np.uint32(mask), np.uint32(shift)
        a = (a >> s & m) | (a & m) << s
    return np.asarray(a).byteswap()


def leading_zeros(a: Values) -> Values:
    """Zeros above the highest bit that is set; -1 for 0."""
    bits = 8 * a.dtype.itemsize
    wide = np.asarray(a)
    for shift in (1, 2, 4, 8, 16, 32):
        if shift < bits:
            wide = wide | wide >> a.dtype.type(shift)
    count = bits - np.bitwise_count(wide).astype(np.int32)
    return np.where(a == 0, -1, count).astype(np.int32)


def trailing_zeros(a: Values) -> Values:
    """Zeros below the lowest bit that is set; -1 for 0."""
    one = a.dtype.type(1)
    count = np.bitwise_count(~a & (a - one)).astype(np.int32)
    return np.where(a == 0, -1, count).astype(np.int32)


def leading_signs(a: Values) -> Values:
    """Position, from the top, of the first bit that differs from the sign; -1 when none does."""
    bits = 8 * a.dtype.itemsize
    unsigned: Any = np.uint64 if bits == 64 else np.uint32
    flipped = np.where(a < 0, ~a, a).view(unsigned)
    return leading_zeros(flipped)


def perm(a: Values, b: Values, select: Values) -> Values:
    """v_perm_b32: four bytes chosen out of {a, b}, of sign bits, of 0x00 and of 0xff."""
    first = select.flat[0]
    if (select == first).all():  # mostly: the choice is a constant that lies in a register
        return _perm_fixed(a, b, int(first))
    both = a.astype(np.uint64) << np.uint64(32) | b
    shape = np.broadcast_shapes(a.shape, b.shape, select.shape)
    if not (select & np.uint32(0xF8F8F8F8)).any():  # bytes of the two words only
        data = np.ascontiguousarray(np.broadcast_to(both, shape)).view(np.uint8).reshape(-1)
        picks = np.ascontiguousarray(np.broadcast_to(select, shape)).view(np.uint8).reshape(-1, 4)
        at = picks + 8 * np.arange(len(picks))[:, None]
        return data[at].view(np.uint32).reshape(shape)
    result: Values = np.zeros(shape, np.uint32)
    for i in _BYTES:
        s = select >> i & _FF
        byte = (both >> (np.uint64(8) * np.minimum(s, 7)) & np.uint64(0xFF)).astype(np.uint32)
        if np.any(s >= 8):
            sign_at = np.uint64(16) * (np.clip(s, 8, 11).astype(np.uint64) - np.uint64(8))
            sign = both >> (sign_at + np.uint64(15)) & np.uint64(1)
            special = np.where(s >= 13, 255, np.where(s == 12, 0, sign * np.uint64(255)))
            byte = np.where(s >= 8, special.astype(np.uint32), byte)
        result = result | byte << i
    return result


def _perm_fixed(a: Values, b: Values, select: int) -> Values:
    """v_perm_b32 with one choice for all lanes; words are moved whole where the choice allows."""
    if select == 0x05040100:
        return (b & np.uint32(0xFFFF)) | a << np.uint32(16)
    if select == 0x07060302:
        return b >> np.uint32(16) | (a & np.uint32(0xFFFF0000))
    result: Values = np.uint32(0)
    for i in range(4):
        pick = select >> 8 * i & 255
        if pick >= 13:
            byte = _FF
        elif pick == 12:
            continue
        elif pick >= 8:
            word = a if pick >= 10 else b
            byte = (word >> np.uint32(31 if pick & 1 else 15) & np.uint32(1)) * _FF
        else:
            byte = (a if pick >= 4 else b) >> _BYTES[pick & 3] & _FF
        result = result | byte << _BYTES[i]
    return np.broadcast_to(result, np.broadcast_shapes(a.shape, b.shape))


def alignbit(a: Values, b: Values, n: Values) -> Values:
    both = a.astype(np.uint64) << np.uint64(32) | b
    return (both >> (n & _31).astype(np.uint64)).astype(np.uint32)


def alignbyte(a: Values, b: Values, n: Values) -> Values:
    both = a.astype(np.uint64) << np.uint64(32) | b
    return (both >> (np.uint64(8) * (n & np.uint32(3)))).astype(np.uint32)


def _byte(a: Values, i: int) -> Values:
    return (a >> _BYTES[i] & _FF).astype(np.int64)


def sad_u8(a: Values, b: Values, c: Values) -> Values:
    total = sum(np.abs(_byte(a, i) - _byte(b, i)) for i in range(4))
    return c + np.asarray(total).astype(np.uint32)


def msad_u8(a: Values, b: Values, c: Values) -> Values:
    total = sum(np.where(_byte(b, i) == 0, 0, np.abs(_byte(a, i) - _byte(b, i))) for i in range(4))
    return c + np.asarray(total).astype(np.uint32)


def sad_u16(a: Values, b: Values, c: Values) -> Values:
    m, s = np.uint32(0xFFFF), np.uint32(16)
    low = np.abs((a & m).astype(np.int64) - (b & m).astype(np.int64))
    high = np.abs((a >> s).astype(np.int64) - (b >> s).astype(np.int64))
    return c + (low + high).astype(np.uint32)


def lerp_u8(a: Values, b: Values, c: Values) -> Values:
    result = np.uint32(0)
    for i in range(4):
        byte = (_byte(a, i) + _byte(b, i) + (_byte(c, i) & 1)) >> 1
        result = result | byte.astype(np.uint32) << _BYTES[i]
    return np.asarray(result)


def median(a: Values, b: Values, c: Values) -> Values:
    return np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))


def pack16(low: Values, high: Values) -> Values:
    """Two 16-bit values (as uint32) in one word."""
    return (low & np.uint32(0xFFFF)) | high << np.uint32(16)


def saturate(a: Values, low: int, high: int) -> Values:
    """int64 kept within [low, high], as uint32 bits."""
    return np.clip(a, low, high).astype(np.int64).astype(np.uint32)


def sext16(a: Values) -> Values:
    return a.astype(np.int16).astype(np.int32)


def sext8(a: Values) -> Values:
    return a.astype(np.int8).astype(np.int32)


def bitop3(a: Values, b: Values, c: Values, table: int) -> Values:
    """v_bitop3: any function of three bits, by its truth table (bit 4a + 2b + c)."""
    full = np.uint32(0xFFFFFFFF)
    result: Any = np.uint32(0)
    for i in range(8):
        if table >> i & 1:
            term = (a if i & 4 else a ^ full) & (b if i & 2 else b ^ full)
            result = result | term & (c if i & 1 else c ^ full)
    return np.asarray(result)

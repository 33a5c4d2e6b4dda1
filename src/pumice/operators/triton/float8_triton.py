# mypy: ignore-errors
"""8-bit floats by integer operations, bit for bit as ml_dtypes converts them (OCP 8-bit Floating
Point Specification; fnuz: the types of CDNA3). `float8.bitwise` says where kernels use them."""

import triton
import triton.language as tl


@triton.jit
def decode_e4m3(x):
    """8-bit floats as float16, exactly: their bits are moved into place, where the exponent's bias
    is 15 and not 7 (e4m3fn; fnuz: 8). A few integer operations; no comparison, whose masks take
    registers."""
    bits = x.to(tl.uint8, bitcast=True).to(tl.uint16)
    moved = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
    if x.dtype == tl.float8e4b8:
        moved = moved | (((bits ^ 0x80) - 1) & 0x7E00)  # 0x80 is NaN
        y = moved.to(tl.float16, bitcast=True) * 128.0
    else:
        moved = moved | ((((bits & 0x7F) + 1) & 0x80) << 7)  # 0x7F and 0xFF are NaN
        y = moved.to(tl.float16, bitcast=True) * 256.0
    return y.to(tl.float16)


@triton.jit
def decode_e4m3_wide(x):
    """The same as float32, for sums that no matrix unit takes. From float16 the LLVM of Triton 3.8
    and 3.9 crashes over such sums (SLP vectorizer, RDNA)."""
    bits = x.to(tl.uint8, bitcast=True).to(tl.uint32)
    moved = ((bits & 0x80) << 24) | ((bits & 0x7F) << 20)
    if x.dtype == tl.float8e4b8:
        moved = moved | (((bits ^ 0x80) - 1) & 0x7FC00000)  # 0x80 is NaN
        return moved.to(tl.float32, bitcast=True) * 6.646139978924579e35  # 2¹¹⁹
    else:
        full = ((bits & 0x7F) + 1) & 0x80  # of 0x7F and 0xFF, which are NaN
        moved = moved | ((full << 24) - (full << 16))
        return moved.to(tl.float32, bitcast=True) * 1.329227995784916e36  # 2¹²⁰


@triton.jit
def decode_e5m2(x):
    """e5m2 as float16, whose upper half it is."""
    bits = x.to(tl.uint8, bitcast=True).to(tl.uint16)
    return (bits << 8).to(tl.float16, bitcast=True)


@triton.jit
def encode(x, TYPE: tl.constexpr):
    """float32 → 8-bit floats of TYPE, to nearest even. What is too large becomes infinity (e5m2) or
    NaN (the others, which have no infinity).

    A normal code is rounded as an integer, which carries into the exponent. A subnormal one is
    rounded by the sum with a number whose last bit is worth the least code.
    """
    MANTISSA: tl.constexpr = 2 if TYPE == tl.float8e5 else 3  # bits that a code has
    DROPPED: tl.constexpr = 23 - MANTISSA
    # The least normal code's exponent, biased as float32's; float32 rounds to steps of the least
    # code where its exponent is that of STEPS.
    LEAST: tl.constexpr = 113 if TYPE == tl.float8e5 else 120 if TYPE == tl.float8e4b8 else 121
    STEPS: tl.constexpr = (LEAST + DROPPED) << 23
    bits = x.to(tl.uint32, bitcast=True)
    sign = (bits >> 24) & 0x80
    size = bits & 0x7FFFFFFF
    even = (size >> DROPPED) & 1
    normal = (size + even + ((1 << (DROPPED - 1)) - 1)) >> DROPPED
    normal -= (LEAST - 1) << MANTISSA
    steps = size.to(tl.float32, bitcast=True) + 2.0 ** (LEAST + DROPPED - 127)
    subnormal = steps.to(tl.uint32, bitcast=True) - STEPS
    code = tl.where(size < (LEAST << 23), subnormal, normal)
    if TYPE == tl.float8e4b8:
        code = tl.minimum(code, 0x80)  # NaN, which like 0 has no sign
        sign = tl.where((code & 0x7F) == 0, 0, sign)
    elif TYPE == tl.float8e5:
        code = tl.where(size > 0x7F800000, 0x7E, tl.minimum(code, 0x7C))
    else:
        code = tl.minimum(code, 0x7F)
    return (code | sign).to(tl.uint8).to(TYPE, bitcast=True)


@triton.jit
def widen(x, TYPE: tl.constexpr, BITWISE: tl.constexpr):
    """x as TYPE (float16, bfloat16, float32), exactly if it is an 8-bit float."""
    if BITWISE:
        if x.dtype == tl.float8e5:
            return decode_e5m2(x).to(TYPE)
        elif TYPE == tl.float32:
            return decode_e4m3_wide(x)
        else:
            return decode_e4m3(x).to(TYPE)
    else:
        return x.to(TYPE)


@triton.jit
def narrow(x, TYPE: tl.constexpr, BITWISE: tl.constexpr):
    """float32 as TYPE, to nearest even."""
    if BITWISE:
        return encode(x, TYPE)
    else:
        return x.to(TYPE)

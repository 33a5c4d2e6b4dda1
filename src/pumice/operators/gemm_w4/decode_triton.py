# mypy: ignore-errors
"""Arithmetic on packed pairs of 16-bit floats, once for each vendor.

A pair lies in an int32. CODE picks the instructions: 0 plain Triton in float32 (any device, and the
interpreter), 1 NVIDIA's PTX, 2 AMD's GCN. Everything else about the kernels is shared.
"""

import triton
import triton.language as tl


@triton.jit
def quads(value, A: tl.constexpr, B: tl.constexpr, G: tl.constexpr):
    """[A, B, 4G] → four tensors [A, B, G], the elements 0 … 3 of each four. A thread that holds
    whole fours moves nothing."""
    even, odd = tl.split(tl.reshape(value, (A, B, G, 2, 2)))
    v0, v2 = tl.split(even)
    v1, v3 = tl.split(odd)
    return v0, v1, v2, v3


@triton.jit
def low_half(pair, BRAIN: tl.constexpr):
    """The low 16-bit float of a pair, in float32."""
    if BRAIN:
        return (pair << 16).to(tl.float32, bitcast=True)
    return (pair & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def high_half(pair, BRAIN: tl.constexpr):
    if BRAIN:
        return (pair & -65536).to(tl.float32, bitcast=True)
    return ((pair >> 16) & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def code_pairs(word, zero, CODE: tl.constexpr):
    """A word of eight codes → four pairs.

    CODE 1: (code − zero) as float16 pairs. One logic instruction makes 1024 + code, or 1024 + 16·
    code of the nibbles above, out of two codes; a subtraction or a multiply-add takes the offset
    off. CODE 2: those raw sums: offsets come off the float32 totals. CODE 0: shifted words.
    """
    if CODE == 1:
        offset = zero * 0x00010001 + 0x64006400  # 1024 + zero
        lower = zero * 0x00100010 + -0x2BFF2C00  # −(64 + zero)
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 t;
            shr.u32 t, $4, 8;
            lop3.b32 $0, $4, 0x000f000f, 0x64006400, 0xea;
            lop3.b32 $1, $4, 0x00f000f0, 0x64006400, 0xea;
            lop3.b32 $2, t, 0x000f000f, 0x64006400, 0xea;
            lop3.b32 $3, t, 0x00f000f0, 0x64006400, 0xea;
            sub.f16x2 $0, $0, $5;
            fma.rn.f16x2 $1, $1, $7, $6;
            sub.f16x2 $2, $2, $5;
            fma.rn.f16x2 $3, $3, $7, $6;
            }""",
            "=&r,=&r,=&r,=&r,r,r,r,r",
            [word, offset, lower, 0x2C002C00],
            dtype=(tl.int32, tl.int32, tl.int32, tl.int32),
            is_pure=True,
            pack=1,
        )
    elif CODE == 2:
        above = word >> 8
        return (
            (word & 0x000F000F) | 0x64006400,
            (word & 0x00F000F0) | 0x64006400,
            (above & 0x000F000F) | 0x64006400,
            (above & 0x00F000F0) | 0x64006400,
        )
    else:
        return word, word >> 4, word >> 8, word >> 12


@triton.jit
def multiply_add(pair, x, total, zero, CODE: tl.constexpr, BRAIN: tl.constexpr):
    """total + pair · x: a pair of float16 (CODE 1), or the float32 sum of both products."""
    if CODE == 1:
        return tl.inline_asm_elementwise(
            "fma.rn.f16x2 $0, $1, $2, $3;",
            "=r,r,r,r",
            [pair, x, total],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    elif CODE == 2:
        return tl.inline_asm_elementwise(
            "v_dot2_f32_f16 $0, $1, $2, $3",
            "=v,v,v,v",
            [pair, x, total],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
    else:
        low = ((pair & 15) - zero).to(tl.float32) * low_half(x, BRAIN)
        high = (((pair >> 16) & 15) - zero).to(tl.float32) * high_half(x, BRAIN)
        return total + low + high


@triton.jit
def word_step(word, x0, x1, x2, x3, u, v, zero, CODE: tl.constexpr, BRAIN: tl.constexpr):
    """Adds eight codes' products to two independent totals."""
    p0, p1, p2, p3 = code_pairs(word, zero, CODE)
    u = multiply_add(p0, x0, u, zero, CODE, BRAIN)
    v = multiply_add(p1, x1, v, zero, CODE, BRAIN)
    u = multiply_add(p2, x2, u, zero, CODE, BRAIN)
    v = multiply_add(p3, x3, v, zero, CODE, BRAIN)
    return u, v


@triton.jit
def words_step(
    words, pairs, u, v, zero, CODE: tl.constexpr, BRAIN: tl.constexpr
):  # fmt: skip
    """The same of the four words of a group and its 16 pairs of activations."""
    w0, w1, w2, w3 = words
    x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, xa, xb, xc, xd, xe, xf = pairs
    u, v = word_step(w0, x0, x1, x2, x3, u, v, zero, CODE, BRAIN)
    u, v = word_step(w1, x4, x5, x6, x7, u, v, zero, CODE, BRAIN)
    u, v = word_step(w2, x8, x9, xa, xb, u, v, zero, CODE, BRAIN)
    return word_step(w3, xc, xd, xe, xf, u, v, zero, CODE, BRAIN)


@triton.jit
def pair_sum(a, b):
    """The float32 sum of the four halves of two float16 pairs."""
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 s;
        .reg .b16 l, h;
        .reg .f32 x, y;
        add.f16x2 s, $1, $2;
        mov.b32 {l, h}, s;
        cvt.f32.f16 x, l;
        cvt.f32.f16 y, h;
        add.f32 $0, x, y;
        }""",
        "=f,r,r",
        [a, b],
        dtype=tl.float32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def pair_add(a, b):
    """Two float16 pairs added."""
    return tl.inline_asm_elementwise(
        "add.f16x2 $0, $1, $2;", "=r,r,r", [a, b], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def both(pair, BRAIN: tl.constexpr):
    """The float32 sum of a pair."""
    return low_half(pair, BRAIN) + high_half(pair, BRAIN)


@triton.jit
def sum_of_pairs(
    x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, xa, xb, xc, xd, xe, xf,
    CODE: tl.constexpr, BRAIN: tl.constexpr,
):  # fmt: skip
    """Σ of 16 pairs in float32; CODE 1 adds them as float16, in a tree."""
    if CODE == 1:
        a = pair_add(pair_add(x0, x1), pair_add(x2, x3))
        b = pair_add(pair_add(x4, x5), pair_add(x6, x7))
        c = pair_add(pair_add(x8, x9), pair_add(xa, xb))
        d = pair_add(pair_add(xc, xd), pair_add(xe, xf))
        return pair_sum(pair_add(a, b), pair_add(c, d))
    a = both(x0, BRAIN) + both(x1, BRAIN) + both(x2, BRAIN) + both(x3, BRAIN)
    b = both(x4, BRAIN) + both(x5, BRAIN) + both(x6, BRAIN) + both(x7, BRAIN)
    c = both(x8, BRAIN) + both(x9, BRAIN) + both(xa, BRAIN) + both(xb, BRAIN)
    d = both(xc, BRAIN) + both(xd, BRAIN) + both(xe, BRAIN) + both(xf, BRAIN)
    return (a + b) + (c + d)


@triton.jit
def sum_by_dots(a, b, c, d, e, f, g, h, none, CODE: tl.constexpr, BRAIN: tl.constexpr):
    """The float32 sum of 8 pairs by CODE 2's dot products, onto `none`, zeros."""
    one = 0x3C003C00
    total = multiply_add(one, a, none, 0, CODE, BRAIN)
    total = multiply_add(one, b, total, 0, CODE, BRAIN)
    total = multiply_add(one, c, total, 0, CODE, BRAIN)
    total = multiply_add(one, d, total, 0, CODE, BRAIN)
    total = multiply_add(one, e, total, 0, CODE, BRAIN)
    total = multiply_add(one, f, total, 0, CODE, BRAIN)
    total = multiply_add(one, g, total, 0, CODE, BRAIN)
    return multiply_add(one, h, total, 0, CODE, BRAIN)


@triton.jit
def larger(a, b, BRAIN: tl.constexpr):
    """The larger absolute values of two pairs."""
    if BRAIN:
        return tl.inline_asm_elementwise(
            "{ .reg .b32 a, b; abs.bf16x2 a, $1; abs.bf16x2 b, $2; max.bf16x2 $0, a, b; }",
            "=r,r,r", [a, b],
            dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    return tl.inline_asm_elementwise(
        "{ .reg .b32 a, b; abs.f16x2 a, $1; abs.f16x2 b, $2; max.f16x2 $0, a, b; }",
            "=r,r,r", [a, b],
        dtype=tl.int32, is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def larger_parts(a, b):
    """The same without a packed instruction."""
    low = tl.maximum(a & 0x7FFF, b & 0x7FFF)
    return low | tl.maximum(a & 0x7FFF0000, b & 0x7FFF0000)


@triton.jit
def largest(
    x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, xa, xb, xc, xd, xe, xf,
    CODE: tl.constexpr, BRAIN: tl.constexpr,
):  # fmt: skip
    """max|x| of 16 pairs, in float32."""
    if CODE == 1:
        a = larger(larger(x0, x1, BRAIN), larger(x2, x3, BRAIN), BRAIN)
        b = larger(larger(x4, x5, BRAIN), larger(x6, x7, BRAIN), BRAIN)
        c = larger(larger(x8, x9, BRAIN), larger(xa, xb, BRAIN), BRAIN)
        d = larger(larger(xc, xd, BRAIN), larger(xe, xf, BRAIN), BRAIN)
        top = larger(larger(a, b, BRAIN), larger(c, d, BRAIN), BRAIN)
        return tl.maximum(low_half(top, BRAIN), high_half(top, BRAIN))
    # Absolute values of 16-bit floats are ordered as integers.
    a = larger_parts(larger_parts(x0, x1), larger_parts(x2, x3))
    b = larger_parts(larger_parts(x4, x5), larger_parts(x6, x7))
    c = larger_parts(larger_parts(x8, x9), larger_parts(xa, xb))
    d = larger_parts(larger_parts(xc, xd), larger_parts(xe, xf))
    top = larger_parts(larger_parts(a, b), larger_parts(c, d))
    return tl.maximum(low_half(top, BRAIN), high_half(top, BRAIN))


@triton.jit
def power_below(amax, BRAIN: tl.constexpr):
    """(2^−e, 2^e) in float32 with amax · 2^−e in [1, 2); −e at most 14 for float16, which holds no
    greater power of two than 2¹⁵."""
    exponent = (amax.to(tl.int32, bitcast=True) >> 23) & 255
    if BRAIN:
        exponent = tl.minimum(tl.maximum(exponent, 27), 253)
    else:
        exponent = tl.maximum(exponent, 113)
    down = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    return down, (exponent << 23).to(tl.float32, bitcast=True)


@triton.jit
def scaled(x, factor, CODE: tl.constexpr, BRAIN: tl.constexpr):
    """A pair times a power of two, as float16."""
    if CODE == 1:
        if BRAIN:
            return tl.inline_asm_elementwise(
                """{
                .reg .b32 l, h;
                shl.b32 l, $1, 16;
                and.b32 h, $1, 0xffff0000;
                mul.f32 l, l, $2;
                mul.f32 h, h, $2;
                cvt.rn.f16x2.f32 $0, h, l;
                }""",
                "=r,r,f", [x, factor], dtype=tl.int32, is_pure=True, pack=1,
            )  # fmt: skip
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 f;
            cvt.rn.f16x2.f32 f, $2, $2;
            mul.f16x2 $0, $1, f;
            }""",
            "=r,r,f", [x, factor], dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    low = (low_half(x, BRAIN) * factor).to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32)
    high = (high_half(x, BRAIN) * factor).to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32)
    return (low & 0xFFFF) | (high << 16)


@triton.jit
def all_scaled(pairs, factor, CODE: tl.constexpr, BRAIN: tl.constexpr):
    """16 pairs times a power of two."""
    x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, xa, xb, xc, xd, xe, xf = pairs
    return (
        scaled(x0, factor, CODE, BRAIN), scaled(x1, factor, CODE, BRAIN),
        scaled(x2, factor, CODE, BRAIN), scaled(x3, factor, CODE, BRAIN),
        scaled(x4, factor, CODE, BRAIN), scaled(x5, factor, CODE, BRAIN),
        scaled(x6, factor, CODE, BRAIN), scaled(x7, factor, CODE, BRAIN),
        scaled(x8, factor, CODE, BRAIN), scaled(x9, factor, CODE, BRAIN),
        scaled(xa, factor, CODE, BRAIN), scaled(xb, factor, CODE, BRAIN),
        scaled(xc, factor, CODE, BRAIN), scaled(xd, factor, CODE, BRAIN),
        scaled(xe, factor, CODE, BRAIN), scaled(xf, factor, CODE, BRAIN),
    )  # fmt: skip


@triton.jit
def code_halves(word, zero, CODE: tl.constexpr, BRAIN: tl.constexpr):
    """A word of eight codes → eight tensors of code − zero in float16 or bfloat16, exact."""
    if CODE == 1 and BRAIN:
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 a, b, c, d;
            shr.u32 b, $8, 4;
            shr.u32 c, $8, 8;
            shr.u32 d, $8, 12;
            lop3.b32 a, $8, 0x000f000f, 0x43004300, 0xea;
            lop3.b32 b, b, 0x000f000f, 0x43004300, 0xea;
            lop3.b32 c, c, 0x000f000f, 0x43004300, 0xea;
            lop3.b32 d, d, 0x000f000f, 0x43004300, 0xea;
            fma.rn.bf16x2 a, a, $10, $9;
            fma.rn.bf16x2 b, b, $10, $9;
            fma.rn.bf16x2 c, c, $10, $9;
            fma.rn.bf16x2 d, d, $10, $9;
            mov.b32 {$0, $1}, a;
            mov.b32 {$2, $3}, b;
            mov.b32 {$4, $5}, c;
            mov.b32 {$6, $7}, d;
            }""",
            "=h,=h,=h,=h,=h,=h,=h,=h,r,r,r",
            [word, zero * 0x00010001 + -0x3CFF3D00, 0x3F803F80],  # −(128 + zero) and 1
            dtype=(
                tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16,
                tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16,
            ),
            is_pure=True,
            pack=1,
        )  # fmt: skip
    elif CODE == 1:
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 a, b, c, d, t;
            shr.u32 t, $8, 8;
            lop3.b32 a, $8, 0x000f000f, 0x64006400, 0xea;
            lop3.b32 b, $8, 0x00f000f0, 0x64006400, 0xea;
            lop3.b32 c, t, 0x000f000f, 0x64006400, 0xea;
            lop3.b32 d, t, 0x00f000f0, 0x64006400, 0xea;
            sub.f16x2 a, a, $9;
            fma.rn.f16x2 b, b, $11, $10;
            sub.f16x2 c, c, $9;
            fma.rn.f16x2 d, d, $11, $10;
            mov.b32 {$0, $1}, a;
            mov.b32 {$2, $3}, b;
            mov.b32 {$4, $5}, c;
            mov.b32 {$6, $7}, d;
            }""",
            "=h,=h,=h,=h,=h,=h,=h,=h,r,r,r,r",
            [word, zero * 0x00010001 + 0x64006400, zero * 0x00100010 + -0x2BFF2C00, 0x2C002C00],
            dtype=(
                tl.float16, tl.float16, tl.float16, tl.float16,
                tl.float16, tl.float16, tl.float16, tl.float16,
            ),
            is_pure=True,
            pack=1,
        )  # fmt: skip
    else:
        return (
            one_code(word, zero, BRAIN),
            one_code(word >> 16, zero, BRAIN),
            one_code(word >> 4, zero, BRAIN),
            one_code(word >> 20, zero, BRAIN),
            one_code(word >> 8, zero, BRAIN),
            one_code(word >> 24, zero, BRAIN),
            one_code(word >> 12, zero, BRAIN),
            one_code(word >> 28, zero, BRAIN),
        )


@triton.jit
def one_code(word, zero, BRAIN: tl.constexpr):
    """code − zero of the lowest nibble."""
    code = ((word & 15) | 0x6400).to(tl.int16).to(tl.float16, bitcast=True)
    offset = (zero + 0x6400).to(tl.int16).to(tl.float16, bitcast=True)
    if BRAIN:
        return (code - offset).to(tl.float32).to(tl.bfloat16)
    else:
        return code - offset

# mypy: ignore-errors
"""Words of 4-bit codes to 16-bit weights, for matrix units. CODE is as in `decode_triton.py`."""

import triton
import triton.language as tl


@triton.jit
def dequantized(
    word, scale, zero, minimum,
    A: tl.constexpr, W: tl.constexpr, CODE: tl.constexpr, BRAIN: tl.constexpr,
):  # fmt: skip
    """Words [A, W], float16 scales and minima [A, W] → weights [A, 8W] in float16 or bfloat16."""
    if minimum is not None:
        v0, v1, v2, v3, v4, v5, v6, v7 = _less_minimum(word, scale, minimum, CODE, BRAIN)
    elif CODE == 1 and BRAIN:
        v0, v1, v2, v3, v4, v5, v6, v7 = tl.inline_asm_elementwise(
            """{
            .reg .b32 a, b, c, d, s;
            .reg .f32 f;
            cvt.f32.f16 f, $9;
            cvt.rn.bf16x2.f32 s, f, f;
            shr.u32 b, $8, 4;
            shr.u32 c, $8, 8;
            shr.u32 d, $8, 12;
            lop3.b32 a, $8, 0x000f000f, 0x43004300, 0xea;
            lop3.b32 b, b, 0x000f000f, 0x43004300, 0xea;
            lop3.b32 c, c, 0x000f000f, 0x43004300, 0xea;
            lop3.b32 d, d, 0x000f000f, 0x43004300, 0xea;
            fma.rn.bf16x2 a, a, $11, $10;
            fma.rn.bf16x2 b, b, $11, $10;
            fma.rn.bf16x2 c, c, $11, $10;
            fma.rn.bf16x2 d, d, $11, $10;
            fma.rn.bf16x2 a, a, s, $12;
            fma.rn.bf16x2 b, b, s, $12;
            fma.rn.bf16x2 c, c, s, $12;
            fma.rn.bf16x2 d, d, s, $12;
            mov.b32 {$0, $1}, a;
            mov.b32 {$2, $3}, b;
            mov.b32 {$4, $5}, c;
            mov.b32 {$6, $7}, d;
            }""",
            "=h,=h,=h,=h,=h,=h,=h,=h,r,h,r,r,r",
            # −(128 + zero), 1 and −0
            [word, scale, zero * 0x00010001 + -0x3CFF3D00, 0x3F803F80, -0x7FFF8000],
            dtype=(
                tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16,
                tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16,
            ),
            is_pure=True,
            pack=1,
        )  # fmt: skip
    elif CODE == 1:
        v0, v1, v2, v3, v4, v5, v6, v7 = tl.inline_asm_elementwise(
            """{
            .reg .b32 a, b, c, d, t, s;
            mov.b32 s, {$9, $9};
            shr.u32 t, $8, 8;
            lop3.b32 a, $8, 0x000f000f, 0x64006400, 0xea;
            lop3.b32 b, $8, 0x00f000f0, 0x64006400, 0xea;
            lop3.b32 c, t, 0x000f000f, 0x64006400, 0xea;
            lop3.b32 d, t, 0x00f000f0, 0x64006400, 0xea;
            sub.f16x2 a, a, $10;
            fma.rn.f16x2 b, b, $12, $11;
            sub.f16x2 c, c, $10;
            fma.rn.f16x2 d, d, $12, $11;
            mul.f16x2 a, a, s;
            mul.f16x2 b, b, s;
            mul.f16x2 c, c, s;
            mul.f16x2 d, d, s;
            mov.b32 {$0, $1}, a;
            mov.b32 {$2, $3}, b;
            mov.b32 {$4, $5}, c;
            mov.b32 {$6, $7}, d;
            }""",
            "=h,=h,=h,=h,=h,=h,=h,=h,r,h,r,r,r",
            [
                word, scale, zero * 0x00010001 + 0x64006400, zero * 0x00100010 + -0x2BFF2C00,
                0x2C002C00,
            ],
            dtype=(
                tl.float16, tl.float16, tl.float16, tl.float16,
                tl.float16, tl.float16, tl.float16, tl.float16,
            ),
            is_pure=True,
            pack=1,
        )  # fmt: skip
    else:
        v0 = _one_weight(word, scale, zero, BRAIN)
        v1 = _one_weight(word >> 16, scale, zero, BRAIN)
        v2 = _one_weight(word >> 4, scale, zero, BRAIN)
        v3 = _one_weight(word >> 20, scale, zero, BRAIN)
        v4 = _one_weight(word >> 8, scale, zero, BRAIN)
        v5 = _one_weight(word >> 24, scale, zero, BRAIN)
        v6 = _one_weight(word >> 12, scale, zero, BRAIN)
        v7 = _one_weight(word >> 28, scale, zero, BRAIN)
    # join puts its second operand at odd places: the last join is the fastest axis
    even = tl.join(tl.join(v0, v4), tl.join(v2, v6))
    odd = tl.join(tl.join(v1, v5), tl.join(v3, v7))
    return tl.reshape(tl.join(even, odd), (A, W * 8))


@triton.jit
def _one_weight(word, scale, zero, BRAIN: tl.constexpr):
    """(code − zero) · scale of the lowest nibble; 1024 + code is a float16 made without a
    conversion."""
    code = ((word & 15) | 0x6400).to(tl.int16).to(tl.float16, bitcast=True)
    offset = (zero + 0x6400).to(tl.int16).to(tl.float16, bitcast=True)
    if BRAIN:
        return ((code - offset).to(tl.float32) * scale.to(tl.float32)).to(tl.bfloat16)
    else:
        return (code - offset) * scale


@triton.jit
def _less_minimum(word, scale, minimum, CODE: tl.constexpr, BRAIN: tl.constexpr):
    """A word of eight codes → eight tensors of code · scale − minimum. CODE 1 rounds once to
    float16, whose minima and scales they are, and to bfloat16 from there."""
    if CODE == 1:
        v0, v1, v2, v3, v4, v5, v6, v7 = tl.inline_asm_elementwise(
            """{
            .reg .b32 a, b, c, d, t, s, m;
            mov.b32 s, {$9, $9};
            mov.b32 m, {$10, $10};
            neg.f16x2 m, m;
            shr.u32 t, $8, 8;
            lop3.b32 a, $8, 0x000f000f, 0x64006400, 0xea;
            lop3.b32 b, $8, 0x00f000f0, 0x64006400, 0xea;
            lop3.b32 c, t, 0x000f000f, 0x64006400, 0xea;
            lop3.b32 d, t, 0x00f000f0, 0x64006400, 0xea;
            sub.f16x2 a, a, $11;
            fma.rn.f16x2 b, b, $13, $12;
            sub.f16x2 c, c, $11;
            fma.rn.f16x2 d, d, $13, $12;
            fma.rn.f16x2 a, a, s, m;
            fma.rn.f16x2 b, b, s, m;
            fma.rn.f16x2 c, c, s, m;
            fma.rn.f16x2 d, d, s, m;
            mov.b32 {$0, $1}, a;
            mov.b32 {$2, $3}, b;
            mov.b32 {$4, $5}, c;
            mov.b32 {$6, $7}, d;
            }""",
            "=h,=h,=h,=h,=h,=h,=h,=h,r,h,h,r,r,r",
            [word, scale, minimum, 0x64006400, -0x2BFF2C00, 0x2C002C00],  # 1024, −64, 1/16
            dtype=(
                tl.float16, tl.float16, tl.float16, tl.float16,
                tl.float16, tl.float16, tl.float16, tl.float16,
            ),
            is_pure=True,
            pack=1,
        )  # fmt: skip
        if BRAIN:
            return (
                v0.to(tl.float32).to(tl.bfloat16),
                v1.to(tl.float32).to(tl.bfloat16),
                v2.to(tl.float32).to(tl.bfloat16),
                v3.to(tl.float32).to(tl.bfloat16),
                v4.to(tl.float32).to(tl.bfloat16),
                v5.to(tl.float32).to(tl.bfloat16),
                v6.to(tl.float32).to(tl.bfloat16),
                v7.to(tl.float32).to(tl.bfloat16),
            )
        else:  # an `else`, as what follows a return would be compiled, too
            return v0, v1, v2, v3, v4, v5, v6, v7
    else:
        return (
            _one_less(word, scale, minimum, BRAIN),
            _one_less(word >> 16, scale, minimum, BRAIN),
            _one_less(word >> 4, scale, minimum, BRAIN),
            _one_less(word >> 20, scale, minimum, BRAIN),
            _one_less(word >> 8, scale, minimum, BRAIN),
            _one_less(word >> 24, scale, minimum, BRAIN),
            _one_less(word >> 12, scale, minimum, BRAIN),
            _one_less(word >> 28, scale, minimum, BRAIN),
        )


@triton.jit
def _one_less(word, scale, minimum, BRAIN: tl.constexpr):
    """code · scale − minimum of the lowest nibble; a float16 multiply-add rounds once."""
    code = ((word & 15) | 0x6400).to(tl.int16).to(tl.float16, bitcast=True) - 1024.0
    if BRAIN:
        code = code.to(tl.float32)
        return (code * scale.to(tl.float32) - minimum.to(tl.float32)).to(tl.bfloat16)
    else:
        return code * scale - minimum

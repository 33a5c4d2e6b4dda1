# mypy: ignore-errors
"""Words of 4-bit codes as the left operand of Hopper's matrix instruction, in the threads that read
them (`hopper_triton.py` says which): decoded, scaled, and multiplied.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma

_OUT = "=h,=h,=h,=h,=h,=h,=h,=h"
_STORE = """
    mov.b32 {$0, $1}, a;
    mov.b32 {$2, $3}, b;
    mov.b32 {$4, $5}, c;
    mov.b32 {$6, $7}, d;
    }"""
# Two neighbouring codes become 1024 + code, or 1024 + 16 · code, by one logic instruction; 1024 +
# zero ($10) and 64 + zero ($11) come off them exactly. $12 is 1/16.
_CODES = """{
    .reg .b32 a, b, c, d, t, s, m;
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
    """
_LESS = """
    mov.b32 m, {$13, $13};
    neg.f16x2 m, m;
    fma.rn.f16x2 a, a, s, m;
    fma.rn.f16x2 b, b, s, m;
    fma.rn.f16x2 c, c, s, m;
    fma.rn.f16x2 d, d, s, m;
    """
_HALF = gl.constexpr(
    _CODES
    + """
    mul.f16x2 a, a, s;
    mul.f16x2 b, b, s;
    mul.f16x2 c, c, s;
    mul.f16x2 d, d, s;
    """
    + _STORE
)
_HALF_MIN = gl.constexpr(_CODES + _LESS + _STORE)
_TO_BRAIN = """{{
    .reg .b16 l, h;
    .reg .f32 x, y;
    mov.b32 {{l, h}}, {0};
    cvt.f32.f16 x, l;
    cvt.f32.f16 y, h;
    cvt.rn.bf16x2.f32 {0}, y, x;
    }}
    """
_BRAIN_MIN = gl.constexpr(
    _CODES + _LESS + "".join(_TO_BRAIN.format(name) for name in "abcd") + _STORE
)
# 128 + code is a bfloat16; 128 + zero ($10) comes off exactly. $11 is 1, $12 is -0.
_BRAIN = gl.constexpr(
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
    """
    + _STORE
)
_PLAIN_ARGUMENTS = gl.constexpr(_OUT + ",r,h,r,r,r")
_MIN_ARGUMENTS = gl.constexpr(_OUT + ",r,h,r,r,r,h")


@gluon.constexpr_function
def _eight(BRAIN):
    return (gl.bfloat16 if BRAIN else gl.float16,) * 8


@gluon.constexpr_function
def _row_bits(BN, WARPS):
    """Row bases of a tile's left operand: (of registers beyond the first 64 rows, of warps)."""
    warps = [16 << i for i in range((WARPS - 1).bit_length())]
    beyond, step = [], 16 * WARPS
    while step < BN:
        beyond.append(step)
        step *= 2
    return beyond, warps


@gluon.constexpr_function
def words_layout(BN, WARPS):
    """Of words [BN, 16] as threads take them from shared memory."""
    beyond, warps = _row_bits(BN, WARPS)
    registers = [[0, 1], [0, 2], [8, 0], *([b, 0] for b in beyond)]
    lanes = [[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]]
    return gl.DistributedLinearLayout(registers, lanes, [[w, 0] for w in warps], [], [BN, 16])


@gluon.constexpr_function
def _groups_layout(BN, C, WARPS, S):
    """Of scales [BN, S, 4 · C / S]: one a group of 32 codes, in the threads that have its words."""
    beyond, warps = _row_bits(BN, WARPS)
    share = 4 * C // S

    def column(bit):
        return [0, bit // share, 0] if bit >= share else [0, 0, bit]

    blocks = [column(4 << i) for i in range((C - 1).bit_length())]
    registers = [[8, 0, 0], *blocks, *([b, 0, 0] for b in beyond)]
    lanes = [column(1), column(2), [1, 0, 0], [2, 0, 0], [4, 0, 0]]
    return gl.DistributedLinearLayout(
        registers, lanes, [[w, 0, 0] for w in warps], [], [BN, S, share]
    )


@gluon.jit
def halves(value, A: gl.constexpr, B: gl.constexpr, E: gl.constexpr):
    """[A, B, 2 · E] → two of [A, B, E]."""
    parts = gl.permute(gl.reshape(value, (A, B, 2, E)), (0, 1, 3, 2))
    return gl.split(parts)


@gluon.jit
def by_group(ring, BN: gl.constexpr, C: gl.constexpr, S: gl.constexpr, WARPS: gl.constexpr):
    """Scales or minima of a step, [BN, 4] for each block."""
    L: gl.constexpr = _groups_layout(BN, C, WARPS, S)
    value = ring.load(gl.SliceLayout(2, L))
    if S < 4 * C:
        value = gl.expand_dims(value, 2)
        value = value + gl.full((BN, S, 4 * C // S), 0.0, gl.float16, layout=L)
        value = gl.reshape(value, (BN, 4 * C))
    if C == 1:
        return value, value
    else:
        low, high = halves(value, BN, 1, 4)
        return gl.reshape(low, (BN, 4)), gl.reshape(high, (BN, 4))


@gluon.jit
def decoded(word, scale, minimum, ZERO: gl.constexpr, BRAIN: gl.constexpr):
    """A word of eight codes → eight tensors of (code − ZERO) · scale, or code · scale − minimum."""
    TYPES: gl.constexpr = _eight(BRAIN)
    if minimum is not None:
        return gl.inline_asm_elementwise(
            _BRAIN_MIN if BRAIN else _HALF_MIN,
            _MIN_ARGUMENTS,
            [word, scale, 0x64006400, -0x2BFF2C00, 0x2C002C00, minimum],
            dtype=TYPES,
            is_pure=True,
            pack=1,
        )
    elif BRAIN:
        return gl.inline_asm_elementwise(
            _BRAIN,
            _PLAIN_ARGUMENTS,
            [word, scale, ZERO * 0x00010001 + -0x3CFF3D00, 0x3F803F80, -0x7FFF8000],
            dtype=TYPES,
            is_pure=True,
            pack=1,
        )
    else:
        return gl.inline_asm_elementwise(
            _HALF,
            _PLAIN_ARGUMENTS,
            [
                word, scale, ZERO * 0x00010001 + 0x64006400, ZERO * 0x00100010 + -0x2BFF2C00,
                0x2C002C00,
            ],
            dtype=TYPES,
            is_pure=True,
            pack=1,
        )  # fmt: skip


@gluon.jit
def _left(
    word, scale, minimum, ZERO: gl.constexpr, BRAIN: gl.constexpr, BN: gl.constexpr,
    ACC: gl.constexpr,
):  # fmt: skip
    """Words [BN, 4, 2], two of each of four groups, and scales [BN, 4] → the left operand of 64
    codes a row. Nothing moves: all of a thread's values stay its own."""
    L: gl.constexpr = gl.SliceLayout(2, word.type.layout)
    scale = gl.expand_dims(gl.convert_layout(scale, L, assert_trivial=True), 2)
    if minimum is not None:
        minimum = gl.expand_dims(gl.convert_layout(minimum, L, assert_trivial=True), 2)
    v0, v1, v2, v3, v4, v5, v6, v7 = decoded(word, scale, minimum, ZERO, BRAIN)
    low = gl.join(gl.join(v0, v1), gl.join(v2, v3))
    high = gl.join(gl.join(v4, v5), gl.join(v6, v7))
    flat = gl.reshape(gl.permute(gl.join(low, high), (0, 2, 5, 4, 1, 3)), (BN, 64))
    return gl.convert_layout(flat, gl.DotOperandLayout(0, ACC, 2), assert_trivial=True)


@gluon.jit
def multiply(
    word, scale, minimum, x_slot, acc, use_acc, FIRST: gl.constexpr,
    ZERO: gl.constexpr, BRAIN: gl.constexpr, BN: gl.constexpr, ACC: gl.constexpr,
):  # fmt: skip
    """Begins to add the products of 64 codes a row, from place FIRST of a step: (sums under way,
    the operand that the matrix unit reads from registers)."""
    operand = _left(word, scale, minimum, ZERO, BRAIN, BN, ACC)
    right = x_slot.slice(FIRST, 64, dim=1).permute((1, 0))
    return warpgroup_mma(operand, right, acc, use_acc=use_acc, is_async=True), operand

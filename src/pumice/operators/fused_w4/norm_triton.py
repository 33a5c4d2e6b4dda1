# mypy: ignore-errors
"""The norm of a float32 row as pairs of 16-bit activations (`activations_triton.py`), made by every
program for itself.

Directly: each thread reads the 32 numbers of its groups once, sums their squares and rounds them
where they are. That needs all of a program's waves along K, and registers. Spread: a thread reads
what lies next to its neighbours', twice, and exchanges.
"""

import triton
import triton.language as tl


@triton.jit
def _two(pointer, at, inside, T: tl.constexpr, GROUPS: tl.constexpr, WHOLE: tl.constexpr):
    """Two float32 pairs a group, int64[T, 1, GROUPS] each. A thread loads 16 bytes."""
    if WHOLE:
        both_pairs = tl.load(pointer + at)
    else:
        both_pairs = tl.load(pointer + at, mask=inside, other=0)
    return tl.split(tl.reshape(both_pairs, (T, 1, GROUPS, 2)))


@triton.jit
def wide_pairs(
    x, row, first, groups, T: tl.constexpr, GROUPS: tl.constexpr, WHOLE: tl.constexpr
):  # fmt: skip
    """16 tensors of float32 pairs, int64[T, 1, GROUPS], of float32 rows from group `first` on; zero
    beyond K. row: where rows begin, in pairs [T, 1, 1]."""
    j = (first * 2 + tl.arange(0, 2 * GROUPS))[None, None, :]
    pointer = x.to(tl.pointer_type(tl.int64))
    at = row + (j // 2) * 16 + j % 2
    inside = j // 2 < groups
    x0, x1 = _two(pointer, at, inside, T, GROUPS, WHOLE)
    x2, x3 = _two(pointer, at + 2, inside, T, GROUPS, WHOLE)
    x4, x5 = _two(pointer, at + 4, inside, T, GROUPS, WHOLE)
    x6, x7 = _two(pointer, at + 6, inside, T, GROUPS, WHOLE)
    x8, x9 = _two(pointer, at + 8, inside, T, GROUPS, WHOLE)
    xa, xb = _two(pointer, at + 10, inside, T, GROUPS, WHOLE)
    xc, xd = _two(pointer, at + 12, inside, T, GROUPS, WHOLE)
    xe, xf = _two(pointer, at + 14, inside, T, GROUPS, WHOLE)
    return x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, xa, xb, xc, xd, xe, xf


@triton.jit
def _first(pair):
    return pair.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def _second(pair):
    return (pair >> 32).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def _square(pair):
    a = _first(pair)
    b = _second(pair)
    return a * a + b * b


@triton.jit
def squares(wide):
    """Each group's Σ x²: float32[T, 1, GROUPS]."""
    x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, xa, xb, xc, xd, xe, xf = wide
    a = (_square(x0) + _square(x1)) + (_square(x2) + _square(x3))
    b = (_square(x4) + _square(x5)) + (_square(x6) + _square(x7))
    c = (_square(x8) + _square(x9)) + (_square(xa) + _square(xb))
    d = (_square(xc) + _square(xd)) + (_square(xe) + _square(xf))
    return (a + b) + (c + d)


@triton.jit
def norm_factor(sums, K, eps):
    """1 / √(mean(x²) + eps), [T, 1, 1], of the `squares` of a whole row."""
    return 1.0 / tl.sqrt(tl.sum(sums, axis=2) / K + eps)[:, :, None]


@triton.jit
def _bits(value, BRAIN: tl.constexpr):
    half = value.to(tl.bfloat16) if BRAIN else value.to(tl.float16)
    return half.to(tl.int16, bitcast=True).to(tl.int32)


@triton.jit
def _normed(pair, gain, factor, BRAIN: tl.constexpr):
    low = _bits(_first(pair) * factor * _first(gain), BRAIN)
    high = _bits(_second(pair) * factor * _second(gain), BRAIN)
    return (low & 0xFFFF) | (high << 16)


@triton.jit
def normed_pairs(wide, gains, factor, BRAIN: tl.constexpr):
    """What `activations_triton.loaded_pairs` gives, of x · factor · gain rounded to 16 bits."""
    x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, xa, xb, xc, xd, xe, xf = wide
    g0, g1, g2, g3, g4, g5, g6, g7, g8, g9, ga, gb, gc, gd, ge, gf = gains
    return (
        _normed(x0, g0, factor, BRAIN), _normed(x1, g1, factor, BRAIN),
        _normed(x2, g2, factor, BRAIN), _normed(x3, g3, factor, BRAIN),
        _normed(x4, g4, factor, BRAIN), _normed(x5, g5, factor, BRAIN),
        _normed(x6, g6, factor, BRAIN), _normed(x7, g7, factor, BRAIN),
        _normed(x8, g8, factor, BRAIN), _normed(x9, g9, factor, BRAIN),
        _normed(xa, ga, factor, BRAIN), _normed(xb, gb, factor, BRAIN),
        _normed(xc, gc, factor, BRAIN), _normed(xd, gd, factor, BRAIN),
        _normed(xe, ge, factor, BRAIN), _normed(xf, gf, factor, BRAIN),
    )  # fmt: skip


@triton.jit
def spread_norm_factor(
    x, token, x_stride, K, eps, TOKENS: tl.constexpr, CHUNK: tl.constexpr
):  # fmt: skip
    """1 / √(mean(x²) + eps) of float32 rows: float32[TOKENS]. CHUNK: columns at once."""
    squares = tl.zeros((TOKENS, CHUNK), tl.float32)
    for first in range(0, K, CHUNK):
        k = first + tl.arange(0, CHUNK)
        at = x + token[:, None] * x_stride + k[None, :]
        value = tl.load(at, mask=(k < K)[None, :], other=0.0)
        squares += value * value
    return 1.0 / tl.sqrt(tl.sum(squares, axis=1) / K + eps)


@triton.jit
def _expanded(pairs, TOKENS: tl.constexpr, GROUPS: tl.constexpr):
    return tl.reshape(pairs, (TOKENS, 1, GROUPS))


@triton.jit
def spread_normed_pairs(
    x, weight, token, x_stride, factor, first, K,
    TOKENS: tl.constexpr, GROUPS: tl.constexpr, BRAIN: tl.constexpr,
):  # fmt: skip
    """As `normed_pairs`, of x and weight in memory."""
    k = first * 32 + tl.arange(0, GROUPS * 32)
    inside = k < K
    value = tl.load(x + token[:, None] * x_stride + k[None, :], mask=inside[None, :], other=0.0)
    gain = tl.load(weight + k, mask=inside, other=0.0).to(tl.float32)
    value = value * factor[:, None] * gain[None, :]
    half = value.to(tl.bfloat16) if BRAIN else value.to(tl.float16)
    bits = half.to(tl.int16, bitcast=True).to(tl.int32)
    low, high = tl.split(tl.reshape(bits, (TOKENS, GROUPS * 16, 2)))
    pairs = tl.reshape((low & 0xFFFF) | (high << 16), (TOKENS, GROUPS, 2, 2, 2, 2))
    b0, b1 = tl.split(pairs)  # by bit 0 of the pair's place
    b00, b10 = tl.split(b0)
    b01, b11 = tl.split(b1)
    b000, b100 = tl.split(b00)
    b010, b110 = tl.split(b10)
    b001, b101 = tl.split(b01)
    b011, b111 = tl.split(b11)
    x0, x8 = tl.split(b000)
    x4, xc = tl.split(b100)
    x2, xa = tl.split(b010)
    x6, xe = tl.split(b110)
    x1, x9 = tl.split(b001)
    x5, xd = tl.split(b101)
    x3, xb = tl.split(b011)
    x7, xf = tl.split(b111)
    return (
        _expanded(x0, TOKENS, GROUPS), _expanded(x1, TOKENS, GROUPS),
        _expanded(x2, TOKENS, GROUPS), _expanded(x3, TOKENS, GROUPS),
        _expanded(x4, TOKENS, GROUPS), _expanded(x5, TOKENS, GROUPS),
        _expanded(x6, TOKENS, GROUPS), _expanded(x7, TOKENS, GROUPS),
        _expanded(x8, TOKENS, GROUPS), _expanded(x9, TOKENS, GROUPS),
        _expanded(xa, TOKENS, GROUPS), _expanded(xb, TOKENS, GROUPS),
        _expanded(xc, TOKENS, GROUPS), _expanded(xd, TOKENS, GROUPS),
        _expanded(xe, TOKENS, GROUPS), _expanded(xf, TOKENS, GROUPS),
    )  # fmt: skip

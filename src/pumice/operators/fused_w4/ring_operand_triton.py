# mypy: ignore-errors
"""What `ring_triton.py` multiplies: words and scales in the threads that read them, activations as
the right operand of small matrix instructions, and the instructions."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

# $8, $9: words of rows g and g + 8; $10 … $13: pairs of activations; then the sums so far, of the
# nibbles that are code · 2⁻²⁴ and of those that are code · 2⁻²⁰.
_STEP = gl.constexpr(
    """{
    .reg .b32 e, f, a0, a1, a2, a3, b0, b1, b2, b3;
    shr.u32 e, $8, 8;
    shr.u32 f, $9, 8;
    and.b32 a0, $8, 0x000f000f;
    and.b32 a1, $9, 0x000f000f;
    and.b32 a2, e, 0x000f000f;
    and.b32 a3, f, 0x000f000f;
    and.b32 b0, $8, 0x00f000f0;
    and.b32 b1, $9, 0x00f000f0;
    and.b32 b2, e, 0x00f000f0;
    and.b32 b3, f, 0x00f000f0;
    """
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
    "{$0, $1, $2, $3}, {a0, a1, a2, a3}, {$10, $12}, {$14, $15, $16, $17};"
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
    "{$4, $5, $6, $7}, {b0, b1, b2, b3}, {$11, $13}, {$18, $19, $20, $21}; }"
)
_OPERANDS = gl.constexpr("=&f,=&f,=&f,=&f,=&f,=&f,=&f,=&f,r,r,r,r,r,r,f,f,f,f,f,f,f,f")


@gluon.constexpr_function
def _bits(count):
    return (count - 1).bit_length()


@gluon.constexpr_function
def lanes(WARPS):
    """[8, WARPS, 4]: one value a thread."""
    return gl.DistributedLinearLayout(
        [], [[0, 0, 1], [0, 0, 2], [1, 0, 0], [2, 0, 0], [4, 0, 0]],
        [[0, 1 << i, 0] for i in range(_bits(WARPS))], [], [8, WARPS, 4],
    )  # fmt: skip


@gluon.constexpr_function
def _words_layout(WARPS):
    return gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [8, 0], [0, 16]], [[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]],
        [[0, 32 << i] for i in range(_bits(WARPS))], [], [16, 32 * WARPS],
    )  # fmt: skip


@gluon.constexpr_function
def _scales_layout(WARPS):
    return gl.DistributedLinearLayout(
        [[0, 1], [8, 0]], [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]],
        [[0, 8 << i] for i in range(_bits(WARPS))], [], [16, 8 * WARPS],
    )  # fmt: skip


@gluon.constexpr_function
def _pairs_layout(WARPS):
    """Activations [8, WARPS, 4, 16]: those of group g, the same for all t."""
    return gl.DistributedLinearLayout(
        [[0, 0, 0, 1], [0, 0, 0, 2], [0, 0, 0, 4], [0, 0, 0, 8]],
        [[0, 0, 1, 0], [0, 0, 2, 0], [1, 0, 0, 0], [2, 0, 0, 0], [4, 0, 0, 0]],
        [[0, 1 << i, 0, 0] for i in range(_bits(WARPS))], [], [8, WARPS, 4, 16],
    )  # fmt: skip


@gluon.constexpr_function
def _held_layout(WARPS):
    """The same of [8 · WARPS, 16]."""
    return gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [0, 8]], [[0, 0], [0, 0], [1, 0], [2, 0], [4, 0]],
        [[8 << i, 0] for i in range(_bits(WARPS))], [], [8 * WARPS, 16],
    )  # fmt: skip


@gluon.jit
def _own(value, WARPS: gl.constexpr):
    """[8, WARPS, 4] in the one layout of all that meets; nothing moves."""
    return gl.convert_layout(value, lanes(WARPS), assert_trivial=True)


@gluon.jit
def _sixteen(value, WARPS: gl.constexpr):
    """[8, WARPS, 4, 16] → 16 of [8, WARPS, 4], in order."""
    even, odd = gl.split(gl.reshape(value, (8, WARPS, 4, 2, 2, 2, 2)))
    e0, e1 = gl.split(even)
    o0, o1 = gl.split(odd)
    e00, e01 = gl.split(e0)
    e10, e11 = gl.split(e1)
    o00, o01 = gl.split(o0)
    o10, o11 = gl.split(o1)
    v0, v8 = gl.split(e00)
    v4, vc = gl.split(e01)
    v2, va = gl.split(e10)
    v6, ve = gl.split(e11)
    v1, v9 = gl.split(o00)
    v5, vd = gl.split(o01)
    v3, vb = gl.split(o10)
    v7, vf = gl.split(o11)
    return (
        _own(v0, WARPS), _own(v1, WARPS), _own(v2, WARPS), _own(v3, WARPS),
        _own(v4, WARPS), _own(v5, WARPS), _own(v6, WARPS), _own(v7, WARPS),
        _own(v8, WARPS), _own(v9, WARPS), _own(va, WARPS), _own(vb, WARPS),
        _own(vc, WARPS), _own(vd, WARPS), _own(ve, WARPS), _own(vf, WARPS),
    )  # fmt: skip


@gluon.jit
def _step(low, high, x0, x1, x2, x3, sums):
    """Adds the products of a word of both rows to the sums."""
    a0, a1, a2, a3, b0, b1, b2, b3 = sums
    return gl.inline_asm_elementwise(
        _STEP, _OPERANDS, [low, high, x0, x1, x2, x3, a0, a1, a2, a3, b0, b1, b2, b3],
        dtype=(
            gl.float32, gl.float32, gl.float32, gl.float32,
            gl.float32, gl.float32, gl.float32, gl.float32,
        ),
        is_pure=True, pack=1,
    )  # fmt: skip


@gluon.jit
def _four_groups(low, high, x, WARPS: gl.constexpr):
    """Sums of rows g and g + 8 over groups 2t and 2t + 1 of the columns, in units of 2⁻²⁰."""
    l0, l1, l2, l3 = low
    h0, h1, h2, h3 = high
    x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, xa, xb, xc, xd, xe, xf = x
    none = gl.zeros((8, WARPS, 4), gl.float32, lanes(WARPS))
    sums = (none, none, none, none, none, none, none, none)
    sums = _step(l0, h0, x0, x1, x2, x3, sums)
    sums = _step(l1, h1, x4, x5, x6, x7, sums)
    sums = _step(l2, h2, x8, x9, xa, xb, sums)
    a0, a1, a2, a3, b0, b1, b2, b3 = _step(l3, h3, xc, xd, xe, xf, sums)
    return a0 * 16.0 + b0, a1 * 16.0 + b1, a2 * 16.0 + b2, a3 * 16.0 + b3


@gluon.jit
def eight_groups(first, second, x, WARPS: gl.constexpr):
    """The same of all columns; words of groups t and of groups 4 + t, each (row g, row g + 8).
    Where a column belongs to other groups, a sum says nothing."""
    p0, p1, p2, p3 = _four_groups(first[0], first[1], x, WARPS)
    q0, q1, q2, q3 = _four_groups(second[0], second[1], x, WARPS)
    L: gl.constexpr = lanes(WARPS)
    t = gl.arange(0, 4, layout=gl.SliceLayout(0, gl.SliceLayout(0, L)))
    left = gl.expand_dims(gl.expand_dims(t, 0), 0) < 2
    return (
        gl.where(left, p0, q0), gl.where(left, p1, q1), gl.where(left, p2, q2),
        gl.where(left, p3, q3),
    )  # fmt: skip


@gluon.jit
def _four(value, WARPS: gl.constexpr):
    even, odd = gl.split(gl.reshape(value, (8, WARPS, 4, 2, 2)))
    v0, v2 = gl.split(even)
    v1, v3 = gl.split(odd)
    return _own(v0, WARPS), _own(v1, WARPS), _own(v2, WARPS), _own(v3, WARPS)


@gluon.jit
def words_of(place, WARPS: gl.constexpr):
    """A step's words as `eight_groups` takes them."""
    value = gl.reshape(place.load(_words_layout(WARPS)), (2, 8, WARPS, 2, 4, 4))
    value = gl.permute(value, (1, 2, 4, 5, 0, 3))  # [g, warp, t, word, row, groups]
    first, second = gl.split(value)
    f_low, f_high = gl.split(first)
    s_low, s_high = gl.split(second)
    return (
        (_four(f_low, WARPS), _four(f_high, WARPS)),
        (_four(s_low, WARPS), _four(s_high, WARPS)),
    )


@gluon.jit
def scales_of(place, WARPS: gl.constexpr):
    """(row g: groups 2t, 2t + 1; row g + 8: the same)."""
    value = gl.reshape(place.load(_scales_layout(WARPS)), (2, 8, WARPS, 4, 2))
    low, high = gl.split(gl.permute(value, (1, 2, 3, 4, 0)))
    a, b = gl.split(low)
    c, d = gl.split(high)
    return (
        _own(a, WARPS).to(gl.float32),
        _own(b, WARPS).to(gl.float32),
        _own(c, WARPS).to(gl.float32),
        _own(d, WARPS).to(gl.float32),
    )


@gluon.jit
def activations_of(x, s, GROUPS: gl.constexpr, WARPS: gl.constexpr):
    """A step's right operand from pairs in memory: 16 of [8, WARPS, 4]."""
    L: gl.constexpr = _pairs_layout(WARPS)
    g = gl.expand_dims(gl.expand_dims(gl.expand_dims(
        gl.arange(0, 8, layout=gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, L)))),
        1), 2), 3)  # fmt: skip
    warp = gl.expand_dims(gl.expand_dims(gl.expand_dims(
        gl.arange(0, WARPS, layout=gl.SliceLayout(0, gl.SliceLayout(2, gl.SliceLayout(3, L)))),
        0), 2), 3)  # fmt: skip
    t = gl.expand_dims(gl.expand_dims(gl.expand_dims(
        gl.arange(0, 4, layout=gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(3, L)))),
        0), 1), 3)  # fmt: skip
    pair = gl.expand_dims(gl.expand_dims(gl.expand_dims(
        gl.arange(0, 16, layout=gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, L)))),
        0), 1), 2)  # fmt: skip
    group = (s * WARPS + warp) * 8 + g
    mine = (t == g % 4) & (group < GROUPS) & (pair >= 0)
    at = x.to(gl.pointer_type(gl.int32)) + (group * 16 + t * 0 + pair)
    return _sixteen(gl.load(at, mask=mine, other=0), WARPS)


@gluon.jit
def held_activations(shared, WARPS: gl.constexpr):
    """The same from shared memory [8 · WARPS, 16]."""
    L: gl.constexpr = _pairs_layout(WARPS)
    value = gl.reshape(shared.load(_held_layout(WARPS)), (WARPS, 8, 16))
    value = gl.permute(value, (1, 0, 2))
    value = gl.expand_dims(gl.convert_layout(value, gl.SliceLayout(2, L), assert_trivial=True), 2)
    g = gl.expand_dims(gl.expand_dims(gl.expand_dims(
        gl.arange(0, 8, layout=gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, L)))),
        1), 2), 3)  # fmt: skip
    t = gl.expand_dims(gl.expand_dims(gl.expand_dims(
        gl.arange(0, 4, layout=gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(3, L)))),
        0), 1), 3)  # fmt: skip
    return _sixteen(gl.where(t == g % 4, value, 0), WARPS)


@gluon.constexpr_function
def _offsets_layout(WARPS):
    return gl.DistributedLinearLayout(
        [[1]], [[2], [4], [0], [0], [0]], [[8 << i] for i in range(_bits(WARPS))], [], [8 * WARPS]
    )


@gluon.jit
def keep_offsets(shared, z0, z1, WARPS: gl.constexpr):
    """What groups add by their zero points, the same for all rows g, to shared memory."""
    both = gl.sum(gl.join(z0, z1), 0) * 0.125
    shared.store(gl.reshape(both, (8 * WARPS,)))


@gluon.jit
def offsets_of(shared, WARPS: gl.constexpr):
    """The same of groups 2t and 2t + 1, [1, WARPS, 4]."""
    L: gl.constexpr = gl.SliceLayout(0, lanes(WARPS))
    value = gl.reshape(shared.load(_offsets_layout(WARPS)), (WARPS, 4, 2))
    z0, z1 = gl.split(value)
    z0 = gl.expand_dims(gl.convert_layout(z0, L, assert_trivial=True), 0)
    z1 = gl.expand_dims(gl.convert_layout(z1, L, assert_trivial=True), 0)
    return z0, z1

# mypy: ignore-errors
"""One token's product with 4-bit weights, whose words are on their way in shared memory, in Gluon.

Weights pass through a ring of asynchronous copies, so that as much is under way as shared memory
holds and not as registers do. It is filled before the launch in front has ended. A tile is 16 rows;
a step is 8 groups of 32 codes along K for each warp. Lane 4g + t of a warp reads what groups t and
4 + t of rows g and g + 8 hold, and so has its part of the left operand of a small matrix
instruction (16 × 8 × 16). A nibble that is left where it is, all else masked away, is a denormal
float16, code · 2⁻²⁴ or code · 2⁻²⁰, which matrix units multiply exactly: no arithmetic decodes.
Column n of the right operand has the activations of group n and zeros in place of the others', so
that sums of groups stay apart until their scales have met them.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import async_copy

_begin_copy = (
    async_copy.async_load
    if hasattr(async_copy, "async_load")
    else async_copy.async_copy_global_to_shared
)
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
def _lanes(WARPS):
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


@gluon.constexpr_function
def _copy_layout(COLUMNS, VECTOR, WARPS):
    across = min(COLUMNS // VECTOR, 32)
    return gl.BlockedLayout([1, VECTOR], [32 // across, across], [WARPS, 1], [1, 0])


@gluon.jit
def _tile_rows(tile, N, half, GATED: gl.constexpr, layout: gl.constexpr):
    """Rows of the weights, the last one beyond N. GATED: eight of gate, then eight of up."""
    r = gl.arange(0, 16, layout=layout)
    if GATED:
        return gl.minimum(tile * 8 + r % 8, half - 1) + (r // 8) * half
    else:
        return gl.minimum(tile * 16 + r, N - 1)


@gluon.jit
def _copy(
    tile, s, slot, w_ring, s_ring, w, scales, N, half,
    GROUPS: gl.constexpr, GATED: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """Begins to copy a step's weights into a place of the ring."""
    LW: gl.constexpr = _copy_layout(32 * WARPS, 4, WARPS)
    row = _tile_rows(tile, N, half, GATED, gl.SliceLayout(1, LW))
    j = s * (32 * WARPS) + gl.arange(0, 32 * WARPS, layout=gl.SliceLayout(0, LW))
    at = row[:, None] * (4 * GROUPS) + j[None, :]
    inside = (j < 4 * GROUPS)[None, :] & (row >= 0)[:, None]
    _begin_copy(w_ring.index(slot), w + at, mask=inside)
    LS: gl.constexpr = _copy_layout(8 * WARPS, 4, WARPS)
    row = _tile_rows(tile, N, half, GATED, gl.SliceLayout(1, LS))
    g = s * (8 * WARPS) + gl.arange(0, 8 * WARPS, layout=gl.SliceLayout(0, LS))
    at = row[:, None] * GROUPS + g[None, :]
    inside = (g < GROUPS)[None, :] & (row >= 0)[:, None]
    _begin_copy(s_ring.index(slot), scales + at, mask=inside)


@gluon.jit
def _own(value, WARPS: gl.constexpr):
    """[8, WARPS, 4] in the one layout of all that meets; nothing moves."""
    return gl.convert_layout(value, _lanes(WARPS), assert_trivial=True)


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
    none = gl.zeros((8, WARPS, 4), gl.float32, _lanes(WARPS))
    sums = (none, none, none, none, none, none, none, none)
    sums = _step(l0, h0, x0, x1, x2, x3, sums)
    sums = _step(l1, h1, x4, x5, x6, x7, sums)
    sums = _step(l2, h2, x8, x9, xa, xb, sums)
    a0, a1, a2, a3, b0, b1, b2, b3 = _step(l3, h3, xc, xd, xe, xf, sums)
    return a0 * 16.0 + b0, a1 * 16.0 + b1, a2 * 16.0 + b2, a3 * 16.0 + b3


@gluon.jit
def _eight_groups(first, second, x, WARPS: gl.constexpr):
    """The same of all columns; words of groups t and of groups 4 + t, each (row g, row g + 8).
    Where a column belongs to other groups, a sum says nothing."""
    p0, p1, p2, p3 = _four_groups(first[0], first[1], x, WARPS)
    q0, q1, q2, q3 = _four_groups(second[0], second[1], x, WARPS)
    L: gl.constexpr = _lanes(WARPS)
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
def _words(place, WARPS: gl.constexpr):
    """A step's words as `_eight_groups` takes them."""
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
def _scales(place, WARPS: gl.constexpr):
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
def _activations(x, s, GROUPS: gl.constexpr, WARPS: gl.constexpr):
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
def _held(shared, s: gl.constexpr, WARPS: gl.constexpr):
    """The same from shared memory [steps · 8 · WARPS, 16]."""
    L: gl.constexpr = _pairs_layout(WARPS)
    value = gl.reshape(shared.slice(s * 8 * WARPS, 8 * WARPS).load(_held_layout(WARPS)), (WARPS, 8, 16))
    value = gl.permute(value, (1, 0, 2))
    value = gl.expand_dims(gl.convert_layout(value, gl.SliceLayout(2, L), assert_trivial=True), 2)
    g = gl.expand_dims(gl.expand_dims(gl.expand_dims(
        gl.arange(0, 8, layout=gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, L)))),
        1), 2), 3)  # fmt: skip
    t = gl.expand_dims(gl.expand_dims(gl.expand_dims(
        gl.arange(0, 4, layout=gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(3, L)))),
        0), 1), 3)  # fmt: skip
    return _sixteen(gl.where(t == g % 4, value, 0), WARPS)


@gluon.jit
def _normed(
    x, gain, K, eps, shared, STEPS: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """x / √(mean(x²) + eps) · gain, rounded to float16, to shared memory in pairs. gain: loaded."""
    L: gl.constexpr = gl.BlockedLayout([4], [32], [WARPS], [0])
    k = gl.arange(0, STEPS * WARPS * 256, layout=L)
    value = gl.load(x + k, mask=k < K, other=0.0)
    factor = 1.0 / gl.sqrt(gl.sum(value * value, 0) / K + eps)
    bits = (value * factor * gain).to(gl.float16).to(gl.int16, bitcast=True).to(gl.int32)
    low, high = gl.split(gl.reshape(bits, (STEPS * WARPS * 128, 2)))
    pairs = (low & 0xFFFF) | (high << 16)
    shared.store(gl.reshape(pairs, (STEPS * 8 * WARPS, 16)))


@gluon.jit
def ring(
    x,
    norm_weight,
    w,
    scales,
    bias,
    residual,
    out,
    N,
    K,
    half,  # rows of gate, where up follows
    tiles,
    eps,
    ZERO: gl.constexpr,
    GATED: gl.constexpr,
    EARLY: gl.constexpr,  # 0, or when launches behind may begin: 1 at once, 2 with this one, 3 late
    GROUPS: gl.constexpr,  # of 32 along K
    STEPS: gl.constexpr,  # of 8 · WARPS groups
    ROOM: gl.constexpr,  # STEPS, a power of two
    HELD: gl.constexpr,  # activations stay in registers
    STAGES: gl.constexpr,
    WARPS: gl.constexpr,
):
    NORMED: gl.constexpr = norm_weight is not None
    first = gl.program_id(0)
    count = gl.num_programs(0)
    turns = (tiles - first + count - 1) // count
    units = turns * STEPS
    # A row's 64 bytes and the next one's lie in all banks.
    WORDS: gl.constexpr = gl.SwizzledSharedLayout(16, 1, 2, order=[1, 0])
    SCALES: gl.constexpr = gl.SwizzledSharedLayout(8, 1, min(8, WARPS), order=[1, 0])
    w_ring = gl.allocate_shared_memory(gl.int32, [STAGES, 16, 32 * WARPS], WORDS)
    s_ring = gl.allocate_shared_memory(gl.float16, [STAGES, 16, 8 * WARPS], SCALES)
    if EARLY == 1:
        gl.inline_asm_elementwise(
            "griddepcontrol.launch_dependents; // $0",
            "=r", [], dtype=gl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    for i in gl.static_range(STAGES - 1):
        if i < units:
            _copy(first + i // STEPS * count, i % STEPS, i, w_ring, s_ring, w, scales, N, half,
                  GROUPS, GATED, WARPS)  # fmt: skip
        async_copy.commit_group()
    if NORMED:
        LX: gl.constexpr = gl.BlockedLayout([4], [32], [WARPS], [0])
        k = gl.arange(0, ROOM * WARPS * 256, layout=LX)
        gain = gl.load(norm_weight + k, mask=k < K, other=0.0)
    if EARLY:
        gl.inline_asm_elementwise(
            "griddepcontrol.wait; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    if EARLY == 2:
        gl.inline_asm_elementwise(
            "griddepcontrol.launch_dependents; // $0",
            "=r", [], dtype=gl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(4, 2, 4, order=[1, 0])
    x_shared = None
    if NORMED:
        x_shared = gl.allocate_shared_memory(gl.int32, [ROOM * 8 * WARPS, 16], PLAIN)
        _normed(x, gain, K, eps, x_shared, ROOM, WARPS)
    held = ()
    offsets = ()
    L: gl.constexpr = _lanes(WARPS)
    sevens = gl.full((8, WARPS, 4), ZERO * 0x11111111, gl.int32, L)
    four = (sevens, sevens, sevens, sevens)
    for s in gl.static_range(STEPS):
        if NORMED:
            pairs = _held(x_shared, s, WARPS)
        else:
            pairs = _activations(x, s, GROUPS, WARPS)
        if HELD:
            held += (pairs,)
        z0, z1, _, _ = _eight_groups((four, four), (four, four), pairs, WARPS)
        offsets += ((z0, z1),)
    LO: gl.constexpr = gl.SliceLayout(1, gl.BlockedLayout([1, 1], [8, 4], [1, WARPS], [1, 0]))
    for turn in range(turns):
        tile = first + turn * count
        if EARLY == 3:
            if turn == turns - 1:
                gl.inline_asm_elementwise(
                    "griddepcontrol.launch_dependents; // $0",
                    "=r", [], dtype=gl.int32, is_pure=False, pack=1,
                )  # fmt: skip
        low = gl.zeros((8, WARPS, 4), gl.float32, L)
        high = gl.zeros((8, WARPS, 4), gl.float32, L)
        for s in gl.static_range(STEPS):
            unit = turn * STEPS + s
            async_copy.wait_group(STAGES - 2)
            slot = unit % STAGES
            words = _words(w_ring.index(slot), WARPS)
            s0, s1, s2, s3 = _scales(s_ring.index(slot), WARPS)
            following = unit + STAGES - 1
            if following < units:
                _copy(
                    first + following // STEPS * count, following % STEPS, following % STAGES,
                    w_ring, s_ring, w, scales, N, half, GROUPS, GATED, WARPS,
                )  # fmt: skip
            async_copy.commit_group()
            if HELD:
                pairs = held[s]
            elif NORMED:
                pairs = _held(x_shared, s, WARPS)
            else:
                pairs = _activations(x, s, GROUPS, WARPS)
            d0, d1, d2, d3 = _eight_groups(words[0], words[1], pairs, WARPS)
            z0, z1 = offsets[s]
            if (s + 1) * 8 * WARPS > GROUPS:
                # What was not copied may be anything.
                gg = gl.expand_dims(gl.expand_dims(
                    gl.arange(0, WARPS, layout=gl.SliceLayout(0, gl.SliceLayout(2, L))), 0), 2)
                tt = gl.expand_dims(gl.expand_dims(
                    gl.arange(0, 4, layout=gl.SliceLayout(0, gl.SliceLayout(0, L))), 0), 0)
                group = (s * WARPS + gg) * 8 + tt * 2
                s0 = gl.where(group < GROUPS, s0, 0.0)
                s1 = gl.where(group + 1 < GROUPS, s1, 0.0)
                s2 = gl.where(group < GROUPS, s2, 0.0)
                s3 = gl.where(group + 1 < GROUPS, s3, 0.0)
            low += (d0 - z0) * s0 + (d1 - z1) * s1
            high += (d2 - z0) * s2 + (d3 - z1) * s3
        both = gl.permute(gl.join(low, high), (0, 3, 1, 2))
        total = gl.sum(gl.reshape(both, (8, 2, 4 * WARPS)), 2) * 1048576.0
        a, b = gl.split(total)  # rows g and g + 8
        if GATED:
            g = tile * 8 + gl.arange(0, 8, layout=a.type.layout)
            if bias is not None:
                at = gl.minimum(g, half - 1)
                a += gl.load(bias + at).to(gl.float32)
                b += gl.load(bias + at + half).to(gl.float32)
            value = a / (1.0 + gl.exp(-a)) * b
            gl.store(out + g, value.to(out.dtype.element_ty), mask=g < half)
        else:
            g = tile * 16 + gl.arange(0, 8, layout=a.type.layout)
            if bias is not None:
                a += gl.load(bias + gl.minimum(g, N - 1)).to(gl.float32)
                b += gl.load(bias + gl.minimum(g + 8, N - 1)).to(gl.float32)
            if residual is not None:
                before_a = gl.load(residual + g, mask=g < N, other=0.0)
                before_b = gl.load(residual + g + 8, mask=g + 8 < N, other=0.0)
                gl.store(residual + g, before_a + a, mask=g < N)
                gl.store(residual + g + 8, before_b + b, mask=g + 8 < N)
            else:
                gl.store(out + g, a.to(out.dtype.element_ty), mask=g < N)
                gl.store(out + g + 8, b.to(out.dtype.element_ty), mask=g + 8 < N)

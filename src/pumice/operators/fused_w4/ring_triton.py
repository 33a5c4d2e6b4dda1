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

from pumice.operators.fused_w4.ring_operand_triton import (
    activations_of,
    eight_groups,
    held_activations,
    keep_offsets,
    lanes,
    offsets_of,
    scales_of,
    words_of,
)
from pumice.operators.triton.gluon_names_triton import begin_copy


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
    begin_copy(w_ring.index(slot), w + at, mask=inside)
    LS: gl.constexpr = _copy_layout(8 * WARPS, 4, WARPS)
    row = _tile_rows(tile, N, half, GATED, gl.SliceLayout(1, LS))
    g = s * (8 * WARPS) + gl.arange(0, 8 * WARPS, layout=gl.SliceLayout(0, LS))
    at = row[:, None] * GROUPS + g[None, :]
    inside = (g < GROUPS)[None, :] & (row >= 0)[:, None]
    begin_copy(s_ring.index(slot), scales + at, mask=inside)


@gluon.jit
def _next(
    unit, units, first, count, w_ring, s_ring, w, scales, N, half,
    GROUPS: gl.constexpr, STEPS: gl.constexpr, GATED: gl.constexpr, STAGES: gl.constexpr,
    WARPS: gl.constexpr,
):  # fmt: skip
    """(words, scales) of a step, when they are there; the place in front is filled again."""
    async_copy.wait_group(STAGES - 2)
    slot = unit % STAGES
    words = words_of(w_ring.index(slot), WARPS)
    scale = scales_of(s_ring.index(slot), WARPS)
    following = unit + STAGES - 1
    if following < units:
        _copy(
            first + following // STEPS * count, following % STEPS, following % STAGES,
            w_ring, s_ring, w, scales, N, half, GROUPS, GATED, WARPS,
        )  # fmt: skip
    async_copy.commit_group()
    return words, scale


@gluon.jit
def _added(words, scale, pairs, z0, z1, s, low, high, GROUPS: gl.constexpr, WARPS: gl.constexpr):
    """The sums of rows g and g + 8, and a step's products."""
    d0, d1, d2, d3 = eight_groups(words[0], words[1], pairs, WARPS)
    s0, s1, s2, s3 = scale
    if GROUPS % (8 * WARPS) > 0:
        # What was not copied may be anything.
        L: gl.constexpr = lanes(WARPS)
        warp = gl.arange(0, WARPS, layout=gl.SliceLayout(0, gl.SliceLayout(2, L)))
        t = gl.arange(0, 4, layout=gl.SliceLayout(0, gl.SliceLayout(0, L)))
        group = gl.expand_dims(gl.expand_dims((s * WARPS + warp) * 8, 0), 2)
        group = group + gl.expand_dims(gl.expand_dims(t * 2, 0), 0)
        s0 = gl.where(group < GROUPS, s0, 0.0)
        s1 = gl.where(group + 1 < GROUPS, s1, 0.0)
        s2 = gl.where(group < GROUPS, s2, 0.0)
        s3 = gl.where(group + 1 < GROUPS, s3, 0.0)
    low += (d0 - z0) * s0 + (d1 - z1) * s1
    high += (d2 - z0) * s2 + (d3 - z1) * s3
    return low, high


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
    flat = shared._reinterpret(gl.int32, [STEPS * 8 * WARPS, 16], shared.layout)
    flat.store(gl.reshape(pairs, (STEPS * 8 * WARPS, 16)))


@gluon.jit
def _before(residual, tile, N, LR: gl.constexpr):
    """What rows g and g + 8 of a tile of the residual stream hold."""
    L: gl.constexpr = gl.SliceLayout(1, LR)
    if residual is not None:
        g = tile * 16 + gl.arange(0, 8, layout=L)
        a = gl.load(residual + g, mask=g < N, other=0.0)
        b = gl.load(residual + g + 8, mask=g + 8 < N, other=0.0)
    else:
        a = gl.zeros((8,), gl.float32, L)
        b = a
    return a, b


@gluon.jit
def _finish(
    sums_a, sums_b, tile, before_a, before_b, bias, residual, out, N, half,
    GATED: gl.constexpr, LR: gl.constexpr,
):  # fmt: skip
    """Adds up what warps found of rows g and g + 8, and puts the results where they belong."""
    a = gl.sum(sums_a.load(LR), 1) * 1048576.0
    b = gl.sum(sums_b.load(LR), 1) * 1048576.0
    lane = gl.arange(0, 8, layout=gl.SliceLayout(1, LR))
    if GATED:
        g = tile * 8 + lane
        if bias is not None:
            at = gl.minimum(g, half - 1)
            a += gl.load(bias + at).to(gl.float32)
            b += gl.load(bias + at + half).to(gl.float32)
        value = a / (1.0 + gl.exp(-a)) * b
        gl.store(out + g, value.to(out.dtype.element_ty), mask=g < half)
    else:
        g = tile * 16 + lane
        if bias is not None:
            a += gl.load(bias + gl.minimum(g, N - 1)).to(gl.float32)
            b += gl.load(bias + gl.minimum(g + 8, N - 1)).to(gl.float32)
        if residual is not None:
            gl.store(residual + g, before_a + a, mask=g < N)
            gl.store(residual + g + 8, before_b + b, mask=g + 8 < N)
        else:
            gl.store(out + g, a.to(out.dtype.element_ty), mask=g < N)
            gl.store(out + g + 8, b.to(out.dtype.element_ty), mask=g + 8 < N)


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
        x_shared = gl.allocate_shared_memory(gl.int32, [ROOM, 8 * WARPS, 16], PLAIN)
        _normed(x, gain, K, eps, x_shared, ROOM, WARPS)
    L: gl.constexpr = lanes(WARPS)
    sevens = gl.full((8, WARPS, 4), ZERO * 0x11111111, gl.int32, L)
    four = (sevens, sevens, sevens, sevens)
    held = ()
    offsets = ()
    VECTOR: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, order=[0])
    z_shared = None
    if HELD:
        for s in gl.static_range(STEPS):
            if NORMED:
                pairs = held_activations(x_shared.index(s), WARPS)
            else:
                pairs = activations_of(x, s, GROUPS, WARPS)
            held += (pairs,)
            z0, z1, _, _ = eight_groups((four, four), (four, four), pairs, WARPS)
            offsets += ((z0, z1),)
    else:
        z_shared = gl.allocate_shared_memory(gl.float32, [ROOM, 8 * WARPS], VECTOR)
        for s in range(STEPS):
            if NORMED:
                pairs = held_activations(x_shared.index(s), WARPS)
            else:
                pairs = activations_of(x, s, GROUPS, WARPS)
            z0, z1, _, _ = eight_groups((four, four), (four, four), pairs, WARPS)
            keep_offsets(z_shared.index(s), z0, z1, WARPS)
    LR: gl.constexpr = gl.BlockedLayout([1, WARPS], [32, 1], [WARPS, 1], [1, 0])
    SUMS: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, order=[1, 0])
    sums_a = gl.allocate_shared_memory(gl.float32, [8, WARPS], SUMS)
    sums_b = gl.allocate_shared_memory(gl.float32, [8, WARPS], SUMS)
    kept_a, kept_b = _before(None, 0, N, LR)
    for turn in range(turns):
        tile = first + turn * count
        if EARLY == 3:
            if turn == turns - 1:
                gl.inline_asm_elementwise(
                    "griddepcontrol.launch_dependents; // $0",
                    "=r", [], dtype=gl.int32, is_pure=False, pack=1,
                )  # fmt: skip
        before_a, before_b = _before(residual, tile, N, LR)
        low = gl.zeros((8, WARPS, 4), gl.float32, L)
        high = gl.zeros((8, WARPS, 4), gl.float32, L)
        if HELD:
            for s in gl.static_range(STEPS):
                words, scale = _next(
                    turn * STEPS + s, units, first, count, w_ring, s_ring, w, scales, N, half,
                    GROUPS, STEPS, GATED, STAGES, WARPS,
                )  # fmt: skip
                if s == 0:
                    # What warps found for the tile in front: all have passed a barrier since.
                    if turn > 0:
                        _finish(
                            sums_a, sums_b, tile - count, kept_a, kept_b, bias, residual, out, N,
                            half, GATED, LR,
                        )  # fmt: skip
                z0, z1 = offsets[s]
                low, high = _added(
                    words, scale, held[s], z0, z1, s, low, high, GROUPS, WARPS
                )  # fmt: skip
        else:
            for s in range(STEPS):
                words, scale = _next(
                    turn * STEPS + s, units, first, count, w_ring, s_ring, w, scales, N, half,
                    GROUPS, STEPS, GATED, STAGES, WARPS,
                )  # fmt: skip
                if NORMED:
                    pairs = held_activations(x_shared.index(s), WARPS)
                else:
                    pairs = activations_of(x, s, GROUPS, WARPS)
                z0, z1 = offsets_of(z_shared.index(s), WARPS)
                low, high = _added(words, scale, pairs, z0, z1, s, low, high, GROUPS, WARPS)
        sums_a.store(gl.sum(low, 2))
        sums_b.store(gl.sum(high, 2))
        if HELD:
            kept_a = before_a
            kept_b = before_b
        else:
            _finish(
                sums_a, sums_b, tile, before_a, before_b, bias, residual, out, N, half, GATED, LR,
            )  # fmt: skip
    if HELD and turns > 0:
        _finish(
            sums_a, sums_b, first + (turns - 1) * count, kept_a, kept_b, bias, residual, out, N,
            half, GATED, LR,
        )  # fmt: skip

# mypy: ignore-errors
"""Few to many tokens on Hopper's matrix units, weights from registers: `stream`, in Gluon.

outᵀ = W · xᵀ: 64 rows of weights are the long side of a matrix instruction, and tokens the short
one. Words packed in "rows" become the instruction's left operand in the threads that read them: a
thread takes the 16 bytes of one group of 32 codes, four threads of a row four groups, and whatever
place among 128 along K its codes thereby have, activations are put at the same one on their way to
shared memory. Inside 128 along K, code 32t + 8i + 2p + e stands at place 32i + 8p + 2t + e.

Programs share all tiles' steps along K evenly ("stream-K"): a program's stretch may begin inside
one tile and end inside another. Who has a tile's first step adds what later programs found, in
order, so that results do not depend on who was faster; later in K is earlier in the grid, so that
nobody waits for a program that has not begun.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import async_copy, warpgroup_mma_wait

from pumice.operators.gemm_w4.hopper_operand_triton import (
    by_group,
    halves,
    multiply,
    words_layout,
)
from pumice.operators.triton.gluon_names_triton import begin_copy
from pumice.operators.triton.shares_triton import add_others, give, here


@gluon.constexpr_function
def _x_layout(T, C, WARPS):
    """Of activations [T, 128 · C], two neighbours a copy: what a warp writes lies in all banks, and
    what it reads in whole sectors."""
    lanes = [[0, 8], [0, 16], [0, 32], [0, 2], [0, 4]]
    more = [[1, 0], [2, 0], [4, 0], [0, 64]]
    more += [[0, 128 << i] for i in range((C - 1).bit_length())]
    more += [[8 << i, 0] for i in range((T // 8 - 1).bit_length())]
    wide = (WARPS - 1).bit_length()
    return gl.DistributedLinearLayout([[0, 1], *more[wide:]], lanes, more[:wide], [], [T, 128 * C])


@gluon.constexpr_function
def _copy_layout(COLUMNS, VECTOR, WARPS):
    across = min(COLUMNS // VECTOR, 32)
    return gl.BlockedLayout([1, VECTOR], [32 // across, across], [WARPS, 1], [1, 0])


@gluon.jit
def _tile_rows(tile, N, half, GATED: gl.constexpr, BN: gl.constexpr, layout: gl.constexpr):
    """Rows of the weights, the last one beyond N. GATED: eight of gate, eight of up in turns."""
    r = gl.arange(0, BN, layout=layout)
    if GATED:
        n = tile * (BN // 2) + (r // 16) * 8 + r % 8
        return gl.minimum(n, half - 1) + ((r // 8) % 2) * half
    else:
        return gl.minimum(tile * BN + r, N - 1)


@gluon.jit
def _copy(
    unit, slot, w_ring, s_ring, m_ring, w, scales, mins, N, half, k_units, words, scale_columns,
    GATED: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, S: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """Begins to copy a step's weights into a place of the ring."""
    tile = unit // k_units
    step = unit - tile * k_units
    LW: gl.constexpr = _copy_layout(BK // 8, 4, WARPS)
    row = _tile_rows(tile, N, half, GATED, BN, gl.SliceLayout(1, LW))
    column = step * (BK // 8) + gl.arange(0, BK // 8, layout=gl.SliceLayout(0, LW))
    at = row[:, None] * words + column[None, :]
    begin_copy(w_ring.index(slot), w + at)
    LS: gl.constexpr = _copy_layout(S, S, WARPS)
    row = _tile_rows(tile, N, half, GATED, BN, gl.SliceLayout(1, LS))
    column = step * S + gl.arange(0, S, layout=gl.SliceLayout(0, LS))
    at = row[:, None] * scale_columns + column[None, :]
    at = gl.max_contiguous(gl.multiple_of(at, [1, S]), [1, S])
    begin_copy(s_ring.index(slot), scales + at)
    if mins is not None:
        begin_copy(m_ring.index(slot), mins + at)


@gluon.jit
def _code_at(place):
    """Which code along K comes to a place: to 32i + 8p + 2t + e of 128 code 32t + 8i + 2p + e."""
    inner = (place // 2 % 4) * 32 + (place // 32 % 4) * 8 + (place // 8 % 4) * 2 + place % 2
    return place // 128 * 128 + inner


@gluon.jit
def _copy_x(
    unit, slot, x_ring, x, M, k_units, x_stride,
    PLACED: gl.constexpr, T: gl.constexpr, C: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """Begins to copy a step's activations, in the order of the weights' places."""
    first = (unit % k_units) * (128 * C)
    if PLACED:
        L: gl.constexpr = _copy_layout(128 * C, 8, WARPS)
        token = gl.minimum(gl.arange(0, T, layout=gl.SliceLayout(1, L)), M - 1)
        k = first + gl.arange(0, 128 * C, layout=gl.SliceLayout(0, L))
        begin_copy(x_ring.index(slot), x + (token * x_stride)[:, None] + k[None, :])
    else:
        L: gl.constexpr = _x_layout(T, C, WARPS)
        token = gl.minimum(gl.arange(0, T, layout=gl.SliceLayout(1, L)), M - 1)
        k = first + _code_at(gl.arange(0, 128 * C, layout=gl.SliceLayout(0, L)))
        at = (token * x_stride)[:, None] + k[None, :]
        at = gl.max_contiguous(gl.multiple_of(at, [1, 2]), [1, 2])
        begin_copy(x_ring.index(slot), x + at)


@gluon.constexpr_function
def _at_once(BN, T, WARPS):
    """How many partial sums of a tile a thread has room for."""
    return max(1, min(8, 32 * 32 * WARPS // (BN * T)))


@gluon.jit
def _finish(
    acc, tile, bias, residual, out, M, N, half, residual_stride, out_stride,
    GATED: gl.constexpr, BN: gl.constexpr, T: gl.constexpr, ACC: gl.constexpr,
):  # fmt: skip
    """A tile's results [BN, T] to where they belong."""
    if bias is not None:
        row = _tile_rows(tile, N, half, GATED, BN, gl.SliceLayout(1, ACC))
        acc += gl.load(bias + row).to(gl.float32)[:, None]
    if GATED:
        parts = gl.permute(gl.reshape(acc, (BN // 16, 2, 8, T)), (0, 2, 3, 1))
        gate, up = gl.split(parts)
        value = gl.reshape(gate / (1.0 + gl.exp(-gate)) * up, (BN // 2, T))
        L: gl.constexpr = value.type.layout
        n = tile * (BN // 2) + gl.arange(0, BN // 2, layout=gl.SliceLayout(1, L))
        limit = half
    else:
        value = acc
        L: gl.constexpr = ACC
        n = tile * BN + gl.arange(0, BN, layout=gl.SliceLayout(1, L))
        limit = N
    m = gl.arange(0, T, layout=gl.SliceLayout(0, L))
    mask = (n < limit)[:, None] & (m < M)[None, :]
    if residual is not None:
        at = residual + (m * here(residual_stride))[None, :] + n[:, None]
        gl.store(at, gl.load(at, mask=mask, other=0.0) + value, mask=mask)
    else:
        at = out + (m * here(out_stride))[None, :] + n[:, None]
        gl.store(at, value.to(out.dtype.element_ty), mask=mask)


@gluon.jit
def place(
    x, placed, K, blocks, x_stride, EARLY: gl.constexpr, BLOCK: gl.constexpr, WARPS: gl.constexpr
):
    """Activations [M, K] in the order of the weights' places, a row's block a program."""
    if EARLY:  # the product behind may begin, too: its weights take longest
        gl.inline_asm_elementwise(
            "griddepcontrol.launch_dependents; griddepcontrol.wait; // $0",
            "=r", [], dtype=gl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    program = gl.program_id(0)
    token = program // blocks
    L: gl.constexpr = gl.BlockedLayout([8], [32], [WARPS], [0])
    at = (program % blocks) * BLOCK + gl.arange(0, BLOCK, layout=L)
    found = gl.max_contiguous(gl.multiple_of(token * x_stride + _code_at(at), [2]), [2])
    value = gl.load(x + found, mask=at < K)
    gl.store(placed + token * K + at, value, mask=at < K)


@gluon.jit
def stream(
    x,
    w,
    scales,
    mins,
    bias,
    residual,
    out,
    partial,  # float32[programs, BN, T]
    flags,  # int32[tiles], zero, and zero again afterwards
    M,
    N,
    half,  # rows of gate, where up follows
    tiles,
    k_units,  # steps along K
    words,
    scale_columns,
    x_stride,
    residual_stride,
    out_stride,
    ZERO: gl.constexpr,
    BRAIN: gl.constexpr,
    GATED: gl.constexpr,
    EARLY: gl.constexpr,
    PLACED: gl.constexpr,  # whether x is in the order of places
    T: gl.constexpr,  # tokens
    BN: gl.constexpr,
    C: gl.constexpr,  # blocks of 128 along K a step: 1 or 2
    S: gl.constexpr,  # scales of a row a step
    STAGES: gl.constexpr,
    WARPS: gl.constexpr,
):
    BK: gl.constexpr = 128 * C
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, T, 16])
    HALF: gl.constexpr = gl.bfloat16 if BRAIN else gl.float16
    total = tiles * k_units
    count = gl.num_programs(0)
    mine = count - 1 - gl.program_id(0)
    first = mine * total // count
    last = (mine + 1) * total // count
    # Rows of 64 bytes follow each other through all banks; of 128 every other one changes halves.
    WORDS: gl.constexpr = gl.SwizzledSharedLayout(16, 1, C, order=[1, 0])
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, order=[1, 0])
    w_ring = gl.allocate_shared_memory(gl.int32, [STAGES, BN, 16 * C], WORDS)
    s_ring = gl.allocate_shared_memory(gl.float16, [STAGES, BN, S], PLAIN)
    m_ring = s_ring
    if mins is not None:
        m_ring = gl.allocate_shared_memory(gl.float16, [STAGES, BN, S], PLAIN)
    XS: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    x_ring = gl.allocate_shared_memory(HALF, [STAGES, T, BK], XS)
    for i in gl.static_range(STAGES - 1):
        if first + i < last:
            _copy(
                first + i, i, w_ring, s_ring, m_ring, w, scales, mins, N, half, k_units, words,
                scale_columns, GATED, BN, BK, S, WARPS,
            )  # fmt: skip
    if EARLY:
        gl.inline_asm_elementwise(
            "griddepcontrol.wait; griddepcontrol.launch_dependents; // $0",
            "=r", [], dtype=gl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    for i in gl.static_range(STAGES - 1):
        if first + i < last:
            _copy_x(first + i, i, x_ring, x, M, k_units, x_stride, PLACED, T, C, WARPS)
        async_copy.commit_group()  # the first one has all weights so far, too
    acc = gl.zeros([BN, T], gl.float32, ACC)
    for unit in range(first, last):
        tile = unit // k_units
        step = unit - tile * k_units
        done = unit - first
        async_copy.wait_group(STAGES - 2)
        slot = done % STAGES
        x_slot = x_ring.index(slot)
        LW: gl.constexpr = words_layout(BN, WARPS)
        word = w_ring.index(slot).slice(0, 16, dim=1).load(LW)
        w0, w1 = halves(gl.reshape(word, (BN, 4, 4)), BN, 4, 2)
        if C == 2:
            word = w_ring.index(slot).slice(16, 16, dim=1).load(LW)
            w2, w3 = halves(gl.reshape(word, (BN, 4, 4)), BN, 4, 2)
        scale_a, scale_b = by_group(s_ring.index(slot), BN, C, S, WARPS)
        min_a = None
        min_b = None
        if mins is not None:
            min_a, min_b = by_group(m_ring.index(slot), BN, C, S, WARPS)
        acc, a = multiply(w0, scale_a, min_a, x_slot, acc, step > 0, 0, ZERO, BRAIN, BN, ACC)
        acc, b = multiply(w1, scale_a, min_a, x_slot, acc, True, 64, ZERO, BRAIN, BN, ACC)
        if C == 2:
            acc = warpgroup_mma_wait(1, deps=(acc, a))[0]
            acc, a = multiply(w2, scale_b, min_b, x_slot, acc, True, 128, ZERO, BRAIN, BN, ACC)
            acc = warpgroup_mma_wait(1, deps=(acc, b))[0]
            acc, b = multiply(w3, scale_b, min_b, x_slot, acc, True, 192, ZERO, BRAIN, BN, ACC)
        # The matrix unit has work meanwhile; what the step before has read is free again.
        if unit + STAGES - 1 < last:
            free = (done + STAGES - 1) % STAGES
            _copy(
                unit + STAGES - 1, free, w_ring, s_ring, m_ring,
                w, scales, mins, N, half, k_units, words, scale_columns, GATED, BN, BK, S, WARPS,
            )  # fmt: skip
            _copy_x(unit + STAGES - 1, free, x_ring, x, M, k_units, x_stride, PLACED, T, C, WARPS)
        async_copy.commit_group()
        acc = warpgroup_mma_wait(0, deps=(acc, a, b))[0]
        if (step == k_units - 1) | (unit == last - 1):
            if tile * k_units >= first:
                found = acc
                if step < k_units - 1:
                    found = add_others(
                        found, tile, mine, partial, flags, total, k_units, BN, T,
                        _at_once(BN, T, WARPS), ACC,
                    )  # fmt: skip
                _finish(
                    found, tile, bias, residual, out, M, N, half, residual_stride, out_stride,
                    GATED, BN, T, ACC,
                )  # fmt: skip
            else:
                give(acc, tile, mine, partial, flags, BN, T, ACC)

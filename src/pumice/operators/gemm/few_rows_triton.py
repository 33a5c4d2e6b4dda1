# mypy: ignore-errors
"""Few rows of x on Hopper, at the speed of reading w: `few_rows`, in Gluon.

outᵀ = w · xᵀ: rows of w are the long side of a matrix instruction and rows of x the short one, so
little is padded. The tensor memory accelerator fills a ring of buffers with blocks of both, far
ahead and through the ends of tiles, for what counts is how much is under way.

Programs share all tiles' steps along K evenly ("stream-K", Osama et al., arXiv:2301.03598): a
program's stretch may begin inside one tile and end inside another. Who has a tile's first step adds
what later programs found, in order, so that results do not depend on who was faster; later in K is
earlier in the grid, so that nobody waits for a program that has not begun.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from pumice.operators.gemm.common_triton import activate as _activate
from pumice.operators.gemm.hopper_triton import after
from pumice.operators.triton.gluon_names_triton import async_load, barrier
from pumice.operators.triton.shares_triton import add_others, give, here

activate = gluon.jit(_activate.fn)


@gluon.jit
def _load(rows, first, column, full, ring, slot):
    """Begins to fill a place of a ring with a block of rows."""
    BYTES: gl.constexpr = rows.block_shape[0] * rows.block_shape[1] * 2
    mbarrier.expect(full.index(slot), BYTES)
    async_load(rows, [first, column], full.index(slot), ring.index(slot))


@gluon.jit
def _load_w(rows, unit, slot, ring, full, k_units):
    tile = unit // k_units
    column = (unit - tile * k_units) * rows.block_shape[1]
    _load(rows, tile * rows.block_shape[0], column, full, ring, slot)


@gluon.jit
def _load_x(rows, unit, slot, ring, full, k_units):
    _load(rows, 0, (unit % k_units) * rows.block_shape[1], full, ring, slot)


@gluon.jit
def _launch_next():
    """The launch behind this one may come to its places."""
    gl.inline_asm_elementwise(
        "griddepcontrol.launch_dependents; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def _store(
    y, tile, first, bias, residual, out, M, N, stride_rm, stride_om,
    ACTIVATION: gl.constexpr, BN: gl.constexpr, T: gl.constexpr,
):  # fmt: skip
    """Results [BN, T] of rows of x from `first` on to where they belong: bias, activation,
    residual, rounding."""
    L: gl.constexpr = y.type.layout
    n = tile * BN + gl.arange(0, BN, layout=gl.SliceLayout(1, L))
    m = first + gl.arange(0, T, layout=gl.SliceLayout(0, L))
    if bias is not None:
        y += gl.load(bias + n, mask=n < N, other=0.0).to(gl.float32)[:, None]
    y = activate(y, ACTIVATION)
    mask = (n < N)[:, None] & (m < M)[None, :]
    if residual is not None:
        at = residual + (m * here(stride_rm))[None, :] + n[:, None]
        y += gl.load(at, mask=mask, other=0.0).to(gl.float32)
    at = out + (m * here(stride_om))[None, :] + n[:, None]
    gl.store(at, y.to(out.dtype.element_ty), mask=mask)


@gluon.jit
def _finish(
    y, tile, bias, residual, out, M, N, stride_rm, stride_om,
    ACTIVATION: gl.constexpr, BN: gl.constexpr, T: gl.constexpr,
):  # fmt: skip
    """A tile's results. Many are stored one half after the other: addresses take registers."""
    if T == 64:
        low, high = gl.split(gl.permute(gl.reshape(y, (BN, 2, 32)), (0, 2, 1)))
        _store(low, tile, 0, bias, residual, out, M, N, stride_rm, stride_om, ACTIVATION, BN, 32)
        _store(high, tile, 32, bias, residual, out, M, N, stride_rm, stride_om, ACTIVATION, BN, 32)
    else:
        _store(y, tile, 0, bias, residual, out, M, N, stride_rm, stride_om, ACTIVATION, BN, T)


@gluon.jit
def few_rows(
    x, w, bias, residual, out,
    partial,  # float32[programs, BN, T]
    flags,  # int32[tiles], zero, and zero again afterwards
    M, N, K,
    tiles,
    k_units,  # steps along K
    stride_xm, stride_wn, stride_rm, stride_om,
    ACTIVATION: gl.constexpr,
    WHOLE: gl.constexpr,  # a tile a program: nothing is shared
    EARLY: gl.constexpr,  # begins before the launch in front ends; the one behind: 1 now, 2 late
    T: gl.constexpr,  # rows of x
    BN: gl.constexpr,
    BK: gl.constexpr,
    STAGES: gl.constexpr,
    X_STAGES: gl.constexpr,  # x comes from the cache, sooner than w
    WARPS: gl.constexpr,
    AT_ONCE: gl.constexpr,  # partial sums of a tile that a thread has room for
):  # fmt: skip
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, T, 16])
    LINES: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    total = tiles * k_units
    count = gl.num_programs(0)
    mine = count - 1 - gl.program_id(0)
    first = mine * total // count
    last = (mine + 1) * total // count
    w_ring = gl.allocate_shared_memory(w.dtype.element_ty, [STAGES, BN, BK], LINES)
    x_ring = gl.allocate_shared_memory(x.dtype.element_ty, [X_STAGES, T, BK], LINES)
    w_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    x_full = gl.allocate_shared_memory(gl.int64, [X_STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(w_full.index(i), count=1)
    for i in gl.static_range(X_STAGES):
        mbarrier.init(x_full.index(i), count=1)
    w_rows = tma.make_tensor_descriptor(w, [N, K], [stride_wn, 1], [BN, BK], LINES)
    x_rows = tma.make_tensor_descriptor(x, [M, K], [stride_xm, 1], [T, BK], LINES)
    fence_async_shared()
    barrier()
    if EARLY:
        gl.inline_asm_elementwise(
            "griddepcontrol.wait; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
        )
    if EARLY == 1:
        _launch_next()
    for i in gl.static_range(STAGES):
        if first + i < last:
            _load_w(w_rows, first + i, i, w_ring, w_full, k_units)
            if i < X_STAGES:
                _load_x(x_rows, first + i, i, x_ring, x_full, k_units)
    acc = gl.zeros([BN, T], gl.float32, ACC)
    slot = 0
    phase = 0
    x_slot = 0
    x_phase = 0
    for unit in range(first, last):
        tile = unit // k_units
        step = unit - tile * k_units
        mbarrier.wait(w_full.index(slot), phase)
        mbarrier.wait(x_full.index(x_slot), x_phase)
        acc = warpgroup_mma(
            w_ring.index(slot), x_ring.index(x_slot).permute((1, 0)), acc, use_acc=step > 0,
            is_async=True,
        )  # fmt: skip
        acc = warpgroup_mma_wait(0, deps=(acc,))
        barrier()  # all warps have read the buffers
        if unit + STAGES < last:
            _load_w(w_rows, unit + STAGES, slot, w_ring, w_full, k_units)
        if unit + X_STAGES < last:
            _load_x(x_rows, unit + X_STAGES, x_slot, x_ring, x_full, k_units)
        slot, phase = after(slot, phase, STAGES)
        x_slot, x_phase = after(x_slot, x_phase, X_STAGES)
        if (step == k_units - 1) | (unit == last - 1):
            if EARLY == 2:
                if unit == last - 1:
                    _launch_next()
            if WHOLE:
                _finish(
                    acc, tile, bias, residual, out, M, N, stride_rm, stride_om,
                    ACTIVATION, BN, T,
                )  # fmt: skip
            elif tile * k_units >= first:
                found = acc
                if step < k_units - 1:
                    found = add_others(
                        found, tile, mine, partial, flags, total, k_units, BN, T, AT_ONCE, ACC
                    )
                _finish(
                    found, tile, bias, residual, out, M, N, stride_rm, stride_om,
                    ACTIVATION, BN, T,
                )  # fmt: skip
            else:
                give(acc, tile, mine, partial, flags, BN, T, ACC)

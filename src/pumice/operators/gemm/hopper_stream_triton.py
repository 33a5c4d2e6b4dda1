# mypy: ignore-errors
"""Dense products on Hopper whose tiles do not fill whole rounds of the units, in Gluon.

As `gemm_specialized`, but the units that have one row of tiles share all its blocks of K evenly
("Stream-K", Osama et al., arXiv:2301.03598): a unit's stretch may begin inside one tile and end
inside another. Who has a tile's first block adds what the units after it found, in order, so that
results are the same every time. Rows of tiles go in step, so that they share w in the cache. Later
in K is earlier in the grid: nobody waits for a program that has not begun.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from pumice.operators.gemm.hopper_triton import after, begin_early, store_tile
from pumice.operators.triton.gluon_names_triton import async_load, barrier


@gluon.jit
def share_of(tiles_m, steps, GRAIN: gl.constexpr):
    """This program's row of tiles, and its stretch of the row's steps, a multiple of GRAIN."""
    mine = gl.num_programs(0) - 1 - gl.program_id(0)
    units = gl.num_programs(0) // tiles_m
    slot = mine // tiles_m
    grains = steps // GRAIN
    return mine % tiles_m, slot * grains // units * GRAIN, (slot + 1) * grains // units * GRAIN


@gluon.jit
def _producer(
    x, w, a_smem, b_smem, full, empty, tiles_m, blocks, steps,
    BN: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    BM: gl.constexpr = x.block_shape[0]
    BK: gl.constexpr = x.block_shape[1]
    BYTES: gl.constexpr = (BM + BN) * BK * x.dtype.primitive_bitwidth // 8
    tile_m, first, last = share_of(tiles_m, steps, 1)
    col0 = first // blocks * BN
    block = first % blocks
    stage = 0
    phase = 1
    for _ in range(first, last):
        bar = full.index(stage)
        mbarrier.wait(empty.index(stage), phase)
        mbarrier.expect(bar, BYTES)
        async_load(x, [tile_m * BM, block * BK], bar, a_smem.index(stage))
        for part in gl.static_range(0, BN, 128):
            async_load(
                w, [col0 + part, block * BK], bar, b_smem.index(stage).slice(part, 128, dim=0)
            )
        block += 1
        if block == blocks:
            block = 0
            col0 += BN
        stage, phase = after(stage, phase, STAGES)


@gluon.jit
def _flat(acc):
    """Sums [64, BN] in the order in which lanes hold them: four neighbours are one lane's."""
    BN: gl.constexpr = acc.shape[1]
    parts = gl.reshape(acc, (4, 2, 8, BN // 8, 4, 2))
    return gl.reshape(gl.permute(parts, (0, 3, 2, 4, 1, 5)), (64 * BN,))


@gluon.jit
def _unflat(flat, mma: gl.constexpr):
    BN: gl.constexpr = flat.shape[0] // 64
    parts = gl.reshape(flat, (4, BN // 8, 8, 4, 2, 2))
    return gl.convert_layout(
        gl.reshape(gl.permute(parts, (0, 4, 2, 1, 3, 5)), (64, BN)), mma, assert_trivial=True
    )


@gluon.jit
def _give(acc, partial, flag):
    """Sums of a tile that another unit began."""
    flat = _flat(acc)
    gl.store(partial + gl.arange(0, flat.shape[0], flat.type.layout), flat)
    barrier()
    gl.atomic_xchg(flag, 1, sem="release", scope="gpu")


@gluon.jit
def _take(acc, partial, flag, mma: gl.constexpr):
    """Adds another unit's sums, when they are there."""
    seen = gl.atomic_cas(flag, 1, 0, sem="acquire", scope="gpu")
    while seen != 1:
        seen = gl.atomic_cas(flag, 1, 0, sem="acquire", scope="gpu")
    flat = _flat(acc)
    at = partial + gl.arange(0, flat.shape[0], flat.type.layout)
    return _unflat(flat + gl.load(at, cache_modifier=".cg"), mma)


@gluon.jit
def _finish(
    acc, bias, residual, out, partial, flags, own, tile_m, tile_n, begin, end, M, N,
    stride_rm, stride_om, tiles_m, blocks, steps,
    ROW: gl.constexpr, BM: gl.constexpr, mma: gl.constexpr, ACTIVATION: gl.constexpr,
):  # fmt: skip
    """64 rows of sums of a tile's blocks from begin to end: given away, or completed and stored."""
    BN: gl.constexpr = acc.shape[1]
    mine = own * (BM // 64) + ROW // 64
    if begin > 0:
        _give(acc, partial + mine * (64 * BN), flags + mine)
    else:
        if end < blocks:
            units = gl.num_programs(0) // tiles_m
            final = ((tile_n + 1) * blocks * units - 1) // steps  # has the tile's last block
            for _ in range(own // tiles_m, final):
                mine += BM // 64 * tiles_m
                acc = _take(acc, partial + mine * (64 * BN), flags + mine, mma)
        store_tile(
            acc, bias, residual, out, tile_m * BM + ROW, tile_n * BN, M, N, stride_rm, stride_om,
            ACTIVATION,
        )  # fmt: skip


@gluon.jit
def streamed_consumer(
    bias, residual, out, partial, flags, a_smem, b_smem, full, empty, M, N, stride_rm, stride_om,
    tiles_m, blocks, steps,
    ROW: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, WIDTH: gl.constexpr,
    GRAIN: gl.constexpr, STAGES: gl.constexpr, ACTIVATION: gl.constexpr,
):  # fmt: skip
    """Half the rows of this program's tiles, 64 or 128 from ROW on. WIDTH: columns of one matrix
    instruction. GRAIN: of blocks that a stretch begins and ends with."""
    TWO: gl.constexpr = BM == 256
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    tile_m, step, last = share_of(tiles_m, steps, GRAIN)
    own = gl.num_programs(0) - 1 - gl.program_id(0)
    stage = 0
    phase = 0
    while step < last:
        tile_n = step // blocks
        begin = step - tile_n * blocks
        end = gl.minimum(blocks, begin + last - step)
        acc = gl.zeros([64, BN], gl.float32, mma)
        if TWO:
            more = gl.zeros([64, BN], gl.float32, mma)
        for k in range(begin, end):
            mbarrier.wait(full.index(stage), phase)
            b = b_smem.index(stage).permute((1, 0))
            acc = warpgroup_mma(a_smem.index(stage).slice(ROW, 64, dim=0), b, acc, is_async=True)
            if TWO:
                a = a_smem.index(stage).slice(ROW + 64, 64, dim=0)
                more = warpgroup_mma(a, b, more, is_async=True)
                acc, more = warpgroup_mma_wait(2, deps=(acc, more))
            else:
                acc = warpgroup_mma_wait(1, deps=(acc,))
            # The block before this one is multiplied: its buffer is free.
            mbarrier.arrive(empty.index((stage + STAGES - 1) % STAGES), count=1, pred=k > begin)
            stage, phase = after(stage, phase, STAGES)
        acc = warpgroup_mma_wait(0, deps=(acc,))
        if TWO:
            more = warpgroup_mma_wait(0, deps=(more,))
        mbarrier.arrive(empty.index((stage + STAGES - 1) % STAGES), count=1)
        _finish(
            acc, bias, residual, out, partial, flags, own, tile_m, tile_n, begin, end, M, N,
            stride_rm, stride_om, tiles_m, blocks, steps, ROW, BM, mma, ACTIVATION,
        )  # fmt: skip
        if TWO:
            _finish(
                more, bias, residual, out, partial, flags, own, tile_m, tile_n, begin, end, M, N,
                stride_rm, stride_om, tiles_m, blocks, steps, ROW + 64, BM, mma, ACTIVATION,
            )  # fmt: skip
        step += end - begin


@gluon.jit
def gemm_streamed(
    x, w, bias, residual, out, partial, flags, M, N, K, stride_xm, stride_wn, stride_rm, stride_om,
    BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, STAGES: gl.constexpr,
    EARLY: gl.constexpr, ACTIVATION: gl.constexpr,
):  # fmt: skip
    """x [M, K], w [N, K] in 16-bit floats. BM is 128, BK 64, BN 128 or 256. Programs are a multiple
    of the rows of tiles, and no more of a row than it has blocks. partial: float32[programs, BM,
    BN]; flags: int32[programs, BM / 64], zero, and zero again afterwards."""
    begin_early(EARLY)
    lines: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    a_smem = gl.allocate_shared_memory(x.dtype.element_ty, [STAGES, BM, BK], lines)
    b_smem = gl.allocate_shared_memory(w.dtype.element_ty, [STAGES, BN, BK], lines)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    x_rows = tma.make_tensor_descriptor(x, [M, K], [stride_xm, 1], [BM, BK], lines)
    w_rows = tma.make_tensor_descriptor(w, [N, K], [stride_wn, 1], [128, BK], lines)
    tiles_m = gl.cdiv(M, BM)
    blocks = gl.cdiv(K, BK)
    steps = gl.cdiv(N, BN) * blocks
    gl.warp_specialize(
        [
            (streamed_consumer, (bias, residual, out, partial, flags, a_smem, b_smem, full, empty,
                                 M, N, stride_rm, stride_om, tiles_m, blocks, steps,
                                 0, BM, BN, BN, 1, STAGES, ACTIVATION)),
            (streamed_consumer, (bias, residual, out, partial, flags, a_smem, b_smem, full, empty,
                                 M, N, stride_rm, stride_om, tiles_m, blocks, steps,
                                 64, BM, BN, BN, 1, STAGES, ACTIVATION)),
            (_producer, (x_rows, w_rows, a_smem, b_smem, full, empty, tiles_m, blocks, steps,
                         BN, STAGES)),
        ],
        [4, 1],
        [232, 40],
    )  # fmt: skip

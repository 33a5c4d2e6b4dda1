# mypy: ignore-errors
"""Products of 8-bit values on Hopper, in Gluon: two warps load, two groups of four multiply.

A program goes through many tiles, wide ones first, then those of the columns that are left. The
warps that load run ahead through a ring of buffers, into the next tile while one is stored: one
has the rows of x and scales of blocks, one the rows of w.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import async_copy, mbarrier, tma

from pumice.operators.gemm.hopper_triton import (
    after,
    begin_early,
    narrow_of,
    tile_of,
)
from pumice.operators.gemm_fp8_block.hopper_results_triton import factors_of, let_go
from pumice.operators.gemm_fp8_block.hopper_tiles_triton import (
    multiply_128,
    multiply_192,
    multiply_256,
)
from pumice.operators.gemm_fp8_block.hopper_whole_triton import multiply_whole
from pumice.operators.triton.gluon_names_triton import async_load, begin_copy


@gluon.jit
def _parts(tile_n, BN: gl.constexpr):
    """Where the parts of a wide tile begin. Of 192 columns every other tile begins inside a block
    of scales: its 64 columns are the first ones there."""
    col0 = tile_n * BN
    more0 = col0
    if BN == 192:
        odd = tile_n % 2
        more0 = col0 + (1 - odd) * 128
        col0 += odd * 64
    if BN == 256:
        more0 += 128
    return col0, more0


@gluon.jit
def _load(
    x, w, scales, ring, row0, col0, more0, M, N, K, stage, phase,
    COLUMNS: gl.constexpr, MORE: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Fills buffers with a tile's rows of x or of w, the other being None, a block of K each. Of w
    COLUMNS rows from col0 on, MORE from more0 on. With x come the scales of its rows, of col0 and
    of more0, where blocks have any: by copies of four bytes, whose end the same barrier waits for,
    as loads by who needs them would stand in line behind the blocks."""
    a_smem, b_smem, c_smem, s_smem, t_smem, full, empty, _ = ring
    BM: gl.constexpr = a_smem.shape[1]
    BK: gl.constexpr = a_smem.shape[2]
    ROWS: gl.constexpr = COLUMNS + MORE if x is None else BM
    SCALES: gl.constexpr = s_smem is not None and x is not None
    if SCALES:
        lane: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
        x_scale, w_scale, stride_sm, stride_sk, stride_tn, stride_tk = scales
        rows = gl.minimum(row0 + gl.arange(0, BM, lane), M - 1).to(gl.int64)
        parts = gl.minimum(col0 + (more0 - col0) * gl.arange(0, 2, lane), N - 1) // 128
        s_at = x_scale + rows * stride_sm
        t_at = w_scale + parts * stride_tn
    for k in range(0, K, BK):
        bar = full.index(stage)
        mbarrier.wait(empty.index(stage), phase)
        if SCALES:
            begin_copy(s_smem.index(stage), s_at)
            begin_copy(t_smem.index(stage), t_at)
            async_copy.mbarrier_arrive(bar)
            s_at += stride_sk
            t_at += stride_tk
        mbarrier.expect(bar, ROWS * BK)
        if x is not None:
            async_load(x, [row0, k], bar, a_smem.index(stage))
        else:
            PART: gl.constexpr = w.block_shape[0]
            for part in gl.static_range(0, COLUMNS, PART):
                async_load(w, [col0 + part, k], bar, b_smem.index(stage).slice(part, PART, dim=0))
            for part in gl.static_range(0, MORE, PART):
                async_load(w, [more0 + part, k], bar, c_smem.index(stage).slice(part, PART, dim=0))
        stage, phase = after(stage, phase, STAGES)
    return stage, phase


@gluon.jit
def _load_tiles(
    x, w, scales, ring, M, N, K, tiles_m, strips,
    BM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, GROUP_M: gl.constexpr,
):  # fmt: skip
    stage = 0
    phase = 1
    for tile in range(gl.program_id(0), tiles_m * strips, gl.num_programs(0)):
        tile_m, tile_n = tile_of(tile, tiles_m, strips, GROUP_M)
        col0, more0 = _parts(tile_n, BN)
        stage, phase = _load(
            x, w, scales, ring, tile_m * BM, col0, more0, M, N, K, stage, phase,
            128 if BN == 192 else BN, 64 if BN == 192 else 0, STAGES,
        )  # fmt: skip
    if BN > 128:
        first, count, across = narrow_of(tiles_m, strips, N, BN)
        for tile in range(first, count, gl.num_programs(0)):
            tile_m, tile_n = tile_of(tile, tiles_m, across, GROUP_M)
            col0 = strips * BN + tile_n * 128
            stage, phase = _load(
                x, w, scales, ring, tile_m * BM, col0, col0, M, N, K, stage, phase, 128, 0, STAGES
            )  # fmt: skip


@gluon.jit
def _producer(
    x, w, scales, ring, M, N, K, stride, tiles_m, strips,
    BM: gl.constexpr, BK: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr,
    GROUP_M: gl.constexpr,
):  # fmt: skip
    """A warp that loads x or w. It makes its descriptor itself: others make theirs meanwhile."""
    lines: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=8, rank=2)
    if x is not None:
        rows = tma.make_tensor_descriptor(x, [M, K], [stride, 1], [BM, BK], lines)
        _load_tiles(rows, None, scales, ring, M, N, K, tiles_m, strips, BM, BN, STAGES, GROUP_M)
    else:
        PART: gl.constexpr = 64 if BN == 192 else 128
        rows = tma.make_tensor_descriptor(w, [N, K], [stride, 1], [PART, BK], lines)
        _load_tiles(None, rows, scales, ring, M, N, K, tiles_m, strips, BM, BN, STAGES, GROUP_M)


@gluon.jit
def _place(out, buffers, M, N, stride_om, ROW: gl.constexpr, COLUMNS: gl.constexpr):
    """A group's buffer for results, and a descriptor of where they go."""
    pairs: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    rows = tma.make_tensor_descriptor(out, [M, N], [stride_om, 1], [64, COLUMNS], pairs)
    return buffers.index(ROW // 64), rows


@gluon.jit
def _consumer(
    ring, epilogue, scales, buffers, M, N, K, tiles_m, strips,
    ROW: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr,
    PROMOTE: gl.constexpr, SKEW: gl.constexpr, STAGED: gl.constexpr, GROUP_M: gl.constexpr,
    ACTIVATION: gl.constexpr, BLOCKS: gl.constexpr, X_SCALE: gl.constexpr, W_SCALE: gl.constexpr,
):  # fmt: skip
    """A group of four warps, which multiplies the 64 rows of every tile from ROW on."""
    out = epilogue[2]
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 32])
    place = (None, None)
    small = (None, None)
    late = (gl.zeros([64, 128], out.dtype.element_ty, mma), 0, 0, 0)
    if STAGED:
        place = _place(out, buffers[0], M, N, epilogue[4], ROW, 128)
    if BN == 192:
        half: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 32])
        few = (gl.zeros([64, 64], out.dtype.element_ty, half), 0, 0, 0)
        if STAGED:
            small = _place(out, buffers[1], M, N, epilogue[4], ROW, 64)
    stage = 0
    phase = 0
    turn = 0
    for tile in range(gl.program_id(0), tiles_m * strips, gl.num_programs(0)):
        tile_m, tile_n = tile_of(tile, tiles_m, strips, GROUP_M)
        row0 = tile_m * BM + ROW
        col0, more0 = _parts(tile_n, BN)
        factors = (None, None, None)
        if not BLOCKS:
            factors = factors_of(
                scales, row0, col0, more0, M, N, 64 if BN == 192 else 128, X_SCALE, W_SCALE
            )
        if not PROMOTE:
            if BN == 192:
                stage, phase, few = multiply_whole(
                    ring, epilogue, factors, place, small, few, row0, col0, more0,
                    M, N, K, stage, phase, ROW, 128, 64, STAGES, ACTIVATION, STAGED,
                )  # fmt: skip
            else:
                stage, phase, late = multiply_whole(
                    ring, epilogue, factors, place, small, late, row0, col0, col0,
                    M, N, K, stage, phase, ROW, BN, 0, STAGES, ACTIVATION, STAGED,
                )  # fmt: skip
        elif BN == 256:
            stage, phase, turn, late = multiply_256(
                ring, epilogue, factors, place, late, row0, col0, M, N, K, stage, phase, turn,
                ROW, STAGES, SKEW, ACTIVATION, STAGED,
            )  # fmt: skip
        elif BN == 192:
            stage, phase, turn, few = multiply_192(
                ring, epilogue, factors, place, small, few, row0, col0, more0,
                M, N, K, stage, phase, turn, ROW, STAGES, SKEW, ACTIVATION, STAGED,
            )  # fmt: skip
        else:
            stage, phase, turn, late = multiply_128(
                ring, epilogue, factors, place, late, row0, col0, M, N, K, stage, phase, turn,
                ROW, STAGES, SKEW, ACTIVATION, STAGED,
            )  # fmt: skip
    if BN == 192:
        let_go(few, small, STAGED, 1)
    if BN > 128:
        first, count, across = narrow_of(tiles_m, strips, N, BN)
        for tile in range(first, count, gl.num_programs(0)):
            tile_m, tile_n = tile_of(tile, tiles_m, across, GROUP_M)
            row0 = tile_m * BM + ROW
            col0 = strips * BN + tile_n * 128
            factors = (None, None, None)
            if not BLOCKS:
                factors = factors_of(scales, row0, col0, col0, M, N, 128, X_SCALE, W_SCALE)
            if PROMOTE:
                stage, phase, turn, late = multiply_128(
                    ring, epilogue, factors, place, late, row0, col0, M, N, K, stage, phase, turn,
                    ROW, STAGES, 0, ACTIVATION, STAGED,
                )  # fmt: skip
            else:
                stage, phase, late = multiply_whole(
                    ring, epilogue, factors, place, small, late, row0, col0, col0,
                    M, N, K, stage, phase, ROW, 128, 0, STAGES, ACTIVATION, STAGED,
                )  # fmt: skip
    let_go(late, place, STAGED, 0)
    if STAGED:
        tma.store_wait(0)


@gluon.jit
def specialized8(
    x, w, x_scale, w_scale, bias, residual, out, M, N, K,
    stride_xm, stride_wn, stride_sm, stride_sk, stride_tn, stride_tk, stride_rm, stride_om, strips,
    BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, STAGES: gl.constexpr,
    BLOCKS: gl.constexpr, PROMOTE: gl.constexpr, SKEW: gl.constexpr, STAGED: gl.constexpr,
    EARLY: gl.constexpr, GROUP_M: gl.constexpr, X_SCALE: gl.constexpr, W_SCALE: gl.constexpr,
    ACTIVATION: gl.constexpr,
):  # fmt: skip
    """x [M, K], w [N, K] of 8-bit floats or integers, K not 0. Scales with BLOCKS [M, K/128] and
    [N/128, K/128], else as X_SCALE and W_SCALE say (`gemm_tile`). PROMOTE: sums leave the matrix
    unit after every block of K. BM and BK are 128, BN 128, 192 or 256. From the left, `strips`
    times BN columns are done in tiles of BN (of 192 an even number, or nothing else), the rest in
    tiles of 128. STAGED: whether the accelerator stores results. EARLY: the launch may begin before
    the one in front has ended."""
    begin_early(EARLY)
    FIRST: gl.constexpr = 128 if BN == 192 else BN
    lines: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=8, rank=2)
    a_smem = gl.allocate_shared_memory(x.dtype.element_ty, [STAGES, BM, BK], lines)
    b_smem = gl.allocate_shared_memory(w.dtype.element_ty, [STAGES, FIRST, BK], lines)
    c_smem = b_smem
    if BN == 192:
        c_smem = gl.allocate_shared_memory(w.dtype.element_ty, [STAGES, 64, BK], lines)
    if BLOCKS:
        ones: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
        s_smem = gl.allocate_shared_memory(gl.float32, [STAGES, BM], ones)
        t_smem = gl.allocate_shared_memory(gl.float32, [STAGES, 2], ones)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    turn = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(turn, count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=2)
        mbarrier.init(empty.index(i), count=2)
    buffers = (None, None)
    if STAGED:
        pairs: gl.constexpr = gl.NVMMASharedLayout(
            swizzle_byte_width=128, element_bitwidth=16, rank=2
        )
        wide = gl.allocate_shared_memory(out.dtype.element_ty, [2, 64, 128], pairs)
        buffers = (wide, wide)
        if BN == 192:
            half = gl.allocate_shared_memory(out.dtype.element_ty, [2, 64, 64], pairs)
            buffers = (wide, half)
    tiles_m = gl.cdiv(M, BM)
    scales = (x_scale, w_scale, stride_sm, stride_sk, stride_tn, stride_tk)
    if BLOCKS:
        ring = (a_smem, b_smem, c_smem, s_smem, t_smem, full, empty, turn)
    else:
        ring = (a_smem, b_smem, c_smem, None, None, full, empty, turn)
    epilogue = (bias, residual, out, stride_rm, stride_om)
    gl.warp_specialize(
        [
            (_consumer, (ring, epilogue, scales, buffers, M, N, K, tiles_m, strips,
                         0, BM, BN, STAGES, PROMOTE, SKEW, STAGED, GROUP_M, ACTIVATION,
                         BLOCKS, X_SCALE, W_SCALE)),
            (_consumer, (ring, epilogue, scales, buffers, M, N, K, tiles_m, strips,
                         64, BM, BN, STAGES, PROMOTE, SKEW, STAGED, GROUP_M, ACTIVATION,
                         BLOCKS, X_SCALE, W_SCALE)),
            (_producer, (x, None, scales, ring, M, N, K, stride_xm, tiles_m, strips,
                         BM, BK, BN, STAGES, GROUP_M)),
            (_producer, (None, w, scales, ring, M, N, K, stride_wn, tiles_m, strips,
                         BM, BK, BN, STAGES, GROUP_M)),
        ],
        [4, 1, 1],
        [232 if BLOCKS else 240, 40 if BLOCKS else 24, 24],
    )  # fmt: skip

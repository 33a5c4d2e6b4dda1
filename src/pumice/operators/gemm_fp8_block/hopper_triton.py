# mypy: ignore-errors
"""Block-scaled 8-bit floats on Hopper, in Gluon: one warp loads, two groups of four multiply.

Every block of K leaves the matrix unit and is scaled into a total by the vector unit. That hides
behind a multiplication: of the same group where registers are enough for a second set of sums
(tiles of 128 and 192 columns), else of the other group, which starts half a block later (256).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from pumice.operators.gemm.hopper_triton import after, load_tile, narrow_of, store_tile, tile_of


@gluon.jit
def _start(a_smem, b_smem, sums, stage, ROW: gl.constexpr, COLUMNS: gl.constexpr):
    """Multiplies a block of K, of 64 rows and COLUMNS columns, into a set of sums."""
    a = a_smem.index(stage).slice(ROW, 64, dim=0)
    b = b_smem.index(stage).slice(0, COLUMNS, dim=0).permute((1, 0))
    return warpgroup_mma(a, b, sums, use_acc=False, is_async=True)


@gluon.jit
def _lines(x_scale, w_scale, row0, col0, M, N, stride_sm, stride_tn, LAYOUT: gl.constexpr):
    """Where the scales of 64 rows of x, and of a block of rows of w, begin."""
    rows = gl.minimum(row0 + gl.arange(0, 64, gl.SliceLayout(1, LAYOUT)), M - 1).to(gl.int64)
    return x_scale + rows * stride_sm, w_scale + (gl.minimum(col0, N - 1) // 128) * stride_tn


@gluon.jit
def _multiply_128(
    x_scale, w_scale, bias, residual, out, a_smem, b_smem, full, empty, row0, col0, M, N, K,
    stride_sm, stride_sk, stride_tn, stride_tk, stride_rm, stride_om, stage, phase,
    ROW: gl.constexpr, STAGES: gl.constexpr, ACTIVATION: gl.constexpr,
):  # fmt: skip
    """128 columns: two sets of sums in turns, one being added while the other fills."""
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 32])
    s_at, t_at = _lines(x_scale, w_scale, row0, col0, M, N, stride_sm, stride_tn, mma)
    last = gl.cdiv(K, 128) - 1
    after0 = gl.minimum(1, last)
    r0 = gl.load(s_at) * gl.load(t_at)
    r1 = gl.load(s_at + after0 * stride_sk) * gl.load(t_at + after0 * stride_tk)
    acc = gl.zeros([64, 128], gl.float32, mma)
    sums1 = acc
    mbarrier.wait(full.index(stage), phase)
    sums0 = _start(a_smem, b_smem, acc, stage, ROW, 128)
    sums0 = warpgroup_mma_wait(0, deps=(sums0,))
    for block in range(0, last - 1, 2):
        before = empty.index(stage)
        stage, phase = after(stage, phase, STAGES)
        mbarrier.wait(full.index(stage), phase)
        sums1 = _start(a_smem, b_smem, sums1, stage, ROW, 128)
        mbarrier.arrive(before, count=1)
        acc += sums0 * r0[:, None]
        next0 = block + 2
        next1 = gl.minimum(block + 3, last)
        s0 = gl.load(s_at + next0 * stride_sk)
        t0 = gl.load(t_at + next0 * stride_tk)
        s1 = gl.load(s_at + next1 * stride_sk)
        t1 = gl.load(t_at + next1 * stride_tk)
        # Waits for nothing that runs: it keeps the compiler from moving the additions further
        # down, behind the next multiplication into the same registers.
        acc, sums0 = warpgroup_mma_wait(1, deps=(acc, sums0))
        before = empty.index(stage)
        stage, phase = after(stage, phase, STAGES)
        mbarrier.wait(full.index(stage), phase)
        sums0 = _start(a_smem, b_smem, sums0, stage, ROW, 128)
        sums1 = warpgroup_mma_wait(1, deps=(sums1,))
        mbarrier.arrive(before, count=1)
        acc += sums1 * r1[:, None]
        acc, sums1 = warpgroup_mma_wait(1, deps=(acc, sums1))
        r0 = s0 * t0
        r1 = s1 * t1
        sums0 = warpgroup_mma_wait(0, deps=(sums0,))
    before = empty.index(stage)
    stage, phase = after(stage, phase, STAGES)
    if last % 2 == 1:
        mbarrier.wait(full.index(stage), phase)
        sums1 = _start(a_smem, b_smem, sums1, stage, ROW, 128)
        mbarrier.arrive(before, count=1)
        acc += sums0 * r0[:, None]
        acc, sums0 = warpgroup_mma_wait(1, deps=(acc, sums0))
        sums1 = warpgroup_mma_wait(0, deps=(sums1,))
        mbarrier.arrive(empty.index(stage), count=1)
        stage, phase = after(stage, phase, STAGES)
        acc += sums1 * r1[:, None]
    else:
        mbarrier.arrive(before, count=1)
        acc += sums0 * r0[:, None]
    store_tile(acc, bias, residual, out, row0, col0, M, N, stride_rm, stride_om, ACTIVATION)
    return stage, phase


@gluon.jit
def _multiply_192(
    x_scale, w_scale, bias, residual, out, a_smem, b_smem, c_smem, full, empty,
    row0, col0, more0, M, N, K,
    stride_sm, stride_sk, stride_tn, stride_tk, stride_rm, stride_om, stage, phase,
    ROW: gl.constexpr, STAGES: gl.constexpr, ACTIVATION: gl.constexpr,
):  # fmt: skip
    """128 columns from col0 on and 64 from more0 on: each part's sums are added while the other's
    fill."""
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 32])
    half: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 32])
    s_at, t0_at = _lines(x_scale, w_scale, row0, col0, M, N, stride_sm, stride_tn, mma)
    s_at, t1_at = _lines(x_scale, w_scale, row0, more0, M, N, stride_sm, stride_tn, mma)
    s = gl.load(s_at)
    t0 = gl.load(t0_at)
    t1 = gl.load(t1_at)
    last = gl.cdiv(K, 128) - 1
    acc = gl.zeros([64, 128], gl.float32, mma)
    more = gl.zeros([64, 64], gl.float32, half)
    few = more
    mbarrier.wait(full.index(stage), phase)
    sums = _start(a_smem, b_smem, acc, stage, ROW, 128)
    sums = warpgroup_mma_wait(0, deps=(sums,))
    for block in range(1, last + 1):
        few = _start(a_smem, c_smem, few, stage, ROW, 64)
        s_ahead = gl.load(s_at + block * stride_sk)
        t0_ahead = gl.load(t0_at + block * stride_tk)
        t1_ahead = gl.load(t1_at + block * stride_tk)
        acc += sums * (s * t0)[:, None]
        # As in `_multiply_128`.
        acc, sums = warpgroup_mma_wait(1, deps=(acc, sums))
        r = gl.convert_layout(s * t1, gl.SliceLayout(1, half))
        before = empty.index(stage)
        stage, phase = after(stage, phase, STAGES)
        mbarrier.wait(full.index(stage), phase)
        sums = _start(a_smem, b_smem, sums, stage, ROW, 128)
        few = warpgroup_mma_wait(1, deps=(few,))
        mbarrier.arrive(before, count=1)
        more += few * r[:, None]
        s = s_ahead
        t0 = t0_ahead
        t1 = t1_ahead
        sums, few, more = warpgroup_mma_wait(0, deps=(sums, few, more))
    few = _start(a_smem, c_smem, few, stage, ROW, 64)
    acc += sums * (s * t0)[:, None]
    acc, sums = warpgroup_mma_wait(1, deps=(acc, sums))
    few = warpgroup_mma_wait(0, deps=(few,))
    mbarrier.arrive(empty.index(stage), count=1)
    stage, phase = after(stage, phase, STAGES)
    more += few * gl.convert_layout(s * t1, gl.SliceLayout(1, half))[:, None]
    store_tile(acc, bias, residual, out, row0, col0, M, N, stride_rm, stride_om, ACTIVATION)
    store_tile(more, bias, residual, out, row0, more0, M, N, stride_rm, stride_om, ACTIVATION)
    return stage, phase


@gluon.jit
def _multiply_256(
    x_scale, w_scale, bias, residual, out, a_smem, b_smem, full, empty, turn, row0, col0, M, N, K,
    stride_sm, stride_sk, stride_tn, stride_tk, stride_rm, stride_om, stage, phase, turn_phase,
    ROW: gl.constexpr, STAGES: gl.constexpr, ACTIVATION: gl.constexpr,
):  # fmt: skip
    """256 columns: two halves, which share one set of sums. The second group starts a tile when the
    first one's first half is multiplied: then one adds while the other multiplies. With fewer
    blocks than buffers the first could be two tiles ahead, and they do without."""
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 32])
    s_at, t0_at = _lines(x_scale, w_scale, row0, col0, M, N, stride_sm, stride_tn, mma)
    s_at, t1_at = _lines(x_scale, w_scale, row0, col0 + 128, M, N, stride_sm, stride_tn, mma)
    s = gl.load(s_at)
    t0 = gl.load(t0_at)
    t1 = gl.load(t1_at)
    last = gl.cdiv(K, 128) - 1
    zero = gl.zeros([64, 128], gl.float32, mma)
    acc0 = zero
    acc1 = zero
    if ROW > 0:
        mbarrier.wait(turn, turn_phase, pred=last + 1 >= STAGES)
        turn_phase ^= 1
    for block in range(0, last + 1):
        mbarrier.wait(full.index(stage), phase)
        a = a_smem.index(stage).slice(ROW, 64, dim=0)
        b = b_smem.index(stage)
        sums = warpgroup_mma(
            a, b.slice(0, 128, dim=0).permute((1, 0)), zero, use_acc=False, is_async=True
        )
        ahead = gl.minimum(block + 1, last)
        s_ahead = gl.load(s_at + ahead * stride_sk)
        t0_ahead = gl.load(t0_at + ahead * stride_tk)
        t1_ahead = gl.load(t1_at + ahead * stride_tk)
        sums = warpgroup_mma_wait(0, deps=(sums,))
        if ROW == 0:
            mbarrier.arrive(turn, count=1, pred=(block == 0) & (last + 1 >= STAGES))
        acc0 += sums * (s * t0)[:, None]
        # As in `_multiply_128`.
        acc0, sums = warpgroup_mma_wait(0, deps=(acc0, sums))
        sums = warpgroup_mma(
            a, b.slice(128, 128, dim=0).permute((1, 0)), sums, use_acc=False, is_async=True
        )
        sums = warpgroup_mma_wait(0, deps=(sums,))
        mbarrier.arrive(empty.index(stage), count=1)
        acc1 += sums * (s * t1)[:, None]
        s = s_ahead
        t0 = t0_ahead
        t1 = t1_ahead
        stage, phase = after(stage, phase, STAGES)
    store_tile(acc0, bias, residual, out, row0, col0, M, N, stride_rm, stride_om, ACTIVATION)
    store_tile(acc1, bias, residual, out, row0, col0 + 128, M, N, stride_rm, stride_om, ACTIVATION)
    return stage, phase, turn_phase


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
    return col0, more0


@gluon.jit
def _producer(
    x, w, a_smem, b_smem, c_smem, full, empty, N, K, tiles_m, strips,
    BN: gl.constexpr, STAGES: gl.constexpr, GROUP_M: gl.constexpr,
):  # fmt: skip
    BM: gl.constexpr = x.block_shape[0]
    stage = 0
    phase = 1
    for tile in range(gl.program_id(0), tiles_m * strips, gl.num_programs(0)):
        tile_m, tile_n = tile_of(tile, tiles_m, strips, GROUP_M)
        col0, more0 = _parts(tile_n, BN)
        stage, phase = load_tile(
            x, w, a_smem, b_smem, c_smem, full, empty, tile_m * BM, col0, more0, K, stage, phase,
            128 if BN == 192 else BN, 64 if BN == 192 else 0, STAGES,
        )  # fmt: skip
    if BN > 128:
        first, count, across = narrow_of(tiles_m, strips, N, BN)
        for tile in range(first, count, gl.num_programs(0)):
            tile_m, tile_n = tile_of(tile, tiles_m, across, GROUP_M)
            stage, phase = load_tile(
                x, w, a_smem, b_smem, c_smem, full, empty,
                tile_m * BM, strips * BN + tile_n * 128, 0, K, stage, phase, 128, 0, STAGES,
            )  # fmt: skip


@gluon.jit
def _consumer(
    x_scale, w_scale, bias, residual, out, a_smem, b_smem, c_smem, full, empty, turn, M, N, K,
    stride_sm, stride_sk, stride_tn, stride_tk, stride_rm, stride_om, tiles_m, strips,
    ROW: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr,
    GROUP_M: gl.constexpr, ACTIVATION: gl.constexpr,
):  # fmt: skip
    stage = 0
    phase = 0
    turn_phase = 0
    for tile in range(gl.program_id(0), tiles_m * strips, gl.num_programs(0)):
        tile_m, tile_n = tile_of(tile, tiles_m, strips, GROUP_M)
        row0 = tile_m * BM + ROW
        col0, more0 = _parts(tile_n, BN)
        if BN == 256:
            stage, phase, turn_phase = _multiply_256(
                x_scale, w_scale, bias, residual, out, a_smem, b_smem, full, empty, turn,
                row0, col0, M, N, K, stride_sm, stride_sk, stride_tn, stride_tk,
                stride_rm, stride_om, stage, phase, turn_phase, ROW, STAGES, ACTIVATION,
            )  # fmt: skip
        elif BN == 192:
            stage, phase = _multiply_192(
                x_scale, w_scale, bias, residual, out, a_smem, b_smem, c_smem, full, empty,
                row0, col0, more0, M, N, K, stride_sm, stride_sk, stride_tn, stride_tk,
                stride_rm, stride_om, stage, phase, ROW, STAGES, ACTIVATION,
            )  # fmt: skip
        else:
            stage, phase = _multiply_128(
                x_scale, w_scale, bias, residual, out, a_smem, b_smem, full, empty,
                row0, col0, M, N, K, stride_sm, stride_sk, stride_tn, stride_tk,
                stride_rm, stride_om, stage, phase, ROW, STAGES, ACTIVATION,
            )  # fmt: skip
    if BN > 128:
        first, count, across = narrow_of(tiles_m, strips, N, BN)
        for tile in range(first, count, gl.num_programs(0)):
            tile_m, tile_n = tile_of(tile, tiles_m, across, GROUP_M)
            stage, phase = _multiply_128(
                x_scale, w_scale, bias, residual, out, a_smem, b_smem, full, empty,
                tile_m * BM + ROW, strips * BN + tile_n * 128, M, N, K,
                stride_sm, stride_sk, stride_tn, stride_tk, stride_rm, stride_om, stage, phase,
                ROW, STAGES, ACTIVATION,
            )  # fmt: skip


@gluon.jit
def fp8_block_specialized(
    x, w, x_scale, w_scale, bias, residual, out, M, N, K,
    stride_xm, stride_wn, stride_sm, stride_sk, stride_tn, stride_tk, stride_rm, stride_om, strips,
    BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, STAGES: gl.constexpr,
    GROUP_M: gl.constexpr, ACTIVATION: gl.constexpr,
):  # fmt: skip
    """As `gemm_specialized`, of 8-bit floats with scales [M, K/128] and [N/128, K/128]; BK is 128.
    Of tiles of 192 columns there is an even number of strips, or nothing else."""
    ROWS: gl.constexpr = 64 if BN == 192 else 128
    FIRST: gl.constexpr = 128 if BN == 192 else BN
    lines: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=8, rank=2)
    a_smem = gl.allocate_shared_memory(x.dtype.element_ty, [STAGES, BM, BK], lines)
    b_smem = gl.allocate_shared_memory(w.dtype.element_ty, [STAGES, FIRST, BK], lines)
    c_smem = b_smem
    if BN == 192:
        c_smem = gl.allocate_shared_memory(w.dtype.element_ty, [STAGES, 64, BK], lines)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    turn = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(turn, count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    x_rows = tma.make_tensor_descriptor(x, [M, K], [stride_xm, 1], [BM, BK], lines)
    w_rows = tma.make_tensor_descriptor(w, [N, K], [stride_wn, 1], [ROWS, BK], lines)
    tiles_m = gl.cdiv(M, BM)
    gl.warp_specialize(
        [
            (_consumer, (x_scale, w_scale, bias, residual, out, a_smem, b_smem, c_smem, full,
                         empty, turn, M, N, K, stride_sm, stride_sk, stride_tn, stride_tk,
                         stride_rm, stride_om, tiles_m, strips,
                         0, BM, BN, STAGES, GROUP_M, ACTIVATION)),
            (_consumer, (x_scale, w_scale, bias, residual, out, a_smem, b_smem, c_smem, full,
                         empty, turn, M, N, K, stride_sm, stride_sk, stride_tn, stride_tk,
                         stride_rm, stride_om, tiles_m, strips,
                         64, BM, BN, STAGES, GROUP_M, ACTIVATION)),
            (_producer, (x_rows, w_rows, a_smem, b_smem, c_smem, full, empty, N, K,
                         tiles_m, strips, BN, STAGES, GROUP_M)),
        ],
        [4, 1],
        [232, 40],
    )  # fmt: skip

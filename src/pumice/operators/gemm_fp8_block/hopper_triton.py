# mypy: ignore-errors
"""Block-scaled 8-bit floats on Hopper, in Gluon: one warp loads, two groups of four multiply.

Every block of K leaves the matrix unit and is scaled into a total by the vector unit. Each group
owns 64 rows of a tile and waits for nothing of the other's, so that one adds while the other
multiplies. A program goes through many tiles; the loads of the next start while one is stored.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from pumice.operators.gemm.common_triton import activate as _activate
from pumice.operators.gemm.common_triton import tile_of as _tile_of

activate = gluon.jit(_activate.fn)
tile_of = gluon.jit(_tile_of.fn)
# Named so from Triton 3.8 on.
async_load = getattr(tma, "async_load", tma.async_copy_global_to_shared)


@gluon.jit
def _next(stage, phase, STAGES: gl.constexpr):
    """The buffer after one, and the parity of its barriers."""
    stage += 1
    if stage == STAGES:
        stage = 0
        phase ^= 1
    return stage, phase


@gluon.jit
def _load_tile(
    x, w, a_smem, b_smem, full, empty, row0, col0, K, stage, phase,
    COLUMNS: gl.constexpr, BM: gl.constexpr, BK: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    for k in range(0, K, BK):
        mbarrier.wait(empty.index(stage), phase)
        mbarrier.expect(full.index(stage), (BM + COLUMNS) * BK)
        async_load(x, [row0, k], full.index(stage), a_smem.index(stage))
        for part in gl.static_range(COLUMNS // 128):
            async_load(
                w, [col0 + part * 128, k], full.index(stage),
                b_smem.index(stage).slice(part * 128, 128, dim=0),
            )  # fmt: skip
        stage, phase = _next(stage, phase, STAGES)
    return stage, phase


@gluon.jit
def _producer(
    x, w, a_smem, b_smem, full, empty, K, tiles_m, tiles_n, whole,
    BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, STAGES: gl.constexpr,
    GROUP_M: gl.constexpr,
):  # fmt: skip
    stage = 0
    phase = 1
    for tile in range(gl.program_id(0), whole, gl.num_programs(0)):
        tile_m, tile_n = tile_of(tile, tiles_m, tiles_n, GROUP_M)
        stage, phase = _load_tile(
            x, w, a_smem, b_smem, full, empty, tile_m * BM, tile_n * BN, K, stage, phase,
            BN, BM, BK, STAGES,
        )  # fmt: skip
    if BN == 256:
        rest = (tiles_m * tiles_n - whole) * 2
        for half in range(gl.program_id(0), rest, gl.num_programs(0)):
            tile_m, tile_n = tile_of(whole + half // 2, tiles_m, tiles_n, GROUP_M)
            col0 = tile_n * BN + half % 2 * 128
            stage, phase = _load_tile(
                x, w, a_smem, b_smem, full, empty, tile_m * BM, col0, K, stage, phase,
                128, BM, BK, STAGES,
            )  # fmt: skip


@gluon.jit
def _store(
    y, bias, residual, out, row0, col0, M, N, stride_rm, stride_om, ACTIVATION: gl.constexpr
):
    """The epilogue of 64 rows and 128 columns."""
    # A lane stores eight neighbours: the four lanes that share a row trade what they hold.
    wide: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [0, 32], [0, 64], [8, 0]],
        [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]], [], [64, 128],
    )  # fmt: skip
    if bias is not None:
        near = col0 + gl.arange(0, 128, gl.SliceLayout(0, y.type.layout))
        y += gl.load(bias + near, mask=near < N, other=0.0).to(gl.float32)[None, :]
    y = activate(y, ACTIVATION)
    rows = row0 + gl.arange(0, 64, gl.SliceLayout(1, wide))
    cols = col0 + gl.arange(0, 128, gl.SliceLayout(0, wide))
    mask = (rows < M)[:, None] & (cols < N)[None, :]
    far = rows.to(gl.int64)[:, None]
    if residual is None:
        y = gl.convert_layout(y.to(out.dtype.element_ty), wide)
    else:
        y = gl.convert_layout(y, wide)
        at = residual + far * stride_rm + cols[None, :]
        y = (y + gl.load(at, mask=mask, other=0.0).to(gl.float32)).to(out.dtype.element_ty)
    gl.store(out + far * stride_om + cols[None, :], y, mask=mask)


@gluon.jit
def _multiply_tile(
    x_scale, w_scale, bias, residual, out, a_smem, b_smem, full, empty, row0, col0, M, N, K,
    stride_sm, stride_sk, stride_tn, stride_tk, stride_rm, stride_om, stage, phase,
    ROW: gl.constexpr, COLUMNS: gl.constexpr, BK: gl.constexpr, STAGES: gl.constexpr,
    ACTIVATION: gl.constexpr,
):  # fmt: skip
    """64 rows and COLUMNS columns, 128 or 256: two halves, which share the matrix unit's sums."""
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 32])
    zero = gl.zeros([64, 128], gl.float32, mma)
    own = gl.arange(0, 64, gl.SliceLayout(1, mma))
    s_at = x_scale + gl.minimum(row0 + own, M - 1).to(gl.int64) * stride_sm
    t0_at = w_scale + (col0 // 128) * stride_tn
    t1_at = w_scale + (gl.minimum(col0 + COLUMNS - 128, N - 1) // 128) * stride_tn
    s = gl.load(s_at)
    t0 = gl.load(t0_at)
    t1 = gl.load(t1_at)
    acc0 = zero
    acc1 = zero
    last = gl.cdiv(K, BK) - 1
    for block in range(0, last + 1):
        mbarrier.wait(full.index(stage), phase)
        a = a_smem.index(stage).slice(ROW, 64, dim=0)
        b = b_smem.index(stage)
        sums = warpgroup_mma(
            a, b.slice(0, 128, dim=0).permute((1, 0)), zero, use_acc=False, is_async=True
        )
        # Scales are read one block ahead.
        ahead = gl.minimum(block + 1, last)
        s_ahead = gl.load(s_at + ahead * stride_sk)
        t0_ahead = gl.load(t0_at + ahead * stride_tk)
        t1_ahead = gl.load(t1_at + ahead * stride_tk)
        sums = warpgroup_mma_wait(0, deps=(sums,))
        if COLUMNS == 128:
            mbarrier.arrive(empty.index(stage), count=1)
        acc0 += sums * (s * t0)[:, None]
        if COLUMNS == 256:
            # Nothing to wait for: it keeps the compiler from moving additions behind the next
            # multiplication, which would need registers of its own.
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
        stage, phase = _next(stage, phase, STAGES)
    _store(acc0, bias, residual, out, row0, col0, M, N, stride_rm, stride_om, ACTIVATION)
    if COLUMNS == 256:
        _store(acc1, bias, residual, out, row0, col0 + 128, M, N, stride_rm, stride_om, ACTIVATION)
    return stage, phase


@gluon.jit
def _consumer(
    x_scale, w_scale, bias, residual, out, a_smem, b_smem, full, empty, M, N, K,
    stride_sm, stride_sk, stride_tn, stride_tk, stride_rm, stride_om, tiles_m, tiles_n, whole,
    ROW: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr,
    STAGES: gl.constexpr, GROUP_M: gl.constexpr, ACTIVATION: gl.constexpr,
):  # fmt: skip
    stage = 0
    phase = 0
    for tile in range(gl.program_id(0), whole, gl.num_programs(0)):
        tile_m, tile_n = tile_of(tile, tiles_m, tiles_n, GROUP_M)
        stage, phase = _multiply_tile(
            x_scale, w_scale, bias, residual, out, a_smem, b_smem, full, empty,
            tile_m * BM + ROW, tile_n * BN, M, N, K,
            stride_sm, stride_sk, stride_tn, stride_tk, stride_rm, stride_om, stage, phase,
            ROW, BN, BK, STAGES, ACTIVATION,
        )  # fmt: skip
    if BN == 256:
        rest = (tiles_m * tiles_n - whole) * 2
        for half in range(gl.program_id(0), rest, gl.num_programs(0)):
            tile_m, tile_n = tile_of(whole + half // 2, tiles_m, tiles_n, GROUP_M)
            stage, phase = _multiply_tile(
                x_scale, w_scale, bias, residual, out, a_smem, b_smem, full, empty,
                tile_m * BM + ROW, tile_n * BN + half % 2 * 128, M, N, K,
                stride_sm, stride_sk, stride_tn, stride_tk, stride_rm, stride_om, stage, phase,
                ROW, 128, BK, STAGES, ACTIVATION,
            )  # fmt: skip


@gluon.jit
def fp8_block_specialized(
    x, w, x_scale, w_scale, bias, residual, out, M, N, K,
    stride_xm, stride_wn, stride_sm, stride_sk, stride_tn, stride_tk, stride_rm, stride_om, whole,
    BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, STAGES: gl.constexpr,
    GROUP_M: gl.constexpr, ACTIVATION: gl.constexpr,
):  # fmt: skip
    """x [M, K], w [N, K] in 8-bit floats, x_scale [M, K/128], w_scale [N/128, K/128] as in
    `fp8_tile`. BM and BK are 128, BN 128 or 256. The first `whole` tiles are done whole, others in
    two halves of 128 columns."""
    lines: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=8, rank=2)
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
    tiles_n = gl.cdiv(N, BN)
    gl.warp_specialize(
        [
            (_consumer, (x_scale, w_scale, bias, residual, out, a_smem, b_smem, full, empty,
                         M, N, K, stride_sm, stride_sk, stride_tn, stride_tk, stride_rm, stride_om,
                         tiles_m, tiles_n, whole, 0, BM, BN, BK, STAGES, GROUP_M, ACTIVATION)),
            (_consumer, (x_scale, w_scale, bias, residual, out, a_smem, b_smem, full, empty,
                         M, N, K, stride_sm, stride_sk, stride_tn, stride_tk, stride_rm, stride_om,
                         tiles_m, tiles_n, whole, 64, BM, BN, BK, STAGES, GROUP_M, ACTIVATION)),
            (_producer, (x_rows, w_rows, a_smem, b_smem, full, empty, K, tiles_m, tiles_n, whole,
                         BM, BN, BK, STAGES, GROUP_M)),
        ],
        [4, 1],
        [232, 40],
    )  # fmt: skip

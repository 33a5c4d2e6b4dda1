# mypy: ignore-errors
"""Dense products on Hopper, in Gluon: one warp loads, two groups of four multiply.

A program goes through many tiles. The warp that loads runs ahead through a ring of buffers, into
the next tile while one is stored. Each group that multiplies owns 64 rows of a tile.
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
from pumice.operators.triton.gluon_names_triton import async_load

activate = gluon.jit(_activate.fn)
tile_of = gluon.jit(_tile_of.fn)


@gluon.jit
def begin_early(EARLY: gl.constexpr):
    """A programmatic launch: begun before the launch in front has ended, whose results are waited
    for here. Descriptors come after, as that launch may read its own in the same memory."""
    if EARLY:
        gl.inline_asm_elementwise(
            "griddepcontrol.wait; griddepcontrol.launch_dependents; // $0",
            "=r", [], dtype=gl.int32, is_pure=False, pack=1,
        )  # fmt: skip


@gluon.jit
def after(stage, phase, STAGES: gl.constexpr):
    """The buffer after one, and the parity of its barriers."""
    stage += 1
    if stage == STAGES:
        stage = 0
        phase ^= 1
    return stage, phase


@gluon.jit
def load_tile(
    x, w, a_smem, b_smem, c_smem, full, empty, row0, col0, more0, K, stage, phase,
    COLUMNS: gl.constexpr, MORE: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Fills buffers with a tile's rows of x and w, a block of K each: COLUMNS rows of w from
    col0 on into b_smem, MORE from more0 on into c_smem."""
    BM: gl.constexpr = x.block_shape[0]
    BK: gl.constexpr = x.block_shape[1]
    ROWS: gl.constexpr = w.block_shape[0]
    BYTES: gl.constexpr = (BM + COLUMNS + MORE) * BK * x.dtype.primitive_bitwidth // 8
    for k in range(0, K, BK):
        bar = full.index(stage)
        mbarrier.wait(empty.index(stage), phase)
        mbarrier.expect(bar, BYTES)
        async_load(x, [row0, k], bar, a_smem.index(stage))
        for part in gl.static_range(0, COLUMNS, ROWS):
            async_load(w, [col0 + part, k], bar, b_smem.index(stage).slice(part, ROWS, dim=0))
        for part in gl.static_range(0, MORE, ROWS):
            async_load(w, [more0 + part, k], bar, c_smem.index(stage).slice(part, ROWS, dim=0))
        stage, phase = after(stage, phase, STAGES)
    return stage, phase


@gluon.jit
def store_tile(
    y, bias, residual, out, row0, col0, M, N, stride_rm, stride_om, ACTIVATION: gl.constexpr
):
    """The epilogue of one group's rows: bias, activation, residual, rounding, a masked store."""
    PW: gl.constexpr = y.shape[1]
    # A lane stores eight neighbours: the four lanes that share a row trade what they hold.
    wide: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [0, 32]] + ([[0, 64]] if PW >= 128 else [])
        + ([[0, 128]] if PW >= 256 else []) + [[8, 0]],
        [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]], [], [64, PW],
    )  # fmt: skip
    if bias is not None:
        near = col0 + gl.arange(0, PW, gl.SliceLayout(0, y.type.layout))
        y += gl.load(bias + near, mask=near < N, other=0.0).to(gl.float32)[None, :]
    y = activate(y, ACTIVATION)
    rows = row0 + gl.arange(0, 64, gl.SliceLayout(1, wide))
    cols = col0 + gl.arange(0, PW, gl.SliceLayout(0, wide))
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
def narrow_of(tiles_m, strips, N, WIDE: gl.constexpr):
    """Narrow tiles right of the wide ones: the program's first, how many there are, how many in a
    row of them. They go on where the round of wide ones ended."""
    programs = gl.num_programs(0)
    across = gl.maximum(gl.cdiv(N - strips * WIDE, 128), 0)
    first = (gl.program_id(0) + programs - tiles_m * strips % programs) % programs
    return first, tiles_m * across, across


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
        stage, phase = load_tile(
            x, w, a_smem, b_smem, c_smem, full, empty,
            tile_m * BM, tile_n * BN, tile_n * BN + 128, K, stage, phase,
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
def _multiply_tile(
    bias, residual, out, a_smem, b_smem, c_smem, full, empty, row0, col0, M, N, K,
    stride_rm, stride_om, stage, phase,
    ROW: gl.constexpr, COLUMNS: gl.constexpr, MORE: gl.constexpr, STAGES: gl.constexpr,
    ACTIVATION: gl.constexpr,
):  # fmt: skip
    BK: gl.constexpr = a_smem.shape[2]
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    acc = gl.zeros([64, COLUMNS], gl.float32, mma)
    if MORE:
        more = gl.zeros(
            [64, MORE], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, MORE, 16])
        )
    for k in range(0, K, BK):
        mbarrier.wait(full.index(stage), phase)
        a = a_smem.index(stage).slice(ROW, 64, dim=0)
        b = b_smem.index(stage).slice(0, COLUMNS, dim=0)
        acc = warpgroup_mma(a, b.permute((1, 0)), acc, is_async=True)
        if MORE:
            more = warpgroup_mma(a, c_smem.index(stage).permute((1, 0)), more, is_async=True)
            acc, more = warpgroup_mma_wait(2, deps=(acc, more))
        else:
            acc = warpgroup_mma_wait(1, deps=(acc,))
        # The block before this one is multiplied: its buffer is free.
        mbarrier.arrive(empty.index((stage + STAGES - 1) % STAGES), count=1, pred=k > 0)
        stage, phase = after(stage, phase, STAGES)
    acc = warpgroup_mma_wait(0, deps=(acc,))
    if MORE:
        more = warpgroup_mma_wait(0, deps=(more,))
    mbarrier.arrive(empty.index((stage + STAGES - 1) % STAGES), count=1)
    store_tile(acc, bias, residual, out, row0, col0, M, N, stride_rm, stride_om, ACTIVATION)
    if MORE:
        store_tile(
            more, bias, residual, out, row0, col0 + COLUMNS, M, N, stride_rm, stride_om, ACTIVATION
        )
    return stage, phase


@gluon.jit
def _consumer(
    bias, residual, out, a_smem, b_smem, c_smem, full, empty, M, N, K, stride_rm, stride_om,
    tiles_m, strips,
    ROW: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr,
    GROUP_M: gl.constexpr, ACTIVATION: gl.constexpr,
):  # fmt: skip
    stage = 0
    phase = 0
    for tile in range(gl.program_id(0), tiles_m * strips, gl.num_programs(0)):
        tile_m, tile_n = tile_of(tile, tiles_m, strips, GROUP_M)
        stage, phase = _multiply_tile(
            bias, residual, out, a_smem, b_smem, c_smem, full, empty,
            tile_m * BM + ROW, tile_n * BN, M, N, K, stride_rm, stride_om, stage, phase,
            ROW, 128 if BN == 192 else BN, 64 if BN == 192 else 0, STAGES, ACTIVATION,
        )  # fmt: skip
    if BN > 128:
        first, count, across = narrow_of(tiles_m, strips, N, BN)
        for tile in range(first, count, gl.num_programs(0)):
            tile_m, tile_n = tile_of(tile, tiles_m, across, GROUP_M)
            stage, phase = _multiply_tile(
                bias, residual, out, a_smem, b_smem, c_smem, full, empty,
                tile_m * BM + ROW, strips * BN + tile_n * 128, M, N, K,
                stride_rm, stride_om, stage, phase, ROW, 128, 0, STAGES, ACTIVATION,
            )  # fmt: skip


@gluon.jit
def gemm_specialized(
    x, w, bias, residual, out, M, N, K, stride_xm, stride_wn, stride_rm, stride_om, strips,
    BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, STAGES: gl.constexpr,
    GROUP_M: gl.constexpr, EARLY: gl.constexpr, ACTIVATION: gl.constexpr,
):  # fmt: skip
    """x [M, K], w [N, K] in 16-bit floats. BM is 128, BK 64, BN 128, 192 or 256. From the left,
    `strips` times BN columns are done in tiles of BN, the rest in tiles of 128."""
    begin_early(EARLY)
    ROWS: gl.constexpr = 64 if BN == 192 else 128
    FIRST: gl.constexpr = 128 if BN == 192 else BN
    lines: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    a_smem = gl.allocate_shared_memory(x.dtype.element_ty, [STAGES, BM, BK], lines)
    b_smem = gl.allocate_shared_memory(w.dtype.element_ty, [STAGES, FIRST, BK], lines)
    c_smem = b_smem
    if BN == 192:
        c_smem = gl.allocate_shared_memory(w.dtype.element_ty, [STAGES, 64, BK], lines)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    x_rows = tma.make_tensor_descriptor(x, [M, K], [stride_xm, 1], [BM, BK], lines)
    w_rows = tma.make_tensor_descriptor(w, [N, K], [stride_wn, 1], [ROWS, BK], lines)
    tiles_m = gl.cdiv(M, BM)
    gl.warp_specialize(
        [
            (_consumer, (bias, residual, out, a_smem, b_smem, c_smem, full, empty, M, N, K,
                         stride_rm, stride_om, tiles_m, strips,
                         0, BM, BN, STAGES, GROUP_M, ACTIVATION)),
            (_consumer, (bias, residual, out, a_smem, b_smem, c_smem, full, empty, M, N, K,
                         stride_rm, stride_om, tiles_m, strips,
                         64, BM, BN, STAGES, GROUP_M, ACTIVATION)),
            (_producer, (x_rows, w_rows, a_smem, b_smem, c_smem, full, empty, N, K,
                         tiles_m, strips, BN, STAGES, GROUP_M)),
        ],
        [4, 1],
        [232, 40],
    )  # fmt: skip

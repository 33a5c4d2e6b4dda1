# mypy: ignore-errors
"""Products of all experts of a mixture on Hopper, in Gluon: some warps load, two groups of four
multiply, with the tiles of `gemm_fp8_block/hopper_triton.py`. A tile's rows belong to one expert.

groups: (owners, order, entries): a tile's expert; the entry at a place, `entries` where there is
none. In a tile what there is lies before what there is not.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import async_copy, mbarrier, tma

from pumice.operators.flash_attention.hopper_tiles_triton import read_note, take_tile
from pumice.operators.gemm.hopper_triton import after, tile_of
from pumice.operators.gemm_fp8_block.hopper_results_triton import let_go
from pumice.operators.gemm_fp8_block.hopper_tiles_triton import multiply_256
from pumice.operators.gemm_fp8_block.hopper_whole_triton import multiply_whole
from pumice.operators.triton.gluon_names_triton import async_load, begin_copy


@gluon.jit
def _tell(notes, note, index):
    """Leaves note number `index` for those who multiply. There is room for two."""
    lane: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    numbers, told, heard = notes
    mbarrier.wait(heard.index(index % 2), index // 2 % 2 ^ 1)
    numbers.index(index % 2).store(gl.zeros([32], gl.int32, lane) + note)
    mbarrier.arrive(told.index(index % 2), count=1)


@gluon.jit
def _hear(notes, index):
    """Note number `index`."""
    numbers, told, heard = notes
    mbarrier.wait(told.index(index % 2), index // 2 % 2)
    note = read_note(numbers, index % 2)
    mbarrier.arrive(heard.index(index % 2), count=1)
    return note


@gluon.jit
def _gathered(
    groups, row0, stride, TOPK: gl.constexpr, BM: gl.constexpr, BK: gl.constexpr
):  # fmt: skip
    """Where a tile's rows begin in x, in elements [BM, BK], and which are there [BM, 1]: for four
    warps, 16 bytes a lane, eight lanes a row of a block of K, which has 128 bytes."""
    _, order, entries = groups
    wide: gl.constexpr = gl.BlockedLayout([1, BK // 8], [4, 8], [4, 1], [1, 0])
    found = gl.load(order + row0 + gl.arange(0, BM, gl.SliceLayout(1, wide)))
    tokens = gl.minimum(found, entries - 1) // TOPK
    at = tokens[:, None] * stride + gl.arange(0, BK, gl.SliceLayout(0, wide))[None, :]
    return at, (found < entries)[:, None]


@gluon.jit
def _load(
    x, stride_xm, w, scales, groups, ring, both, row0, col0, more0, last, K, stage, phase,
    STAGES: gl.constexpr, TOPK: gl.constexpr,
):  # fmt: skip
    """Fills buffers with a tile's rows of x, 128 of w from col0 on and, where there is room for
    them, 128 from more0 on, a block of K each, and with their scales. x: a descriptor of 64 rows,
    which a tile takes twice or, not `both`, once; TOPK: a pointer, and rows are gathered. last: of
    w's blocks of scales."""
    a_smem, b_smem, _, s_smem, t_smem, full, empty, _ = ring
    BM: gl.constexpr = a_smem.shape[1]
    BK: gl.constexpr = a_smem.shape[2]
    SCALES: gl.constexpr = s_smem is not None
    LINE: gl.constexpr = 128  # bytes of a row of a block of K
    OF_W: gl.constexpr = b_smem.shape[1]
    if TOPK:
        x_at, real = _gathered(groups, row0, stride_xm, TOPK, BM, BK)
    if SCALES:
        x_scale, w_scale, stride_sm, stride_sk, stride_tn, stride_tk = scales
        lane: gl.constexpr = gl.BlockedLayout([1], [32], [4 if TOPK else 1], [0])
        rows = row0 + gl.arange(0, BM, lane)
        if TOPK:
            rows = gl.minimum(gl.load(groups[1] + rows), groups[2] - 1) // TOPK
        parts = gl.minimum((col0 + (more0 - col0) * gl.arange(0, 2, lane)) // 128, last)
        s_at = x_scale + rows.to(gl.int64) * stride_sm
        t_at = w_scale + parts * stride_tn
    for k in range(0, K, BK):
        bar = full.index(stage)
        mbarrier.wait(empty.index(stage), phase)
        if SCALES:
            begin_copy(s_smem.index(stage), s_at)
            begin_copy(t_smem.index(stage), t_at)
            s_at += stride_sk
            t_at += stride_tk
        if TOPK:
            begin_copy(a_smem.index(stage), x + k + x_at, mask=real)
            async_copy.mbarrier_arrive(bar, increment_count=False)
            mbarrier.expect(bar, OF_W * LINE)
        else:
            if SCALES:
                async_copy.mbarrier_arrive(bar)
            mbarrier.expect(bar, (OF_W + BM) * LINE, pred=both)
            mbarrier.expect(bar, (OF_W + 64) * LINE, pred=both ^ True)
            async_load(x, [row0, k], bar, a_smem.index(stage).slice(0, 64, dim=0))
            rest = a_smem.index(stage).slice(64, 64, dim=0)
            async_load(x, [row0 + 64, k], bar, rest, pred=both)
        async_load(w, [col0, k], bar, b_smem.index(stage).slice(0, 128, dim=0))
        if OF_W > 128:
            async_load(w, [more0, k], bar, b_smem.index(stage).slice(128, 128, dim=0))
        stage, phase = after(stage, phase, STAGES)
    return stage, phase


@gluon.jit
def _producer(
    x, w, scales, groups, ring, notes, taken, M, N, K, stride_xm, experts, tiles_m, strips,
    STAGES: gl.constexpr, GROUP_M: gl.constexpr, GATED: gl.constexpr, TOPK: gl.constexpr,
):  # fmt: skip
    """The warps that load. Tiles are taken as programs come to them: those that run together are
    neighbours, whose rows of w then come from memory once. Programs that go through tiles of their
    own drift apart, over the tiles whose second half is empty."""
    owners, order, entries = groups
    BM: gl.constexpr = ring[0].shape[1]
    BK: gl.constexpr = ring[0].shape[2]
    lines: gl.constexpr = gl.NVMMASharedLayout(
        swizzle_byte_width=128, element_bitwidth=1024 // BK, rank=2
    )
    w_rows = tma.make_tensor_descriptor(w, [experts * N, K], [K, 1], [128, BK], lines)
    rows = x
    if not TOPK:
        rows = tma.make_tensor_descriptor(x, [M, K], [stride_xm, 1], [64, BK], lines)
    stage = 0
    phase = 1
    index = 0
    tile = gl.program_id(0)
    while tile < tiles_m * strips:
        tile_m, tile_n = tile_of(tile, tiles_m, strips, GROUP_M)
        both = gl.load(order + tile_m * BM + 64) < entries
        _tell(notes, tile * 2 + both.to(gl.int32), index)
        col0 = gl.load(owners + tile_m) * N + tile_n * (128 if GATED else ring[1].shape[1])
        stage, phase = _load(
            rows, stride_xm, w_rows, scales, groups, ring, both, tile_m * BM,
            col0, col0 + (N // 2 if GATED else 128), experts * N // 128 - 1, K, stage, phase,
            STAGES, TOPK,
        )  # fmt: skip
        tile = take_tile(taken)
        index += 1
    _tell(notes, -1, index)


@gluon.jit
def _consumer(
    ring, notes, out, out_scale, buffers, M, N, K, tiles_m, strips,
    ROW: gl.constexpr, STAGES: gl.constexpr, GROUP_M: gl.constexpr, ACTIVATION: gl.constexpr,
    GATED: gl.constexpr, GATHERED: gl.constexpr,
):  # fmt: skip
    """A group of four warps, which multiplies the 64 rows of every tile from ROW on."""
    a_smem, b_smem, _, s_smem, _, full, empty, _ = ring
    BM: gl.constexpr = a_smem.shape[1]
    BK: gl.constexpr = a_smem.shape[2]
    BN: gl.constexpr = b_smem.shape[1]
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, BK // 4])
    BITS: gl.constexpr = 16 if out_scale is None else 8
    lines: gl.constexpr = gl.NVMMASharedLayout(
        swizzle_byte_width=128, element_bitwidth=BITS, rank=2
    )
    width = N
    whole = (None, None, None)  # no scales of whole rows
    epilogue = (None, None, out, 0, N)
    if GATED:
        width = N // 2
        epilogue = (out, out_scale)
    rows = tma.make_tensor_descriptor(out, [M, width], [width, 1], [64, 128], lines)
    place = (buffers.index(ROW // 64), rows)
    late = (gl.zeros([64, 128], out.dtype.element_ty, mma), 0, 0, 0)
    stage = 0
    phase = 0
    turn = 0
    index = 0
    note = _hear(notes, index)
    while note >= 0:
        tile_m, tile_n = tile_of(note // 2, tiles_m, strips, GROUP_M)
        row0 = tile_m * BM + ROW
        col0 = tile_n * (128 if GATED else BN)
        mine = True
        if ROW > 0:
            mine = note % 2 == 1
        if mine:
            if s_smem is None:
                stage, phase, late = multiply_whole(
                    ring, epilogue, whole, place, place, late, row0, col0, col0,
                    M, width, K, stage, phase,
                    ROW, BN, 0, STAGES, ACTIVATION, True, GATED, GATHERED,
                )  # fmt: skip
            else:
                stage, phase, turn, late = multiply_256(
                    ring, epilogue, whole, place, late, row0, col0, M, width, K, stage, phase, turn,
                    ROW, STAGES, 0, ACTIVATION, True, GATED, GATHERED,
                )  # fmt: skip
        else:
            for _k in range(0, K, BK):
                mbarrier.wait(full.index(stage), phase)
                mbarrier.arrive(empty.index(stage), count=1)
                stage, phase = after(stage, phase, STAGES)
        index += 1
        note = _hear(notes, index)
    let_go(late, place, True, 0)
    tma.store_wait(0)


@gluon.jit
def experts_specialized(
    x, w, x_scale, w_scale, out, out_scale, owners, order, used, taken, M, N, K, experts, entries,
    stride_xm, stride_sm, stride_sk, stride_tn, stride_tk, strips,
    BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, STAGES: gl.constexpr,
    GROUP_M: gl.constexpr, ACTIVATION: gl.constexpr, GATED: gl.constexpr, TOPK: gl.constexpr,
):  # fmt: skip
    """x [M, K] in the experts' order, w [experts, N, K] with scales, if of 8 bits, [K/128, M] and
    [experts, N/128, K/128]. BM is 128, BK 128 bytes, BN 256, or 128 of 16 bits; used[0] rows count.
    GATED: rows of w are gate's, then up's; a tile has 128 of each, and out is [M, N/2], with scales
    [N/256, M] if of 8 bits. TOPK: x's rows are tokens, with so many entries each, as x_scale's; 0:
    they are in order. taken [2]: zeros, counters of tiles that programs took, of up and of down."""
    lines: gl.constexpr = gl.NVMMASharedLayout(
        swizzle_byte_width=128, element_bitwidth=1024 // BK, rank=2
    )
    a_smem = gl.allocate_shared_memory(x.dtype.element_ty, [STAGES, BM, BK], lines)
    b_smem = gl.allocate_shared_memory(w.dtype.element_ty, [STAGES, BN, BK], lines)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=129 if TOPK else 1)
        mbarrier.init(empty.index(i), count=2)
    BITS: gl.constexpr = 16 if out_scale is None else 8
    results: gl.constexpr = gl.NVMMASharedLayout(
        swizzle_byte_width=128, element_bitwidth=BITS, rank=2
    )
    buffers = gl.allocate_shared_memory(out.dtype.element_ty, [2, 64, 128], results)
    if x_scale is None:
        ring = (a_smem, b_smem, b_smem, None, None, full, empty, None)
    else:
        ones: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
        s_smem = gl.allocate_shared_memory(gl.float32, [STAGES, BM], ones)
        t_smem = gl.allocate_shared_memory(gl.float32, [STAGES, 2], ones)
        ring = (a_smem, b_smem, b_smem, s_smem, t_smem, full, empty, None)
    scales = (x_scale, w_scale, stride_sm, stride_sk, stride_tn, stride_tk)
    groups = (owners, order, entries)
    tiles_m = gl.load(used) // BM
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    numbers = gl.allocate_shared_memory(gl.int32, [2, 32], plain)
    told = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    heard = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(told.index(i), count=1)
        mbarrier.init(heard.index(i), count=2)
    notes = (numbers, told, heard)
    if not GATED:
        taken += 1
    gl.warp_specialize(
        [
            (_consumer, (ring, notes, out, out_scale, buffers, M, N, K, tiles_m, strips,
                         0, STAGES, GROUP_M, ACTIVATION, GATED, TOPK > 0)),
            (_consumer, (ring, notes, out, out_scale, buffers, M, N, K, tiles_m, strips,
                         64, STAGES, GROUP_M, ACTIVATION, GATED, TOPK > 0)),
            (_producer, (x, w, scales, groups, ring, notes, taken, M, N, K, stride_xm, experts,
                         tiles_m, strips, STAGES, GROUP_M, GATED, TOPK)),
        ],
        [4, 4 if TOPK else 1],
        [232, 40],
    )  # fmt: skip

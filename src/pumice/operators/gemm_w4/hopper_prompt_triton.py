# mypy: ignore-errors
"""4-bit products of many tokens on Hopper, in Gluon: four warps decode, eight multiply.

As `gemm_streamed`, but only x comes through the tensor memory accelerator. A group of four warps
reads words packed in "rows" two blocks (64 bytes of a row) ahead, and puts weights of 16 bits into
the ring of buffers while the matrix units work on those before. A weight is decoded once for each
128 or 256 tokens, and never written to memory.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from pumice.operators.gemm.hopper_stream_triton import share_of, streamed_consumer
from pumice.operators.gemm.hopper_triton import after, begin_early
from pumice.operators.gemm_w4.hopper_operand_triton import decoded
from pumice.operators.triton.gluon_names_triton import async_load


@gluon.constexpr_function
def _beyond(BN):
    """Rows that a lane has beyond the first of each 64."""
    return [64 << i for i in range((BN // 64 - 1).bit_length())]


@gluon.constexpr_function
def _block_layout(BN):
    """Of a block's words [BN, 2, 4]: a lane has 16 bytes of a row, and what eight lanes store of
    them as weights lies in all banks."""
    return gl.DistributedLinearLayout(
        [[0, 0, 1], [0, 0, 2], *([row, 0, 0] for row in _beyond(BN))],
        [[0, 1, 0], [1, 0, 0], [2, 0, 0], [4, 0, 0], [8, 0, 0]], [[16, 0, 0], [32, 0, 0]], [],
        [BN, 2, 4],
    )  # fmt: skip


@gluon.jit
def _rows_at(col0, N, words, scale_columns, BN: gl.constexpr, PAIRS: gl.constexpr):
    """Where rows [BN, 1] of words and of scales begin; beyond N the last one's."""
    rows = gl.minimum(col0 + gl.arange(0, BN, gl.SliceLayout(1, PAIRS)), N - 1)[:, None]
    return rows * words, rows * scale_columns


@gluon.jit
def _fetch(w, scales, mins, words_at, scales_at, block, GROUP: gl.constexpr, LAYOUT: gl.constexpr):
    """Words [BN, 2, 4] of a block of 64 along K, and scales and minima [BN, 2] of its halves."""
    half = gl.arange(0, 2, gl.SliceLayout(0, gl.SliceLayout(2, LAYOUT)))[None, :]
    four = gl.arange(0, 4, gl.SliceLayout(0, gl.SliceLayout(1, LAYOUT)))[None, None, :]
    at = words_at + (block * 8 + half * 4)
    word = gl.load(w + (gl.expand_dims(at, 2) + four))
    at = scales_at + (block * 64 + half * 32) // GROUP
    scale = gl.load(scales + at)
    minimum = scale
    if mins is not None:
        minimum = gl.load(mins + at)
    return word, scale, minimum


@gluon.jit
def _announce(w, words_at, block):
    """Brings words [BN, 1] from memory to the second cache, ahead of those that read them."""
    gl.inline_asm_elementwise(
        "{ prefetch.global.L2 [$1]; mov.b32 $0, 0; }",
        "=r,l", [(w + (words_at + block * 8)).to(gl.int64)], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def _put(
    word, scale, minimum, b_smem, full, empty, stage, phase,
    BN: gl.constexpr, STAGES: gl.constexpr, ZERO: gl.constexpr, BRAIN: gl.constexpr,
    MINS: gl.constexpr,
):  # fmt: skip
    """A block's words as weights in the next buffer that is free."""
    less = None
    if MINS:
        less = gl.expand_dims(minimum, 2)
    mbarrier.wait(empty.index(stage), phase)
    v0, v1, v2, v3, v4, v5, v6, v7 = decoded(word, gl.expand_dims(scale, 2), less, ZERO, BRAIN)
    low = gl.join(gl.join(v0, v1), gl.join(v2, v3))
    high = gl.join(gl.join(v4, v5), gl.join(v6, v7))
    value = gl.reshape(gl.permute(gl.join(low, high), (0, 1, 2, 5, 4, 3)), (BN, 64))
    b_smem.index(stage).store(value)
    fence_async_shared()
    mbarrier.arrive(full.index(stage), count=1)
    return after(stage, phase, STAGES)


@gluon.jit
def _decoder(
    w, scales, mins, b_smem, full, empty, N, tiles_m, blocks, steps, words, scale_columns,
    BN: gl.constexpr, STAGES: gl.constexpr, AHEAD: gl.constexpr, GROUP: gl.constexpr,
    ZERO: gl.constexpr, BRAIN: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = _block_layout(BN)
    PAIRS: gl.constexpr = gl.SliceLayout(2, layout)
    MINS: gl.constexpr = mins is not None
    _, first, last = share_of(tiles_m, steps, 2)
    col0 = first // blocks * BN
    block = first % blocks
    words_at, scales_at = _rows_at(col0, N, words, scale_columns, BN, PAIRS)
    word0, scale0, min0 = _fetch(w, scales, mins, words_at, scales_at, block, GROUP, layout)
    word1, scale1, min1 = _fetch(w, scales, mins, words_at, scales_at, block + 1, GROUP, layout)
    stage = 0
    phase = 1
    for _ in range(first, last, 2):
        block += 2
        if block == blocks:
            block = 0
            col0 += BN
            words_at, scales_at = _rows_at(col0, N, words, scale_columns, BN, PAIRS)
        word2, scale2, min2 = _fetch(w, scales, mins, words_at, scales_at, block, GROUP, layout)
        word3, scale3, min3 = _fetch(w, scales, mins, words_at, scales_at, block + 1, GROUP, layout)
        if AHEAD > 0:
            _announce(w, words_at, gl.minimum(block + AHEAD, blocks - 2))
        stage, phase = _put(
            word0, scale0, min0, b_smem, full, empty, stage, phase, BN, STAGES, ZERO, BRAIN, MINS
        )
        stage, phase = _put(
            word1, scale1, min1, b_smem, full, empty, stage, phase, BN, STAGES, ZERO, BRAIN, MINS
        )
        word0 = word2
        word1 = word3
        scale0 = scale2
        scale1 = scale3
        min0 = min2
        min1 = min3


@gluon.jit
def _load_x(x, a_smem, full, empty, tiles_m, blocks, steps, STAGES: gl.constexpr):
    BM: gl.constexpr = x.block_shape[0]
    tile_m, first, last = share_of(tiles_m, steps, 2)
    block = first % blocks
    stage = 0
    phase = 1
    for _ in range(first, last):
        mbarrier.wait(empty.index(stage), phase)
        mbarrier.expect(full.index(stage), BM * 128)
        async_load(x, [tile_m * BM, block * 64], full.index(stage), a_smem.index(stage))
        block += 1
        if block == blocks:
            block = 0
        stage, phase = after(stage, phase, STAGES)


@gluon.jit
def prompt(
    x, w, scales, mins, bias, residual, out, partial, flags, M, N, K, words, scale_columns,
    stride_xm, stride_rm, stride_om,
    BM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, AHEAD: gl.constexpr,
    GROUP: gl.constexpr, ZERO: gl.constexpr, BRAIN: gl.constexpr, DECODER: gl.constexpr,
    EARLY: gl.constexpr, ACTIVATION: gl.constexpr,
):  # fmt: skip
    """x [M, K], w int32[N, K/8] packed in "rows", scales and mins float16[N, K/GROUP]. K is a
    multiple of 128; the rest is as in `gemm_streamed`. AHEAD: blocks that words come
    to the second cache before they are read, 0 for none. DECODER: registers of a lane that
    decodes."""
    begin_early(EARLY)
    lines: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    a_smem = gl.allocate_shared_memory(x.dtype.element_ty, [STAGES, BM, 64], lines)
    b_smem = gl.allocate_shared_memory(x.dtype.element_ty, [STAGES, BN, 64], lines)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=2)
        mbarrier.init(empty.index(i), count=2)
    x_rows = tma.make_tensor_descriptor(x, [M, K], [stride_xm, 1], [BM, 64], lines)
    tiles_m = gl.cdiv(M, BM)
    blocks = K // 64
    steps = gl.cdiv(N, BN) * blocks
    gl.warp_specialize(
        [
            (streamed_consumer, (bias, residual, out, partial, flags, a_smem, b_smem, full, empty,
                                 M, N, stride_rm, stride_om, tiles_m, blocks, steps,
                                 0, BM, BN, 128, 2, STAGES, ACTIVATION)),
            (streamed_consumer, (bias, residual, out, partial, flags, a_smem, b_smem, full, empty,
                                 M, N, stride_rm, stride_om, tiles_m, blocks, steps,
                                 BM // 2, BM, BN, 128, 2, STAGES, ACTIVATION)),
            (_decoder, (w, scales, mins, b_smem, full, empty, N, tiles_m, blocks, steps, words,
                        scale_columns, BN, STAGES, AHEAD, GROUP, ZERO, BRAIN)),
            (_load_x, (x_rows, a_smem, full, empty, tiles_m, blocks, steps, STAGES)),
        ],
        [4, 4, 1],
        [(488 - DECODER) // 2, DECODER, 24],
    )  # fmt: skip

# mypy: ignore-errors
"""4-bit products of many tokens on Hopper, in Gluon: four warps decode, eight multiply.

As `gemm_streamed`, but only x comes through the tensor memory accelerator. A group of four warps
reads words packed in "rows" two blocks of K ahead, and puts weights of 16 bits into the ring of
buffers while the matrix units work on those before. A block of weights is decoded once for each
128 tokens, and never written to memory.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from pumice.operators.gemm.hopper_stream_triton import share_of, streamed_consumer
from pumice.operators.gemm.hopper_triton import after, async_load, begin_early
from pumice.operators.gemm_w4.hopper_operand_triton import decoded


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
def _decoder(
    w, scales, mins, b_smem, full, empty, N, tiles_m, blocks, steps, words, scale_columns,
    BN: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr, ZERO: gl.constexpr,
    BRAIN: gl.constexpr,
):  # fmt: skip
    # A lane has 16 bytes of a row: what eight lanes store together lies in all banks.
    layout: gl.constexpr = gl.BlockedLayout([1, 1, 4], [16, 2, 1], [4, 1, 1], [2, 1, 0])
    PAIRS: gl.constexpr = gl.SliceLayout(2, layout)
    _, first, last = share_of(tiles_m, steps)
    col0 = first // blocks * BN
    block = first % blocks
    words_at, scales_at = _rows_at(col0, N, words, scale_columns, BN, PAIRS)
    word0, scale0, min0 = _fetch(w, scales, mins, words_at, scales_at, block, GROUP, layout)
    block += 1
    if block == blocks:
        block = 0
        col0 += BN
        words_at, scales_at = _rows_at(col0, N, words, scale_columns, BN, PAIRS)
    word1, scale1, min1 = _fetch(w, scales, mins, words_at, scales_at, block, GROUP, layout)
    stage = 0
    phase = 1
    for _ in range(first, last):
        block += 1
        if block == blocks:
            block = 0
            col0 += BN
            words_at, scales_at = _rows_at(col0, N, words, scale_columns, BN, PAIRS)
        word2, scale2, min2 = _fetch(w, scales, mins, words_at, scales_at, block, GROUP, layout)
        mbarrier.wait(empty.index(stage), phase)
        scale = gl.expand_dims(scale0, 2)
        minimum = None
        if mins is not None:
            minimum = gl.expand_dims(min0, 2)
        v0, v1, v2, v3, v4, v5, v6, v7 = decoded(word0, scale, minimum, ZERO, BRAIN)
        low = gl.join(gl.join(v0, v1), gl.join(v2, v3))
        high = gl.join(gl.join(v4, v5), gl.join(v6, v7))
        value = gl.reshape(gl.permute(gl.join(low, high), (0, 1, 2, 5, 4, 3)), (BN, 64))
        b_smem.index(stage).store(value)
        fence_async_shared()
        mbarrier.arrive(full.index(stage), count=1)
        stage, phase = after(stage, phase, STAGES)
        word0 = word1
        scale0 = scale1
        min0 = min1
        word1 = word2
        scale1 = scale2
        min1 = min2


@gluon.jit
def _producer(x, a_smem, full, empty, tiles_m, blocks, steps, STAGES: gl.constexpr):
    BM: gl.constexpr = x.block_shape[0]
    BK: gl.constexpr = x.block_shape[1]
    tile_m, first, last = share_of(tiles_m, steps)
    block = first % blocks
    stage = 0
    phase = 1
    for _ in range(first, last):
        bar = full.index(stage)
        mbarrier.wait(empty.index(stage), phase)
        mbarrier.expect(bar, BM * BK * 2)
        async_load(x, [tile_m * BM, block * BK], bar, a_smem.index(stage))
        block += 1
        if block == blocks:
            block = 0
        stage, phase = after(stage, phase, STAGES)


@gluon.jit
def prompt(
    x, w, scales, mins, bias, residual, out, partial, flags, M, N, K, words, scale_columns,
    stride_xm, stride_rm, stride_om,
    BM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr,
    ZERO: gl.constexpr, BRAIN: gl.constexpr, DECODER: gl.constexpr, EARLY: gl.constexpr,
    ACTIVATION: gl.constexpr,
):  # fmt: skip
    """x [M, K], w int32[N, K/8] packed in "rows", scales and mins float16[N, K/GROUP]. K is a
    multiple of 128; the rest is as in `gemm_streamed`."""
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
                                 0, BM, BN, 128, STAGES, ACTIVATION)),
            (streamed_consumer, (bias, residual, out, partial, flags, a_smem, b_smem, full, empty,
                                 M, N, stride_rm, stride_om, tiles_m, blocks, steps,
                                 BM // 2, BM, BN, 128, STAGES, ACTIVATION)),
            (_decoder, (w, scales, mins, b_smem, full, empty, N, tiles_m, blocks, steps, words,
                        scale_columns, BN, STAGES, GROUP, ZERO, BRAIN)),
            (_producer, (x_rows, a_smem, full, empty, tiles_m, blocks, steps, STAGES)),
        ],
        [4, 4, 1],
        [(488 - DECODER) // 2, DECODER, 24],
    )  # fmt: skip

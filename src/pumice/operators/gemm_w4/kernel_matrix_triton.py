# mypy: ignore-errors
"""Few tokens on small matrix instructions, without exchanging anything between threads.

Weights packed in "blocks" (`layout.py`) arrive in the registers that a 16 × 8 × 16 instruction of
NVIDIA's wants them in: what looks like permutations below only names registers and lanes anew. A
warp takes a part of K for 16 or 32 rows; the parts are added at the end. On other devices the
kernel is right, but its permutations are real.
"""

import triton
import triton.language as tl

from pumice.operators.gemm_w4.decode_triton import code_halves


@triton.jit
def _quarter(value, A: tl.constexpr, G: tl.constexpr):
    """[A, 4G] → four tensors [A, G], the elements 0 … 3 of each four."""
    even, odd = tl.split(tl.reshape(value, (A, G, 2, 2)))
    v0, v2 = tl.split(even)
    v1, v3 = tl.split(odd)
    return v0, v1, v2, v3


@triton.jit
def _left(
    word, zero, WARPS: tl.constexpr, WIDTH: tl.constexpr, CODE: tl.constexpr, BRAIN: tl.constexpr
):
    """Words [16 · WARPS, 4] of one group → codes less zero, [WARPS, 16, 32].

    The word of lane t holds k = 8t … 8t + 7. A product may add them in any order, if x's is the
    same. Triton gives a lane WIDTH neighbours along K of an operand that was joined from parts: 4
    where all that is loaded for it has at least 16 bits (then k = 8t + 4s + r comes to 16s + 4t +
    r), 8 where zeros of 8 bits take part (the order as it is)."""
    v0, v1, v2, v3, v4, v5, v6, v7 = code_halves(word, zero, CODE, BRAIN)
    if WIDTH == 4:
        first = tl.join(tl.join(v0, v2), tl.join(v1, v3))
        last = tl.join(tl.join(v4, v6), tl.join(v5, v7))
        value = tl.reshape(tl.join(first, last), (2, WARPS, 8, 4, 4, 2))
        return tl.reshape(tl.permute(value, (1, 0, 2, 5, 3, 4)), (WARPS, 16, 32))
    even = tl.join(tl.join(v0, v4), tl.join(v2, v6))
    odd = tl.join(tl.join(v1, v5), tl.join(v3, v7))
    value = tl.reshape(tl.join(even, odd), (2, WARPS, 8, 32))
    return tl.reshape(tl.permute(value, (1, 0, 2, 3)), (WARPS, 16, 32))


@triton.jit
def _right(value, WARPS: tl.constexpr, TOKENS: tl.constexpr, WIDTH: tl.constexpr):
    """Activations [WARPS · TOKENS, 32] of one group, tokens in the order (eight, warp, within) →
    [WARPS, 32, TOKENS]."""
    if WIDTH == 4:
        parts = tl.reshape(value, (TOKENS // 8, WARPS, 8, 4, 2, 4))
        rows = tl.reshape(tl.permute(parts, (1, 0, 2, 4, 3, 5)), (WARPS, TOKENS, 32))
    else:
        parts = tl.reshape(value, (TOKENS // 8, WARPS, 8, 32))
        rows = tl.reshape(tl.permute(parts, (1, 0, 2, 3)), (WARPS, TOKENS, 32))
    return tl.permute(rows, (0, 2, 1))


@triton.jit
def _zero_at(zeros, at, inside, ZERO: tl.constexpr):
    if zeros is None:
        return ZERO
    else:  # one a thread, beside its word
        at = tl.multiple_of(tl.max_contiguous(at, (1, 2)), (1, 1))
        return tl.load(zeros + at, mask=inside, other=0).to(tl.int32)


@triton.jit
def _words_at(w, row, block, inside, words):
    """A block of 128 codes of 16 rows, each warp its own: [16 · WARPS, 16]."""
    at = row * words + block * 16 + tl.arange(0, 16)[None, :]
    return tl.load(w + at, mask=inside, other=0, eviction_policy="evict_first")


@triton.jit
def _scales_at(scales, own, block, inside, scale_columns, GROUP: tl.constexpr):
    """Scales of the block's four groups, [WARPS, 16] each."""
    if GROUP >= 128:
        at = scales + own * scale_columns + block // (GROUP // 128)
        s0 = tl.load(at, mask=inside, other=0.0)
        return s0, s0, s0, s0
    else:
        at = scales + own * scale_columns + block * (128 // GROUP)
        s0 = tl.load(at, mask=inside, other=0.0)
        s1 = tl.load(at + 32 // GROUP, mask=inside, other=0.0)
        s2 = tl.load(at + 64 // GROUP, mask=inside, other=0.0)
        s3 = tl.load(at + 96 // GROUP, mask=inside, other=0.0)
        return s0, s1, s2, s3


@triton.jit
def _ones(none, WARPS: tl.constexpr, WIDTH: tl.constexpr, CODE: tl.constexpr, BRAIN: tl.constexpr):
    """A left operand of ones, out of words of zeros that come from a load: the compiler lays an
    operand out by what was loaded for it, and x must serve these products as it is."""
    zero = _zero_at(None, 0, None, 0)
    return _left(none + 0x11111111, zero, WARPS, WIDTH, CODE, BRAIN)


@triton.jit
def _less(part, scale, ones, x, minimum):
    """part · scale − Σ x · minimum of one group. A product with ones adds x up where the results
    lie; matrix units wait for memory here."""
    together = tl.dot(ones, x)
    return part * scale.to(tl.float32)[:, :, None] - together * minimum.to(tl.float32)[:, :, None]


@triton.jit
def _rows_less_minima(
    total, word, s0, s1, s2, s3, m0, m1, m2, m3, x0, x1, x2, x3, ones,
    GROUP: tl.constexpr, WARPS: tl.constexpr, WIDTH: tl.constexpr,
    CODE: tl.constexpr, BRAIN: tl.constexpr,
):  # fmt: skip
    """Adds a block's products of code · scale − minimum."""
    w0, w1, w2, w3 = _quarter(word, 16 * WARPS, 4)
    zero = _zero_at(None, 0, None, 0)
    if GROUP >= 128:
        part = tl.dot(_left(w0, zero, WARPS, WIDTH, CODE, BRAIN), x0)
        part = tl.dot(_left(w1, zero, WARPS, WIDTH, CODE, BRAIN), x1, part)
        part = tl.dot(_left(w2, zero, WARPS, WIDTH, CODE, BRAIN), x2, part)
        part = tl.dot(_left(w3, zero, WARPS, WIDTH, CODE, BRAIN), x3, part)
        together = tl.dot(ones, x0)
        together = tl.dot(ones, x1, together)
        together = tl.dot(ones, x2, together)
        together = tl.dot(ones, x3, together)
        total += part * s0.to(tl.float32)[:, :, None] - together * m0.to(tl.float32)[:, :, None]
    else:
        total += _less(tl.dot(_left(w0, zero, WARPS, WIDTH, CODE, BRAIN), x0), s0, ones, x0, m0)
        total += _less(tl.dot(_left(w1, zero, WARPS, WIDTH, CODE, BRAIN), x1), s1, ones, x1, m1)
        total += _less(tl.dot(_left(w2, zero, WARPS, WIDTH, CODE, BRAIN), x2), s2, ones, x2, m2)
        total += _less(tl.dot(_left(w3, zero, WARPS, WIDTH, CODE, BRAIN), x3), s3, ones, x3, m3)
    return total


@triton.jit
def _rows(
    total, word, s0, s1, s2, s3, x0, x1, x2, x3, zeros, row, block, inside, scale_columns, nothing,
    ZERO: tl.constexpr, GROUP: tl.constexpr, WARPS: tl.constexpr, WIDTH: tl.constexpr,
    CODE: tl.constexpr, BRAIN: tl.constexpr,
):  # fmt: skip
    """Adds a block's products."""
    w0, w1, w2, w3 = _quarter(word, 16 * WARPS, 4)
    # A run-time 0 keeps the four equal addresses apart for the compiler, which lays them out then.
    of_row = row * scale_columns + tl.arange(0, 4)[None, :] * nothing
    if GROUP >= 128:
        zero = _zero_at(zeros, of_row + block // (GROUP // 128), inside, ZERO)
        part = tl.dot(_left(w0, zero, WARPS, WIDTH, CODE, BRAIN), x0)
        part = tl.dot(_left(w1, zero, WARPS, WIDTH, CODE, BRAIN), x1, part)
        part = tl.dot(_left(w2, zero, WARPS, WIDTH, CODE, BRAIN), x2, part)
        part = tl.dot(_left(w3, zero, WARPS, WIDTH, CODE, BRAIN), x3, part)
        total += part * s0.to(tl.float32)[:, :, None]
    else:
        of_row += block * (128 // GROUP)
        zero = _zero_at(zeros, of_row, inside, ZERO)
        part = tl.dot(_left(w0, zero, WARPS, WIDTH, CODE, BRAIN), x0)
        total += part * s0.to(tl.float32)[:, :, None]
        zero = _zero_at(zeros, of_row + 32 // GROUP, inside, ZERO)
        part = tl.dot(_left(w1, zero, WARPS, WIDTH, CODE, BRAIN), x1)
        total += part * s1.to(tl.float32)[:, :, None]
        zero = _zero_at(zeros, of_row + 64 // GROUP, inside, ZERO)
        part = tl.dot(_left(w2, zero, WARPS, WIDTH, CODE, BRAIN), x2)
        total += part * s2.to(tl.float32)[:, :, None]
        zero = _zero_at(zeros, of_row + 96 // GROUP, inside, ZERO)
        part = tl.dot(_left(w3, zero, WARPS, WIDTH, CODE, BRAIN), x3)
        total += part * s3.to(tl.float32)[:, :, None]
    return total


@triton.jit
def _finish(total, bias, out, first, M, N, out_stride, TOKENS: tl.constexpr):
    """The warps' parts added, 16 rows of the output."""
    result = tl.sum(total, axis=0)
    n = first + tl.arange(0, 16)
    m = tl.arange(0, TOKENS)
    if bias is not None:
        result += tl.load(bias + tl.minimum(n, N - 1)).to(tl.float32)[:, None]
    at = m.to(tl.int64)[None, :] * out_stride + n[:, None]
    mask = (m < M)[None, :] & (n < N)[:, None]
    tl.store(out + at, result.to(out.dtype.element_ty), mask=mask)


@triton.jit
def matrix(
    x,
    w,
    scales,
    zeros,
    mins,
    bias,
    out,
    M,
    N,
    words,
    scale_columns,
    x_stride,
    out_stride,
    blocks,  # of 128 codes along K
    share,  # of them, a warp's
    nothing,  # 0
    ZERO: tl.constexpr,
    GROUP: tl.constexpr,
    CODE: tl.constexpr,
    BRAIN: tl.constexpr,
    WARPS: tl.constexpr,
    REPEAT: tl.constexpr,  # of 16 rows: 1 or 2
    AHEAD: tl.constexpr,
    UNROLL: tl.constexpr,
    TOKENS: tl.constexpr,
    STAGES: tl.constexpr,
):
    WIDTH: tl.constexpr = 4 if zeros is None else 8
    first = tl.program_id(0).to(tl.int64) * (16 * REPEAT)
    # Rows of the words' tile: eight of each warp, then the next eight of each.
    i = tl.arange(0, 16 * WARPS)
    row = (first + (i // (8 * WARPS)) * 8 + i % 8)[:, None]
    part = ((i // 8) % WARPS)[:, None]
    j = tl.arange(0, TOKENS * WARPS)
    token = ((j // (8 * WARPS)) * 8 + j % 8)[:, None]
    token_part = ((j // 8) % WARPS)[:, None]
    px = x + token.to(tl.int64) * x_stride + tl.arange(0, 32)[None, :]
    warp = tl.arange(0, WARPS)[:, None]
    own = (first + tl.arange(0, 16))[None, :]
    row_a, own_a = tl.minimum(row, N - 1), tl.minimum(own, N - 1)
    row_b, own_b = tl.minimum(row + 16, N - 1), tl.minimum(own + 16, N - 1)
    total_a = tl.zeros((WARPS, 16, TOKENS), tl.float32)
    total_b = tl.zeros((WARPS, 16, TOKENS), tl.float32)
    # Scales of a step are loaded a step ahead: the compiler would put them behind the words' use,
    # and wait for memory twice. With AHEAD the words are, too.
    held = warp * share < blocks
    a0, a1, a2, a3 = _scales_at(scales, own_a, warp * share, held, scale_columns, GROUP)
    if mins is not None:
        a4, a5, a6, a7 = _scales_at(mins, own_a, warp * share, held, scale_columns, GROUP)
    if REPEAT == 2:
        b0, b1, b2, b3 = _scales_at(scales, own_b, warp * share, held, scale_columns, GROUP)
        if mins is not None:
            b4, b5, b6, b7 = _scales_at(mins, own_b, warp * share, held, scale_columns, GROUP)
    if mins is not None:
        word = tl.load(w + row_a * words + tl.arange(0, 4)[None, :])
        ones = _ones(word * nothing, WARPS, WIDTH, CODE, BRAIN)
    if AHEAD:
        word_a = _words_at(w, row_a, part * share, part * share < blocks, words)
        if REPEAT == 2:
            word_b = _words_at(w, row_b, part * share, part * share < blocks, words)
    for step in tl.range(0, share, num_stages=STAGES, loop_unroll_factor=UNROLL):
        block = part * share + step
        inside = block < blocks
        if not AHEAD:
            word_a = _words_at(w, row_a, block, inside, words)
            if REPEAT == 2:
                word_b = _words_at(w, row_b, block, inside, words)
        else:
            more = (step + 1 < share) & (block + 1 < blocks)
            next_word_a = _words_at(w, row_a, block + 1, more, words)
            if REPEAT == 2:
                next_word_b = _words_at(w, row_b, block + 1, more, words)
        at = px + (token_part * share + step) * 128
        given = (token < M) & (token_part * share + step < blocks)
        x0 = _right(tl.load(at, mask=given, other=0.0), WARPS, TOKENS, WIDTH)
        x1 = _right(tl.load(at + 32, mask=given, other=0.0), WARPS, TOKENS, WIDTH)
        x2 = _right(tl.load(at + 64, mask=given, other=0.0), WARPS, TOKENS, WIDTH)
        x3 = _right(tl.load(at + 96, mask=given, other=0.0), WARPS, TOKENS, WIDTH)
        next_block = warp * share + step + 1
        held = (step + 1 < share) & (next_block < blocks)
        na0, na1, na2, na3 = _scales_at(scales, own_a, next_block, held, scale_columns, GROUP)
        if mins is not None:
            na4, na5, na6, na7 = _scales_at(mins, own_a, next_block, held, scale_columns, GROUP)
        if REPEAT == 2:
            nb0, nb1, nb2, nb3 = _scales_at(scales, own_b, next_block, held, scale_columns, GROUP)
            if mins is not None:
                nb4, nb5, nb6, nb7 = _scales_at(mins, own_b, next_block, held, scale_columns, GROUP)
        if mins is None:
            total_a = _rows(
                total_a, word_a, a0, a1, a2, a3, x0, x1, x2, x3, zeros, row_a, block, inside,
                scale_columns, nothing, ZERO, GROUP, WARPS, WIDTH, CODE, BRAIN,
            )  # fmt: skip
        else:
            total_a = _rows_less_minima(
                total_a, word_a, a0, a1, a2, a3, a4, a5, a6, a7, x0, x1, x2, x3, ones,
                GROUP, WARPS, WIDTH, CODE, BRAIN,
            )  # fmt: skip
            a4, a5, a6, a7 = na4, na5, na6, na7
        a0, a1, a2, a3 = na0, na1, na2, na3
        if REPEAT == 2:
            if mins is None:
                total_b = _rows(
                    total_b, word_b, b0, b1, b2, b3, x0, x1, x2, x3, zeros, row_b, block, inside,
                    scale_columns, nothing, ZERO, GROUP, WARPS, WIDTH, CODE, BRAIN,
                )  # fmt: skip
            else:
                total_b = _rows_less_minima(
                    total_b, word_b, b0, b1, b2, b3, b4, b5, b6, b7, x0, x1, x2, x3, ones,
                    GROUP, WARPS, WIDTH, CODE, BRAIN,
                )  # fmt: skip
                b4, b5, b6, b7 = nb4, nb5, nb6, nb7
            b0, b1, b2, b3 = nb0, nb1, nb2, nb3
        if AHEAD:
            word_a = next_word_a
            if REPEAT == 2:
                word_b = next_word_b
    _finish(total_a, bias, out, first, M, N, out_stride, TOKENS)
    if REPEAT == 2:
        _finish(total_b, bias, out, first + 16, M, N, out_stride, TOKENS)

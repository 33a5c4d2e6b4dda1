# mypy: ignore-errors
"""A product with 4-bit weights by few persistent programs.

A program holds its activations in registers (`activations_triton.py`) and walks over tiles of rows;
the next tile's words are loaded while this one's are used, the first tile's before the activations
are known. Around the product: the norm of a float32 row before it; silu(gate) · up, or the addition
to the residual stream, after it. Each output belongs to one program: nothing is added atomically.
"""

import triton
import triton.language as tl

from pumice.operators.fused_w4.activations_triton import (
    loaded_pairs,
    norm_factor,
    normed_pairs,
    prepared,
    spread_pairs,
)
from pumice.operators.fused_w4.prefetch_triton import ask_for_tile
from pumice.operators.gemm_w4.decode_triton import pair_sum, quads, words_step


@triton.jit
def _rows(tile, N, half, GATED: tl.constexpr, ROWS: tl.constexpr):
    """(places in the tile's order, rows of the weights, the last one beyond N). GATED: gate and up
    take turns, so that a program has both."""
    n = tile * ROWS + tl.arange(0, ROWS)
    at = tl.minimum(n, N - 1)
    if GATED:
        at = at // 2 + (at % 2) * half
    return n, at


@triton.jit
def _load(at, wanted, POLICY: tl.constexpr):
    """wanted: None, or a scalar; where it is false nothing is read and nothing used."""
    if wanted is None:
        return tl.load(at, eviction_policy=POLICY)
    return tl.load(at, mask=wanted, eviction_policy=POLICY)


@triton.jit
def _groupwise(
    pointer, row, group, scale_columns, wanted, PER: tl.constexpr
):  # fmt: skip
    """One value a group, [1, ROWS, GROUPS]. Loads are narrow, so that a thread has those of its
    own groups and nothing has to be exchanged."""
    at = row[None, :, None] * scale_columns + group[None, None, :] // PER
    at = tl.multiple_of(tl.max_contiguous(at, (1, 1, 2)), (1, 1, 1))
    return _load(pointer + at, wanted, "")


@triton.jit
def _fetch(
    w, scales, zeros, mins, row, first, words, groups, scale_columns, wanted,
    ZERO: tl.constexpr, PER: tl.constexpr, GROUPS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """(words [1, ROWS, 4 · GROUPS], scales, zero points, minima [1, ROWS, GROUPS]) from group
    `first` on; beyond K those of the last group, which meet activations of zero."""
    j = first * 4 + tl.arange(0, 4 * GROUPS)
    group = first + tl.arange(0, GROUPS)
    if not WHOLE:
        j = tl.minimum(j // 4, groups - 1) * 4 + j % 4
        j = tl.max_contiguous(tl.multiple_of(j, 4), 4)
        group = tl.minimum(group, groups - 1)
    word = _load(w + (row[None, :, None] * words + j[None, None, :]), wanted, "evict_first")
    scale = _groupwise(scales, row, group, scale_columns, wanted, PER)
    zero = ZERO
    if zeros is not None:
        zero = _groupwise(zeros, row, group, scale_columns, wanted, PER)
    least = 0.0
    if mins is not None:
        least = _groupwise(mins, row, group, scale_columns, wanted, PER)
    return word, scale, zero, least


@triton.jit
def _product(
    fetched, activations, ZEROS: tl.constexpr, MINS: tl.constexpr, ZERO: tl.constexpr,
    CODE: tl.constexpr, BRAIN: tl.constexpr, SCALE_X: tl.constexpr,
    TOKENS: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """float32[TOKENS, ROWS, GROUPS]: each group's part of the result."""
    word, scale, zero, least = fetched
    pairs, up, total, offset = activations
    if ZEROS:
        zero = zero.to(tl.int32)
    four = quads(word, 1, ROWS, GROUPS)
    u = tl.zeros((TOKENS, ROWS, GROUPS), tl.int32 if CODE == 1 else tl.float32)
    u, v = words_step(four, pairs, u, u, zero, CODE, BRAIN)
    if CODE == 1:
        part = pair_sum(u, v)
    elif CODE == 2:
        part = v * 0.0625 + u - offset
        if ZEROS:
            part -= zero.to(tl.float32) * total
    else:
        part = u + v
    part = part * scale.to(tl.float32)
    if MINS:  # Σ (code · scale − min) · x, of codes less ZERO
        shift = least.to(tl.float32)
        if ZERO != 0:
            shift -= ZERO * scale.to(tl.float32)
        part -= total * shift
    if SCALE_X:
        part = part * up
    return part


@triton.jit
def persistent(
    x,
    norm_weight,
    w,
    scales,
    zeros,
    mins,
    bias,
    residual,
    out,
    M,
    N,
    K,
    half,  # rows of gate, where up follows
    turns,  # tiles a program
    words,
    groups,
    scale_columns,
    x_stride,  # in elements; in pairs where x is not normed
    residual_stride,
    out_stride,
    eps,
    ZERO: tl.constexpr,
    PER: tl.constexpr,  # groups of 32 that share a scale
    CODE: tl.constexpr,
    BRAIN: tl.constexpr,
    SCALE_X: tl.constexpr,
    GATED: tl.constexpr,
    AHEAD: tl.constexpr,  # a tile's words are loaded before the tile in front of it is used
    BUFFERS: tl.constexpr,  # tiles that have registers of their own; with AHEAD, 1
    EARLY: tl.constexpr,  # begins before the launch in front of it has ended
    TURNS_AHEAD: tl.constexpr,  # tiles that are asked for before the activations are there
    LINES: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    GROUPS: tl.constexpr,
    SLICES: tl.constexpr,  # of GROUPS groups, over K
    FULL: tl.constexpr,  # slices that lie within K
    CHUNK: tl.constexpr,
    SPREAD: tl.constexpr,  # how activations are read that are not normed
):
    ZEROS: tl.constexpr = zeros is not None
    MINS: tl.constexpr = mins is not None
    # After its last tile a program loads nothing, or (AMD, where masks cost branches) that tile
    # again, from a cache.
    MASKED: tl.constexpr = CODE == 1
    fetched = ()
    for buffer in tl.static_range(BUFFERS):
        first = tl.program_id(0) + buffer * tl.num_programs(0)
        exists = buffer < turns
        if not MASKED:
            first = tl.where(exists, first, tl.program_id(0))
        _, row = _rows(first, N, half, GATED, ROWS)
        for s in tl.static_range(SLICES):
            fetched += (
                _fetch(
                    w, scales, zeros, mins, row, s * GROUPS, words, groups, scale_columns,
                    exists if MASKED and buffer else None, ZERO, PER, GROUPS, s < FULL,
                ),
            )  # fmt: skip
    for ahead in tl.static_range(TURNS_AHEAD):
        if ahead + 1 < turns:
            _, later = _rows(
                tl.program_id(0) + (ahead + 1) * tl.num_programs(0), N, half, GATED, ROWS
            )
            ask_for_tile(w, scales, later, words, scale_columns, LINES, ROWS)
    if EARLY:
        # Weights change never; everything else was written by launches before.
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    token = tl.minimum(tl.arange(0, TOKENS), M - 1).to(tl.int64)
    if norm_weight is not None:
        factor = norm_factor(x, token, x_stride, K, eps, TOKENS, CHUNK)
    activations = ()
    for s in tl.static_range(SLICES):
        if norm_weight is not None:
            pairs = normed_pairs(
                x, norm_weight, token, x_stride, factor, s * GROUPS, K, TOKENS, GROUPS, BRAIN
            )
        elif SPREAD:
            pairs = spread_pairs(x, token, x_stride, s * GROUPS, words, TOKENS, GROUPS)
        else:
            pairs = loaded_pairs(x, token, x_stride, s * GROUPS, words, TOKENS, GROUPS, s < FULL)
        activations += (
            prepared(pairs, ZERO if not ZEROS else 0, CODE, BRAIN, SCALE_X, ZEROS or MINS),
        )
    m = tl.arange(0, TOKENS).to(tl.int64)[:, None]
    for round_ in tl.range(tl.cdiv(turns, BUFFERS)):
        for buffer in tl.static_range(BUFFERS):
            turn = round_ * BUFFERS + buffer
            tile = tl.program_id(0) + turn * tl.num_programs(0)
            n, row = _rows(tile, N, half, GATED, ROWS)
            mask = (m < M) & (n < N)[None, :]
            if residual is not None:
                place = residual + m * residual_stride + n[None, :]
                before = tl.load(place, mask=mask, other=0.0)
            more = turn + BUFFERS < turns
            following = tile + BUFFERS * tl.num_programs(0)
            if not MASKED:
                following = tl.where(more, following, tile)
            _, next_row = _rows(following, N, half, GATED, ROWS)
            coming = ()
            if AHEAD:
                for s in tl.static_range(SLICES):
                    coming += (
                        _fetch(
                            w, scales, zeros, mins, next_row, s * GROUPS, words, groups,
                            scale_columns, more if MASKED else None, ZERO, PER, GROUPS, s < FULL,
                        ),
                    )  # fmt: skip
            total = tl.zeros((TOKENS, ROWS, GROUPS), tl.float32)
            for s in tl.static_range(SLICES):
                total += _product(
                    fetched[buffer * SLICES + s], activations[s], ZEROS, MINS, ZERO, CODE, BRAIN,
                    SCALE_X, TOKENS, ROWS, GROUPS,
                )  # fmt: skip
                if not AHEAD:
                    # Into the registers that this slice's words leave: to move words that are on
                    # their way would mean to wait for them.
                    reloaded = _fetch(
                        w, scales, zeros, mins, next_row, s * GROUPS, words, groups, scale_columns,
                        more if MASKED else None, ZERO, PER, GROUPS, s < FULL,
                    )  # fmt: skip
                    kept = ()
                    for place_ in tl.static_range(BUFFERS * SLICES):
                        if place_ == buffer * SLICES + s:
                            kept += (reloaded,)
                        else:
                            kept += (fetched[place_],)
                    fetched = kept
            if AHEAD:
                fetched = coming
            result = tl.sum(total, axis=2)
            if bias is not None:
                shift = tl.load(bias + row, mask=n < N, other=0.0)
                result += shift.to(tl.float32)[None, :]
            if residual is not None:
                tl.store(place, before + result, mask=mask)
            elif GATED:
                gate, up = tl.split(tl.reshape(result, (TOKENS, ROWS // 2, 2)))
                value = gate / (1.0 + tl.exp(-gate)) * up
                column = tile * (ROWS // 2) + tl.arange(0, ROWS // 2)
                inside = (m < M) & (column < half)[None, :]
                tl.store(
                    out + m * out_stride + column[None, :],
                    value.to(out.dtype.element_ty),
                    mask=inside,
                )
            else:
                at = out + m * out_stride + n[None, :]
                tl.store(at, result.to(out.dtype.element_ty), mask=mask)

# mypy: ignore-errors
"""Pieces that every attention kernel shares: the tile's sequence, one step of online softmax.

Logits are kept in units of log 2, so that the hardware's exp2 needs no multiplication of its own:
the product with log2(e) is folded into the softmax scale.
"""

import triton
import triton.language as tl


@triton.jit
def find_sequence(starts, tile, sequences, ROWS: tl.constexpr, BLOCK_S: tl.constexpr):
    """The sequence that tile number `tile` belongs to.

    Sequence s owns the tiles from starts[s] // ROWS + s on: as many as it can need or one more,
    which finds no rows. So the number of tiles follows from the sizes alone. BLOCK_S: sequences
    looked at together; 0 bisects, a load after another.
    """
    low = 0
    if BLOCK_S > 0:
        s = tl.arange(0, BLOCK_S)
        first = tl.load(starts + s, mask=s < sequences, other=0) // ROWS + s
        low = tl.sum(((first <= tile) & (s < sequences)).to(tl.int32), 0)
    else:
        high = sequences
        while low < high:
            middle = (low + high) // 2
            if tl.load(starts + middle) // ROWS + middle <= tile:
                low = middle + 1
            else:
                high = middle
    return low - 1


@triton.jit
def cap_logits(s, scale, cap):
    """cap·tanh(s·scale / 2): the plan folds 2·softmax_scale / softcap into `scale` and log2(e) into
    `cap`. exp2 overflows to infinity or vanishes, and both ends come out as ±cap."""
    return cap - 2.0 * cap / (tl.exp2(s * scale) + 1.0)


@triton.jit
def softmax_step(s, maximum, total, scale, cap, visible, MASKED: tl.constexpr, CAP: tl.constexpr):
    """One block of logits [M, N] into running maximum and total [M].

    Returns (weights [M, N] in float32, factor [M] for what was accumulated, maximum, total). The
    running maximum starts at a finite number: rows that see nothing get weights of 0.
    """
    if CAP:
        s = cap_logits(s, scale, cap)
        if MASKED:
            s = tl.where(visible, s, float("-inf"))
        new = tl.maximum(maximum, tl.max(s, 1))
        weights = tl.exp2(s - new[:, None])
    else:
        if MASKED:
            s = tl.where(visible, s, float("-inf"))
        new = tl.maximum(maximum, tl.max(s, 1) * scale)
        weights = tl.exp2(s * scale - new[:, None])
    factor = tl.exp2(maximum - new)
    return weights, factor, new, total * factor + tl.sum(weights, 1)

# mypy: ignore-errors
"""Pieces that the kernels of matrix products share: order of tiles, activations, the epilogue."""

import triton
import triton.language as tl


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    """An activation in float32; "none" is the identity."""
    if ACTIVATION == "silu":
        x = x / (1.0 + tl.exp(-x))
    elif ACTIVATION == "gelu":
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACTIVATION == "gelu_tanh":
        # 0.5 (1 + tanh(z)) is sigmoid(2 z), which needs no tanh of the vendor's library.
        x = x / (1.0 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))
    elif ACTIVATION == "relu":
        x = tl.maximum(x, 0.0)
    return x


@triton.jit
def spread(pid, programs, DIES: tl.constexpr):
    """Neighbouring programs on one die: hardware deals program i to die i mod DIES, each of which
    has its own L2."""
    if DIES > 1:
        most = (programs + DIES - 1) // DIES
        long = programs - (most - 1) * DIES  # dies that run `most` programs
        die = pid % DIES
        index = pid // DIES
        pid = die * (most - 1) + tl.minimum(die, long) + index
    return pid


@triton.jit
def tile_of(pid, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    """Row and column of a tile; groups of GROUP_M rows of tiles go column by column, so that
    programs that run together share tiles of x and w in L2."""
    per_group = GROUP_M * tiles_n
    first = (pid // per_group) * GROUP_M
    rows = tl.minimum(tiles_m - first, GROUP_M)
    inside = pid % per_group
    return first + inside % rows, inside // rows


@triton.jit
def finish(
    acc, x_scale, w_scale, bias, residual, out, rows, cols, M, N,
    stride_rm, stride_om,
    ACTIVATION: tl.constexpr, X_SCALE: tl.constexpr, W_SCALE: tl.constexpr,
):  # fmt: skip
    """The epilogue: scales, bias, activation, residual, rounding, a masked store.

    acc: [BM, BN]. out and residual point to row 0 of the batch. X_SCALE, W_SCALE: "none", "one"
    (a scale for all) or "each" (one a row of x, one a row of w).
    """
    y = acc.to(tl.float32)
    in_rows = rows < M
    in_cols = cols < N
    mask = in_rows[:, None] & in_cols[None, :]
    if X_SCALE == "one":
        y *= tl.load(x_scale)
    elif X_SCALE == "each":
        y *= tl.load(x_scale + rows, mask=in_rows, other=0.0)[:, None]
    if W_SCALE == "one":
        y *= tl.load(w_scale)
    elif W_SCALE == "each":
        y *= tl.load(w_scale + cols, mask=in_cols, other=0.0)[None, :]
    if bias is not None:
        y += tl.load(bias + cols, mask=in_cols, other=0.0).to(tl.float32)[None, :]
    y = activate(y, ACTIVATION)
    wide = rows.to(tl.int64)[:, None]
    if residual is not None:
        at = residual + wide * stride_rm + cols[None, :]
        y += tl.load(at, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + wide * stride_om + cols[None, :], y.to(out.dtype.element_ty), mask=mask)

# mypy: ignore-errors
"""x·wᵀ for a few rows of x: bound by reading w, so lanes multiply and no matrix unit is fed."""

import triton
import triton.language as tl

from pumice.operators.gemm.common_triton import activate
from pumice.operators.triton.float8_triton import decode_e4m3_wide


@triton.jit
def gemv(
    x, w, x_scale, w_scale, bias, residual, out,
    N, K, stride_xb, stride_xm, stride_wb, stride_wn, stride_rb, stride_rm, stride_ob, stride_om,
    M: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, VECTOR: tl.constexpr,
    EVEN_K: tl.constexpr, ACTIVATION: tl.constexpr, X_SCALE: tl.constexpr, W_SCALE: tl.constexpr,
    UPCAST: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One program, BN rows of w against all M rows of x.

    Products of VECTOR neighbours, which one lane loaded together, are added at once; lanes meet
    only after the last block of K. EARLY: a programmatic launch, begun before the one in front has
    ended.
    """
    if EARLY:
        tl.extra.cuda.gdc_wait()
    batch = tl.program_id(1).to(tl.int64)
    col0 = tl.program_id(0) * BN
    near = tl.minimum(tl.arange(0, BN), N - 1 - col0)
    ks = tl.arange(0, BK)
    w_tile = w + batch * stride_wb + col0.to(tl.int64) * stride_wn
    w_tile = w_tile + (near[:, None] * stride_wn + ks[None, :])
    x_at = x + batch * stride_xb + ks
    TYPE: tl.constexpr = tl.int32 if x.dtype.element_ty == tl.int8 else tl.float32
    zero = tl.zeros((BN, BK // VECTOR), dtype=TYPE)
    sums = (zero,)
    for _ in tl.static_range(M - 1):
        sums = sums + (zero,)  # noqa: RUF005 (Triton has no stars)
    for k in range(0, K, BK):
        if EVEN_K:
            b = tl.load(w_tile)
        else:
            b = tl.load(w_tile, mask=ks[None, :] < K - k, other=0.0)
        b = (decode_e4m3_wide(b) if UPCAST else b).to(TYPE)
        new = ()
        for m in tl.static_range(M):
            if EVEN_K:
                a = tl.load(x_at + m * stride_xm)
            else:
                a = tl.load(x_at + m * stride_xm, mask=ks < K - k, other=0.0)
            a = (decode_e4m3_wide(a) if UPCAST else a).to(TYPE)
            product = tl.reshape(a[None, :] * b, (BN, BK // VECTOR, VECTOR))
            new = new + (sums[m] + tl.sum(product, 2),)  # noqa: RUF005
        sums = new
        w_tile += BK
        x_at += BK
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    cols = col0 + tl.arange(0, BN)
    mask = cols < N
    for m in tl.static_range(M):
        y = tl.sum(sums[m], 1).to(tl.float32)
        if X_SCALE == "one":
            y *= tl.load(x_scale)
        elif X_SCALE == "each":
            y *= tl.load(x_scale + m)
        if W_SCALE == "one":
            y *= tl.load(w_scale)
        elif W_SCALE == "each":
            y *= tl.load(w_scale + cols, mask=mask, other=0.0)
        if bias is not None:
            y += tl.load(bias + cols, mask=mask, other=0.0).to(tl.float32)
        y = activate(y, ACTIVATION)
        if residual is not None:
            at = residual + batch * stride_rb + m * stride_rm + cols
            y += tl.load(at, mask=mask, other=0.0).to(tl.float32)
        at = out + batch * stride_ob + m * stride_om + cols
        tl.store(at, y.to(out.dtype.element_ty), mask=mask)

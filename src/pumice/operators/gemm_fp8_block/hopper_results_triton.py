# mypy: ignore-errors
"""How a group of four warps ends a tile of 8-bit products on Hopper.

Results are scaled, rounded and put in shared memory, from where the tensor memory accelerator takes
them while the next tile is multiplied. `epilogue` is (bias, residual, out, stride_rm, stride_om).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from pumice.operators.gemm.hopper_triton import activate, store_tile
from pumice.operators.triton.gluon_names_triton import async_store


@gluon.jit
def wait_full(full, stage, phase, GATHERED: gl.constexpr):
    """Waits until a buffer is full. GATHERED: threads have copied rows there, not the accelerator;
    what they wrote the matrix unit sees behind a fence."""
    mbarrier.wait(full.index(stage), phase)
    if GATHERED:
        fence_async_shared()


@gluon.jit
def _factor(scale, at, count, KIND: gl.constexpr, SIZE: gl.constexpr):
    lane: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    STEP: gl.constexpr = 1 if KIND == "each" else 0
    if KIND == "none":
        found = gl.full([SIZE], 1.0, gl.float32, lane)
    else:
        near = at + gl.arange(0, SIZE, lane)
        found = gl.load(scale + near * STEP, mask=near < count, other=0.0)
    return found


@gluon.jit
def factors_of(
    scales, row0, col0, more0, M, N,
    MORE: gl.constexpr, X_SCALE: gl.constexpr, W_SCALE: gl.constexpr,
):  # fmt: skip
    """Scales of a group's 64 rows, of 128 columns and of MORE: loads that begin before a tile is
    multiplied, for what comes after it. X_SCALE, W_SCALE: as in `gemm_tile`."""
    x_scale, w_scale, _, _, _, _ = scales
    rows = _factor(x_scale, row0, M, X_SCALE, 64)
    left = _factor(w_scale, col0, N, W_SCALE, 128)
    return rows, left, _factor(w_scale, more0, N, W_SCALE, MORE)


@gluon.jit
def _scaled(y, rows, columns):
    """Sums in float32, times the scales of their rows of x and of w."""
    y = y.to(gl.float32)
    if rows is not None:
        y *= gl.convert_layout(rows, gl.SliceLayout(1, y.type.layout))[:, None]
        y *= gl.convert_layout(columns, gl.SliceLayout(0, y.type.layout))[None, :]
    return y


@gluon.jit
def _finish(y, epilogue, rows, columns, col0, N, ACTIVATION: gl.constexpr):
    """Scales, bias, activation and rounding of results that leave by way of shared memory."""
    bias, _, out, _, _ = epilogue
    y = _scaled(y, rows, columns)
    if bias is not None:
        near = col0 + gl.arange(0, y.shape[1], gl.SliceLayout(0, y.type.layout))
        y += gl.load(bias + near, mask=near < N, other=0.0).to(gl.float32)[None, :]
    return activate(y, ACTIVATION).to(out.dtype.element_ty)


@gluon.jit
def _leave(y, place, row0, col0, PENDING: gl.constexpr):
    """Finished results go to a buffer, and from there to memory by the accelerator, which is waited
    for when a buffer is needed again. place: the buffer and a descriptor of out. PENDING: how many
    buffers were given away since this one."""
    buffer, out_rows = place
    tma.store_wait(PENDING)
    buffer.store(y)
    fence_async_shared()
    async_store(out_rows, [row0, col0], buffer)


@gluon.jit
def end_tile(
    y, late, epilogue, rows, columns, place, row0, col0, M, N,
    ACTIVATION: gl.constexpr, STAGED: gl.constexpr,
):  # fmt: skip
    """A tile's last sums: finished, to leave when the next tile's first multiplication has begun.
    Without STAGED (a residual, or rows of out out of the accelerator's reach) the group stores."""
    bias, residual, out, stride_rm, stride_om = epilogue
    if STAGED:
        late = (_finish(y, epilogue, rows, columns, col0, N, ACTIVATION), row0, col0, 1)
    else:
        y = _scaled(y, rows, columns)
        store_tile(y, bias, residual, out, row0, col0, M, N, stride_rm, stride_om, ACTIVATION)
    return late


@gluon.jit
def end_gated(gate, up, epilogue, row0, col0, M, ACTIVATION: gl.constexpr):
    """activation(gate)·up of 128 columns, to leave as in `end_tile`. epilogue: (out, out_scale).
    With out_scale [columns / 128, M] they are 8-bit floats, whose rows' scales are stored now."""
    out, out_scale = epilogue
    y = activate(gate, ACTIVATION) * up
    if out_scale is not None:
        LARGEST: gl.constexpr = 448.0
        scale = gl.maximum(gl.max(gl.abs(y), 1), 1e-10) * (1.0 / LARGEST)
        rows = row0 + gl.arange(0, 64, gl.SliceLayout(1, y.type.layout))
        gl.store(out_scale + col0 // 128 * M + rows, scale, mask=rows < M)
        y = y * (1.0 / scale)[:, None]
    return (y.to(out.dtype.element_ty), row0, col0, 1)


@gluon.jit
def leave_now(
    y, epilogue, rows, columns, place, row0, col0, M, N,
    ACTIVATION: gl.constexpr, STAGED: gl.constexpr, PENDING: gl.constexpr,
):  # fmt: skip
    """Sums that are done while others of the tile are multiplied: they leave at once."""
    bias, residual, out, stride_rm, stride_om = epilogue
    if STAGED:
        _leave(_finish(y, epilogue, rows, columns, col0, N, ACTIVATION), place, row0, col0, PENDING)
    else:
        y = _scaled(y, rows, columns)
        store_tile(y, bias, residual, out, row0, col0, M, N, stride_rm, stride_om, ACTIVATION)


@gluon.jit
def let_go(late, place, STAGED: gl.constexpr, PENDING: gl.constexpr):
    """Stores what the tile before left to do."""
    if STAGED:
        if late[3] == 1:
            _leave(late[0], place, late[1], late[2], PENDING)

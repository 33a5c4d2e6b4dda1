# mypy: ignore-errors
"""How a group of four warps ends a tile of 8-bit products on Hopper.

Results are scaled, rounded and put in shared memory, from where the tensor memory accelerator takes
them while the next tile is multiplied. `epilogue` is (bias, residual, out, stride_rm, stride_om,
x_scale, w_scale, x_step, w_step): scales of whole rows and how far apart they are, 0 for one scale.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from pumice.operators.gemm.hopper_triton import activate, store_tile

# Named so from Triton 3.8 on.
async_store = getattr(tma, "async_store", tma.async_copy_shared_to_global)


@gluon.jit
def wait_full(full, stage, phase, GATHERED: gl.constexpr):
    """Waits until a buffer is full. GATHERED: threads have copied rows there, not the accelerator;
    what they wrote the matrix unit sees behind a fence."""
    mbarrier.wait(full.index(stage), phase)
    if GATHERED:
        fence_async_shared()


@gluon.jit
def _scaled(y, epilogue, row0, col0, M, N):
    """Sums in float32, times the scales of their rows of x and of w."""
    _, _, _, _, _, x_scale, w_scale, x_step, w_step = epilogue
    y = y.to(gl.float32)
    if x_scale is not None:
        rows = row0 + gl.arange(0, y.shape[0], gl.SliceLayout(1, y.type.layout))
        y *= gl.load(x_scale + rows * x_step, mask=rows < M, other=0.0)[:, None]
    if w_scale is not None:
        cols = col0 + gl.arange(0, y.shape[1], gl.SliceLayout(0, y.type.layout))
        y *= gl.load(w_scale + cols * w_step, mask=cols < N, other=0.0)[None, :]
    return y


@gluon.jit
def _finish(y, epilogue, row0, col0, M, N, ACTIVATION: gl.constexpr):
    """Scales, bias, activation and rounding of results that leave by way of shared memory."""
    bias, _, out, _, _, _, _, _, _ = epilogue
    y = _scaled(y, epilogue, row0, col0, M, N)
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
    y, late, epilogue, place, row0, col0, M, N, ACTIVATION: gl.constexpr, STAGED: gl.constexpr
):
    """A tile's last sums: finished, to leave when the next tile's first multiplication has begun.
    Without STAGED (a residual, or rows of out out of the accelerator's reach) the group stores."""
    bias, residual, out, stride_rm, stride_om, _, _, _, _ = epilogue
    if STAGED:
        late = (_finish(y, epilogue, row0, col0, M, N, ACTIVATION), row0, col0, 1)
    else:
        y = _scaled(y, epilogue, row0, col0, M, N)
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
    y, epilogue, place, row0, col0, M, N,
    ACTIVATION: gl.constexpr, STAGED: gl.constexpr, PENDING: gl.constexpr,
):  # fmt: skip
    """Sums that are done while others of the tile are multiplied: they leave at once."""
    bias, residual, out, stride_rm, stride_om, _, _, _, _ = epilogue
    if STAGED:
        _leave(_finish(y, epilogue, row0, col0, M, N, ACTIVATION), place, row0, col0, PENDING)
    else:
        y = _scaled(y, epilogue, row0, col0, M, N)
        store_tile(y, bias, residual, out, row0, col0, M, N, stride_rm, stride_om, ACTIVATION)


@gluon.jit
def let_go(late, place, STAGED: gl.constexpr, PENDING: gl.constexpr):
    """Stores what the tile before left to do."""
    if STAGED:
        if late[3] == 1:
            _leave(late[0], place, late[1], late[2], PENDING)

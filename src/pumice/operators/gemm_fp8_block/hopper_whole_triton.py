# mypy: ignore-errors
"""Tiles whose sums stay in the matrix unit until K ends, for one group of four warps: integers,
whose sums are exact, 8-bit floats of which few bits are wanted, 16-bit floats.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from pumice.operators.gemm.hopper_triton import after
from pumice.operators.gemm_fp8_block.hopper_results_triton import (
    end_gated,
    end_tile,
    leave_now,
    let_go,
    wait_full,
)


@gluon.jit
def _multiply(a_smem, b_smem, acc, stage, use_acc, ROW: gl.constexpr):
    """Adds a block of K, of 64 rows and the sums' columns."""
    a = a_smem.index(stage).slice(ROW, 64, dim=0)
    b = b_smem.index(stage).slice(0, acc.shape[1], dim=0).permute((1, 0))
    return warpgroup_mma(a, b, acc, use_acc=use_acc, is_async=True)


@gluon.jit
def _halves(acc, mma: gl.constexpr):
    """256 columns as twice 128. A lane holds both: nothing moves."""
    parts = gl.permute(gl.reshape(acc, (acc.shape[0], 2, acc.shape[1] // 2)), (0, 2, 1))
    left, right = gl.split(parts)
    left = gl.convert_layout(left, mma, assert_trivial=True)
    return left, gl.convert_layout(right, mma, assert_trivial=True)


@gluon.jit
def multiply_whole(
    ring, epilogue, factors, place, small, late, row0, col0, more0, M, N, K, stage, phase,
    ROW: gl.constexpr, COLUMNS: gl.constexpr, MORE: gl.constexpr, STAGES: gl.constexpr,
    ACTIVATION: gl.constexpr, STAGED: gl.constexpr, GATED: gl.constexpr = False,
    GATHERED: gl.constexpr = False,
):  # fmt: skip
    """COLUMNS columns from col0 on, 128 or 256, and MORE, 0 or 64, from more0 on. GATED: 128 of
    the 256 are gate's, the others up's (`end_gated`). GATHERED: see `wait_full`."""
    a_smem, b_smem, c_smem, _, _, full, empty, _ = ring
    rows, left, right = factors
    BK: gl.constexpr = a_smem.shape[2]
    kind: gl.constexpr = gl.int32 if a_smem.dtype == gl.int8 else gl.float32
    # Triton has no instruction for 256 columns of integers.
    WIDTH: gl.constexpr = 128 if kind == gl.int32 else COLUMNS
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, BK // 4])
    acc = gl.zeros([64, COLUMNS], kind, mma)
    wait_full(full, stage, phase, GATHERED)
    acc = _multiply(a_smem, b_smem, acc, stage, False, ROW)
    if MORE:
        half: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, MORE, BK // 4])
        more = gl.zeros([64, MORE], kind, half)
        more = _multiply(a_smem, c_smem, more, stage, False, ROW)
        let_go(late, small, STAGED, 1)
        acc, more = warpgroup_mma_wait(2, deps=(acc, more))
    else:
        let_go(late, place, STAGED, 0)
        acc = warpgroup_mma_wait(1, deps=(acc,))
    before = empty.index(stage)
    stage, phase = after(stage, phase, STAGES)
    for _ in range(BK, K, BK):
        wait_full(full, stage, phase, GATHERED)
        acc = _multiply(a_smem, b_smem, acc, stage, True, ROW)
        if MORE:
            more = _multiply(a_smem, c_smem, more, stage, True, ROW)
            acc, more = warpgroup_mma_wait(2, deps=(acc, more))
        else:
            acc = warpgroup_mma_wait(1, deps=(acc,))
        # The block before this one is multiplied: its buffer is free.
        mbarrier.arrive(before, count=1)
        before = empty.index(stage)
        stage, phase = after(stage, phase, STAGES)
    acc = warpgroup_mma_wait(0, deps=(acc,))
    if MORE:
        more = warpgroup_mma_wait(0, deps=(more,))
    mbarrier.arrive(before, count=1)
    if MORE:
        leave_now(acc, epilogue, rows, left, place, row0, col0, M, N, ACTIVATION, STAGED, 1)
        late = end_tile(
            more, late, epilogue, rows, right, small, row0, more0, M, N, ACTIVATION, STAGED
        )
    elif COLUMNS == 256:
        part: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, BK // 4])
        acc, last = _halves(acc, part)
        if GATED:
            late = end_gated(acc, last, epilogue, row0, col0, M, ACTIVATION)
        else:
            leave_now(acc, epilogue, rows, left, place, row0, col0, M, N, ACTIVATION, STAGED, 0)
            late = end_tile(
                last, late, epilogue, rows, right, place, row0, col0 + 128, M, N,
                ACTIVATION, STAGED,
            )  # fmt: skip
    else:
        late = end_tile(
            acc, late, epilogue, rows, left, place, row0, col0, M, N, ACTIVATION, STAGED
        )
    return stage, phase, late

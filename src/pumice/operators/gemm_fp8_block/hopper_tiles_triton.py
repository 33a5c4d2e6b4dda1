# mypy: ignore-errors
"""Tiles of 128, 192 and 256 columns of 8-bit floats, for one group of four warps.

Every block of K leaves the matrix unit, which keeps few bits of sums, and is added to a total, or
scaled into it, by the vector unit. That hides behind a multiplication: of the same group where
registers are enough for a second set of sums (128 and 192 columns), else of the other group.
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
def _start(a_smem, b_smem, sums, stage, ROW: gl.constexpr, FROM: gl.constexpr):
    """Multiplies a block of K, of 64 rows and the sums' columns, into a set of sums."""
    COLUMNS: gl.constexpr = sums.shape[1]
    a = a_smem.index(stage).slice(ROW, 64, dim=0)
    b = b_smem.index(stage).slice(FROM, COLUMNS, dim=0).permute((1, 0))
    return warpgroup_mma(a, b, sums, use_acc=False, is_async=True)


@gluon.jit
def _scale(s_smem, t_smem, stage, ROW: gl.constexpr, PART: gl.constexpr, LAYOUT: gl.constexpr):
    """What 64 rows of a block's sums are multiplied by: 1 where blocks have no scales."""
    if s_smem is None:
        scales = gl.full([64], 1.0, gl.float32, gl.SliceLayout(1, LAYOUT))
    else:
        rows = s_smem.index(stage).slice(ROW, 64, dim=0).load(gl.SliceLayout(1, LAYOUT))
        part = t_smem.index(stage).slice(PART, 1, dim=0).load(gl.SliceLayout(1, LAYOUT))
        scales = rows * part
    return scales


@gluon.jit
def _apart(blocks, STAGES: gl.constexpr, SKEW: gl.constexpr):
    """Whether groups can be SKEW parts of a tile apart: the tile has so many, and buffers do not
    let the first be there a second time before the second saw it there once."""
    return (blocks + SKEW // 2 > STAGES) & (2 * blocks >= SKEW + 4)


@gluon.jit
def _hold(turn, turn_phase, blocks, ROW: gl.constexpr, STAGES: gl.constexpr, SKEW: gl.constexpr):
    """The second group starts a tile when the first one has done SKEW parts of it, halves of a
    block: while one ends a tile, the other multiplies."""
    if SKEW > 0 and ROW > 0:
        if _apart(blocks, STAGES, SKEW):
            mbarrier.wait(turn, turn_phase)
            turn_phase ^= 1
    return turn_phase


@gluon.jit
def _pass(turn, part, blocks, ROW: gl.constexpr, STAGES: gl.constexpr, SKEW: gl.constexpr):
    """The first group has done a part of a tile."""
    if SKEW > 0 and ROW == 0:
        mbarrier.arrive(turn, count=1, pred=(part == SKEW) & _apart(blocks, STAGES, SKEW))


@gluon.jit
def multiply_128(
    ring, epilogue, factors, place, late, row0, col0, M, N, K, stage, phase, turn_phase,
    ROW: gl.constexpr, STAGES: gl.constexpr, SKEW: gl.constexpr, ACTIVATION: gl.constexpr,
    STAGED: gl.constexpr,
):  # fmt: skip
    """128 columns: two sets of sums in turns, one being added while the other fills."""
    a_smem, b_smem, _, s_smem, t_smem, full, empty, turn = ring
    rows, left, _ = factors
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 32])
    last = gl.cdiv(K, 128) - 1
    acc = gl.zeros([64, 128], gl.float32, mma)
    sums1 = acc
    turn_phase = _hold(turn, turn_phase, last + 1, ROW, STAGES, SKEW)
    mbarrier.wait(full.index(stage), phase)
    sums0 = _start(a_smem, b_smem, acc, stage, ROW, 0)
    r0 = _scale(s_smem, t_smem, stage, ROW, 0, mma)
    let_go(late, place, STAGED, 0)
    before = empty.index(stage)
    stage, phase = after(stage, phase, STAGES)
    mbarrier.wait(full.index(stage), phase, pred=last > 0)
    sums0 = warpgroup_mma_wait(0, deps=(sums0,))
    for block in range(0, last - 1, 2):
        sums1 = _start(a_smem, b_smem, sums1, stage, ROW, 0)
        r1 = _scale(s_smem, t_smem, stage, ROW, 0, mma)
        mbarrier.arrive(before, count=1)
        _pass(turn, 2 * block + 2, last + 1, ROW, STAGES, SKEW)
        acc += sums0 * r0[:, None]
        # Waits for nothing that runs: it keeps the compiler from moving the additions further
        # down, behind the next multiplication into the same registers.
        acc, sums0 = warpgroup_mma_wait(1, deps=(acc, sums0))
        before = empty.index(stage)
        stage, phase = after(stage, phase, STAGES)
        mbarrier.wait(full.index(stage), phase)
        sums0 = _start(a_smem, b_smem, sums0, stage, ROW, 0)
        r0 = _scale(s_smem, t_smem, stage, ROW, 0, mma)
        sums1 = warpgroup_mma_wait(1, deps=(sums1,))
        mbarrier.arrive(before, count=1)
        _pass(turn, 2 * block + 4, last + 1, ROW, STAGES, SKEW)
        acc += sums1 * r1[:, None]
        acc, sums1 = warpgroup_mma_wait(1, deps=(acc, sums1))
        before = empty.index(stage)
        stage, phase = after(stage, phase, STAGES)
        mbarrier.wait(full.index(stage), phase, pred=block + 2 < last)
        sums0 = warpgroup_mma_wait(0, deps=(sums0,))
    if last % 2 == 1:
        sums1 = _start(a_smem, b_smem, sums1, stage, ROW, 0)
        r1 = _scale(s_smem, t_smem, stage, ROW, 0, mma)
        mbarrier.arrive(before, count=1)
        acc += sums0 * r0[:, None]
        acc, sums0 = warpgroup_mma_wait(1, deps=(acc, sums0))
        sums1 = warpgroup_mma_wait(0, deps=(sums1,))
        mbarrier.arrive(empty.index(stage), count=1)
        stage, phase = after(stage, phase, STAGES)
        acc += sums1 * r1[:, None]
    else:
        mbarrier.arrive(before, count=1)
        acc += sums0 * r0[:, None]
    late = end_tile(acc, late, epilogue, rows, left, place, row0, col0, M, N, ACTIVATION, STAGED)
    return stage, phase, turn_phase, late


@gluon.jit
def multiply_192(
    ring, epilogue, factors, place, small, late, row0, col0, more0,
    M, N, K, stage, phase, turn_phase,
    ROW: gl.constexpr, STAGES: gl.constexpr, SKEW: gl.constexpr, ACTIVATION: gl.constexpr,
    STAGED: gl.constexpr,
):  # fmt: skip
    """128 columns from col0 on and 64 from more0 on: each part's sums are added while the other's
    fill."""
    a_smem, b_smem, c_smem, s_smem, t_smem, full, empty, turn = ring
    rows, left, right = factors
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 32])
    half: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 32])
    last = gl.cdiv(K, 128) - 1
    acc = gl.zeros([64, 128], gl.float32, mma)
    more = gl.zeros([64, 64], gl.float32, half)
    few = more
    turn_phase = _hold(turn, turn_phase, last + 1, ROW, STAGES, SKEW)
    mbarrier.wait(full.index(stage), phase)
    sums = _start(a_smem, b_smem, acc, stage, ROW, 0)
    r0 = _scale(s_smem, t_smem, stage, ROW, 0, mma)
    let_go(late, small, STAGED, 1)
    sums = warpgroup_mma_wait(0, deps=(sums,))
    _pass(turn, 1, last + 1, ROW, STAGES, SKEW)
    for block in range(1, last + 1):
        few = _start(a_smem, c_smem, few, stage, ROW, 0)
        r1 = _scale(s_smem, t_smem, stage, ROW, 1, half)
        acc += sums * r0[:, None]
        # As in `multiply_128`.
        acc, sums = warpgroup_mma_wait(1, deps=(acc, sums))
        before = empty.index(stage)
        stage, phase = after(stage, phase, STAGES)
        mbarrier.wait(full.index(stage), phase)
        sums = _start(a_smem, b_smem, sums, stage, ROW, 0)
        r0 = _scale(s_smem, t_smem, stage, ROW, 0, mma)
        few = warpgroup_mma_wait(1, deps=(few,))
        mbarrier.arrive(before, count=1)
        _pass(turn, 2 * block, last + 1, ROW, STAGES, SKEW)
        more += few * r1[:, None]
        sums, few, more = warpgroup_mma_wait(0, deps=(sums, few, more))
    few = _start(a_smem, c_smem, few, stage, ROW, 0)
    r1 = _scale(s_smem, t_smem, stage, ROW, 1, half)
    acc += sums * r0[:, None]
    acc, sums = warpgroup_mma_wait(1, deps=(acc, sums))
    leave_now(acc, epilogue, rows, left, place, row0, col0, M, N, ACTIVATION, STAGED, 1)
    few = warpgroup_mma_wait(0, deps=(few,))
    mbarrier.arrive(empty.index(stage), count=1)
    stage, phase = after(stage, phase, STAGES)
    more += few * r1[:, None]
    late = end_tile(more, late, epilogue, rows, right, small, row0, more0, M, N, ACTIVATION, STAGED)
    return stage, phase, turn_phase, late


@gluon.jit
def multiply_256(
    ring, epilogue, factors, place, late, row0, col0, M, N, K, stage, phase, turn_phase,
    ROW: gl.constexpr, STAGES: gl.constexpr, SKEW: gl.constexpr, ACTIVATION: gl.constexpr,
    STAGED: gl.constexpr, GATED: gl.constexpr = False, GATHERED: gl.constexpr = False,
):  # fmt: skip
    """256 columns: two halves, which share one set of sums; one group adds while the other
    multiplies. The first half leaves while the last block's second half is multiplied, or, GATED,
    is what gates that one (`end_gated`). GATHERED: see `wait_full`."""
    a_smem, b_smem, _, s_smem, t_smem, full, empty, turn = ring
    rows, left, right = factors
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 32])
    blocks = gl.cdiv(K, 128)
    last = blocks - 1
    acc0 = gl.zeros([64, 128], gl.float32, mma)
    acc1 = acc0
    sums = acc0
    turn_phase = _hold(turn, turn_phase, blocks, ROW, STAGES, SKEW)
    wait_full(full, stage, phase, GATHERED)
    sums = _start(a_smem, b_smem, sums, stage, ROW, 0)
    let_go(late, place, STAGED, 0)
    for block in range(0, last):
        r0 = _scale(s_smem, t_smem, stage, ROW, 0, mma)
        r1 = _scale(s_smem, t_smem, stage, ROW, 1, mma)
        sums = warpgroup_mma_wait(0, deps=(sums,))
        _pass(turn, 2 * block + 1, blocks, ROW, STAGES, SKEW)
        acc0 += sums * r0[:, None]
        # As in `multiply_128`.
        acc0, sums = warpgroup_mma_wait(0, deps=(acc0, sums))
        sums = _start(a_smem, b_smem, sums, stage, ROW, 128)
        before = empty.index(stage)
        stage, phase = after(stage, phase, STAGES)
        wait_full(full, stage, phase, GATHERED)
        sums = warpgroup_mma_wait(0, deps=(sums,))
        acc1 += sums * r1[:, None]
        acc1, sums = warpgroup_mma_wait(0, deps=(acc1, sums))
        sums = _start(a_smem, b_smem, sums, stage, ROW, 0)
        mbarrier.arrive(before, count=1)
        _pass(turn, 2 * block + 2, blocks, ROW, STAGES, SKEW)
    r0 = _scale(s_smem, t_smem, stage, ROW, 0, mma)
    r1 = _scale(s_smem, t_smem, stage, ROW, 1, mma)
    sums = warpgroup_mma_wait(0, deps=(sums,))
    _pass(turn, 2 * last + 1, blocks, ROW, STAGES, SKEW)
    acc0 += sums * r0[:, None]
    acc0, sums = warpgroup_mma_wait(0, deps=(acc0, sums))
    sums = _start(a_smem, b_smem, sums, stage, ROW, 128)
    if not GATED:
        leave_now(acc0, epilogue, rows, left, place, row0, col0, M, N, ACTIVATION, STAGED, 0)
    sums = warpgroup_mma_wait(0, deps=(sums,))
    mbarrier.arrive(empty.index(stage), count=1)
    acc1 += sums * r1[:, None]
    stage, phase = after(stage, phase, STAGES)
    if GATED:
        late = end_gated(acc0, acc1, epilogue, row0, col0, M, ACTIVATION)
    else:
        late = end_tile(
            acc1, late, epilogue, rows, right, place, row0, col0 + 128, M, N, ACTIVATION, STAGED
        )
    return stage, phase, turn_phase, late

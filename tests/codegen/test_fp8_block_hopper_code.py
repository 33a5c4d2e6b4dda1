"""Block-scaled 8-bit floats compile for Hopper without one; which tiles the plan takes. Numbers are
compared as NumPy (`tests/device/test_gluon_fp8_block.py`) and on the device."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from matmul_code import check_plan

from pumice.compiler.gpu.binaries import Binaries
from pumice.errors import CompileError
from pumice.operators.gemm_fp8_block.hopper_plan import (
    BlockSpecialized,
    cut,
    tile_costs,
)
from pumice.operators.gemm_fp8_block.spec import tensors
from pumice.operators.registry import get_spec
from pumice.operators.triton.build import build
from pumice.operators.triton.plan import Problem, TensorSpec, make_problem
from pumice.targets import get_target
from pumice.targets.gpu import GPU_TARGETS
from pumice.tuning.gpu import choose_kernel, database

HOPPER = get_target("sm_90")
KERNEL = BlockSpecialized()


def block(m: int, n: int, k: int, attrs: Mapping[str, Any] = {}, **more: TensorSpec) -> Problem:
    return make_problem(get_spec("gemm_fp8_block"), attrs, {**tensors(m, n, k), **more})


@pytest.mark.parametrize("bn", [128, 192, 256])
def test_two_groups_multiply_and_one_warp_loads(bn: int) -> None:
    problem = block(4096, 7168, 2048)
    config = next(c for c in KERNEL.configs(problem, HOPPER) if c["BN"] == bn)
    (binary,) = check_plan(KERNEL, problem, HOPPER, config)
    assert binary.threads == 12 * 32
    text = binary.assembly
    assert text.count("setmaxnreg.inc") >= 2
    assert re.search(r"wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3", text)
    assert re.search(r"cp\.async\.bulk\.tensor\.2d\.shared::(cluster|cta)\.global", text)
    # Results leave by the accelerator: a group waits for the buffer, not for its own stores.
    assert "stmatrix" in text
    assert "cp.async.bulk.tensor.2d.global.shared::cta" in text
    assert not re.search(r"\tst\.global\.v4", text)


def test_an_epilogue_with_everything() -> None:
    more = {"bias": TensorSpec((7168,), "bfloat16"), "residual": TensorSpec((512, 7168), "float16")}
    problem = block(512, 7168, 2048, {"activation": "silu", "out_dtype": "float16"}, **more)
    config = next(c for c in KERNEL.configs(problem, HOPPER) if c["BN"] == 128)
    (binary,) = check_plan(KERNEL, problem, HOPPER, config)
    assert "cp.async.bulk.tensor.2d.global" not in binary.assembly


@pytest.mark.parametrize(
    ("change", "out"),
    [({}, TensorSpec((512, 1004), "bfloat16")), ({"out_dtype": "float32"}, None)],
)  # fmt: skip
def test_rows_that_the_accelerator_cannot_store(change: Any, out: TensorSpec | None) -> None:
    """Rows that do not begin at 16 bytes, four bytes a value."""
    problem = block(512, 1004 if out else 1024, 512, change)
    config = KERNEL.configs(problem, HOPPER)[0]
    (launch,) = KERNEL.plan(problem, HOPPER, config).launches
    assert not launch.constants["STAGED"]


def test_room_for_descriptors() -> None:
    problem = block(4096, 7168, 2048)
    plan = KERNEL.plan(problem, HOPPER, KERNEL.configs(problem, HOPPER)[0])
    (launch,) = plan.launches
    room = plan.workspaces[launch.scratch]
    assert room.shape[0] == launch.grid[0] == HOPPER.compute_units
    with pytest.raises(CompileError, match=r"keeps 512 bytes a program in memory.*no scratch"):
        build(replace(launch, scratch=""), problem.tensors, HOPPER)


def test_a_model_compiles_it() -> None:
    problem = block(4096, 7168, 2048)
    config = next(c for c in KERNEL.configs(problem, HOPPER) if c["BN"] == 128)
    plan = KERNEL.plan(problem, HOPPER, config)
    binaries = Binaries(HOPPER)
    symbol = binaries.symbol(plan.launches[0], {**problem.tensors, **plan.workspaces})
    built = binaries.build(1)[symbol]
    assert (built.threads, built.parameters[-1]) == (12 * 32, "strips")


@pytest.mark.parametrize("wide", [128, 192, 256])
def test_the_cut(wide: int) -> None:
    """Strips do not reach beyond N by a whole one, and no other number of them does better."""
    units, ends = 132, 10
    for m, n in ((1024, 14336), (4096, 24576), (512, 10240), (129, 130), (4096, 2112), (300, 64)):
        strips, most = cut(m, n, wide, ends, units)
        every = -(-n // wide)
        assert 0 <= strips <= every
        assert wide != 192 or strips % 2 == 0 or strips == every

        def busiest(strips: int, m: int = m, n: int = n) -> int:
            costs = tile_costs(m, n, wide, strips, ends)
            return max(sum(costs[unit::units]) for unit in range(units))

        tried = [s for s in range(every + 1) if wide == 256 or s % 2 == 0 or s == every]
        assert most == busiest(strips)
        assert wide == 128 or most == min(busiest(s) for s in tried)


def test_every_column_is_in_a_tile() -> None:
    """2112 columns in strips of 192, or of 256 and the rest in one of 128."""
    assert len(tile_costs(1024, 2112, 192, 11, 0)) == 8 * 11
    assert tile_costs(1024, 2112, 256, 8, 0)[62:66] == [256, 256, 165, 165]


def test_reasons() -> None:
    for target in GPU_TARGETS:
        against = KERNEL.supports(block(4096, 4096, 4096), target)
        assert (against is None) == (target.name == "sm_90")
        assert against is None or "wgmma" in against or target.name in against
    for problem, words in (
        (block(64, 4096, 4096), "64 rows"),
        (block(256, 4096, 4104), "multiples of 16 bytes"),
        (make_problem(get_spec("gemm_fp8_block"), {}, tensors(256, 256, 256, "float8_e4m3fnuz")),
         "float8_e4m3fn"),
    ):  # fmt: skip
        assert words in str(KERNEL.supports(problem, HOPPER))
    for m, k in ((0, 4096), (300, 4112), (129, 128)):
        assert KERNEL.supports(block(m, 4096, k), HOPPER) is None


def test_chosen_for_many_rows() -> None:
    rows = database("sm_90")
    for n, k in ((7168, 2048), (24576, 1536), (7168, 16384)):
        assert choose_kernel(block(4096, n, k), HOPPER, rows).kernel_name == KERNEL.name
    assert choose_kernel(block(16, 7168, 2048), HOPPER, rows).kernel_name != KERNEL.name

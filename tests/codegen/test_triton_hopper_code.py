"""Kernels in Gluon compile for Hopper without one. Neither Triton's interpreter nor the emulator
runs them: `scripts/bench_ops_h200` judges their numbers on the device."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from matmul_code import check_plan

from pumice.errors import CompileError
from pumice.operators.gemm_fp8_block.spec import tensors
from pumice.operators.registry import get_spec, triton_kernels_of
from pumice.operators.triton.build import build
from pumice.operators.triton.plan import Problem, TensorSpec, make_problem
from pumice.targets import get_target
from pumice.targets.gpu import GPU_TARGETS

HOPPER = get_target("sm_90")
(KERNEL,) = (k for k in triton_kernels_of("gemm_fp8_block") if k.name.endswith("specialized"))


def block(m: int, n: int, k: int, attrs: Mapping[str, Any] = {}, **more: TensorSpec) -> Problem:
    return make_problem(get_spec("gemm_fp8_block"), attrs, {**tensors(m, n, k), **more})


@pytest.mark.parametrize("bn", [128, 256])
def test_two_groups_multiply_and_one_warp_loads(bn: int) -> None:
    problem = block(4096, 7168, 2048)
    config = next(c for c in KERNEL.configs(problem, HOPPER) if c["BN"] == bn)
    (binary,) = check_plan(KERNEL, problem, HOPPER, config)
    assert binary.threads == 12 * 32
    assert binary.assembly.count("setmaxnreg.inc") >= 2
    assert "cp.async.bulk.tensor.2d" in binary.assembly
    assert re.search(r"wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3", binary.assembly)


def test_an_epilogue_with_everything() -> None:
    more = {"bias": TensorSpec((7168,), "bfloat16"), "residual": TensorSpec((512, 7168), "float16")}
    problem = block(512, 7168, 2048, {"activation": "silu", "out_dtype": "float16"}, **more)
    check_plan(KERNEL, problem, HOPPER)


def test_room_for_descriptors() -> None:
    problem = block(4096, 7168, 2048)
    plan = KERNEL.plan(problem, HOPPER, KERNEL.configs(problem, HOPPER)[0])
    (launch,) = plan.launches
    room = plan.workspaces[launch.scratch]
    assert room.shape[0] == launch.grid[0] == HOPPER.compute_units
    with pytest.raises(CompileError, match=r"keeps 256 bytes a program in memory.*no scratch"):
        build(replace(launch, scratch=""), problem.tensors, HOPPER)


def test_every_tile_is_done_once() -> None:
    """Whole tiles and halves together are all of them, in as few waves as either alone."""
    units = HOPPER.compute_units
    for m, n in ((1024, 14336), (4096, 24576), (512, 4096), (129, 130), (4096, 7168), (4096, 4224)):
        problem = block(m, n, 512)
        config = next(c for c in KERNEL.configs(problem, HOPPER) if c["BN"] == 256)
        (launch,) = KERNEL.plan(problem, HOPPER, config).launches
        count, whole = -(-m // 128) * -(-n // 256), launch.arguments["whole"]
        assert isinstance(whole, int) and 0 <= whole <= count
        assert whole == count or 2 * (count - whole) <= units
        assert launch.grid[0] == min(units, whole + 2 * (count - whole))


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
    assert KERNEL.supports(block(0, 4096, 4096), HOPPER) is None

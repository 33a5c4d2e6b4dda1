"""Kernels in Gluon compile for Hopper without one. Neither Triton's interpreter nor the emulator
runs them: `tests/device/test_gluon_gemm.py` does as NumPy, and `scripts/bench_ops_h200` judges
their numbers on the device."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from matmul_code import check_plan, check_resources

from pumice.compiler.gpu.binaries import Binaries
from pumice.errors import CompileError
from pumice.operators.gemm.specialized import cut
from pumice.operators.gemm_fp8_block.spec import tensors
from pumice.operators.gemm_w4.hopper_prompt import Prompt
from pumice.operators.gemm_w4.spec import bench_problem
from pumice.operators.registry import get_spec, triton_kernels_of
from pumice.operators.triton.build import build, build_plan
from pumice.operators.triton.plan import Problem, TensorSpec, make_problem
from pumice.targets import get_target
from pumice.targets.gpu import GPU_TARGETS
from pumice.tuning.gpu import choose_kernel, database

HOPPER = get_target("sm_90")
KERNEL, DENSE, STREAMED = (
    next(k for k in triton_kernels_of(name) if k.name == f"{name}.triton.{kernel}")
    for name, kernel in (
        ("gemm_fp8_block", "specialized"), ("gemm", "specialized"), ("gemm", "streamed"),
    )
)  # fmt: skip
PROMPT = Prompt()


def block(m: int, n: int, k: int, attrs: Mapping[str, Any] = {}, **more: TensorSpec) -> Problem:
    return make_problem(get_spec("gemm_fp8_block"), attrs, {**tensors(m, n, k), **more})


@pytest.mark.parametrize("bn", [128, 192, 256])
def test_two_groups_multiply_and_one_warp_loads(bn: int) -> None:
    problem = block(4096, 7168, 2048)
    config = next(c for c in KERNEL.configs(problem, HOPPER) if c["BN"] == bn)
    (binary,) = check_plan(KERNEL, problem, HOPPER, config)
    assert binary.threads == 12 * 32
    assert binary.assembly.count("setmaxnreg.inc") >= 2
    assert "cp.async.bulk.tensor.2d" in binary.assembly
    assert re.search(r"wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3", binary.assembly)


def dense(m: int, n: int, k: int, attrs: Mapping[str, Any] = {}, **more: TensorSpec) -> Problem:
    dtype = "float16" if "bias" in more else "bfloat16"
    inputs = {name: TensorSpec((rows, k), dtype) for name, rows in (("x", m), ("w", n))}
    return make_problem(get_spec("gemm"), attrs, {**inputs, **more})


@pytest.mark.parametrize("bn", [128, 192, 256])
def test_dense(bn: int) -> None:
    problem = dense(512, 6144, 4096)
    config = next(c for c in DENSE.configs(problem, HOPPER) if c["BN"] == bn)
    (binary,) = check_plan(DENSE, problem, HOPPER, config)
    assert binary.threads == 12 * 32
    part = 64 if bn == 192 else bn
    assert f"wgmma.mma_async.sync.aligned.m64n{part}k16.f32" in binary.assembly


@pytest.mark.parametrize("bn", [128, 256])
def test_blocks_shared_by_units(bn: int) -> None:
    """Sums go from unit to unit 16 bytes a lane, past the first cache."""
    problem = dense(512, 5120, 13824)
    config = next(c for c in STREAMED.configs(problem, HOPPER) if c["BN"] == bn)
    (binary,) = check_plan(STREAMED, problem, HOPPER, config)
    assert f"wgmma.mma_async.sync.aligned.m64n{bn}k16.f32.bf16" in binary.assembly
    assert binary.assembly.count("ld.global.cg.v4") >= bn // 8
    assert "atom.global.gpu.release" in binary.assembly
    assert "atom.global.acquire.gpu" in binary.assembly


def test_dense_begins_early() -> None:
    """It waits for the launch in front before it makes descriptors or reads anything."""
    more = {"bias": TensorSpec((777,), "float16"), "residual": TensorSpec((333, 777), "float16")}
    problem = dense(333, 777, 464, {"activation": "silu"}, **more)
    for kernel in (DENSE, STREAMED):
        config = next(c for c in kernel.configs(problem, HOPPER) if c["early"] and c["BN"] == 128)
        (binary,) = build_plan(problem, kernel.plan(problem, HOPPER, config), HOPPER)
        check_resources(binary, HOPPER, kernel.name)
        assert binary.metadata.launch_pdl
        before, wait, _ = binary.assembly.partition("griddepcontrol.wait")
        assert wait and "tensormap" not in before and "ld.global" not in before


@pytest.mark.parametrize(("dtype", "offset"), [("float16", ""), ("bfloat16", "mins")])
def test_decoded_by_warps_of_their_own(dtype: str, offset: str) -> None:
    """A lane reads 16 bytes of codes and stores 16 bytes of weights at a time."""
    _, attrs, inputs = bench_problem(512, 4096, 11008, 32, offset, dtype, "rows")
    problem = make_problem(get_spec("gemm_w4"), attrs, inputs)
    config = next(c for c in PROMPT.configs(problem, HOPPER) if c["BM"] == 256)
    (binary,) = check_plan(PROMPT, problem, HOPPER, config)
    assert binary.threads == 16 * 32
    kind = {"float16": "f16", "bfloat16": "bf16"}[dtype]
    assert f"wgmma.mma_async.sync.aligned.m64n128k16.f32.{kind}" in binary.assembly
    assert "fence.proxy.async.shared::cta" in binary.assembly
    assert "ld.global.v4.b32" in binary.assembly and "st.shared.v4.b32" in binary.assembly


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"m": 64}, "64 tokens"),
        ({"packing": "blocks"}, "packed in 'rows'"),
        ({"offset": "zeros"}, "no zero points"),
        ({"k": 4032}, "multiples of 128"),
    ],
    ids=str,
)
def test_prompts_that_it_refuses(changes: Mapping[str, Any], words: str) -> None:
    given = {"m": 512, "n": 4096, "k": 4096, "group": 32, "offset": "", "dtype": "float16"}
    _, attrs, inputs = bench_problem(**{**given, "packing": "rows", **changes})
    assert words in str(PROMPT.supports(make_problem(get_spec("gemm_w4"), attrs, inputs), HOPPER))


def test_an_epilogue_with_everything() -> None:
    more = {"bias": TensorSpec((7168,), "bfloat16"), "residual": TensorSpec((512, 7168), "float16")}
    problem = block(512, 7168, 2048, {"activation": "silu", "out_dtype": "float16"}, **more)
    config = next(c for c in KERNEL.configs(problem, HOPPER) if c["BN"] == 128)
    build_plan(problem, KERNEL.plan(problem, HOPPER, config), HOPPER)
    reason = str(KERNEL.supports(problem, HOPPER))
    assert "bias, residual, activation silu, out in float16" in reason


def test_room_for_descriptors() -> None:
    problem = block(4096, 7168, 2048)
    plan = KERNEL.plan(problem, HOPPER, KERNEL.configs(problem, HOPPER)[0])
    (launch,) = plan.launches
    room = plan.workspaces[launch.scratch]
    assert room.shape[0] == launch.grid[0] == HOPPER.compute_units
    with pytest.raises(CompileError, match=r"keeps 256 bytes a program in memory.*no scratch"):
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
    """Strips do not reach beyond N by a whole one, and the busiest unit is found."""
    units, more = 132, 24
    for m, n in ((1024, 14336), (4096, 24576), (512, 10240), (129, 130), (4096, 2112), (300, 64)):
        strips, columns = cut(m, n, wide, wide == 192, units)
        every, rows = -(-n // wide), -(-m // 128)
        assert 0 <= strips <= every
        assert wide != 192 or strips % 2 == 0 or strips == every
        load = [0] * units
        narrow = rows * max(0, -(-(n - strips * wide) // 128))
        for tile in range(rows * strips):
            load[tile % units] += wide + more
        for tile in range(narrow):
            load[(rows * strips + tile) % units] += 128 + more
        assert max(load) == columns
        assert columns <= -(-rows * every // units) * (wide + more)


def test_reasons() -> None:
    for target in GPU_TARGETS:
        against = KERNEL.supports(block(4096, 4096, 4096), target)
        assert (against is None) == (target.name == "sm_90")
        assert against is None or "wgmma" in against or target.name in against
    for problem, words in (
        (block(64, 4096, 4096), "64 rows"),
        (block(256, 4096, 4104), "multiples of 16 bytes"),
        (block(256, 4096, 4112), "multiple of 256"),
        (make_problem(get_spec("gemm_fp8_block"), {}, tensors(256, 256, 256, "float8_e4m3fnuz")),
         "float8_e4m3fn"),
    ):  # fmt: skip
        assert words in str(KERNEL.supports(problem, HOPPER))
    assert KERNEL.supports(block(0, 4096, 4096), HOPPER) is None


def test_chosen_for_many_rows() -> None:
    rows = database("sm_90")
    for n, k in ((7168, 2048), (24576, 1536), (7168, 16384)):
        assert choose_kernel(block(4096, n, k), HOPPER, rows).kernel_name == KERNEL.name
    assert choose_kernel(block(16, 7168, 2048), HOPPER, rows).kernel_name != KERNEL.name

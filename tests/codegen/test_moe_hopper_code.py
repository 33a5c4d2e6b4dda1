"""moe_gemm's kernels for Hopper compile without one. Numbers are compared as NumPy
(`tests/device/test_gluon_moe.py`) and on the device."""

from __future__ import annotations

import re

import pytest
from matmul_code import check_resources

from pumice.operators.moe_gemm.hopper_plan import MoeSpecialized
from pumice.operators.moe_gemm.spec import tensors
from pumice.operators.registry import get_spec
from pumice.operators.triton.build import build
from pumice.operators.triton.plan import Problem, TensorSpec, make_problem
from pumice.targets import GPU_TARGETS, get_target
from pumice.tuning.gpu import choose_kernel, database

HOPPER = get_target("sm_90")
KERNEL = MoeSpecialized()
DEEPSEEK = (256, 8, 7168, 2048, "float8_e4m3fn")
MIXTRAL = (8, 2, 4096, 14336, "bfloat16")


def moe(tokens: int, *shape: int | str, **more: TensorSpec) -> Problem:
    experts, topk, k, f, dtype = shape
    inputs = tensors(tokens, int(experts), int(topk), int(k), int(f), str(dtype))
    return make_problem(get_spec("moe_gemm"), {}, {**inputs, **more})


@pytest.mark.parametrize("gather", [0, 1])
@pytest.mark.parametrize("shape", [DEEPSEEK, MIXTRAL], ids=["8-bit floats", "16-bit floats"])
def test_products(shape: tuple[int | str, ...], gather: int) -> None:
    problem = moe(8192, *shape)
    assert KERNEL.supports(problem, HOPPER) is None
    config = next(c for c in KERNEL.configs(problem, HOPPER) if c["gather"] == gather)
    plan = KERNEL.plan(problem, HOPPER, config)
    names = {**problem.tensors, **plan.workspaces}
    products = [launch for launch in plan.launches if launch.scratch]
    assert len(plan.launches) == 7 - gather and len(products) == 2
    kind = r"k32\.f32\.e4m3\.e4m3" if shape is DEEPSEEK else r"k16\.f32\.bf16\.bf16"
    for launch in products:
        binary = build(launch, names, HOPPER)
        check_resources(binary, HOPPER, launch.constants)
        text = binary.assembly
        assert binary.threads == 12 * 32 and text.count("setmaxnreg.inc") >= 2
        assert re.search(rf"wgmma\.mma_async\.sync\.aligned\.m64n(128|256){kind}", text)
        assert re.search(r"cp\.async\.bulk\.tensor\.2d\.shared::(cluster|cta)\.global", text)
        # Rows of x are gathered 16 bytes a lane, and the matrix unit is told of them.
        lines = len(re.findall(r"cp\.async\.cg\.shared\.global.*0x10", text))
        gathers = gather and launch is products[0]
        assert lines == (8 if gathers else 0)
        assert not gathers or "cp.async.mbarrier.arrive.noinc" in text
        assert not gathers or text.count("fence.proxy.async.shared::cta") >= 2


def test_the_other_launches() -> None:
    problem = moe(8192, *DEEPSEEK)
    config = KERNEL.configs(problem, HOPPER)[-1]
    plan = KERNEL.plan(problem, HOPPER, config)
    names = {**problem.tensors, **plan.workspaces}
    for launch in plan.launches:
        if not launch.scratch:
            check_resources(build(launch, names, HOPPER), HOPPER, launch.kernel)


def test_reasons() -> None:
    for target in GPU_TARGETS:
        against = KERNEL.supports(moe(8192, *MIXTRAL), target)
        assert (against is None) == (target.name == "sm_90")
    apart = TensorSpec((8, 28672, 4096), "bfloat16", (28672 * 4104, 4104, 1))
    for problem, words in (
        (moe(16, *DEEPSEEK), "0.5 entries"),
        (moe(4096, 8, 2, 4096, 100, "bfloat16"), "multiples of 8"),
        (moe(4096, 8, 2, 200, 128, "float8_e4m3fn"), "multiples of 128"),
        (moe(4096, *MIXTRAL, w1=apart), "w1 must be contiguous"),
    ):
        assert words in str(KERNEL.supports(problem, HOPPER))
    assert KERNEL.supports(moe(0, *DEEPSEEK), HOPPER) is None


def test_rows_that_threads_cannot_gather() -> None:
    """Part of a block of K; rows that do not begin at 16 bytes."""
    apart = TensorSpec((4096, 4096), "bfloat16", (4100, 1))
    for problem in (moe(4096, 8, 2, 200, 128, "bfloat16"), moe(4096, *MIXTRAL, x=apart)):
        assert {config["gather"] for config in KERNEL.configs(problem, HOPPER)} == {0}


def test_chosen_for_many_rows() -> None:
    rows = database("sm_90")
    for tokens, shape in ((8192, DEEPSEEK), (8192, MIXTRAL)):
        choice = choose_kernel(moe(tokens, *shape), HOPPER, rows)
        assert choice.kernel_name == KERNEL.name
    assert choose_kernel(moe(16, *DEEPSEEK), HOPPER, rows).kernel_name != KERNEL.name

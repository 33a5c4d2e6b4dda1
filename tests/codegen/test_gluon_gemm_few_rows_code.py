"""The machine code of the kernel for few rows of x on Hopper: the tensor memory accelerator loads,
rows of w are the long side of the matrix instruction, nothing is spilled."""

from __future__ import annotations

from typing import Any

import pytest
from matmul_code import check_resources

from pumice.operators.gemm.few_rows import GemmFewRows
from pumice.operators.registry import get_spec
from pumice.operators.triton.build import Binary, build_plan
from pumice.operators.triton.plan import Config, Problem, TensorSpec, make_problem
from pumice.targets import get_target
from pumice.targets.gpu import GPU_TARGETS

HOPPER = get_target("sm_90")
KERNEL = GemmFewRows()


def gemm(
    m: int, n: int, k: int, dtype: str = "bfloat16", attrs: Any = None, **more: TensorSpec
) -> Problem:
    inputs = {"x": TensorSpec((m, k), dtype), "w": TensorSpec((n, k), dtype), **more}
    return make_problem(get_spec("gemm"), attrs or {}, inputs)


def compiled(problem: Problem, config: Config) -> Binary:
    (binary,) = build_plan(problem, KERNEL.plan(problem, HOPPER, config), HOPPER)
    check_resources(binary, HOPPER, dict(config))
    # The launch behind finds room on the same units.
    assert 2 * (binary.shared_bytes + 1024) <= 233472
    return binary


@pytest.mark.parametrize("m", [1, 16, 32, 64])
def test_every_shape(m: int) -> None:
    problem = gemm(m, 22016, 4096)
    for config in KERNEL.configs(problem, HOPPER)[::4]:
        text = compiled(problem, config).assembly
        assert f"wgmma.mma_async.sync.aligned.m64n{max(8, m)}k16.f32.bf16.bf16" in text
        assert "cp.async.bulk.tensor.2d" in text


@pytest.mark.parametrize("early", [0, 1, 2])
def test_beginning_early(early: int) -> None:
    """Nothing is read or written until the launch in front is done."""
    problem = gemm(4, 4096, 4096)
    config = {**KERNEL.configs(problem, HOPPER)[0], "early": early}
    binary = compiled(problem, config)
    assert binary.metadata.launch_pdl == bool(early)
    before, wait, after = binary.assembly.partition("griddepcontrol.wait")
    assert bool(wait) == ("griddepcontrol.launch_dependents" in after) == bool(early)
    for reads in ("ld.global", "cp.async.bulk.tensor.2d", "st.global", "atom."):
        assert not early or (reads not in before and reads in after)
    if early:
        until = after.partition("griddepcontrol.launch_dependents")[0]
        assert ("wgmma" in until) == (early == 2)


def test_an_epilogue_with_everything() -> None:
    more = {"bias": TensorSpec((769,), "float32"), "residual": TensorSpec((50, 769), "float16")}
    attrs = {"activation": "gelu", "out_dtype": "float32"}
    problem = gemm(50, 769, 1000, "float16", attrs, **more)
    compiled(problem, KERNEL.configs(problem, HOPPER)[0])


def test_reasons() -> None:
    for target in GPU_TARGETS:
        against = KERNEL.supports(gemm(16, 4096, 4096), target)
        assert (against is None) == (target.name == "sm_90")
    for problem, words in (
        (gemm(65, 4096, 4096), "65 rows"),
        (gemm(16, 4096, 4100), "multiples of 16 bytes"),
        (gemm(16, 4096, 0), "K is 0"),
        (gemm(16, 4096, 4096, "float32"), "float32"),
        (gemm(16, 1 << 20, 1 << 14), "more than this kernel counts"),
    ):
        assert words in str(KERNEL.supports(problem, HOPPER)), words
    assert KERNEL.supports(gemm(0, 4096, 4096), HOPPER) is None

"""gemm compiles for every GPU: nothing spilled, within shared memory, on the matrix unit."""

from __future__ import annotations

import pytest
from matmul_code import check_plan, problem_of
from triton_code import GPU_TARGETS

from pumice.operators.gemm.spec import SPEC
from pumice.operators.registry import triton_kernels_of
from pumice.operators.triton.plan import Problem, TensorSpec
from pumice.targets import Target

KERNELS = {kernel.name.rpartition(".")[2]: kernel for kernel in triton_kernels_of("gemm")}


def gemm(m: int, n: int, k: int, dtype: str = "bfloat16", **extra: TensorSpec) -> Problem:
    inputs = {"x": TensorSpec((m, k), dtype), "w": TensorSpec((n, k), dtype), **extra}
    return problem_of(SPEC, {"activation": "silu"} if extra else {}, inputs)


@pytest.mark.parametrize(
    ("target", "kind", "m"),
    [(target, "tiled", 4096) for target in GPU_TARGETS]
    + [
        (target, kind, m)
        for target in GPU_TARGETS
        if target.name in ("gfx942", "gfx1100", "sm_90")
        for kind, m in (("split_k", 16), ("gemv", 1), ("gemv", 8))
    ],
)
def test_llama_layers(target: Target, kind: str, m: int) -> None:
    check_plan(KERNELS[kind], gemm(m, 4096, 4096), target, matrix=kind != "gemv")


@pytest.mark.parametrize("target", GPU_TARGETS[::4], ids=lambda target: target.name)
def test_an_epilogue_and_ragged_sizes(target: Target) -> None:
    bias = TensorSpec((769,), "float16")
    problem = gemm(304, 769, 1000, "float16", bias=bias, residual=TensorSpec((304, 769), "float16"))
    check_plan(KERNELS["tiled"], problem, target)


def test_float32_on_the_vector_unit() -> None:
    for target in GPU_TARGETS[2::5]:
        check_plan(KERNELS["tiled"], gemm(512, 512, 512, "float32"), target, matrix=False)


@pytest.mark.parametrize("kind", ["tiled", "split_k", "stream_k"])
def test_every_candidate_fits_shared_memory(kind: str) -> None:
    """By the plan's own account; the compiler's is tested for the favourites."""
    for target in GPU_TARGETS:
        for m in (1, 16, 64, 304, 4096):
            problem = gemm(m, 4096, 14336)
            if KERNELS[kind].supports(problem, target) is not None:
                continue
            for config in KERNELS[kind].configs(problem, target):
                stages = config["stages"] - (target.api == "rocm")
                bytes_needed = max(stages, 1) * (config["BM"] + config["BN"]) * config["BK"] * 2
                assert bytes_needed < target.shared_bytes
                assert config["warps"] * target.wave <= 1024


@pytest.mark.parametrize(("kind", "m"), [("tiled", 16), ("split_k", 64), ("gemv", 1)])
def test_beginning_early(kind: str, m: int) -> None:
    """All is read after the launch in front is done; the one behind may come after the products."""
    target = next(t for t in GPU_TARGETS if t.name == "sm_90")
    problem = gemm(m, 4096, 4096)
    config = next(c for c in KERNELS[kind].configs(problem, target) if c.get("early"))
    for binary in check_plan(KERNELS[kind], problem, target, config, matrix=kind != "gemv"):
        assert binary.metadata.launch_pdl
        before, wait, after = binary.assembly.partition("griddepcontrol.wait")
        assert wait and "griddepcontrol.launch_dependents" in after
        for reads in ("ld.global", "cp.async", "st.global"):
            assert reads not in before
    last = binary.assembly.rpartition("griddepcontrol.launch_dependents")[2]
    assert "mma" not in last and "st.global" in last


def test_nobody_else_begins_early() -> None:
    for target in GPU_TARGETS:
        if target.matrix_unit not in ("wgmma", "tcgen05"):
            found = KERNELS["tiled"].configs(gemm(16, 4096, 4096), target)
            assert not any(config.get("early") for config in found), target.name

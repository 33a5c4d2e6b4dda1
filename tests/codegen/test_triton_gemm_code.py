"""gemm compiles for every GPU: nothing spilled, within shared memory, on the matrix unit."""

from __future__ import annotations

import pytest
from matmul_code import check_plan, problem_of
from triton_code import GPU_TARGETS

from pumice.operators.gemm.product import of_problem
from pumice.operators.gemm.spec import SPEC
from pumice.operators.gemm.tiles import deep, widths
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


@pytest.mark.parametrize("m", [4, 64])
def test_deep_rings_of_few_rows(m: int) -> None:
    """What is offered for few rows on Hopper keeps within shared memory and registers, and widths
    that are no power of two are among it."""
    target = next(t for t in GPU_TARGETS if t.name == "sm_90")
    problem = gemm(m, 10240, 8192)
    offered = [tile.config() for tile in deep(of_problem(problem), target)]
    assert {80, 96} <= {config["BN"] for config in offered}
    known = KERNELS["tiled"].configs(problem, target)
    for config in offered:
        assert {**config, "early": 1} in known and {**config, "early": 2} in known
    for config in offered[2::3]:
        check_plan(KERNELS["tiled"], problem, target, {**config, "early": 1})


def test_deep_rings_are_for_few_aligned_rows_on_hopper() -> None:
    targets = {target.name: target for target in GPU_TARGETS}
    assert not deep(of_problem(gemm(65, 10240, 8192)), targets["sm_90"])
    assert not deep(of_problem(gemm(0, 10240, 8192)), targets["sm_90"])
    assert not deep(of_problem(gemm(64, 10240, 8191)), targets["sm_90"])
    assert not deep(of_problem(gemm(64, 10240, 8192, "float32")), targets["sm_90"])
    assert not deep(of_problem(gemm(64, 10240, 8192)), targets["gfx942"])


def test_widths() -> None:
    assert [widths(bn) for bn in (64, 96, 80, 24)] == [(64, 0), (64, 32), (64, 16), (16, 8)]
    with pytest.raises(ValueError, match="112"):
        widths(112)

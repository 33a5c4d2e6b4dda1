"""Kernels in Gluon compile for Hopper without one. Neither Triton's interpreter nor the emulator
runs them: `tests/device/test_gluon_gemm.py` does as NumPy, and `scripts/bench_ops_h200` judges
their numbers on the device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from matmul_code import check_plan

from pumice.operators.gemm.specialized import cut
from pumice.operators.gemm_w4.hopper_prompt import Prompt
from pumice.operators.gemm_w4.spec import bench_problem
from pumice.operators.registry import get_spec, triton_kernels_of
from pumice.operators.triton.plan import Problem, TensorSpec, make_problem
from pumice.targets import get_target

HOPPER = get_target("sm_90")
DENSE, STREAMED = (
    next(k for k in triton_kernels_of("gemm") if k.name == f"gemm.triton.{kernel}")
    for kernel in ("specialized", "streamed")
)
PROMPT = Prompt()


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
        (binary,) = check_plan(kernel, problem, HOPPER, config)
        assert binary.metadata.launch_pdl
        before, wait, _ = binary.assembly.partition("griddepcontrol.wait")
        assert wait and "tensormap" not in before and "ld.global" not in before


@pytest.mark.parametrize(("dtype", "offset"), [("float16", ""), ("bfloat16", "mins")])
def test_decoded_by_warps_of_their_own(dtype: str, offset: str) -> None:
    """A lane reads 16 bytes of codes and stores 16 of weights at a time."""
    _, attrs, inputs = bench_problem(512, 4096, 11008, 32, offset, dtype, "rows")
    problem = make_problem(get_spec("gemm_w4"), attrs, inputs)
    config = next(c for c in PROMPT.configs(problem, HOPPER) if c["BM"] == 256)
    (binary,) = check_plan(PROMPT, problem, HOPPER, config)
    assert binary.threads == 16 * 32
    kind = {"float16": "f16", "bfloat16": "bf16"}[dtype]
    assert f"wgmma.mma_async.sync.aligned.m64n128k16.f32.{kind}" in binary.assembly
    assert "fence.proxy.async.shared::cta" in binary.assembly
    text = binary.assembly
    assert "ld.global.v4.b32" in text and "st.shared.v4.b32" in text


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

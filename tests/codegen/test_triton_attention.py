"""Machine code of the attention kernels for every GPU target: it fits, does not spill, and uses the
matrix unit."""

from __future__ import annotations

import re
from typing import Any

import pytest
from triton_code import GPU_TARGETS, compiled, problem_of

from pumice.operators.flash_attention.spec import BENCH as FLASH
from pumice.operators.mla_decode.spec import BENCH as MLA
from pumice.operators.paged_attention.spec import BENCH as DECODE
from pumice.operators.paged_prefill.spec import BENCH as PREFILL
from pumice.operators.registry import get_spec, triton_kernels_of
from pumice.operators.rope_cache.spec import BENCH as ROPE
from pumice.operators.triton.plan import Problem
from pumice.targets import Target

MATRIX = {
    "mfma": r"\tv_mfma_f32_\w*f16",
    "wmma": r"\tv_wmma_f32_16x16x16_b?f16",
    "mma": r"\tmma\.sync\.",
    "wgmma": r"\twgmma\.mma_async\.",
    "tcgen05": r"tcgen05\.mma\.",
}
TARGETS = {target.name: target for target in GPU_TARGETS}
BENCH = {
    "mla_decode": MLA,
    "flash_attention": FLASH,
    "paged_attention": DECODE,
    "paged_prefill": PREFILL,
    "rope_cache": ROPE,
}
EVERY = [
    ("flash_attention", "Llama-3-8B 4×4096"),
    ("paged_attention", "Llama-3-8B 32×4096"),
]
SOME = [
    ("paged_attention", "Llama-3-8B 32×4096, fp8 cache"),
    ("paged_prefill", "Llama-3-8B 4×2048 of 2048"),
]


def problem(operator: str, label: str) -> Problem:
    ((attrs, tensors),) = [row[1:] for row in BENCH[operator] if row[0] == label]
    return problem_of(get_spec(operator), attrs, tensors)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize(("operator", "label"), EVERY)
def test_every_target(name: str, operator: str, label: str) -> None:
    compile_favourite(TARGETS[name], operator, label)


@pytest.mark.parametrize("name", ["gfx942", "gfx1100", "sm_90"])
@pytest.mark.parametrize(("operator", "label"), SOME)
def test_some_targets(name: str, operator: str, label: str) -> None:
    compile_favourite(TARGETS[name], operator, label)


@pytest.mark.parametrize("name", ["gfx90a", "gfx942", "sm_90"])
def test_latent_cache(name: str) -> None:
    """Rows of the first product are keys."""
    compile_favourite(TARGETS[name], "mla_decode", "DeepSeek-V3 16 heads 128×4096")


@pytest.mark.parametrize("name", ["gfx942", "gfx1201", "sm_90"])
def test_wide_heads(name: str) -> None:
    """192 columns of keys, 128 of values."""
    compile_favourite(TARGETS[name], "flash_attention", "DeepSeek-V3 prefill 1×4096")


@pytest.mark.parametrize("name", ["gfx90a", "gfx1100", "sm_90"])
def test_rope(name: str) -> None:
    """8-bit values are converted in software where there is no instruction."""
    case = problem("rope_cache", "Llama-3-8B 8192 tokens, fp8 cache")
    (kernel,) = triton_kernels_of("rope_cache")
    compiled(kernel, case, TARGETS[name])


def compile_favourite(target: Target, operator: str, label: str) -> None:
    case = problem(operator, label)
    (kernel,) = (k for k in triton_kernels_of(operator) if not k.name.endswith(".hopper"))
    config = kernel.configs(case, target)[0]
    binaries = compiled(kernel, case, target, config)
    # Sixteen rows are too few for a warpgroup's product.
    small = config.get("BLOCK_M", config["BLOCK_N"]) < 64 and target.matrix_unit in (
        "wgmma",
        "tcgen05",
    )
    unit: Any = "mma" if small else target.matrix_unit
    assert re.search(MATRIX[unit], binaries[0].assembly)

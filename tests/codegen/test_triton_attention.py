"""Machine code of the attention kernels for every GPU target: it fits, does not spill, and uses the
matrix unit."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pumice.operators.flash_attention.spec import BENCH as FLASH
from pumice.operators.mla_decode.spec import BENCH as MLA
from pumice.operators.paged_attention.spec import BENCH as DECODE
from pumice.operators.paged_prefill.spec import BENCH as PREFILL
from pumice.operators.registry import get_spec, triton_kernels_of
from pumice.operators.rope_cache.spec import BENCH as ROPE
from pumice.operators.triton.build import Binary, build_plan
from pumice.operators.triton.plan import Problem
from pumice.targets import GPU_TARGETS, Target

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
    ("flash_attention", "head 64 4×4096"),
    ("paged_attention", "Llama-3-8B 32×4096, fp8 cache"),
    ("paged_prefill", "Llama-3-8B 4×2048 of 2048"),
]


def problem(operator: str, label: str) -> Problem:
    ((attrs, tensors),) = [row[1:] for row in BENCH[operator] if row[0] == label]
    outputs = get_spec(operator).output_specs
    assert outputs is not None
    return Problem(operator, {**tensors, **outputs(attrs, tensors)}, attrs)


def count(text: str, name: str) -> int:
    """A figure of the metadata of AMD's assembly."""
    found = re.search(rf"\.{name}:\s+(\d+)", text)
    assert found is not None
    return int(found[1])


def check(binary: Binary, target: Target) -> None:
    assert binary.shared_bytes <= target.shared_bytes
    assert binary.threads <= 1024
    if target.api == "rocm":
        for name in ("vgpr_spill_count", "sgpr_spill_count", "private_segment_fixed_size"):
            assert count(binary.assembly, name) == 0, name


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize(("operator", "label"), EVERY)
def test_every_target(name: str, operator: str, label: str) -> None:
    compile_favourite(TARGETS[name], operator, label)


@pytest.mark.parametrize("name", ["gfx942", "gfx1100", "sm_90"])
@pytest.mark.parametrize(("operator", "label"), SOME)
def test_some_targets(name: str, operator: str, label: str) -> None:
    compile_favourite(TARGETS[name], operator, label)


@pytest.mark.parametrize("name", ["gfx90a", "gfx942", "gfx950", "sm_80", "sm_90"])
def test_latent_cache(name: str) -> None:
    """16 heads are columns of the matrix unit, so that a warpgroup's product serves them."""
    compile_favourite(TARGETS[name], "mla_decode", "DeepSeek-V3 16 heads 128×4096", rows=64)


@pytest.mark.parametrize("name", ["gfx942", "gfx1201", "sm_90"])
def test_wide_heads(name: str) -> None:
    """192 columns of keys, 128 of values."""
    compile_favourite(TARGETS[name], "flash_attention", "DeepSeek-V3 prefill 1×4096")


@pytest.mark.parametrize("name", ["gfx90a", "gfx942", "gfx1100", "gfx1201", "sm_90"])
def test_rope(name: str) -> None:
    """8-bit values are converted in software where there is no instruction."""
    case = problem("rope_cache", "Llama-3-8B 8192 tokens, fp8 cache")
    (kernel,) = triton_kernels_of("rope_cache")
    plan = kernel.plan(case, TARGETS[name], kernel.configs(case, TARGETS[name])[0])
    for binary in build_plan(case, plan, TARGETS[name]):
        check(binary, TARGETS[name])


def compile_favourite(target: Target, operator: str, label: str, rows: int = 0) -> None:
    case = problem(operator, label)
    (kernel,) = triton_kernels_of(operator)
    assert kernel.supports(case, target) is None
    config = kernel.configs(case, target)[0]
    binaries = build_plan(case, kernel.plan(case, target, config), target)
    for binary in binaries:
        check(binary, target)
    # Sixteen rows are too few for a warpgroup's product.
    small = (rows or config["BLOCK_M"]) < 64 and target.matrix_unit in ("wgmma", "tcgen05")
    unit: Any = "mma" if small else target.matrix_unit
    assert re.search(MATRIX[unit], binaries[0].assembly)

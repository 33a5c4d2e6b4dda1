"""Machine code of the attention kernels for every GPU target: it fits, does not spill, and uses the
matrix unit."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pumice.operators.flash_attention.spec import BENCH as FLASH
from pumice.operators.paged_attention.spec import BENCH as DECODE
from pumice.operators.paged_prefill.spec import BENCH as PREFILL
from pumice.operators.registry import get_spec, triton_kernels_of
from pumice.operators.triton.build import Binary, build_plan
from pumice.operators.triton.plan import Problem
from pumice.targets import GPU_TARGETS, Target

MATRIX = {
    "mfma": r"\tv_mfma_f32_\w*bf16",
    "wmma": r"\tv_wmma_f32_16x16x16_bf16",
    "mma": r"\tmma\.sync\.",
    "wgmma": r"\twgmma\.mma_async\.",
    "tcgen05": r"tcgen05\.mma\.",
}
TARGETS = {target.name: target for target in GPU_TARGETS}
BENCH = {"flash_attention": FLASH, "paged_attention": DECODE, "paged_prefill": PREFILL}
EVERY = [
    ("flash_attention", "Llama-3-8B 4×4096"),
    ("paged_attention", "Llama-3-8B 32×4096"),
]
SOME = [
    ("flash_attention", "head 64 4×4096"),
    ("flash_attention", "DeepSeek-V3 prefill 1×4096"),
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


def compile_favourite(target: Target, operator: str, label: str) -> None:
    case = problem(operator, label)
    (kernel,) = triton_kernels_of(operator)
    assert kernel.supports(case, target) is None
    config = kernel.configs(case, target)[0]
    binaries = build_plan(case, kernel.plan(case, target, config), target)
    for binary in binaries:
        check(binary, target)
    # Sixteen rows are too few for a warpgroup's product.
    small = config["BLOCK_M"] < 64 and target.matrix_unit in ("wgmma", "tcgen05")
    unit: Any = "mma" if small else target.matrix_unit
    assert re.search(MATRIX[unit], binaries[0].assembly)

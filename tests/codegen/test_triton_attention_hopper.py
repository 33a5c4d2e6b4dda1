"""Machine code of the attention kernels in Gluon, for Hopper: warp groups of their own registers
and products that run beside each other. As NumPy they run in
`tests/device/test_gluon_attention.py`; on an H200 `scripts/bench_ops_h200` checks their numbers."""

from __future__ import annotations

import re
from typing import Any

import pytest
from triton_code import problem_of, spills

from pumice.operators.flash_attention.hopper_plan import FlashAttentionHopper
from pumice.operators.flash_attention.spec import BENCH as FLASH
from pumice.operators.paged_prefill.hopper_plan import PagedPrefillHopper
from pumice.operators.paged_prefill.spec import BENCH as PREFILL
from pumice.operators.registry import get_spec
from pumice.operators.triton.build import build_plan
from pumice.operators.triton.plan import Problem, TensorSpec
from pumice.targets import GPU_TARGETS, get_target
from pumice.tuning.gpu import supporting

HOPPER = get_target("sm_90")
KERNELS: dict[str, Any] = {
    "flash_attention": FlashAttentionHopper(),
    "paged_prefill": PagedPrefillHopper(),
}
ROWS = {"flash_attention": FLASH, "paged_prefill": PREFILL}


def problem(operator: str, label: str) -> Problem:
    ((attrs, tensors),) = [row[1:] for row in ROWS[operator] if row[0] == label]
    return problem_of(get_spec(operator), attrs, tensors)


@pytest.mark.parametrize(
    ("operator", "label"),
    [
        ("flash_attention", "Llama-3-8B 4×4096"),
        ("flash_attention", "gemma-2 head 256 2×4096, cap 50"),
        ("paged_prefill", "Mixtral-8x7B 1×2048 of 8192, window 4096"),
    ],
)
def test_code(operator: str, label: str) -> None:
    case, kernel = problem(operator, label), KERNELS[operator]
    assert kernel.supports(case, HOPPER) is None
    config = kernel.configs(case, HOPPER)[0]
    (binary,) = build_plan(case, kernel.plan(case, HOPPER, config), HOPPER)
    assert binary.threads == 3 * 128
    assert binary.shared_bytes <= HOPPER.shared_bytes
    # The warp that copies has 24 registers: some numbers of a tile lie in memory.
    assert spills(binary) <= 192, binary.resources
    text = binary.assembly
    assert len(re.findall(r"\tsetmaxnreg\.", text)) >= 3
    assert re.search(r"cp\.async\.bulk\.tensor\.[34]d\.shared", text), "by the copy engine"
    # Groups take turns: each waits for the other, with all threads of both.
    assert len(re.findall(r"bar\.sync [89], 256", text)) == 2
    assert len(re.findall(r"bar\.arrive [89], 256", text)) == 3
    assert "wgmma.mma_async" in text


def test_products_run_beside_exponentials() -> None:
    """A product of keys and one of values are under way when the first of them is waited for, and
    the exponentials of one are done before the wait for the other. (Under a mask the loop has a
    branch, and its blocks do not lie in the order in which they run.)"""
    case, kernel = problem("flash_attention", "Llama-3-8B 4×4096"), KERNELS["flash_attention"]
    case = problem_of(get_spec("flash_attention"), {"causal": False}, case.inputs)
    config = kernel.configs(case, HOPPER)[0]
    (binary,) = build_plan(case, kernel.plan(case, HOPPER, config), HOPPER)
    steps = re.findall(r"\t(wgmma\.mma_async|wgmma\.wait_group\S* \d|ex2)", binary.assembly)
    kinds = "".join("w" if s == "wgmma.mma_async" else "e" if s == "ex2" else s[-1] for s in steps)
    assert len(re.findall(r"w{16}1e{64,}0", kinds)) == 2, kinds


def changed(case: Problem, **specs: TensorSpec) -> Problem:
    return Problem(case.operator, {**case.tensors, **specs}, case.attrs, case.outputs)


def test_reasons() -> None:
    """Where it does not run it says why, and what is allowed."""
    case, kernel = problem("flash_attention", "Llama-3-8B 4×4096"), KERNELS["flash_attention"]
    for target in GPU_TARGETS:
        assert (kernel.supports(case, target) is None) == (target.name == "sm_90"), target.name
    assert "sm_90 has" in kernel.supports(case, get_target("gfx942"))
    tokens, heads, dim = case["k"].shape
    odd = TensorSpec((tokens, heads, dim), "bfloat16", (heads * dim + 4, dim, 1))
    assert "multiples" in kernel.supports(changed(case, k=odd), HOPPER)
    unaligned = TensorSpec((tokens, heads, dim), "bfloat16", aligned=False)
    assert "16 bytes" in kernel.supports(changed(case, v=unaligned), HOPPER)
    blocks = problem("paged_prefill", "Mixtral-8x7B 1×2048 of 8192, window 4096")
    uneven = {
        name: TensorSpec((512, 24, *blocks[name].shape[2:]), "bfloat16")
        for name in ("k_cache", "v_cache")
    }
    assert "blocks of 24" in KERNELS["paged_prefill"].supports(changed(blocks, **uneven), HOPPER)
    few = problem("flash_attention", "Llama-3-8B 8×16 after 4096")
    assert "16 queries a sequence" in kernel.supports(few, HOPPER)
    wide = problem("flash_attention", "DeepSeek-V3 prefill 1×4096")
    assert "(128, 256)" in kernel.supports(wide, HOPPER)
    cache = problem("paged_prefill", "Llama-3-8B 1×512 of 8192, fp8 cache")
    assert "float8_e4m3fn" in KERNELS["paged_prefill"].supports(cache, HOPPER)
    for case in (few, wide, cache):
        assert supporting(case, HOPPER)[0], "another kernel does"


def test_nothing_to_do() -> None:
    tensors = {name: TensorSpec((0, 4, 128), "bfloat16") for name in ("q", "k", "v")} | {
        name: TensorSpec((2,), "int32") for name in ("cu_seqlens_q", "cu_seqlens_k")
    }
    case = problem_of(get_spec("flash_attention"), {"causal": True}, tensors)
    kernel = KERNELS["flash_attention"]
    assert kernel.plan(case, HOPPER, kernel.configs(case, HOPPER)[0]).launches == ()

"""Machine code of Hopper's decode attention over a latent cache: warp groups of their own
registers, two products under way at once, copies by the copy engine. As NumPy it runs in
`tests/device/test_gluon_mla_decode.py`."""

from __future__ import annotations

import re

import pytest
from triton_code import problem_of, spills

from pumice.operators.mla_decode.hopper_plan import MlaDecodeHopper
from pumice.operators.mla_decode.spec import BENCH, SPEC
from pumice.operators.triton.build import build_plan
from pumice.operators.triton.plan import Problem, TensorSpec
from pumice.targets import GPU_TARGETS, get_target
from pumice.tuning.gpu import supporting

HOPPER = get_target("sm_90")
KERNEL = MlaDecodeHopper()


def problem(label: str) -> Problem:
    ((attrs, tensors),) = [row[1:] for row in BENCH if row[0] == label]
    return problem_of(SPEC, attrs, tensors)


def changed(case: Problem, **specs: TensorSpec) -> Problem:
    return Problem(case.operator, {**case.tensors, **specs}, case.attrs, case.outputs)


@pytest.mark.parametrize(
    ("label", "splits", "most"),
    [
        ("DeepSeek-V3 128 heads 128×4096", 1, 32),
        # 36 copies a block, whose places are known beforehand and wait in memory: the warp that
        # copies has 24 registers.
        ("DeepSeek-V2-Lite 16 heads 32×4096, blocks of 16", 4, 192),
    ],
)
def test_code(label: str, splits: int, most: int) -> None:
    case = problem(label)
    assert KERNEL.supports(case, HOPPER) is None
    binaries = build_plan(case, KERNEL.plan(case, HOPPER, {"SPLITS": splits}), HOPPER)
    assert len(binaries) == (1 if splits == 1 else 2)
    binary = binaries[0]
    assert binary.threads == 4 * 128
    assert binary.shared_bytes <= HOPPER.shared_bytes
    assert spills(binary) <= most, binary.resources
    text = binary.assembly
    assert len(re.findall(r"\tsetmaxnreg\.", text)) >= 4
    assert "cp.async.bulk.tensor.4d.shared" in text, "the cache by the copy engine"
    assert "ld.global" not in text.split("wgmma")[1], "and no other way"
    # Groups of outputs: four products of a near quarter, four of a far one, then the wait for the
    # first four. That of logits: the far half of the next block's products is under way while it
    # takes exponentials.
    steps = re.findall(r"\t(wgmma\.mma_async\S+m64n\d+|wgmma\.wait_group\S* \d|ex2)", text)
    kinds = "".join(
        "e" if s == "ex2" else {"n64": "q", "128": "v"}[s[-3:]] if "mma_async" in s else s[-1]
        for s in steps
    )
    assert len(re.findall(r"v{8}10", kinds)) == 2, kinds
    assert len(re.findall(r"q{36}0", kinds)) == 1, kinds
    assert len(re.findall(r"q{16}e{32,}q{20}0", kinds)) == 1, kinds


def test_reasons() -> None:
    """Where it does not run it says why, and what is allowed; another kernel does."""
    case = problem("DeepSeek-V3 128 heads 32×4096")
    for target in GPU_TARGETS:
        assert (KERNEL.supports(case, target) is None) == (target.name == "sm_90"), target.name
    assert "sm_90 has" in str(KERNEL.supports(case, get_target("sm_120")))
    blocks, page, dim = case["k_cache"].shape
    sequences, heads, _ = case["q"].shape
    for name, spec, word in (
        ("k_cache", TensorSpec((blocks, 24, dim), "bfloat16"), "blocks of 24"),
        ("k_cache", TensorSpec((blocks, page, dim), "bfloat16", (page * 580, 580, 1)), "multiples"),
        ("q", TensorSpec((sequences, heads, dim), "bfloat16", aligned=False), "16 bytes"),
    ):
        other = changed(case, **{name: spec})
        assert word in str(KERNEL.supports(other, HOPPER))
        assert supporting(other, HOPPER)[0]
    small = {
        "q": TensorSpec((sequences, heads, 192), "bfloat16"),
        "k_cache": TensorSpec((blocks, page, 192), "bfloat16"),
    }
    attrs = {"value_dim": 128}
    other = problem_of(SPEC, attrs, {**case.inputs, **small})
    assert "256 and 512" in str(KERNEL.supports(other, HOPPER))
    assert supporting(other, HOPPER)[0]


def test_nothing_to_do() -> None:
    tensors = {
        "q": TensorSpec((0, 128, 576), "bfloat16"),
        "k_cache": TensorSpec((8, 64, 576), "bfloat16"),
        "block_table": TensorSpec((0, 4), "int32"),
        "context_len": TensorSpec((0,), "int32"),
    }
    case = problem_of(SPEC, {}, tensors)
    assert KERNEL.plan(case, HOPPER, KERNEL.configs(case, HOPPER)[0]).launches == ()

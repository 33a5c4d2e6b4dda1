"""The machine code of fused_w4's kernel for one token on Hopper: weights are under way before it
waits for the launch in front, meet small matrix instructions undecoded, and nothing is spilled."""

from __future__ import annotations

import re

import pytest
from triton_code import compiled, problem_of

from pumice.operators.fused_w4.ring import Ring
from pumice.operators.fused_w4.spec import SPEC, bench_problem
from pumice.operators.triton.plan import Problem
from pumice.targets import get_target

HOPPER = get_target("sm_90")
WEIGHTS = re.compile(r"cp\.async\.cg\.shared\.global \[[^]]*\], \[[^]]*\], 0x10")
SCALES = re.compile(r"cp\.async\.ca\.shared\.global \[[^]]*\], \[[^]]*\], 0x8")
MATRIX = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"


@pytest.mark.parametrize(
    ("n", "k", "parts"),
    [
        (12288, 4096, ("norm",)),
        (4096, 4096, ("residual",)),
        (22016, 4096, ("norm", "silu")),
        (4096, 11008, ("residual",)),
    ],
)
def test_products(n: int, k: int, parts: tuple[str, ...]) -> None:
    _, attrs, inputs = bench_problem(1, n, k, *parts)
    problem = problem_of(SPEC, attrs, inputs)
    (binary,) = compiled(Ring(), problem, HOPPER)
    assert binary.metadata.launch_pdl
    before, wait, after = binary.assembly.partition("griddepcontrol.wait")
    assert wait and "griddepcontrol.launch_dependents" in after
    assert WEIGHTS.search(before) and SCALES.search(before)
    assert "st.global" not in before and MATRIX in after
    assert not re.search(r"\b(fma|sub|mul)\.[a-z.]*f16x2", after)  # codes stay codes


def test_refusals() -> None:
    _, attrs, inputs = bench_problem(1, 64, 256)
    good = problem_of(SPEC, attrs, inputs)
    assert Ring().supports(good, HOPPER) is None
    for changes, word in (
        (bench_problem(2, 64, 256), "2 tokens"),
        (bench_problem(1, 64, 256, offset="mins"), "minima"),
        (bench_problem(1, 64, 256, group=64), "groups of 64"),
        (bench_problem(1, 64, 160), "multiple of 128"),
        (bench_problem(1, 64, 256, dtype="bfloat16"), "float16"),
    ):
        _, attrs, inputs = changes
        why = Ring().supports(problem_of(SPEC, attrs, inputs), HOPPER)
        assert why is not None and word in why
    assert isinstance(good, Problem)
    assert "not sm_80" in (Ring().supports(good, get_target("sm_80")) or "")

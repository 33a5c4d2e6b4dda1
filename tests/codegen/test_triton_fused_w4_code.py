"""The machine code of fused_w4: packed arithmetic, wide loads, nothing spilled, and what a program
that begins early does before it waits."""

from __future__ import annotations

import re

import pytest
from triton_code import ROCM_TARGETS, compiled, problem_of

from pumice.operators.fused_w4.spec import SPEC, bench_problem
from pumice.operators.fused_w4.triton_plan import Persistent
from pumice.operators.triton.plan import Problem
from pumice.targets import CUDA_TARGETS, Target, get_target

SOME = [get_target(name) for name in ("gfx942", "gfx1100", "sm_90")]
_BRANCH = re.compile(r"s_cbranch\w+ (\.LBB\w+)")
WEIGHTS = re.compile(r"ld\.global\.L1::evict_first\S*\.v4\.b32")


def _problem(m: int, n: int, k: int, *parts: str, **options: str) -> Problem:
    _, attrs, inputs = bench_problem(m, n, k, *parts, **options)
    return problem_of(SPEC, attrs, inputs)


@pytest.mark.parametrize("target", [*ROCM_TARGETS, get_target("sm_90")], ids=lambda t: t.name)
def test_norm_and_gate(target: Target) -> None:
    """16 packed multiply-adds for 32 codes of a row; weights come 16 bytes at a time."""
    problem = _problem(1, 22016, 4096, "norm", "silu")
    rows = Persistent().configs(problem, target)[0]["rows"]
    (binary,) = compiled(Persistent(), problem, target)
    text = binary.assembly
    if target.api == "cuda":
        assert text.count("fma.rn.f16x2") >= rows * (16 + 8)
        assert len(WEIGHTS.findall(text)) == 2 * rows  # the first tile's, and a tile's ahead
    else:
        assert text.count("v_dot2_f32_f16") >= rows * 16
        wide = "global_load_b128" if target.wave == 32 else "global_load_dwordx4"
        assert text.count(wide) >= 2 * rows


@pytest.mark.parametrize("target", [*ROCM_TARGETS, get_target("sm_90")], ids=lambda t: t.name)
def test_residual(target: Target) -> None:
    """A K that is no power of two."""
    compiled(Persistent(), _problem(1, 4096, 11008, "residual"), target)


@pytest.mark.parametrize("target", SOME, ids=lambda t: t.name)
@pytest.mark.parametrize("m", [2, 4])
def test_some_tokens(m: int, target: Target) -> None:
    compiled(Persistent(), _problem(m, 12288, 4096, "norm"), target)


@pytest.mark.parametrize("target", SOME, ids=lambda t: t.name)
def test_minima_in_bfloat16(target: Target) -> None:
    compiled(Persistent(), _problem(1, 6144, 4096, "norm", offset="mins", dtype="bfloat16"), target)


@pytest.mark.parametrize("name", ["sm_80", "sm_120"])
def test_other_cards(name: str) -> None:
    compiled(Persistent(), _problem(1, 12288, 4096, "norm"), get_target(name))


def test_what_an_early_program_does() -> None:
    """Weights, which nobody writes, are under way before it waits; all else is read afterwards."""
    problem = _problem(1, 12288, 4096, "norm")
    target = get_target("sm_90")
    early = [c for c in Persistent().configs(problem, target) if c["early"]]
    assert early
    (binary,) = compiled(Persistent(), problem, target, early[0])
    assert binary.metadata.launch_pdl
    before, wait, after = binary.assembly.partition("griddepcontrol.wait")
    assert wait and "griddepcontrol.launch_dependents" in after
    assert len(WEIGHTS.findall(before)) == early[0]["rows"]
    assert "st.global" not in before
    assert before.count("ld.global") == 2 * early[0]["rows"]  # words and scales


def test_only_some_cards_begin_early() -> None:
    problem = _problem(1, 4096, 4096)
    begin = {
        target.name
        for target in (*ROCM_TARGETS, *CUDA_TARGETS)
        if any(config["early"] for config in Persistent().configs(problem, target))
    }
    assert begin == {"sm_90", "sm_100"}


@pytest.mark.parametrize("parts", [("norm", "silu"), ("residual",)], ids="+".join)
def test_words_on_their_way_are_not_waited_for(parts: tuple[str, ...]) -> None:
    """On CDNA a loop over tiles never waits for all its loads: those of the tile behind the one in
    use stay on their way."""
    n = 22016 if "norm" in parts else 12288
    target = get_target("gfx942")
    config = next(
        c for c in Persistent().configs(_problem(1, n, 4096, *parts), target) if c["ahead"]
    )
    (binary,) = compiled(Persistent(), _problem(1, n, 4096, *parts), target, config)
    lines = [line.strip() for line in binary.assembly.splitlines()]
    labels = {m[1]: i for i, line in enumerate(lines) if (m := re.match(r"(\.LBB\w+):", line))}
    branches = [(i, m[1]) for i, line in enumerate(lines) if (m := _BRANCH.match(line))]
    loops = [lines[labels[to] : i] for i, to in branches if labels.get(to, i) < i - 400]
    assert loops
    waits = [int(n) for n in re.findall(r"vmcnt\((\d+)\)", "\n".join(loops[0]))]
    assert waits and min(waits) >= config["rows"]

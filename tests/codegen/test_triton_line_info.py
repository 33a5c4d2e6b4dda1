"""Kernels that tests compile have no line numbers; their instructions are those of the ones that
have."""

from __future__ import annotations

import re

import numpy as np
import pytest

from pumice.operators.registry import get_spec
from pumice.operators.triton.build import Binary, build_plan
from pumice.targets import get_target
from pumice.tuning.gpu import candidates
from pumice.verify.runner import problem_of


def _instructions(binary: Binary) -> list[str]:
    lines = (re.sub(r";.*", "", line).strip() for line in binary.assembly.splitlines())
    return [line for line in lines if re.match(r"[a-z]\w+( |$)", line)]


@pytest.mark.parametrize(("arch", "name"), [("gfx1100", "softmax"), ("gfx942", "gemm")])
def test_line_numbers_change_no_instruction(
    monkeypatch: pytest.MonkeyPatch, arch: str, name: str
) -> None:
    spec, target = get_spec(name), get_target(arch)
    problem = problem_of(spec, *spec.cases(np.random.default_rng(0))[0])
    kernel, config = candidates(problem, target)[0]
    found = []
    for disabled in ("0", "1"):
        monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", disabled)
        plan = kernel.plan(problem, target, config)
        (binary,) = build_plan(problem, plan, target)
        assert (".loc" not in binary.assembly) == (disabled == "1")
        found.append(_instructions(binary))
    assert len(found[0]) > 50 and found[0] == found[1]

"""The problems of a model, as `pumice tune --model` measures them."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from pumice.cli.app import app
from pumice.compiler.compile import CompileOptions
from pumice.compiler.gpu.problems import problems_of_model
from pumice.errors import UsageError
from pumice.targets import get_target
from pumice.tuning.gpu import candidates

SMALL = CompileOptions(max_tokens=16, max_sequences=2, max_rows=2)


@pytest.mark.parametrize("arch", ["sm_90", "gfx1100"])
def test_every_problem_has_candidates(arch: str) -> None:
    target = get_target(arch)
    found = problems_of_model("random:smollm2-135m", target, SMALL)
    problems = [problem for _, problem in found]
    assert len(set(problems)) == len(problems)
    operators = {problem.operator for problem in problems}
    assert any(name in operators for name in ("gemm_w4", "fused_w4"))
    for sizes, problem in found:
        assert sizes and candidates(problem, target)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["gemm", "--shape", "x=1x8,w=2x8", "--model", "smollm2-135m"], "each says what"),
        (["--quant", "q4f16_1"], "--model is missing"),
    ],
)
def test_options_that_do_not_fit(arguments: list[str], text: str) -> None:
    done = CliRunner().invoke(app, ["tune", *arguments])
    assert done.exit_code == UsageError.exit_code and text in done.output

"""`pumice tune` and `pumice bench ops`: what is wrong is said before anything is measured, and what
was measured before an interrupt stays."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pumice.bench.operators import session
from pumice.cli import gpu
from pumice.cli.app import app
from pumice.errors import StorageError, UsageError
from pumice.operators.registry import get_spec
from pumice.operators.triton.plan import TensorSpec, make_problem
from pumice.targets import get_target
from pumice.tuning.database import row_of


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["tune", "gem"], "operator 'gem' has no GPU kernels"),
        (["bench", "ops", "normm"], "Did you mean norm"),
        (["verify", "--target", "gfx1100", "--operator", "rope_cach"], "Did you mean rope_cache"),
        (["bench", "ops", "--plot", "picture.xyz"], "its name must end in .svg"),
        (["bench", "ops", "--plot", "nowhere/a.svg"], "there is no directory"),
    ],
)
def test_said_before_a_gpu_is_looked_for(arguments: list[str], text: str) -> None:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == UsageError.exit_code
    assert text in " ".join(done.output.split())


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A GPU that measures two problems and is then interrupted."""
    monkeypatch.setattr(gpu, "require_gpu", lambda: get_target("sm_90"))

    def run(*args: Any, keep: Any, **kwargs: Any) -> None:
        found = []
        for rows in (3, 5):
            inputs = {"x": TensorSpec((rows, 4096), "float32")}
            problem = make_problem(get_spec("softmax"), {}, inputs)
            found.append(row_of(problem, kernel="softmax.triton", us=float(rows)))
            keep("softmax", found)
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "run", run)
    return run


def test_rows_stay_after_an_interrupt(measured: Any, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["tune", "softmax", "--output", str(tmp_path)])
    assert done.exit_code != 0
    kept = json.loads((tmp_path / "sm_90" / "softmax.json").read_text())["rows"]
    assert [row["us"] for row in kept] == [3.0, 5.0]


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_takes_no_rows(measured: Any, tmp_path: Path) -> None:
    (tmp_path / "sm_90").mkdir()
    (tmp_path / "sm_90").chmod(0o500)
    done = CliRunner().invoke(app, ["tune", "softmax", "--output", str(tmp_path)])
    assert done.exit_code == StorageError.exit_code and "cannot be written" in done.output


def test_a_file_in_the_folders_place(measured: Any, tmp_path: Path) -> None:
    (tmp_path / "sm_90").write_text("")
    done = CliRunner().invoke(app, ["tune", "softmax", "--output", str(tmp_path)])
    assert done.exit_code == StorageError.exit_code

"""`pumice verify` on emulated cards: verdicts, exit status, refusals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from pumice.cli.app import app
from pumice.operators.registry import get_spec
from pumice.targets import get_target
from pumice.verify import verify as verification
from pumice.verify.judge import relative_error
from pumice.verify.verify import Case, cases_of


def test_an_operator_passes_on_an_emulated_card() -> None:
    done = CliRunner().invoke(
        app, ["verify", "--target", "gfx1100", "--operator", "softmax", "--json"]
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["failed"] == 0 and found["target"] == "gfx1100"
    for case in found["cases"]:
        assert case["passed"] and 0 < case["vgprs"] <= 256 and case["spills"] == 0


def test_processes_share_the_cases() -> None:
    """In the order of the cases, whoever ran them first; results as in one process."""
    command = [
        "verify",
        "--target",
        "gfx942",
        "--operator",
        "softmax",
        "--operator",
        "topk_softmax",
    ]
    alone, shared = (
        json.loads(CliRunner().invoke(app, [*command, "--json", "--jobs", jobs]).stdout)
        for jobs in ("1", "2")
    )
    assert len(shared["cases"]) > 1 and shared["failed"] == alone["failed"] == 0
    for one, other in zip(shared["cases"], alone["cases"], strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}


def test_a_fault_of_a_kernel_is_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other cases go on, and the text says what happened."""
    spec = get_spec("softmax")

    def broken(attrs: object, inputs: object) -> dict[str, np.ndarray]:
        raise ZeroDivisionError("no reference")

    monkeypatch.setattr(verification, "get_spec", lambda _name: replace(spec, reference=broken))
    done = CliRunner().invoke(
        app, ["verify", "--target", "gfx1100", "--operator", "softmax", "--jobs", "1"]
    )
    assert done.exit_code == 1 and "ZeroDivisionError: no reference" in done.stdout


def test_a_wrong_result_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference is off by a tenth: the exit status is 1, and the case is named."""
    spec = get_spec("softmax")
    wrong = replace(
        spec, reference=lambda a, i: {k: v * 1.1 for k, v in spec.reference(a, i).items()}
    )
    monkeypatch.setattr(verification, "get_spec", lambda _name: wrong)
    done = CliRunner().invoke(
        app, ["verify", "--target", "gfx1100", "--operator", "softmax", "--jobs", "1"]
    )
    assert done.exit_code == 1
    assert "FAILED softmax." in done.stdout and "allowed" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--target", "sm_90"], "AMD's architectures are emulated"),
        (["--target", "gfx9999"], "unknown"),
        ([], "neither --device nor --target is given"),
        (["--device", "vulkan"], "allowed: cpu, rocm, cuda"),
        (["--device", "rocm", "--target", "gfx1100"], "--device and --target are given"),
        (["--target", "gfx1100", "--operator", "sort"], "no GPU kernels"),
    ],
)  # fmt: skip
def test_refusals(arguments: list[str], text: str) -> None:
    done = CliRunner().invoke(app, ["verify", *arguments])
    assert done.exit_code in (2, 4)
    assert text in done.stderr


def test_every_operator_has_cases_on_every_amd_card() -> None:
    for name in ("gfx1100", "gfx942", "gfx1201"):
        operators = {case.spec.name for case in cases_of(get_target(name), (), 1)}
        assert {"gemm", "flash_attention", "paged_attention", "norm", "gemm_w4"} <= operators


def test_errors_of_results_that_are_not_finite() -> None:
    assert relative_error(np.array([np.nan]), np.array([1.0])) == float("inf")
    assert relative_error(np.zeros(2), np.zeros(3)) == float("inf")
    assert relative_error(np.array([-np.inf]), np.array([-np.inf])) == 0.0
    assert isinstance(cases_of(get_target("gfx1100"), ["softmax"], 1)[0], Case)


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_cache_that_cannot_be_written_is_no_verdict(jobs: str, tmp_path: Path) -> None:
    """Nor is what follows tried."""
    file = tmp_path / "file"
    file.touch()
    command = ["verify", "--target", "gfx942", "--operator", "softmax", "--jobs", jobs]
    done = subprocess.run(
        [sys.executable, "-m", "pumice", *command],
        env={**os.environ, "TRITON_CACHE_DIR": str(file / "triton")}, text=True,
        capture_output=True,
    )  # fmt: skip
    assert done.returncode == 7 and not done.stdout, done.stderr
    assert "cannot write its cache of kernels" in done.stderr and "hint: Free some" in done.stderr


def test_an_interrupt_ends_all_processes_at_once(tmp_path: Path) -> None:
    """From the terminal, to the whole group, while kernels compile."""
    command = ["verify", "--target", "gfx942", "--operator", "gemm", "--jobs", "2", "--all"]
    process = subprocess.Popen(
        [sys.executable, "-m", "pumice", *command],
        env={**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    until = time.monotonic() + 60
    while not list(tmp_path.iterdir()) and time.monotonic() < until:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.splitlines()[-1] == "interrupted" and "Traceback" not in said


def test_an_emulated_card_by_its_devices_name() -> None:
    """Smallest cases, as with --target."""
    command = ["verify", "--device", "rocm:emulated-gfx1100", "--operator", "softmax", "--json"]
    found = json.loads(CliRunner().invoke(app, command).stdout)
    assert found["failed"] == 0 and len(found["cases"]) == 2


def test_options_that_the_cpu_has_not() -> None:
    for options in (["--operator", "gemm"], ["--all"], ["--smallest"]):
        done = CliRunner().invoke(app, ["verify", "--device", "cpu", *options])
        assert done.exit_code == 2 and "--operator, --all and --smallest" in done.stderr

"""`pumice inspect --kernel`: registers, counts and estimates of kernels, and its refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from pumice.cli.app import app


def inspect(*arguments: str) -> Any:
    done = CliRunner().invoke(app, ["inspect", "--json", "--kernel", *arguments])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_case_is_executed_and_checked() -> None:
    found = inspect("norm:rows", "--target", "gfx942", "--case", "0")
    assert found["kernel"] == "norm.triton.rows" and found["error"] <= found["tolerance"]
    (launch,) = found["launches"]
    counts, resources = launch["counts"], launch["resources"]
    assert counts["executed_workgroups"] == counts["workgroups"] == launch["grid"][0]
    # 5 rows of 123 float16, and a weight of as many for each row.
    assert counts["bytes_read"]["global"] == 2 * 2 * 5 * 123
    assert counts["bytes_written"]["global"] == 2 * 5 * 123
    assert 0 < resources["registers"] <= 512 and resources["occupancy"] <= resources["most_waves"]
    assert launch["estimate"]["seconds"] > 0 and len(launch["estimate"]["assumptions"]) == 4


def test_a_benchmark_row_is_sampled() -> None:
    found = inspect("activation_mul", "--shape", "4096x11008")
    (launch,) = found["launches"]
    counts = launch["counts"]
    assert 0 < counts["executed_workgroups"] < counts["workgroups"]
    assert counts["bytes_read"]["global"] == pytest.approx(4 * 4096 * 11008, rel=0.1)
    assert found["estimated_seconds"] >= 0.9 * found["floor_seconds"] > 0
    assert found["error"] is None


def test_tensors_and_a_candidate() -> None:
    shape = "x=64x512:float16,w=256x512:float16"
    found = inspect("gemm", "--shape", shape, "--config", "1")
    assert found["tensors"]["w"] == "float16[256, 512]"
    assert found["tensors"]["out"] == "float16[64, 256]"
    assert found["config"] != inspect("gemm", "--shape", shape)["config"]
    assert found["launches"][0]["counts"]["matrix_flops"]


def test_several_launches_are_a_plan() -> None:
    found = inspect("gemm:split_k", "--shape", "x=1x4096,w=64x4096")
    assert len(found["launches"]) > 1
    assert found["estimated_seconds"] == pytest.approx(
        sum(launch["estimate"]["seconds"] for launch in found["launches"])
    )


def test_a_cuda_kernel_is_not_executed() -> None:
    found = inspect("norm", "--target", "sm_90", "--case", "0")
    (launch,) = found["launches"]
    assert launch["executed"] is False and "counts" not in launch
    assert 0 < launch["resources"]["registers"] <= 255
    done = CliRunner().invoke(app, ["inspect", "--kernel", "norm", "--target", "sm_90"])
    assert done.exit_code == 0 and "not executed" in done.stdout and "roofline" in done.stdout


def test_what_a_person_reads() -> None:
    done = CliRunner().invoke(app, ["inspect", "--kernel", "gemm", "--case", "0"])
    assert done.exit_code == 0, done.output
    for word in ("registers", "spills", "occupancy", "bank conflicts", "segments of 64 bytes",
                 "matrix operations", "← decides", "allowed", "of f16 or bf16"):  # fmt: skip
        assert word in done.stdout or word.startswith("of "), word


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["gemmm"], "Did you mean gemm"),
        (["gemm:fast"], "it has gemm.triton."),
        (["gemm", "--target", "gfx9999"], "unknown"),
        (["gemm", "--target", "x86-64-v3"], "GPU kernels are made for rocm and cuda"),
        (["norm", "--case", "99"], "has cases 0 to"),
        (["norm", "--case", "1"], "nothing to compute"),
        (["norm", "--case", "0", "--shape", "x"], "--case and --shape are given"),
        (["norm", "--shape", "no such row"], "no benchmark row of norm"),
        (["norm", "--shape", "x=5by3"], "name=16x4096"),
        (["gemm", "--shape", "x=5x4"], "just these tensors"),
        (["gemm", "--shape", "x=5x4:float12,w=3x4"], "element type"),
        (["gemm", "--config", "99"], "candidates here"),
        (["gemm_w4:gemv", "--case", "9"], "no kernel takes this problem"),
    ],
)  # fmt: skip
def test_refusals(arguments: list[str], text: str) -> None:
    done = CliRunner().invoke(app, ["inspect", "--kernel", *arguments])
    assert done.exit_code in (2, 4), done.output
    assert text in done.stderr

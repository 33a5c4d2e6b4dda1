"""The command line with a GPU: an artifact without its weights, measured on an emulated card."""

from __future__ import annotations

import json
from pathlib import Path

from tests.reference.tiny import make_tiny
from typer.testing import CliRunner

from pumice.cli.app import app


def test_compiled_without_weights_and_measured(tmp_path: Path) -> None:
    model = make_tiny("llama", tmp_path / "model", seed=3)
    runner = CliRunner()
    artifact = tmp_path / "artifact"
    common = ["--cache-dir", str(tmp_path / "cache"), "--device", "rocm:emulated-gfx1100"]
    done = runner.invoke(
        app,
        ["compile", str(model), "-o", str(artifact), "--no-weights", "--quant", "q4f16_1",
         "--max-tokens", "2", "--max-sequences", "1", *common],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert (artifact / "weights.safetensors").stat().st_size < 10_000
    done = runner.invoke(
        app, ["bench", str(artifact), "-p", "2", "-n", "1", "-r", "1", "--json", "--profile",
              "--no-roofline", *common],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "weights are random numbers" in done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    tests = {row["test"]: row for row in rows if "test" in row}
    assert set(tests) == {"pp2", "tg1"}
    assert "gfx1100" in tests["tg1"]["device"]
    assert tests["tg1"]["bytes_per_token"] > 0
    operators = {row["operator"] for row in rows if "profile" in row}
    assert {"gemm_w4", "paged_prefill", "rope_cache"} <= operators
    assert operators & {"paged_attention", "decode_attention"}  # of the generated token
    done = runner.invoke(app, ["run", "hello", "--model", str(artifact), *common])
    assert done.exit_code == 9 and "lacks" in done.stderr, done.output

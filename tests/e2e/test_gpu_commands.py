"""The command line with a GPU: an artifact without its weights, measured on an emulated card."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from tests.reference.tiny import make_tiny
from typer.testing import CliRunner

from pumice.cli.app import app
from pumice.runtime.devices.driver import choose
from pumice.runtime.devices.driver.library import Driver


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
    assert done.exit_code == 4 and "has no tokenizer" in done.stderr, done.output
    (artifact / "tokenizer.json").write_text("{}")  # read after the weights
    done = runner.invoke(app, ["run", "hello", "--model", str(artifact), *common])
    assert done.exit_code == 9 and "lacks" in done.stderr, done.output


def test_auto_is_the_card_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an emulated card in the place of a real one: a model is compiled for it and runs on it,
    and so does what was compiled."""
    opened = choose.open_driver

    def open_driver(name: choose.DeviceName) -> Driver:
        if name.api == "rocm":
            name = dataclasses.replace(name, emulated="gfx1102")
        return opened(name)

    monkeypatch.setattr(choose, "open_driver", open_driver)
    monkeypatch.delenv("TRITON_CACHE_DIR")
    model = make_tiny("llama", tmp_path / "model", seed=3)
    cache = ["--cache-dir", str(tmp_path / "cache")]
    runner = CliRunner()
    done = runner.invoke(
        app, ["compile", str(model), "--max-tokens", "2", "--max-sequences", "1", *cache]
    )
    assert done.exit_code == 0, done.output
    assert "on rocm:0 AMD Radeon RX 7600 (gfx1102, 8.0 GiB" in done.stderr
    (artifact,) = (tmp_path / "cache" / "artifacts").iterdir()
    assert "gfx1102" in artifact.name
    assert any((tmp_path / "cache" / "triton").iterdir())
    done = runner.invoke(
        app,
        [
            "bench",
            str(artifact),
            "-p",
            "0",
            "-n",
            "1",
            "-r",
            "1",
            "--no-roofline",
            "--json",
            *cache,
        ],
    )
    assert done.exit_code == 0, done.output
    assert "on rocm:0 (AMD Radeon RX 7600" in done.stderr and "for gfx1102" in done.stderr
    assert json.loads(done.stdout)["test"] == "tg1"

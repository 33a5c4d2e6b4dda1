"""The commands with the default model: what a person sees, and what a script reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pumice.cli.app import app

FRANCE = "What is the capital of France?"
PARIS = "The capital of France is Paris."


@pytest.fixture(scope="module")
def artifact(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("cli")
    result = CliRunner().invoke(
        app,
        ["compile", str(smollm2_gguf), "--output", str(folder / "artifact"), "--dump",
         str(folder / "phases"), "--json", "--cache-dir", str(folder / "cache")],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    row = json.loads(result.stdout)
    assert row["artifact"] == str(folder / "artifact") and row["kernels"] > 5
    names = sorted(path.name for path in (folder / "phases").iterdir())
    for start in ("1-trace.", "2-fuse-", "3-select", "4-kernels", "5-plan.", "6-assembly", "7-man"):
        assert any(name.startswith(start) for name in names), (start, names)
    return str(row["artifact"])


def _run(*arguments: str, text: str | None = None) -> str:
    result = CliRunner().invoke(app, list(arguments), input=text)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_one_answer(artifact: str) -> None:
    assert _run("chat", artifact, "--prompt", FRANCE) == PARIS + "\n"


def test_a_piped_prompt(artifact: str) -> None:
    assert _run("chat", artifact, text=FRANCE + "\n") == PARIS + "\n"


def test_run_as_json(artifact: str) -> None:
    row = json.loads(_run("run", FRANCE, "--chat", "-m", artifact, "--json"))
    assert (row["text"], row["finish_reason"]) == (PARIS, "stop")
    assert row["completion_tokens"] >= 7 and row["prompt_tokens"] > 10


def test_run_continues_a_text(artifact: str) -> None:
    text = _run("run", "The capital of France is", "-m", artifact, "-n", "3", "--echo")
    assert text.startswith("The capital of France is Paris")


def test_a_prompt_longer_than_the_context(artifact: str) -> None:
    result = CliRunner().invoke(app, ["run", "word " * 100, "-m", artifact, "-c", "64"])
    assert result.exit_code == 5
    assert "64" in result.stderr and "10" in result.stderr


def test_bench_as_json(artifact: str, tmp_path: Path) -> None:
    out = _run(
        "bench", artifact, "-p", "8", "-n", "4", "-d", "0,16", "-r", "2", "--json", "--no-roofline",
        "--profile", "--trace", str(tmp_path / "trace.json"),
    )  # fmt: skip
    rows = [json.loads(line) for line in out.splitlines()]
    tests = [row for row in rows if "test" in row]
    assert [row["test"] for row in tests] == ["pp8", "tg4", "pp8@d16", "tg4@d16"]
    for row in tests:
        assert row["engine"] == "pumice" and len(row["runs"]) == 2 and row["tokens_per_s"] > 0
    # A generated token reads all weights; the embedding's table is read as the logits' matrix too.
    assert 9e7 < tests[1]["bytes_per_token"] < 1.1e8
    assert {row["operator"] for row in rows if "profile" in row} >= {"linear", "attention"}
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_inspect(artifact: str, smollm2_gguf: Path) -> None:
    row = json.loads(_run("inspect", artifact, "--json"))
    assert row["launches"]["decode"] > 100
    assert all(kernel["reason"] for kernel in row["kernels"])
    shown = _run("inspect", artifact)
    assert "linear.tir.int8" in shown and "launches" in shown
    row = json.loads(_run("inspect", str(smollm2_gguf), "--json", "--tensors"))
    assert row["architecture"] == "llama" and len(row["tensors"]) == 272
    assert [t["format"] for t in row["types"]] == ["q4_1", "q8_0", "f32"]
    assert "q4_1" in _run("inspect", str(smollm2_gguf), "--tensors")


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("name", ["model.so", "weights.safetensors", "generation.json"])
def test_a_damaged_part_of_an_artifact(
    name: str, there: bool, artifact: str, tmp_path: Path
) -> None:
    for part in Path(artifact).iterdir():
        (tmp_path / part.name).symlink_to(part)
    (tmp_path / name).unlink()
    if there:
        (tmp_path / name).write_bytes(Path(artifact, name).read_bytes()[:100])
    result = CliRunner().invoke(app, ["run", "x", "-m", str(tmp_path), "-n", "1"])
    assert result.exit_code == 9, result.output
    assert str(tmp_path) in result.stderr and "--rebuild" in result.stderr

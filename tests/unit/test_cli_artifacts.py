"""What the commands say of an artifact: what it is cannot be changed by options."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import plan_toys
import pytest
from typer.testing import CliRunner, Result

from pumice import api
from pumice.cli.app import app
from pumice.cli.session import ModelRequest
from pumice.errors import UsageError
from pumice.prepare import check_artifact_options
from pumice.settings import keep_triton_cache
from reference.tiny import make_tiny


@pytest.fixture(params=["rocm", "cpu"])
def toy(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """An artifact's manifest, which is all that these errors need."""
    name = {"rocm": "gfx1100", "cpu": "x86-64-v3"}[request.param]
    (tmp_path / "toy").mkdir()
    plan_toys.manifest(name, request.param).save(tmp_path / "toy" / "manifest.json")
    return tmp_path / "toy"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments], input="x")


COMMANDS = ["chat", "run", "bench", "serve"]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("option", "value"),
    [("--target", "sm_90"), ("--quant", "q8f16"), ("--activations", "bfloat16")],
)
def test_what_an_artifact_has_is_not_changed(
    command: str, option: str, value: str, toy: Path
) -> None:
    result = run(command, "--model", toy, option, value)
    assert result.exit_code == 2, result.output
    assert f"{option} {value} cannot change" in result.stderr
    assert f"pumice compile MODEL {option} {value}" in result.stderr


@pytest.mark.parametrize("command", ["inspect", "compile"])
def test_other_commands(command: str, toy: Path) -> None:
    result = run(command, toy, "--quant", "q8f16")
    assert result.exit_code == 2 and str(toy) in result.stderr, result.output
    result = run("bench", toy, "--predict", "gfx1100", "--quant", "q8f16")
    assert result.exit_code == 2 and "--quant q8f16 cannot change" in result.stderr


def test_compile_takes_no_artifact(toy: Path) -> None:
    result = run("compile", toy)
    assert result.exit_code == 2 and "is an artifact already" in result.stderr


def test_what_agrees_is_no_change() -> None:
    manifest = plan_toys.manifest()
    check_artifact_options(
        "m", manifest, target="GFX1100", quantization="q4f16_1", activations="int16"
    )  # fmt: skip
    check_artifact_options("m", manifest, target="native")
    with pytest.raises(UsageError, match="--activations int8 cannot change"):
        check_artifact_options("m", manifest, activations="int8")


@pytest.mark.parametrize("command", ["chat", "run", "serve", "inspect"])
def test_a_context_that_is_too_long(command: str, toy: Path) -> None:
    """Whether or not the artifact's device is here."""
    result = run(command, "--model", toy, "--context", "1025")
    assert result.exit_code == 5, result.output
    assert "1,025 tokens was asked for; 1,024 are allowed" in result.stderr


def test_from_python(toy: Path) -> None:
    with pytest.raises(UsageError, match="--quant q8f16 cannot change"):
        api.Engine(str(toy), quantization="q8f16")


def test_threads_are_the_cpu_s(tmp_path: Path) -> None:
    plan_toys.manifest().save(tmp_path / "manifest.json")
    result = run("chat", tmp_path, "--threads", "1")
    assert result.exit_code == 2 and "--threads 1 is for the CPU" in result.stderr
    result = run("bench", "--random-weights", "llama-2-7b", "--target", "gfx1100", "-t", "1")
    assert result.exit_code == 2 and "runs on rocm" in result.stderr


@pytest.mark.parametrize("target", ["GFX1100", " gfx1100 ", "X86-64-V3"])
def test_targets_in_any_case(target: str, tmp_path: Path) -> None:
    result = run("compile", "missing.gguf", "--target", target, "--cache-dir", tmp_path)
    assert result.exit_code == 3 and "missing.gguf" in result.stderr, result.output


def test_the_forms_of_devices() -> None:
    result = run("chat", "--device", "gpu")
    assert "rocm:sanitized-ARCH" in result.stderr
    result = run("chat", "missing.gguf", "--device", "AUTO")
    assert result.exit_code == 3, result.output


@pytest.mark.parametrize("command", ["chat", "run", "serve"])
def test_a_model_without_a_tokenizer(command: str, tmp_path: Path) -> None:
    """Before anything is compiled; what it can be used for is said."""
    model = make_tiny("llama", tmp_path / "model")
    more = {"run": ("x",), "serve": ("--port", "0")}.get(command, ())
    result = run(command, *more, "--model", model, "--cache-dir", tmp_path / "cache")
    assert result.exit_code == 4, result.output
    assert "has no tokenizer" in result.stderr and "pumice bench" in result.stderr
    assert not list((tmp_path / "cache").glob("artifacts/*"))


@pytest.mark.parametrize(
    ("target", "tokens", "activations"),
    [("x86-64-v3", 512, "int16"), ("gfx1100", 2048, "float16"), ("sm_90", 2048, "float16")],
)
def test_defaults_of_a_target(target: str, tokens: int, activations: str, tmp_path: Path) -> None:
    """The same by every command: an artifact that one compiles is found by the others."""
    request = ModelRequest("m", target=target, cache_dir=tmp_path).settled(runs=False)
    settings = request.prepare_settings()
    assert (settings.max_tokens, settings.activations) == (tokens, activations)


def test_where_triton_keeps_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    keep_triton_cache(tmp_path)
    assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "triton")
    keep_triton_cache(tmp_path / "other")  # what is set counts
    assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "triton")
    monkeypatch.delenv("TRITON_CACHE_DIR")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing_beside_the_output(number: signal.Signals, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "pumice", "compile", "--random-weights", "tinyllama-1.1b",
         "--device", "cpu", "-o", str(tmp_path / "out"), "--cache-dir", str(tmp_path / "cache")],
        stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )  # fmt: skip
    assert process.stderr is not None
    while "generate code" not in process.stderr.readline():
        assert process.poll() is None
    assert list(tmp_path.glob(".out.*.tmp"))
    time.sleep(0.2)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == -number, said
    assert "Traceback" not in said
    assert not list(tmp_path.glob(".out.*")) and not (tmp_path / "out").exists()

"""Bad input to every command: the message, the exit status, and nothing half-written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pumice.cli.app import app
from pumice.cli.compile import check_output
from pumice.errors import UsageError


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def run(*arguments: str | Path, text: str | None = None) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments], input=text)


def failed(result: Result, status: int, *messages: str) -> None:
    """The exit status, an error on standard error with these words, and no traceback."""
    assert result.exit_code == status, result.output
    assert isinstance(result.exception, SystemExit), result.exception
    for message in messages:
        assert message in result.stderr, result.stderr
    assert "Traceback" not in result.output
    assert "error: " in result.stderr.lower()


@pytest.mark.parametrize("command", ["chat", "run", "bench", "compile"])
def test_a_target_for_another_device(command: str, cache: Path) -> None:
    prompt = {"chat": ["--prompt", "x"], "run": ["x"]}.get(command, [])
    options = ["--target", "gfx1100", "--device", "cpu", "--cache-dir", cache]
    failed(run(command, *prompt, *options), 2, "gfx1100 is for rocm; --device is cpu")
    assert not cache.exists()


@pytest.mark.parametrize("option", ["--no-fuse", "--no-weights"])
def test_an_option_for_gpus(option: str, cache: Path) -> None:
    options = ["--random-weights", "tiny", "--target", "x86-64-v3", "--cache-dir", cache]
    failed(run("compile", option, *options), 2, f"{option} is for GPUs; the target is x86-64-v3")
    assert not cache.exists()


@pytest.mark.parametrize("command", ["chat", "run", "bench", "compile", "inspect", "pull"])
def test_a_missing_file(command: str, cache: Path) -> None:
    given = ["-m", "missing.gguf"]
    prompt = {"chat": ["--prompt", "x"], "run": ["x"]}.get(command, [])
    result = run(command, *prompt, *given, "--cache-dir", cache)
    failed(result, 3, "missing.gguf")
    assert not (cache / "artifacts").exists()


@pytest.mark.parametrize("command", ["chat", "run", "bench", "compile", "inspect", "pull"])
def test_an_unknown_name(command: str, cache: Path) -> None:
    prompt = {"chat": ["--prompt", "x"], "run": ["x"]}.get(command, [])
    result = run(command, *prompt, "-m", "no-such-model", "--cache-dir", cache)
    failed(result, result.exit_code, "no-such-model", "smollm2-135m")
    assert result.exit_code in (2, 3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no bytes"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"),
        (b"GGUF\x03\x00", "cut off"),
        (b"<!DOCTYPE html>", "web page"),
    ],
)
@pytest.mark.parametrize("command", ["inspect", "compile"])
def test_a_damaged_file(
    command: str, content: bytes, message: str, tmp_path: Path, cache: Path
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    failed(run(command, path, "--cache-dir", cache), 3, "model.gguf", message)
    assert not list(cache.glob("artifacts/*"))


def test_an_unknown_architecture(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    header = json.dumps({"a.weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})
    padded = header.ljust(-(-len(header) // 8) * 8).encode()
    (tmp_path / "model.safetensors").write_bytes(
        len(padded).to_bytes(8, "little") + padded + bytes(4)
    )
    failed(run("inspect", tmp_path, "--cache-dir", cache), 4, "'mamba'", "llama")


@pytest.mark.parametrize("command", ["chat", "run", "bench", "compile", "doctor"])
@pytest.mark.parametrize(
    ("device", "status", "message"),
    [
        ("gpu", 2, "allowed: auto, cpu, rocm"),
        ("metal", 4, "cannot use metal"),
        ("rocm:99", 10, "This machine has the CPU"),
        ("cpu:7", 10, "cpu:0"),
    ],
)
def test_devices(command: str, device: str, status: int, message: str, cache: Path) -> None:
    prompt = {"chat": ["--prompt", "x"], "run": ["x"]}.get(command, [])
    failed(run(command, *prompt, "--device", device, "--cache-dir", cache), status, message)
    assert not cache.exists()


@pytest.mark.parametrize(
    ("arguments", "status", "messages"),
    [
        (("--target", "z80"), 2, ("'z80'", "x86-64-v3")),
        (("--quant", "q3"), 2, ("'q3'", "q4f16_1")),
        (("--activations", "int4"), 2, ("'int4'", "int8, int16, float32")),
        (("--activations", "float16"), 2, ("'float16'", "int8, int16, float32")),
        (("--activations", "float32", "--target", "gfx1100"), 2, ("'float32'", "bfloat16")),
        (("--activations", "int8", "--target", "sm_90"), 2, ("'int8'", "float16")),
        (("--target", "gfx942", "--device", "rocm:emulated-gfx1100"), 2, ("does not run on",)),
        (("--threads", "0"), 2, ("threads is 0",)),
        (("--threads", "100000"), 2, ("threads is 100000",)),
        (("--repeat", "0"), 2, ("--repeat is 0",)),
        (("-p", "x"), 2, ("--prompt is 'x'",)),
        (("-p", "0", "-n", "0"), 2, ("nothing to measure",)),
        (("--plot", "x.gif"), 2, ("'x.gif'", ".svg")),
        (("--plot", "x.svg", "--no-roofline"), 2, ("--no-roofline",)),
        (("--trace", "/no/such/t.json"), 2, ("/no/such",)),
        (("--random-weights", "gpt-5"), 2, ("'gpt-5'", "llama-2-7b")),
        (("--random-weights", "llama-2-7b", "-m", "x"), 2, ("exclude each other",)),
        (("--random-weights", "llama-2-7b", "-d", "2000000"), 5, ("llama-2-7b", "4,096")),
    ],
)
def test_bench(
    arguments: tuple[str, ...], status: int, messages: tuple[str, ...], cache: Path
) -> None:
    failed(run("bench", *arguments, "--cache-dir", cache), status, *messages)
    assert not list(cache.glob("artifacts/*"))


def test_two_models(cache: Path) -> None:
    failed(run("bench", "a", "-m", "b", "--cache-dir", cache), 2, "'a' and --model 'b'")


@pytest.mark.parametrize("command", ["chat", "run"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--temperature", "-1"), "temperature"),
        (("--top-p", "2"), "top_p"),
        (("--top-k", "-5"), "top_k"),
        (("--min-p", "1.5"), "min_p"),
        (("--max-tokens", "0"), "max_tokens"),
        (("--seed", "-1"), "seed"),
        (("--seed", "99999999999999999999999"), "seed"),
        (("--repetition-penalty", "0"), "repetition_penalty"),
        (("--context", "0"), "context is 0"),
    ],
)
def test_sampling_is_checked_before_a_model_is_fetched(
    command: str, arguments: tuple[str, str], message: str, cache: Path
) -> None:
    prompt = ["--prompt", "x"] if command == "chat" else ["x"]
    failed(run(command, *prompt, *arguments, "--cache-dir", cache), 2, message)
    assert not list(cache.glob("*/*"))


def test_prompts(cache: Path) -> None:
    failed(run("chat", "--cache-dir", cache, text=""), 2, "standard input is empty")
    failed(run("run", "-", "--cache-dir", cache, text="\n"), 2, "standard input is empty")
    failed(run("run", "", "--cache-dir", cache), 2, "prompt is empty")
    failed(run("chat", "--raw", "--system", "x", "--prompt", "x"), 2, "--raw")


def test_options_that_do_not_exist() -> None:
    for arguments in (
        ("--frobnicate",),
        ("chat", "--frobnicate"),
        ("serf",),
        ("serve", "--frobnicate"),
        ("bench", "-r", "x"),
    ):
        result = run(*arguments)
        assert result.exit_code == 2
        assert "Traceback" not in result.output


def test_compile_never_replaces_what_is_no_artifact(tmp_path: Path) -> None:
    check_output(tmp_path / "new")
    check_output(tmp_path)
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(UsageError, match="holds other files"):
        check_output(tmp_path)
    with pytest.raises(UsageError, match="which is a file"):
        check_output(tmp_path / "thesis.tex")
    (tmp_path / "manifest.json").write_text("{}")
    check_output(tmp_path)


def test_a_model_that_does_not_fit(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pumice.runtime.memory.available_bytes", lambda: 1 << 30)
    result = run("compile", "--random-weights", "llama-2-7b", "--cache-dir", cache)
    failed(result, 6, "needs about", "1.07 GB are free")
    assert not list(cache.glob("artifacts/*"))


def test_a_damaged_artifact(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"schema": 999}')
    failed(run("inspect", tmp_path), 9, "schema 999")
    failed(run("bench", tmp_path, "--cache-dir", cache), 9, "schema 999", "--rebuild")


@pytest.mark.parametrize("option", ["--cache-dir", "--output", "--dump"])
def test_a_folder_without_a_name(option: str) -> None:
    failed(run("compile", option, ""), 2, option, "it is empty")


def test_a_cache_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run("compile", "--random-weights", "llama-2-7b", "--cache-dir", tmp_path / "file")
    failed(result, 7, str(tmp_path / "file"))
    result = run(
        "doctor", "--no-selftest", "--no-speed", "--json", "--cache-dir", tmp_path / "file"
    )
    assert result.exit_code == 1
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["name"] for row in rows if row["status"] == "failed"] == ["cache"]


def test_doctor(cache: Path) -> None:
    result = run("doctor", "--no-selftest", "--no-speed", "--cache-dir", cache)
    assert result.exit_code == 0, result.output
    for word in ("versions", "cpu", "devices", "threads", "linker", "memory", "cache"):
        assert word in result.stdout


def test_debug_shows_where(cache: Path) -> None:
    result = run("--debug", "bench", "--repeat", "0", "--cache-dir", cache)
    assert isinstance(result.exception, UsageError)


def _process(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pumice", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **env}
    )


def test_a_process_prints_an_error_and_its_status(tmp_path: Path) -> None:
    done = _process("inspect", str(tmp_path / "x.gguf"), PUMICE_CACHE=str(tmp_path))
    assert done.returncode == 3
    assert done.stderr.startswith("error: ") and "x.gguf" in done.stderr
    assert done.stdout == "" and "Traceback" not in done.stderr
    colored = _process("inspect", str(tmp_path / "x.gguf"), FORCE_COLOR="1", PUMICE_CACHE="/x/y")
    assert colored.stderr.startswith("\x1b[1;31merror: ")
    plain = _process("inspect", "x.gguf", FORCE_COLOR="1", NO_COLOR="1", PUMICE_CACHE=str(tmp_path))
    assert "\x1b" not in plain.stderr


def test_a_bad_environment_is_an_error_too() -> None:
    done = _process("pull", PUMICE_CACHE="relative")
    assert done.returncode == 2
    assert "PUMICE_CACHE is 'relative'" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", ["pull --list", "--version", "inspect {}", "run"])
def test_output_that_cannot_be_written(arguments: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    line = f"{sys.executable} -m pumice {arguments.format(tmp_path)}"
    closed = subprocess.run(
        f"{line} <&- >&-", shell=True, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in closed.stderr
    full = subprocess.run(
        f"{line} < /dev/null > /dev/full", shell=True, stderr=subprocess.PIPE, text=True,
        check=False,
    )  # fmt: skip
    if closed.returncode:  # the command's own failure, whose message is on standard error
        assert (closed.returncode, closed.stderr) == (full.returncode, full.stderr)
        return
    assert full.returncode == 7
    assert full.stderr == "error: the output cannot be written: No space left on device\n"
    gone = subprocess.run(
        f"set -o pipefail; {line} | true", shell=True, stderr=subprocess.PIPE, text=True,
        check=False, executable="/bin/bash",
    )  # fmt: skip
    assert gone.returncode == 1 and gone.stderr == ""


def test_output_in_another_encoding(tmp_path: Path) -> None:
    from reference.tiny import make_tiny

    folder = tmp_path / "modèle"
    make_tiny("llama", folder)
    done = _process("inspect", str(folder), PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and "mod?le" in done.stdout, done.stderr


def test_version_and_help() -> None:
    from pumice import __version__

    assert _process("--version").stdout == f"pumice {__version__}\n"
    for command in ("chat", "run", "bench", "compile", "inspect", "pull", "quantize", "doctor"):
        result = run(command, "--help")
        assert result.exit_code == 0 and "--help" in result.output


def _hears_interrupts() -> None:
    """In a child before it becomes the command: a test run in the background ignores Ctrl-C, and
    what is ignored stays so."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_is_one_line_and_status_130(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pumice", "doctor", "--cache-dir", str(tmp_path / "cache")]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, preexec_fn=_hears_interrupts,
    )  # fmt: skip
    assert process.stderr is not None
    process.stderr.readline()  # the note that the kernels are being compiled
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the children too
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in err and "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_the_command_alone_ends_its_compiler_too(
    number: signal.Signals, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "pumice", "compile", "--random-weights", "tinyllama-1.1b"]
    process = subprocess.Popen(
        [*command, "--cache-dir", str(tmp_path)], stderr=subprocess.PIPE, text=True,
        preexec_fn=_hears_interrupts,
    )  # fmt: skip
    assert process.stderr is not None
    while "generate code" not in process.stderr.readline():
        assert process.poll() is None
    assert list((tmp_path / "artifacts").iterdir())
    process.send_signal(number)
    process.communicate(timeout=60)  # until the compiler has closed its end too
    assert process.returncode == (130 if number == signal.SIGINT else -number)
    assert list((tmp_path / "artifacts").iterdir()) == []


def test_a_second_signal_leaves_the_compiler_in_peace() -> None:
    code = """
import os, signal
from pumice.compile_worker import _interrupt
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, _interrupt)
signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
for number in (signal.SIGINT, signal.SIGTERM):
    os.kill(os.getpid(), number)
try:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
except KeyboardInterrupt:
    os.kill(os.getpid(), signal.SIGTERM)
    print("whole")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("whole\n", "")

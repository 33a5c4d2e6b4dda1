"""Settings, devices, sampling options, and the conversation loop."""

from __future__ import annotations

import io
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from pumice.cli.devices import is_gpu, parse_device
from pumice.cli.repl import Repl, line_reader
from pumice.cli.sampling import given, parse_setting
from pumice.cli.session import choose_model
from pumice.errors import DeviceError, ModelFileError, UnsupportedError, UsageError
from pumice.settings import DEFAULT_MODEL, Settings


def test_cache_directory_order() -> None:
    env = {"PUMICE_CACHE": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}
    assert Settings.from_environment(env).cache_dir == Path("/a")
    del env["PUMICE_CACHE"]
    assert Settings.from_environment(env).cache_dir == Path("/b/pumice")
    del env["XDG_CACHE_HOME"]
    assert Settings.from_environment(env).cache_dir == Path("/c/.cache/pumice")
    assert Settings.from_environment(env).state_dir == Path("/c/.local/state/pumice")


def test_a_relative_xdg_directory_is_ignored_and_an_own_one_refused() -> None:
    assert Settings.from_environment({"XDG_CACHE_HOME": "x", "HOME": "/c"}).cache_dir == Path(
        "/c/.cache/pumice"
    )
    with pytest.raises(UsageError, match=r"PUMICE_CACHE is 'x'"):
        Settings.from_environment({"PUMICE_CACHE": "x", "HOME": "/c"})


@pytest.mark.parametrize(
    ("env", "color"),
    [
        ({}, None),
        ({"NO_COLOR": "1"}, False),
        ({"NO_COLOR": ""}, None),
        ({"FORCE_COLOR": "1"}, True),
    ],
)
def test_color(env: dict[str, str], color: bool | None) -> None:
    assert Settings.from_environment({"HOME": "/c", **env}).color is color


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("auto", "auto"), ("cpu", "cpu"), ("CPU", "cpu"), ("cpu:0", "cpu"), ("rocm", "rocm"),
        (" CUDA:1", "cuda:1"), ("rocm:0000:03:00.0", "rocm:0000:03:00.0"),
        ("rocm:emulated-gfx1100", "rocm:emulated-gfx1100"),
    ],
)  # fmt: skip
def test_devices(text: str, name: str) -> None:
    assert parse_device(text) == name
    assert is_gpu(name) is (name[:4] in ("rocm", "cuda"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gpu",
        "cpu:",
        "cpu:x",
        "cpu:-1",
        "auto:1",
        "cuda:²",
        "cpu:0:0",
        "rocm:",
        "cuda:emulated-x",
    ],
)
def test_unknown_devices(text: str) -> None:
    with pytest.raises(UsageError, match="allowed: auto, cpu, rocm"):
        parse_device(text)


@pytest.mark.parametrize("text", ["vulkan", "metal", "opencl:2"])
def test_devices_of_later_versions(text: str) -> None:
    with pytest.raises(UnsupportedError, match="cannot use"):
        parse_device(text)


def test_the_cpu_is_one_device() -> None:
    with pytest.raises(DeviceError, match="cpu:0"):
        parse_device("cpu:1")


def test_model_names() -> None:
    assert choose_model(None, None) == DEFAULT_MODEL
    assert choose_model("a", None) == choose_model(None, "a") == choose_model("a", "a") == "a"
    with pytest.raises(UsageError, match=r"'a' and --model 'b'"):
        choose_model("a", "b")
    with pytest.raises(UsageError, match="empty"):
        choose_model(" ", None)


def test_sampling_settings() -> None:
    assert given(temperature=0.0, seed=None, top_k=3) == {"temperature": 0.0, "top_k": 3}
    assert parse_setting("top_k", "40") == 40
    assert parse_setting("temperature", "0") == 0.0
    assert parse_setting("seed", "default") is None
    with pytest.raises(UsageError, match="known: temperature, top_k"):
        parse_setting("topk", "40")
    with pytest.raises(UsageError, match="must be an integer"):
        parse_setting("top_k", "4.5")


class _Fake:
    """A conversation that answers word by word and can be interrupted or fail."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.closed = 0
        self.values: dict[str, str] = {"temperature": "0.7"}

    def ask(self, text: str) -> Generator[str, None, None]:
        self.asked.append(text)
        try:
            yield "one "
            if text == "interrupt":
                raise KeyboardInterrupt
            if text == "fail":
                raise ModelFileError("it failed", hint="do that")
            yield "two"
        finally:
            self.closed += 1

    def reset(self) -> None:
        self.asked.clear()

    def stats(self) -> str:
        return "fast"

    def settings(self) -> dict[str, str]:
        return self.values

    def set(self, name: str, value: str) -> None:
        parse_setting(name, value)
        self.values[name] = value


def _run(*lines: str | type[BaseException]) -> tuple[_Fake, str]:
    rest: Iterator[str | type[BaseException]] = iter(lines)

    def read(prompt: str) -> str:
        line = next(rest, EOFError)
        if isinstance(line, str):
            return line
        raise line

    out = io.StringIO()
    fake = _Fake()
    Repl(fake, read, out).run()
    return fake, out.getvalue()


def test_answers_and_end_of_input() -> None:
    fake, text = _run("hello", "   ", "again")
    assert fake.asked == ["hello", "again"]
    assert text == "one two\none two\n\n"


def test_lines_that_belong_together() -> None:
    fake, _ = _run("a\\", "b", '"""', "c", "/exit", "", '"""')
    assert fake.asked == ["a\nb", "c\n/exit\n"]


def test_ctrl_c_stops_an_answer_and_drops_a_line() -> None:
    fake, text = _run("interrupt", KeyboardInterrupt, '"""', KeyboardInterrupt, "next")
    assert fake.asked == ["interrupt", "next"]
    assert "one \n[stopped]\n" in text
    assert text.endswith("one two\n\n")
    assert fake.closed == 2


def test_an_error_is_shown_and_the_conversation_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    fake, _ = _run("fail", "next")
    assert fake.asked == ["fail", "next"]
    assert capsys.readouterr().err == "error: it failed\nhint: do that\n"


def test_commands(capsys: pytest.CaptureFixture[str]) -> None:
    fake, text = _run(
        "a", "/reset", "/stats", "/set", "/set temperature 0.2", "/help", "/exit", "unread"
    )
    assert fake.asked == []
    assert fake.values["temperature"] == "0.2"
    assert "fast\n" in text and "temperature          0.7\n" in text and "/reset" in text
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/frobnicate", "/frobnicate is no command"),
        ("/set temperature", "/set was given 'temperature'"),
        ("/set warmth 1", "setting 'warmth' is unknown"),
        ("/exit now", "/exit was given 'now'"),
    ],
)
def test_bad_commands(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    fake, _ = _run(line, "still here")
    assert message in capsys.readouterr().err
    assert fake.asked == ["still here"]


def test_history_is_kept_and_private(tmp_path: Path) -> None:
    history = tmp_path / "state" / "chat-history"
    with line_reader(history) as read:
        assert callable(read)
    assert history.stat().st_mode & 0o777 == 0o600


def test_a_history_that_cannot_be_kept_is_no_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    with line_reader(tmp_path / "file" / "chat-history"):
        pass
    assert "history could not be kept" in capsys.readouterr().err

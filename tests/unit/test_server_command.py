"""`pumice serve`: names of models, files of keys, and what an option may be."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from pumice.cli.app import app
from pumice.cli.serve import _example, _keys, served_name
from pumice.errors import StorageError, UsageError
from pumice.server.settings import ServerSettings


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("smollm2-135m", "smollm2-135m"),
        ("hf:org/Some-Model", "org/Some-Model"),
        ("/models/SmolLM2.Q4_1.gguf", "SmolLM2.Q4_1"),
        ("models/artifact/", "artifact"),
        ("random:tiny", "random:tiny"),
    ],
)
def test_a_name_for_requests_tells_no_path(model: str, name: str) -> None:
    assert served_name(model) == name


def test_keys_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# of the team\n first-key \n\nsecond-key\n")
    assert _keys(file) == ["first-key", "second-key"]
    file.write_text("# nothing\n")
    with pytest.raises(UsageError, match="no key"):
        _keys(file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(StorageError, match="no text"):
        _keys(file)
    with pytest.raises(StorageError, match="cannot be read"):
        _keys(tmp_path / "other")


def test_the_example_shows_no_key() -> None:
    settings = ServerSettings(names=("toy",), api_keys=("a-secret-key",))
    shown = _example("http://127.0.0.1:1", settings)
    assert "Authorization" in shown and "secret" not in shown


@pytest.mark.parametrize(
    "arguments",
    [
        ["--max-waiting", "0"], ["--max-running", "0"], ["--cache-tokens", "-5"],
        ["--speculate", "x"], ["--name", ""], ["--api-key", "a b c d e f"],
        ["--drain-timeout", "-1"], ["--threads", "0"], ["--context", "0"],
    ],
)  # fmt: skip
def test_a_bad_option_is_told_before_anything_is_loaded(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, ["serve", "no-such-model", *arguments])
    assert result.exit_code == 2
    assert "no-such-model" not in result.stderr and result.stderr.startswith("error: ")

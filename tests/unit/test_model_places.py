"""A model's path that is neither a file nor a directory, and arguments of `pumice.compile`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import pumice
from pumice.errors import ModelFileError, UsageError
from pumice.targets import get_target
from pumice.weights.hub import resolve
from pumice.weights.source import open_source


def test_a_named_pipe_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "model.gguf"
    os.mkfifo(pipe)
    for path in (str(pipe), "/dev/null"):
        with pytest.raises(ModelFileError, match="named pipe; allowed: a file or a directory"):
            open_source(path)
        with pytest.raises(ModelFileError, match="named pipe; allowed: a file or a directory"):
            resolve(path, tmp_path)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"source": 3}, "compile: source is a int; allowed: a path"),
        (
            {"target": "gfx1100"},
            "compile: target is a str; allowed: what pumice.targets.get_target",
        ),
        ({"output": None}, "compile: output is a NoneType; allowed: a path"),
        ({"options": {"quantization": "q4_0"}}, "compile: options is a dict; allowed: CompileOpti"),
    ],
)
def test_compile_names_the_argument(tmp_path: Path, changed: dict[str, Any], text: str) -> None:
    given = {"source": "x.gguf", "target": get_target("gfx1100"), "output": tmp_path} | changed
    with pytest.raises(UsageError) as error:
        pumice.compile(given.pop("source"), **given)
    assert text in str(error.value)

"""`pumice bench` on an emulated card: tests, batches, profile and trace."""

from __future__ import annotations

import json
from pathlib import Path

import gpu_artifact as toy
import pytest
from typer.testing import CliRunner

from pumice.cli.app import app

CARD = "rocm:emulated-gfx1100"


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("toy")
    toy.write(directory)
    return directory


def test_bench(artifact: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    result = CliRunner().invoke(
        app,
        ["bench", str(artifact), "--device", CARD, "-p", "9", "-n", "2", "-d", "0,20", "-b", "1,2",
         "-r", "1", "--json", "--profile", "--trace", str(trace)],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    found = [json.loads(line) for line in result.stdout.splitlines()]
    rows = [row for row in found if "test" in row]
    names = ["pp9", "tg2", "tg2@b2", "pp9@d20", "tg2@d20", "tg2@d20@b2"]
    assert [row["test"] for row in rows] == names
    assert all(row["tokens_per_s"] > 0 and "7900 XTX" in row["device"] for row in rows)
    launches = {
        test: sum(row["launches"] for row in found if row.get("profile") == test) for test in names
    }
    entries = toy.Manifest.load(artifact / "manifest.json").entries
    assert launches["tg2@b2"] == len(entries["decode@2x2x4"].launches)
    assert launches["pp9"] == len(entries["extend@8x3x4"].launches)
    events = json.loads(trace.read_text())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == sum(launches.values())


def test_a_table(artifact: Path) -> None:
    result = CliRunner().invoke(
        app,
        ["bench", str(artifact), "--device", CARD, "-p", "0", "-n", "1", "-r", "1", "--profile"],
    )
    assert result.exit_code == 0, result.output
    for expected in ("of copy", "copies", "tg1", "paged_prefill"):
        assert expected in result.stdout

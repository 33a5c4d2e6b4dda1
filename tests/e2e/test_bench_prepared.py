"""A whole run of scripts/bench_model_h200 on an emulated card: prepared, carried, and measured by a
process that has neither TVM nor PyTorch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.reference.tiny import make_tiny

from pumice.bench.gpu_session import carry, contents
from pumice.bench.gpu_session.prepare import Preparation
from pumice.bench.predict.beside import read_results
from pumice.targets import get_target

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "bench_model_h200"
BLOCKED = (
    "tvm",
    "tvm_ffi",
    "torch",
    "transformers",
    "tokenizers",
    "jinja2",
    "typer",
    "safetensors",
)
BLOCK = f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {BLOCKED}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Block())
"""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contents, "TINY", (("llama", "q4f16_1"),))
        patch.setattr(contents, "TINY_ANSWER", 3)
        made = Preparation(folder / "made", get_target("gfx1100"), print)

        def make(model_type: str, path: Path) -> Path:
            path.mkdir()
            return make_tiny(model_type, path, seed=5)

        made.tiny(make, folder)
        checkpoint = str(folder / "tiny-llama-checkpoint")
        groups = (("20", "1", "0", "1"), ("0", "1", "3", "2"))
        made.speeds(
            [contents.Speeds(checkpoint, groups, profiles=("tg1@d3@b2", "pp20"))], max_tokens=16
        )
        made.finish()
    assert len(carry.pack(made.folder, folder / "carry", piece_bytes=300_000)) > 1
    return folder


def _run(prepared: Path, out: Path, *options: str) -> tuple[int, dict[str, Any], str]:
    block = prepared / "block"
    block.mkdir(exist_ok=True)
    (block / "sitecustomize.py").write_text(BLOCK)
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(prepared / "carry"), "--device", "rocm:emulated-gfx1100",
         "--out", str(out), *options],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(block)}, check=False,
    )  # fmt: skip
    return done.returncode, json.loads(out.read_text()), done.stdout + done.stderr


def test_a_run(prepared: Path, tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    status, found, text = _run(prepared, out)
    assert status == 0, text
    assert found["failed"] == found["left_out"] == []
    assert "7900 XTX" in found["facts"]["device"] and found["facts"]["copy_gb_per_s"] > 0
    ways = [row["way"] for row in found["answers"]]
    assert ways == [
        *["alone"] * 4, *["mixed batch"] * 4, *["drawn on the device"] * 4,
        "logits of a prompt in chunks",
    ]  # fmt: skip
    assert all(row["passed"] for row in found["answers"])
    errors = [row["logits_error"] for row in found["answers"] if row["logits_error"] is not None]
    assert len(errors) == 9 and all(0 < error < 5e-3 for error in errors)
    names = ["pp20", "tg1", "tg1@d3@b2"]
    assert [row["test"] for row in found["rows"]] == names
    assert all(
        row["tokens_per_s"] > 0 and row["predicted_tokens_per_s"] > 0 for row in found["rows"]
    )
    assert {row["predicted_for"] for row in found["rows"]} == {"Radeon RX 7900 XTX"}
    profiled = {row["test"] for row in found["profiles"]}
    assert profiled == {"pp20", "tg1@d3@b2"}
    assert all(row["us"] > 0 for row in found["profiles"])
    # A plan's fill of shared counters is a matter of bytes, and not predicted.
    unpredicted = {row["operator"] for row in found["profiles"] if not row["predicted_us"] > 0}
    assert unpredicted <= {"fill"}
    assert len(list(tmp_path.glob("*.trace.json"))) == 2
    (row, *_) = read_results(tmp_path)
    assert row.test == "pp20" and "7900 XTX" in row.device


def test_wrong_answers_end_with_a_status(prepared: Path, tmp_path: Path) -> None:
    """One recorded token is changed; and the time is used up before the speeds."""
    folder = tmp_path / "unpacked"
    carry.unpack(prepared / "carry", folder)
    session = json.loads((folder / contents.FILE).read_text())
    answers = session["answers"][0]["answers"]
    tokens = next(row["tokens"] for row in answers if len(row["tokens"]) > 1)
    tokens[1] += 1
    (folder / contents.FILE).write_text(json.dumps(session))
    other = tmp_path / "prepared"
    carry.pack(folder, other / "carry")
    status, found, text = _run(other, tmp_path / "out.json", "--budget", "0.0")
    assert status == 1 and len(found["left_out"]) == 2 and not found["answers"], text
    status, found, text = _run(other, tmp_path / "out.json", "--budget", "0.5")
    wrong = [row for row in found["answers"] if not row["passed"]]
    assert status == 1 and [row["different"] for row in wrong] == [1, 1, 1], text
    assert found["left_out"] == [str(session["speeds"][0]["shape"])]


def test_the_tests_of_a_model_can_be_others() -> None:
    other = replace(contents.SPEEDS[0], groups=(("8", "2", "0,4", "1,2"),), profiles=())
    assert [t.name for t in other.tests][:3] == ["pp8", "tg2", "tg2@b2"]

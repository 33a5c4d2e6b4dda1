"""Batches of sequences, what GPU plans cost, and predictions beside measurements."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import plan_toys as toys
import pytest
from typer.testing import CliRunner

from pumice.bench.costs import PlanCosts
from pumice.bench.model import Sequence, run_test
from pumice.bench.predict.beside import measured_for, read_results
from pumice.bench.tests import ModelTest, expand
from pumice.cli.app import app
from pumice.errors import ModelFileError, UsageError
from pumice.runtime.step import StepBatch, StepLimits


class _Cache:
    """An executor that only keeps what each slot holds; every sequence must find its own tokens."""

    def __init__(self, blocks: int = 40) -> None:
        self.limits = StepLimits(toys.VOCABULARY, 16, 4, 4, 160, 16, blocks)
        self.slots = np.full(blocks * 16, -1)
        self.shapes: list[tuple[int, int]] = []

    def step(self, batch: StepBatch) -> np.ndarray:
        assert len(set(batch.slots.tolist())) == len(batch.tokens)
        self.slots[batch.slots] = batch.positions
        for s, context in enumerate(batch.context_len):
            positions = np.arange(context)
            blocks = batch.block_table[s][positions // 16]
            assert (self.slots[blocks * 16 + positions % 16] == positions).all()
            mine = slice(batch.query_start[s], batch.query_start[s + 1])
            expected = blocks[batch.positions[mine]] * 16 + batch.positions[mine] % 16
            assert (batch.slots[mine] == expected).all()
        self.shapes.append((len(batch.tokens), len(batch.context_len)))
        return np.zeros((len(batch.sample_rows), toys.VOCABULARY), np.float32)


def test_names_of_batches() -> None:
    tests = expand([512], [128], [0, 64], [1, 8])
    names = ["pp512", "tg128", "tg128@b8", "pp512@d64", "tg128@d64", "tg128@d64@b8"]
    assert [t.name for t in tests] == names
    assert tests[2].all_tokens == 1024 and tests[2].context == 129
    with pytest.raises(UsageError, match="batch of 0"):
        expand([1], [1], [0], [0, 1])


def test_sequences_of_a_batch_lie_apart() -> None:
    executor = _Cache()
    result = run_test(executor, toys.manifest(), ModelTest("tg", 5, 30, 4), repeat=2)
    # four prompts of 30 tokens in steps of 16 and 14, then three times one and five steps
    assert executor.shapes == [(16, 1), (14, 1)] * 4 + [(4, 4)] * 18
    assert len(result.runs) == 2
    assert result.bytes_per_token == result.cost.nbytes / 20
    with pytest.raises(UsageError, match="3 sequences of 160 tokens need 30 blocks"):
        Sequence(_Cache(20).limits, 2)


def test_costs_of_a_plan_by_its_keys() -> None:
    costs = PlanCosts(toys.manifest())
    one = costs.step(1, 1, 100)
    assert one.nbytes == toys.LAYERS * (toys.WEIGHT + 100 * toys.KEY)
    per_key = 4 * toys.HEADS * toys.DIM
    assert one.operations == toys.LAYERS * (2 * toys.WIDTH**2 + 100 * per_key)
    four = costs.step(4, 4, 100, 4)
    assert four.nbytes == toys.LAYERS * (toys.WEIGHT + 400 * toys.KEY)
    # a prompt's plan holds 16 tokens; the average of 10 queries after 50 sees 55.5 keys
    prompt = costs.step(10, 1, 60)
    assert prompt.nbytes == toys.LAYERS * (toys.WEIGHT + 60 * toys.KEY)
    products = 16 * (2 * toys.WIDTH**2 + 55.5 * per_key)
    assert prompt.operations == pytest.approx(toys.LAYERS * products)
    window = PlanCosts(toys.manifest(window=20)).step(1, 1, 100)
    assert window.nbytes == toys.LAYERS * (toys.WEIGHT + 20 * toys.KEY)
    total, steps = costs.test(ModelTest("tg", 3, 10, 4), 64)
    assert [s.nbytes for s in steps] == [costs.step(4, 4, n, 4).nbytes for n in (12, 13, 14)]
    assert total.nbytes == sum(s.nbytes for s in steps)


def _row(**values: object) -> dict[str, object]:
    row = {"engine": "pumice", "test": "tg128", "device": "cuda:0 (NVIDIA H200, sm_90, 0)",
           "model": "m (random weights)", "quantization": "q4", "tokens_per_s": 100.0,
           "commit": "a"}  # fmt: skip
    return row | values


def test_measured_rows_are_found(tmp_path: Path) -> None:
    assert read_results(tmp_path / "none") == []
    rows = [_row(), _row(engine="llama.cpp", tokens_per_s=1.0),
            _row(predicted=True, tokens_per_s=2.0), _row(test="pp512"), {"profile": "tg128"},
            _row(tokens_per_s=120.0, commit="b")]  # fmt: skip
    (tmp_path / "a.json").write_text(json.dumps({"rows": rows}))
    (tmp_path / "b.json").write_text(json.dumps({"facts": {}, "best": []}))
    found = read_results(tmp_path)
    assert len(found) == 3
    last = measured_for(found, "H200", "m", "q4", "tg128")
    assert last is not None and (last.tokens_per_s, last.when) == (120.0, "b")
    assert measured_for(found, "H100 SXM", "m", "q4", "tg128") is None
    (tmp_path / "c.json").write_text('{"rows": [{"engine": "pumice", "test": "x"}]}')
    with pytest.raises(ModelFileError, match=r"c\.json"):
        read_results(tmp_path)


def test_results_in_the_repository_can_be_read() -> None:
    read_results()


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    toys.manifest().save(tmp_path / "manifest.json")
    (tmp_path / "weights.safetensors").write_bytes(bytes(1000))
    return tmp_path


def _run(*arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == status, result.output
    return result.output


def test_inspect_shows_a_decode_step(artifact: Path) -> None:
    text = _run("inspect", str(artifact), "-c", "500")
    for expected in (
        "compiled for  gfx1100: RDNA3", "the rest is random when loaded", "kernels       4, none",
        "sequences 1, 4; contexts 128, 1024", "with 500 tokens (decode@1x1x64)",
        "paged_attention.triton.split", "3 launches", "Radeon RX 7900 XTX",
    ):  # fmt: skip
        assert expected in text, text
    data = json.loads(_run("inspect", str(artifact), "-c", "500", "--json"))
    assert data["launches"]["decode@1x1x64"] == 15 == data["decode"]["launches"]
    calls = data["decode"]["calls"]
    assert [call["count"] for call in calls] == [3, 3, 3]
    assert calls[1]["registers"] == 40 and calls[1]["grid"] == [64, 1, 1]
    assert calls[2]["bytes"] == 500 * toys.KEY and calls[2]["launches"] == 3
    total = sum(call["count"] * call["predicted_us"] for call in calls)
    assert data["decode"]["predicted_us"] == pytest.approx(total + 20, rel=1e-3)
    assert data["predicted"][0]["card"] == data["decode"]["card"] == "Radeon RX 7900 XTX"


@pytest.mark.parametrize(
    ("context", "status", "said"),
    [("-1", 2, "context is -1"), ("0", 2, "context is 0"), ("99999", 5, "99,999 .* 1,024 are")],
)
def test_inspect_checks_the_context(artifact: Path, context: str, status: int, said: str) -> None:
    for form in ((), ("--json",)):
        text = _run("inspect", str(artifact), f"--context={context}", *form, status=status)
        assert re.search(said, text)
        assert "compiled for" not in text


def test_inspect_without_the_file_of_weights(artifact: Path) -> None:
    (artifact / "weights.safetensors").unlink()
    text = _run("inspect", str(artifact), status=9)
    assert "has no weights.safetensors" in text and "--rebuild" in text


def test_predict_an_artifact(artifact: Path) -> None:
    options = ("-p", "100", "-n", "16", "-d", "0,64", "-b", "1,4")
    text = _run("bench", "--predict", "gfx1100", str(artifact), *options)
    for expected in ("never run on these cards", "Radeon PRO W7900", "tg16@d64@b4",
                     "assumptions:", "3.9 µs", "960 GB/s"):  # fmt: skip
        assert expected in text, text
    out = _run("bench", "--predict", "gfx1100", str(artifact), "--json", *options)
    rows = [json.loads(line) for line in out.splitlines()]
    assert len(rows) == 3 * 6 and all(row["predicted"] for row in rows)
    first = rows[1]
    assert first["test"] == "tg16" and first["tokens_per_s"] > 0 and first["assumptions"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--predict", "gfx942"), "was compiled for gfx1100, not for gfx942"),
        (("--predict", "gfx803"), "no card of 'gfx803'"),
        (("--predict", "gfx1100", "--device", "cpu"), "so --device says nothing"),
        (("--predict", "gfx1100", "-n", "8", "-b", "5"), "needs 5 sequences at once"),
        (("--predict", "gfx1100", "-n", "2000"), "needs a context of 2,001 tokens"),
    ],
)
def test_what_cannot_be_predicted(artifact: Path, arguments: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(app, ["bench", str(artifact), "-p", "0", *arguments])
    assert result.exit_code != 0
    assert message in result.output

"""The run on a GPU's machine, without one: pieces, greedy answers, judgement, and what it holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import plan_toys as toys
import pytest

from pumice.bench.gpu_session import carry, contents
from pumice.bench.gpu_session.check import check_answers, check_logits, relative_error
from pumice.bench.gpu_session.greedy import Answer, alone, drawn, mixed
from pumice.bench.gpu_session.prepare import certain
from pumice.bench.model import run_test
from pumice.bench.tests import ModelTest
from pumice.errors import DeviceError, UsageError
from pumice.runtime.step import RowSampling, SampledStep, StepBatch, StepLimits

VOCABULARY, SIZE = 61, 4


class _Model:
    """Logits are a function of a sequence's whole history, which is read from the cache."""

    def __init__(self, noise: float = 0.0) -> None:
        self.limits = StepLimits(VOCABULARY, 64, 8, 64, 64, SIZE, 96)
        self.cache = np.full(96 * SIZE, -1)
        self.noise = noise
        self.shapes: list[tuple[int, int]] = []

    def step(self, batch: StepBatch) -> np.ndarray:
        self.cache[batch.slots] = batch.tokens
        self.shapes.append((len(batch.tokens), len(batch.context_len)))
        found = []
        for row in batch.sample_rows:
            s = int(np.searchsorted(batch.query_start, row, "right")) - 1
            last = batch.positions[row]
            where = np.arange(last + 1)
            history = self.cache[batch.block_table[s][where // SIZE] * SIZE + where % SIZE]
            assert (history >= 0).all()
            rng = np.random.default_rng([int(t) for t in history])
            found.append(rng.standard_normal(VOCABULARY) * 3)
        out = np.array(found, np.float32)
        return out + np.random.default_rng(1).standard_normal(out.shape) * np.float32(self.noise)


PROMPTS = [[5, 6, 7, 8, 9], [20], [3, 3, 3, 1, 2, 9, 9, 9, 9], [44, 45]]


def test_answers_do_not_depend_on_the_batch() -> None:
    model = _Model()
    one = alone(model, PROMPTS, 7)
    assert model.shapes[:8] == [(5, 1), *[(1, 1)] * 6, (1, 1)]
    model = _Model()
    many = mixed(model, PROMPTS, 7)
    # prompts join one by one; the first ends at its seventh step
    assert model.shapes == [(5, 1), (2, 2), (11, 3), (5, 4), *[(4, 4)] * 3, (3, 3), (2, 2), (1, 1)]
    assert [a.tokens for a in one] == [a.tokens for a in many]
    assert all(len(a.tokens) == len(a.margins) == 7 for a in many)
    for a, b in zip(one, many, strict=True):
        assert a.first is not None and b.first is not None and (a.first == b.first).all()
        assert a.tokens[0] == a.first.argmax()
        assert a.margins[0] == pytest.approx(a.first.max() - np.sort(a.first)[-2])


class _Drawing(_Model):
    """Draws the likeliest token itself; a token may be read before the second launch after it."""

    samples = True

    def __init__(self, noise: float = 0.0) -> None:
        super().__init__(noise)
        self.drawn = np.zeros(0, np.int32)
        self.launches = 0
        self.ahead = 0

    def launch(
        self, batch: StepBatch, sampling: RowSampling, sources: np.ndarray | None = None
    ) -> SampledStep:
        assert (sampling.temperature == 0).all()
        if sources is not None:
            batch.tokens = np.where(sources >= 0, self.drawn[sources], batch.tokens)
        logits = self.step(batch)
        self.drawn = np.where(np.isfinite(logits).all(1), logits.argmax(1), -1).astype(np.int32)
        self.launches += 1
        number, tokens = self.launches, self.drawn

        class Step:
            def tokens(_self) -> np.ndarray:
                assert self.launches - number < 2
                self.ahead += self.launches > number
                return tokens

            def logits(_self) -> np.ndarray:
                return logits

        return Step()


def test_a_device_that_draws_is_launched_ahead() -> None:
    model = _Drawing()
    found = drawn(model, model.limits, PROMPTS, 7)
    assert found == [a.tokens for a in alone(_Model(), PROMPTS, 7)]
    assert model.shapes == [(17, 4), *[(4, 4)] * 6] and model.ahead == 6
    rows, first = _expected(_Model())
    judged = check_answers(_Drawing(), rows, first, 1e-3)
    assert [row["way"] for row in judged].count("drawn on the device") == 4
    assert all(row["passed"] for row in judged)


def test_a_generation_is_drawn_on_such_a_device() -> None:
    model = _Drawing()
    run_test(model, toys.manifest(), ModelTest("tg", 5, 3, 2), repeat=1)
    # two prompts of 3; then twice one step, and five that follow each other
    assert model.shapes == [(3, 1)] * 2 + [(2, 2)] * 12
    assert model.ahead == 2 * 4
    with pytest.raises(DeviceError, match="position 0 are not finite"):
        run_test(_Drawing(float("nan")), toys.manifest(), ModelTest("tg", 2), repeat=1)


def _expected(model: _Model) -> tuple[list[dict[str, Any]], np.ndarray]:
    found = alone(model, PROMPTS, 7)
    rows = [
        {"prompt": p, "tokens": a.tokens, "margins": a.margins}
        for p, a in zip(PROMPTS, found, strict=True)
    ]
    return rows, np.stack([a.first for a in found if a.first is not None])


def test_answers_are_judged() -> None:
    rows, first = _expected(_Model())
    good = check_answers(_Model(1e-4), rows, first, 1e-3)
    assert len(good) == 8 and all(row["passed"] for row in good)
    assert 0 < max(row["logits_error"] for row in good) < 1e-3
    assert not any(row["passed"] for row in check_answers(_Model(1e-2), rows, first, 1e-4))
    wrong = [dict(row) for row in rows]
    wrong[2] = {**rows[2], "tokens": [*rows[2]["tokens"][:3], 60, 0, 0, 0]}
    found = check_answers(_Model(), wrong, first, 1e-3)
    assert [row["different"] for row in found] == [None, None, 3, None] * 2
    assert found[2]["margin"] == pytest.approx(rows[2]["margins"][3], abs=1e-4)
    assert not found[2]["passed"]
    shorter = [dict(row) for row in rows]
    shorter[1] = {**rows[1], "tokens": rows[1]["tokens"][:2]}  # a near tie came third
    found = check_answers(_Model(), shorter, first, 1e-3)
    assert all(row["passed"] for row in found) and found[1]["tokens"] == 2
    with pytest.raises(DeviceError, match="not finite"):
        check_answers(_Model(float("nan")), rows, first, 1e-3)


def test_an_answer_ends_at_a_near_tie() -> None:
    answer = Answer([4, 5, 6, 7], [1.0, 0.5, contents.NEAR_TIE / 2, 2.0])
    assert certain([1], answer) == {"prompt": [1], "tokens": [4, 5], "margins": [1.0, 0.5]}
    assert certain([1], Answer([4, 5], [1.0, 2.0]))["tokens"] == [4, 5]


def test_logits_of_a_prompt_in_chunks() -> None:
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, contents.TINY_PROMPT).tolist()
    assert sum(contents.TINY_CHUNKS) == len(tokens)
    model = _Model()
    wanted = np.concatenate(
        [a.first[None] for a in alone(model, [tokens[: i + 1] for i in range(38)], 1)
         if a.first is not None]
    )  # fmt: skip
    assert check_logits(_Model(), tokens, wanted) == 0
    assert 1e-4 < check_logits(_Model(1e-2), tokens, wanted) < 1e-2
    assert relative_error(np.array([np.nan]), np.ones(1)) == float("inf")


def test_pieces(tmp_path: Path) -> None:
    made = tmp_path / "made" / "inner"
    made.mkdir(parents=True)
    data = np.random.default_rng(0).bytes(50_000)
    (made / "a.bin").write_bytes(data)
    (tmp_path / "made" / "b.json").write_text("{}")
    folders = carry.pack(tmp_path / "made", tmp_path / "carry", piece_bytes=20_000)
    assert [folder.name for folder in folders] == ["1", "2", "3"]
    assert all(sum(p.stat().st_size for p in f.iterdir()) <= 20_000 for f in folders)
    carry.unpack(tmp_path / "carry", tmp_path / "out")
    assert (tmp_path / "out" / "inner" / "a.bin").read_bytes() == data
    (tmp_path / "carry" / "2" / "piece-02").unlink()
    with pytest.raises(UsageError, match="needed: piece-01, piece-02"):
        carry.unpack(tmp_path / "carry", tmp_path / "other")
    (tmp_path / "carry" / "3" / "piece-03").unlink()
    with pytest.raises(UsageError, match="no whole archive"):
        carry.unpack(tmp_path / "carry", tmp_path / "other")
    with pytest.raises(UsageError, match="no pieces"):
        carry.unpack(tmp_path / "nothing", tmp_path / "other")


def test_what_a_run_holds() -> None:
    names = {row.shape: [test.name for test in row.tests] for row in contents.SPEEDS}
    assert names["llama-2-7b"] == [
        "pp512", "pp4096", "tg128", "tg512", "tg128@b8", "tg128@b32", "tg128@b64",
    ]  # fmt: skip
    assert "tg128@d8000" in names["llama-3-8b"] and "tg128" in names["llama-2-13b"]
    for row in contents.SPEEDS:
        assert set(row.profiles) <= set(names[row.shape])
        assert contents.Speeds.from_dict(row.as_dict()) == row

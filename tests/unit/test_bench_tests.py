"""Names, lengths and costs of benchmark tests."""

from __future__ import annotations

import numpy as np
import pytest

from pumice.artifact import BufferRef, CacheSpec, KernelRecord, Launch, Manifest, ModelInfo, Plan
from pumice.bench.costs import PlanCosts
from pumice.bench.model import Sequence, check_context, run_test, token_ids
from pumice.bench.roofline import Roofline
from pumice.bench.tests import ModelTest, expand, parse_lengths
from pumice.errors import ContextLengthError, DeviceError, UsageError
from pumice.runtime.step import StepBatch, StepLimits

VOCABULARY = 1000


def _manifest(context: int = 4096, window: int | None = None) -> Manifest:
    launches = (
        Launch("embed", (), "embedding", bytes_read=["*", "T", 10]),
        Launch("matmul", (), "linear", bytes_read=1000, operations=["*", "T", 2000]),
        Launch("head", (), "linear", bytes_read=500, operations=["*", "R", 100]),
    )
    plan = Plan(launches, 0, {"T": 32, "S": 4, "R": 8, "M": 8}, BufferRef("arena"))
    cache = CacheSpec(1, 4, (1, 2, 4), (1, 4, 2), window=window)
    kernels = tuple(
        KernelRecord(symbol, "linear", name, "")
        for symbol, name in (
            ("embed", "e"),
            ("matmul", "linear.tir.int8"),
            ("head", "linear.tir.float"),
        )
    )
    model = ModelInfo("m", "llama", VOCABULARY, context, 1, 1, 1, "q4_1")
    return Manifest("0", {"name": "t"}, model, cache, {"decode": plan, "extend": plan}, kernels)


def test_names() -> None:
    tests = expand([512, 0], [128], [0, 64])
    assert [t.name for t in tests] == ["pp512", "tg128", "pp512@d64", "tg128@d64"]
    assert [t.context for t in tests] == [512, 129, 576, 193]
    with pytest.raises(UsageError, match="nothing to measure"):
        expand([0], [0], [0])


def test_lengths() -> None:
    assert parse_lengths("-p", "512,1024") == [512, 1024]
    for text in ("", "a", "1,,2", "1.5", "-1", "1,99999999999"):
        with pytest.raises(UsageError, match=r"-p is "):
            parse_lengths("-p", text)


def test_token_ids_are_those_of_the_peer_script() -> None:
    ids = [(VOCABULARY // 3 + 7919 * i) % VOCABULARY for i in range(600)]
    assert token_ids(VOCABULARY, 600).tolist() == ids
    assert token_ids(VOCABULARY, 100, 500).tolist() == ids[500:]


def test_context_is_checked() -> None:
    with pytest.raises(ContextLengthError, match=r"tg128@d64 needs a context of 193 .* has 100"):
        check_context(expand([1], [128], [64]), _manifest(context=100))


def test_sequences_are_checked() -> None:
    check_context(expand([1], [2], [0], [1, 4]), _manifest())
    with pytest.raises(UsageError, match=r"tg2@b5 needs 5 sequences .* compiled for 4") as error:
        check_context(expand([1], [2], [0], [1, 5]), _manifest())
    assert "--max-sequences 5" in str(error.value.hint)


def test_costs_of_a_generation() -> None:
    cost, steps = PlanCosts(_manifest()).test(ModelTest("tg", 3, depth=5), max_tokens=32)
    # cache: 8 bytes a token; a step sees the depth, the one token before, those after, and itself
    assert [s.nbytes for s in steps] == [1510 + 8 * n for n in (7, 8, 9)]
    assert cost.int8_operations == 3 * 2000
    assert cost.fp32_operations == 3 * 100


def test_costs_of_a_prompt_in_chunks() -> None:
    cost, steps = PlanCosts(_manifest()).test(ModelTest("pp", 70, depth=0), max_tokens=32)
    assert len(steps) == 3
    assert cost.int8_operations == 70 * 2000
    assert cost.fp32_operations == 100  # logits of the last token only
    assert cost.nbytes == 3 * 1500 + 70 * 10 + 8 * (32 + 64 + 70)


def test_a_window_bounds_what_a_step_reads() -> None:
    costs = PlanCosts(_manifest(window=16))
    assert costs.step(1, 1, 1000).nbytes == 1510 + 8 * 16


def test_roofline_is_the_slower_of_reading_and_computing() -> None:
    roofline = Roofline("t", 1, 1e3, 1e3, 1e2, "x")
    step = PlanCosts(_manifest()).step(1, 1, 0)
    assert step.seconds(roofline) == pytest.approx(2000 / 1e3 + 100 / 1e2)
    slow = Roofline("t", 1, 1.0, 1e3, 1e2, "x")
    assert step.seconds(slow) == pytest.approx(1510)


class _Executor:
    """Checks that every step is well formed and that positions follow each other."""

    def __init__(self, value: float = 0.0) -> None:
        self.limits = StepLimits(VOCABULARY, 32, 4, 8, 256, 16, 17)
        self.value = value
        self.written: dict[int, int] = {}
        self.steps: list[tuple[int, int]] = []

    def step(self, batch: StepBatch) -> np.ndarray:
        count, end = len(batch.tokens), int(batch.context_len[0])
        assert count <= self.limits.max_tokens and end <= self.limits.context_length
        assert batch.positions.tolist() == list(range(end - count, end))
        assert batch.query_start.tolist() == [0, count]
        table = batch.block_table[0]
        assert len(table) == -(-end // 16)
        slots = table[batch.positions // 16] * 16 + batch.positions % 16
        assert slots.tolist() == batch.slots.tolist()
        for array in (batch.tokens, batch.positions, batch.slots, batch.sample_rows):
            assert array.dtype == np.int32
        self.written |= dict(zip(batch.slots.tolist(), batch.tokens.tolist(), strict=True))
        assert all(slot in self.written for slot in range(end))
        self.steps.append((end - count, len(batch.sample_rows)))
        return np.full((len(batch.sample_rows), VOCABULARY), self.value, np.float32)


def test_a_prompt_goes_in_steps_of_the_largest_size() -> None:
    executor = _Executor()
    result = run_test(executor, _manifest(), ModelTest("pp", 70), repeat=2)
    assert executor.steps == [(0, 0), (32, 0), (64, 1)] * 3
    assert len(result.runs) == 2 and result.median > 0
    assert list(executor.written.values()) == token_ids(VOCABULARY, 70).tolist()


def test_a_generation_starts_after_depth_and_one_token() -> None:
    executor = _Executor()
    run_test(executor, _manifest(), ModelTest("tg", 3, depth=40), repeat=1)
    one_run = [(40, 1), (41, 1), (42, 1), (43, 1)]
    assert executor.steps == [(0, 0), (32, 1), *one_run, *one_run]


def test_logits_that_are_not_finite_end_a_benchmark() -> None:
    with pytest.raises(DeviceError, match="not finite"):
        run_test(_Executor(float("nan")), _manifest(), ModelTest("pp", 5), repeat=1)


def test_a_step_of_one_token_asks_for_its_logits() -> None:
    batch = Sequence(_Executor().limits).batch(np.array([7], np.int32), 33)
    assert batch.sample_rows.tolist() == [0]
    assert batch.block_table.tolist() == [[0, 1, 2]]

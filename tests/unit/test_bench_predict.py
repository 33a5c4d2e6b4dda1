"""Predicted speeds: calls of a plan, occupancy, lines through measured rows, tests on cards."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import plan_toys as toys
import pytest

from pumice.artifact import BufferRef, KernelRecord, Launch, Plan
from pumice.bench.predict.calls import calls_of, plan_for, records_of
from pumice.bench.predict.cards import CARDS, card_named, cards_of
from pumice.bench.predict.measured import (
    ASSUMED,
    RELATIVES,
    Sample,
    line_for,
    line_of,
    samples_of,
)
from pumice.bench.predict.model import (
    GAP,
    STEP,
    Shape,
    call_time,
    floor_seconds,
    matrix_part,
    memory_bytes,
    memory_part,
)
from pumice.bench.predict.occupancy import occupancy
from pumice.bench.predict.speeds import Predictor
from pumice.bench.tests import ModelTest, expand
from pumice.errors import UsageError
from pumice.operators.registry import get_spec
from pumice.targets import get_target
from pumice.targets.gpu import GPU_TARGETS

XTX = card_named("Radeon RX 7900 XTX")


def test_every_gpu_target_has_a_card_of_its_own_figures() -> None:
    for target in GPU_TARGETS:
        first = cards_of(target.name)[0]
        card = next((c for c in cards_of(target.name) if c.units == target.compute_units), first)
        assert target.bandwidth and abs(card.bandwidth / target.bandwidth - 1) < 0.03
        assert abs(card.float16 / target.peak["float16"] - 1) < 0.09
    with pytest.raises(UsageError, match="gfx1100"):
        cards_of("gfx803")
    assert len({card.name for card in CARDS}) == len(CARDS)


def test_calls_hold_their_launches_and_count_layers() -> None:
    manifest = toys.manifest()
    name, plan = plan_for(manifest, "decode", tokens=1, sequences=1, context=100)
    assert name == "decode@1x1x8"
    calls = calls_of(plan, records_of(manifest))
    assert [(c.label, c.count, len(c.launches)) for c in calls] == [
        ("rms_norm model.layers.*.norm.weight", 3, 1),
        ("linear model.layers.*.proj.weight", 3, 1),
        ("attention", 3, 3),
    ]
    attention = calls[2]
    assert attention.main.kernel == "attention_1"
    assert attention.cost(100).nbytes == 100 * toys.KEY
    assert attention.cost(100, 50.5).operations == 50 * 4 * toys.HEADS * toys.DIM
    assert sum(c.count * len(c.launches) for c in calls) == len(plan.launches)


def test_the_smallest_plan_that_holds_a_batch() -> None:
    manifest = toys.manifest()
    assert plan_for(manifest, "decode", tokens=2, sequences=2, context=129)[0] == "decode@4x4x64"
    assert plan_for(manifest, "extend", tokens=17, sequences=1, context=17)[0] == "extend@64x1x8"
    with pytest.raises(UsageError, match="no decode plan for 5 tokens"):
        plan_for(manifest, "decode", tokens=5, sequences=5, context=1)


def _record(threads: int, shared: int = 0, **resources: int) -> KernelRecord:
    return KernelRecord(
        "k", "o", "k", "", threads=threads, shared_bytes=shared, resources=resources
    )


@pytest.mark.parametrize(
    ("target", "record", "blocks", "limit"),
    [
        ("gfx1100", _record(32, vgprs=24), 32, "waves"),
        ("gfx1100", _record(256, vgprs=256), 1, "registers"),  # 1536 // 264 = 5 waves a SIMD
        ("gfx1100", _record(128, 20 << 10, vgprs=96), 3, "shared memory"),
        ("gfx942", _record(256, vgprs=128), 4, "registers"),
        ("gfx942", _record(256, vgprs=40), 8, "waves"),
        ("gfx942", _record(256, 64 << 10, vgprs=128, lds_bytes=64 << 10), 1, "shared memory"),
        ("sm_90", _record(128, 72 << 10, vgprs=168), 3, "registers"),
        ("sm_90", _record(128, 110 << 10, vgprs=128), 2, "shared memory"),
        ("sm_90", _record(1024, vgprs=32), 2, "waves"),
        ("sm_90", _record(32, vgprs=16), 32, "blocks"),
        ("sm_90", _record(512, 227 << 10, vgprs=255), 1, "registers"),
    ],
)
def test_occupancy(target: str, record: KernelRecord, blocks: int, limit: str) -> None:
    found = occupancy(record, get_target(target))
    assert (found.blocks, found.limit) == (blocks, limit)
    assert 0 < found.part <= 1


def test_floor_by_hand() -> None:
    full = Shape(96 * 40, 4, 4)
    assert memory_part(full, XTX) == matrix_part(full, XTX) == 1
    assert floor_seconds(0.96e9 * 0.89, 0, full, XTX) == pytest.approx(1e-3)
    assert floor_seconds(0, 122.8e9 * 0.62, full, XTX) == pytest.approx(1e-3)
    # 97 blocks on 96 units take as long as 192; 16 units alone draw three times their share
    assert matrix_part(Shape(97, 4, 1), XTX) == pytest.approx(97 / 192)
    assert memory_part(Shape(16, 4, 1), XTX) == pytest.approx(0.5)
    assert memory_part(Shape(16, 1, 8), XTX) == pytest.approx(0.125)
    assert memory_bytes(10, 96 << 19, XTX) == 10 + (96 << 19) / 4
    assert memory_bytes(10, (96 << 19) + 2, XTX) == 10 + (96 << 19) + 2


def test_a_launch_is_never_faster_than_its_floor_and_gap() -> None:
    shape = Shape(1000, 4, 4)
    time = call_time(1e6, 1e6, shape, ASSUMED, 3, XTX, "rocm")
    assert time.launching == pytest.approx(ASSUMED.start + 3 * GAP["rocm"])
    assert time.seconds == pytest.approx(time.launching + time.floor / 0.7)
    assert time.bound == "launch"
    assert call_time(1e9, 1e6, shape, ASSUMED, 1, XTX, "rocm").bound == "memory"
    assert call_time(1e6, 1e12, shape, ASSUMED, 1, XTX, "cuda").bound == "matrix units"


def test_a_line_finds_what_made_its_samples() -> None:
    rng = np.random.default_rng(0)
    floors = 10 ** rng.uniform(-7, -4, 40)
    samples = [
        Sample("k", intensity, floor, 2.5e-6 + floor * slope)
        for floor in floors
        for intensity, slope in ((4.0, 1.25), (64.0, 3.0))
    ]
    for intensity, slope in ((4.0, 1.25), (64.0, 3.0), (90.0, 3.0)):
        line = line_of(samples, intensity)
        assert line.slope == pytest.approx(slope, rel=0.03)
        assert line.start == pytest.approx(2.5e-6, rel=0.1)
        assert line.rows == 80
    assert line_of(samples, 4.0).distance < 0.1 and line_of(samples, 1.0).distance > 1
    assert line_of([], 4.0) == ASSUMED
    one = line_of([Sample("k", 1.0, 1e-5, 2e-5)], 1.0)
    assert one.seconds(1e-5) == pytest.approx(2e-5, rel=0.05)
    shrinking = line_of([Sample("k", 1.0, 1e-6, 2e-5), Sample("k", 1.0, 2e-5, 1e-5)], 1.0)
    assert shrinking.slope >= 0 and shrinking.start >= 0


@pytest.mark.parametrize(
    "kernel",
    [
        "gemm_w4.triton.gemv",
        "gemm_w4.triton.two_step",
        "paged_attention.triton.split",
        "norm.triton.rows",
    ],
)
def test_lines_meet_the_measured_rows(kernel: str) -> None:
    """Within 35% of every row, and on average within 10%."""
    samples = samples_of(kernel)
    assert samples
    ratios = [line_of(samples, s.intensity).seconds(s.floor) / s.seconds for s in samples]
    assert all(0.65 < ratio < 1.5 for ratio in ratios)
    assert abs(math.log(np.exp(np.mean(np.log(ratios))))) < 0.1
    assert samples_of("no_such.triton.kernel") == ()


def test_a_relative_s_rows_stand_in() -> None:
    assert line_for("no_such.triton.kernel", 1.0) == ASSUMED
    for operator, relative in RELATIVES.items():
        get_spec(operator)
        line, own = line_for(f"{operator}.triton.any", 4.0), line_for(relative, 4.0)
        assert (line.start, line.slope) == (own.start, own.slope) and own.measured
        assert line.relative == relative and not line.measured


def test_tests_on_cards() -> None:
    manifest = toys.manifest()
    predictor = Predictor(manifest, XTX)
    one, four = (predictor.test(t) for t in expand([0], [64], [0], [1, 4]))
    assert one.launches == 15 and one.seconds > STEP + 15 * GAP["rocm"]
    assert one.tokens_per_s == pytest.approx(1 / one.seconds)
    assert four.tokens_per_s == pytest.approx(4 / four.seconds) and four.seconds < 2 * one.seconds
    keys = 64 / 2 + 1.5
    assert one.nbytes == pytest.approx(toys.LAYERS * (toys.WEIGHT + keys * toys.KEY), rel=0.01)
    assert one.attainable_s == pytest.approx(one.nbytes / XTX.copy_bandwidth, rel=0.01)
    assert one.fits
    small = dataclasses.replace(XTX, memory_bytes=10**6)
    assert not Predictor(manifest, small).test(ModelTest("tg", 8)).fits
    slower = Predictor(manifest, cards_of("gfx1100")[1]).test(ModelTest("pp", 128))
    assert slower.tokens_per_s < predictor.test(ModelTest("pp", 128)).tokens_per_s
    with pytest.raises(UsageError, match="larger"):
        predictor.test(ModelTest("tg", 8, 0, 5))


def test_prompts_are_cut_into_chunks_and_see_what_is_before_them() -> None:
    predictor = Predictor(toys.manifest(), XTX)
    steps = predictor._prompt(ModelTest("pp", 100, 10), None)
    assert [step.plan for step in steps] == ["extend@64x1x8", "extend@64x1x8"]
    attention = [next(c for c in s.calls if c.call.operator == "paged_attention") for s in steps]
    # 64 tokens after 10, then 36 after 74, in plans of 64 tokens
    per_key = 4 * toys.HEADS * toys.DIM * 64
    assert [a.cost.operations for a in attention] == [round(42.5) * per_key, round(92.5) * per_key]
    assert [a.cost.nbytes for a in attention] == [74 * toys.KEY, 110 * toys.KEY]
    windowed = Predictor(toys.manifest(window=20), XTX)
    (step,) = windowed._generation(ModelTest("tg", 1, 500))
    assert step.nbytes == toys.LAYERS * (toys.WEIGHT + 20 * toys.KEY)


def test_a_generated_token_is_drawn_too() -> None:
    plain = toys.manifest()
    record = KernelRecord("draw_1", "sample_tokens", "sample_tokens.triton", "", threads=512)
    drawing = Plan((Launch("draw_1", (), "sample_tokens", (4, 1, 1)),), 0, {"R": 4}, BufferRef(""))
    manifest = dataclasses.replace(
        plain, entries={**plain.entries, "sample@4": drawing}, kernels=(*plain.kernels, record)
    )
    before, after = (Predictor(m, XTX) for m in (plain, manifest))
    tests = expand([100], [8], [0], [1, 4])
    launches = [(before.test(t).launches, after.test(t).launches) for t in tests]
    assert launches == [(30, 30), (15, 15), (15, 16)]  # there is no plan for one row
    step = after.step("decode", tokens=4, sequences=4, context=9)
    assert step.calls[-1].call.operator == "sample_tokens"

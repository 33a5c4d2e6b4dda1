"""A long prompt beside running streams: how long a token of theirs waits, in simulated time."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from engine_toy import ToyExecutable, limits, scripted

from pumice.engine import LLMEngine, SamplingParams
from pumice.engine.pace import STRETCH, Pace
from pumice.runtime.step import StepBatch

VOCAB = 61


class Timed(ToyExecutable):
    """Steps that take time: a part that is fixed, one for each token, one for what it looks at."""

    now = 0.0
    decode_s = 0.0  # of the last step that only decoded

    def step(self, batch: StepBatch) -> np.ndarray:
        logits = super().step(batch)
        tokens = len(batch.tokens)
        looked_at = float((batch.positions + 1).sum())
        seconds = 0.004 + 0.001 * tokens + 1e-6 * looked_at
        self.now += seconds
        if tokens == len(batch.context_len) == len(batch.sample_rows):
            self.decode_s = seconds
        return logits


def timed(**settings: int) -> tuple[LLMEngine, Timed]:
    bounds = limits(
        vocab_size=VOCAB,
        max_tokens=512,
        max_sequences=16,
        max_rows=16,
        context_length=4096,
        num_blocks=600,
        block_size=16,
    )
    toy = Timed(bounds, scripted(VOCAB, lambda tokens: len(tokens) % VOCAB))
    return LLMEngine(toy, None, clock=lambda: toy.now, **settings), toy


def gaps_of(streams: int, **settings: int) -> tuple[list[float], list[float], float]:
    """Time between tokens of the streams, in steps that only decode: before the prompt arrives, and
    beside it; and how many seconds the prompt took."""
    engine, toy = timed(**settings)
    params = SamplingParams(max_tokens=3000)
    for i in range(streams):
        engine.add_request([i, i + 1, i + 2], params, request_id=f"s{i}")
    last: dict[str, float] = {}
    before: list[float] = []
    beside: list[float] = []
    for step in range(3000):
        if step == 30:
            engine.add_request([7] * 2000, SamplingParams(max_tokens=1), request_id="long")
            begin = toy.now
        for delta in engine.step():
            if delta.request_id == "long":
                return before, beside, toy.now - begin
            if delta.request_id in last:
                gap = (toy.now - last[delta.request_id]) / toy.decode_s
                (before if step < 30 else beside).append(gap)
            last[delta.request_id] = toy.now
    raise AssertionError("the prompt never ended")


@pytest.mark.parametrize("streams", [1, 3, 12])
def test_a_long_prompt_stretches_the_others_by_less_than_three(streams: int) -> None:
    before, beside, _ = gaps_of(streams)
    assert max(before) < 1.1 and max(beside) <= 3


def test_a_fixed_chunk_does_not() -> None:
    _, beside, _ = gaps_of(3, prefill_chunk=256)
    assert max(beside) > 10


def test_many_prompts_that_wait_do_not_crawl_beside_one_stream() -> None:
    """They will run together: until then the stream has the pace that it will have."""
    engine, toy = timed()
    params = SamplingParams(max_tokens=400)
    engine.add_request([1, 2, 3], params, request_id="first")
    for _ in range(30):
        engine.step()
    for i in range(12):
        engine.add_request([5 + i] * 40, params)
    last, gaps, begun = toy.now, [], len(toy.steps)
    while engine.scheduler.waiting or any(not s.decodes for s in engine.scheduler.running):
        if any(delta.request_id == "first" for delta in engine.step()):
            gaps.append(toy.now - last)
            last = toy.now
    prompts = [step for step in toy.steps[begun:] if step[0] > step[1]]
    engine.step()
    assert toy.shapes[-1] == (1,) * 13
    assert max(gaps) <= 3 * toy.decode_s and len(prompts) < 480 / 8


def test_the_time_that_is_left_is_used() -> None:
    _, beside, seconds = gaps_of(4)
    assert float(np.median(beside)) > 0.8 * STRETCH
    assert seconds < 2 * 2000 * 0.0035  # the prompt's own work, about, and the streams' meanwhile


def test_alone_a_prompt_takes_whole_steps() -> None:
    engine, toy = timed()
    engine.generate([7] * 1500, SamplingParams(max_tokens=1))
    assert [s[0] for s in toy.steps] == [512, 512, 476]


def test_many_streams_that_never_only_decode() -> None:
    """What is known of one stream is no measure for twelve: their prompts must not crawl."""
    pace = Pace(512)
    pace.observe(0, 100, 0.15)
    for _ in range(5):
        pace.observe(1, 0, 0.006)
    assert pace.chunk(1) == math.ceil((STRETCH - 1) * 0.006 / 0.0015)
    for _ in range(20):
        chunk = pace.chunk(12)
        pace.observe(12, chunk, 0.004 + 0.0015 * (12 + chunk))
    assert pace.chunk(12) > 12


class GpuTimed(Timed):
    """Launches cost what they cost: a step with prompts takes four times one that decodes."""

    decoding, prompts, token = 0.6e-3, 2.4e-3, 5e-6

    def step(self, batch: StepBatch) -> np.ndarray:
        logits = ToyExecutable.step(self, batch)
        tokens = len(batch.tokens)
        if tokens == len(batch.context_len) == len(batch.sample_rows):
            self.decode_s = seconds = self.decoding + 1e-6 * tokens
        else:
            padded = next(n for n in self.limits.padded_tokens if n >= tokens)
            seconds = self.prompts + self.token * padded
        self.now += seconds
        return logits


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("capture_s", [0.0, 0.05])
def test_a_fixed_cost_does_not_make_prompts_crawl(mixed: bool, capture_s: float) -> None:
    """Chunks that shrink because steps with chunks are slow would make all of it slower still."""
    bounds = replace(
        limits(
            vocab_size=VOCAB, max_tokens=512, max_sequences=16, max_rows=16,
            context_length=4096, num_blocks=2000, block_size=16,
        ),
        padded_tokens=(16, 32, 64, 128, 256, 512),
    )  # fmt: skip
    toy = GpuTimed(bounds, scripted(VOCAB, lambda tokens: len(tokens) % VOCAB))
    seen: set[int] = set()
    engine = LLMEngine(toy, None, clock=lambda: toy.now, mixed_steps=mixed)
    waits, begun, asked = [], {}, 0
    for _ in range(4000):
        while len(engine.alive) < 8 and asked < 80:  # who is answered asks again
            asked += 1
            request = engine.add_request([asked % VOCAB] * 150, SamplingParams(max_tokens=60))
            begun[request] = toy.now
        for delta in engine.step():
            if delta.request_id in begun:
                waits.append(toy.now - begun.pop(delta.request_id))
        if toy.steps[-1][0] not in seen:  # the first of its size is captured
            seen.add(toy.steps[-1][0])
            toy.now += capture_s
        if not engine.alive:
            break
    assert len(waits) == 80
    # All of 8 prompts at once take 2.4 ms + 1200 · 5 µs = 8.4 ms, one 3.7; decoding steps between.
    assert float(np.median(waits[20:])) < 0.02
    assert toy.now - capture_s * len(seen) < 80 / 8 * (8 * 3.7e-3 + 60 * 0.62e-3) * 1.5


def test_chunks_fill_what_a_step_is_padded_to() -> None:
    pace = Pace(512, sizes=(16, 64, 256, 512))
    for tokens in (16, 64, 256, 64):
        pace.observe(0, tokens, 0.002 + 1e-5 * tokens)
    pace.observe(8, 0, 0.001)
    assert pace.chunk(8) == 256  # 200 take as long as the fixed part; 256 are computed anyway
    beside = Pace(512, mixed=True, sizes=(16, 64, 256, 512))
    beside.observe(8, 0, 0.001)
    beside.observe(0, 64, 0.00264)
    for tokens in (16, 64, 256, 64):
        beside.observe(8, tokens - 8, 0.002 + 1e-5 * tokens)
    assert beside.chunk(8) == 256 - 8


def test_one_step_that_was_held_up_makes_no_chunk_much_longer() -> None:
    for held_up in ((0, 20), (0, 60), (8, 0)):
        pace = Pace(512)
        for _ in range(20):
            for tokens in (20, 40, 60):
                pace.observe(0, tokens, 0.002 + 1e-3 * tokens)
            pace.observe(8, 0, 0.040)
        before = pace.chunk(8)
        pace.observe(*held_up, 1.0)
        assert pace.chunk(8) <= 1.6 * before


def test_without_measurements() -> None:
    assert Pace(512).chunk(3) == 32 and Pace(5).chunk(1) == 5
    pace = Pace(512)
    pace.observe(0, 64, 0.064)
    pace.observe(8, 32, 0.045)  # no step that only decodes was ever seen
    assert 2 <= pace.chunk(8) <= 32

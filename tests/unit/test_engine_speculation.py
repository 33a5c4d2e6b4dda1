"""Guesses: right or wrong, the output is the one without them; and they stop where they lose."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from engine_toy import (
    EOS,
    ToyExecutable,
    assert_idle,
    check,
    greedy_reference,
    hashed_logits,
    limits,
    logits_of,
    make,
    scripted,
    small_limits,
    tokenizer,
)

from pumice.engine import Grammar, LLMEngine, SamplingParams, Speculation
from pumice.engine.draft_model import DraftModel
from pumice.engine.ngram import NgramProposer
from pumice.engine.request import Request
from pumice.engine.sequence import Sequence
from pumice.engine.speculation import Speculator
from pumice.engine.step_cost import StepCost
from pumice.errors import UsageError

VOCAB = 61
ROOM = small_limits(max_rows=16, max_tokens=32, context_length=128, num_blocks=128)


def periodic(tokens: np.ndarray) -> np.ndarray:
    """Says mostly what it said seven tokens ago; nearly even, so that draws differ."""
    logits = hashed_logits(VOCAB)(tokens) * 0.4
    if len(tokens) > 7 and len(tokens) % 11:
        logits[tokens[-7]] += 5
    return logits


def near(tokens: np.ndarray) -> np.ndarray:
    """A draft model: mostly what `periodic` says."""
    return periodic(tokens) if len(tokens) % 5 else hashed_logits(VOCAB)(tokens)


def fixed(method: str, most: int = 4, bounds: Any = ROOM) -> Speculation:
    if method == "ngram":
        return Speculation("ngram", most, adaptive=False)
    draft = ToyExecutable(bounds, near)
    return Speculation("draft", most, adaptive=False, draft=draft)


def engine(speculation: Speculation | None, bounds: Any = ROOM, **settings: Any) -> LLMEngine:
    return LLMEngine(ToyExecutable(bounds, periodic), None, speculation=speculation, **settings)


PARAMS = [
    SamplingParams(max_tokens=60),
    SamplingParams(max_tokens=60, temperature=0.8, seed=3),
    SamplingParams(max_tokens=60, temperature=1.2, seed=4, top_p=0.9, top_k=30),
    SamplingParams(max_tokens=60, logprobs=True, top_logprobs=2),
    SamplingParams(max_tokens=40, repetition_penalty=1.3),
    SamplingParams(max_tokens=50, temperature=1.0, seed=9, logit_bias={5: 2.0}),
]
PROMPTS = [[*range(3, 12 + i), *range(3, 12)] for i in range(len(PARAMS))]


@pytest.mark.parametrize("method", ["ngram", "draft"])
@pytest.mark.parametrize("most", [1, 4, 9])
def test_outputs_are_those_without_guesses(method: str, most: int) -> None:
    expected = engine(None, small_limits(context_length=128, num_blocks=256)).generate(
        PROMPTS, PARAMS
    )
    guessing = engine(fixed(method, most))
    done = guessing.generate(PROMPTS, PARAMS)
    for a, b in zip(expected, done, strict=True):
        assert a.token_ids == b.token_ids and a.finish_reason == b.finish_reason
        assert [p.token for p in a.logprobs] == [p.token for p in b.logprobs]
        for one, other in zip(a.logprobs, b.logprobs, strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-5)
    figures = guessing.figures()["speculation"]
    assert 0 < figures["accepted"] < figures["proposed"]
    assert figures["excluded"] == {"penalties": 1}
    assert_idle(guessing)


@pytest.mark.parametrize("method", ["ngram", "draft"])
def test_right_guesses_save_steps(method: str) -> None:
    plain, guessing = engine(None), engine(fixed(method))
    for e in (plain, guessing):
        e.generate(PROMPTS[0], PARAMS[0])
    toys = [e.executable for e in (plain, guessing)]
    assert isinstance(toys[0], ToyExecutable) and isinstance(toys[1], ToyExecutable)
    assert len(toys[1].steps) < 0.7 * len(toys[0].steps)
    stats = guessing.stats
    assert stats.decode_tokens == 59 and stats.finished == 1


@pytest.mark.parametrize("method", ["ngram", "draft"])
def test_crowded_and_small(method: str) -> None:
    for seed in range(12):
        rng = np.random.default_rng(seed)
        bounds = small_limits(
            block_size=int(rng.integers(1, 6)),
            num_blocks=int(rng.integers(60, 90)),
            max_tokens=int(rng.integers(4, 12)),
            max_rows=int(rng.integers(4, 12)),
            context_length=58,
        )
        guessing = engine(fixed(method, int(rng.integers(1, 7)), bounds), bounds)
        load = [
            ([int(t) for t in rng.integers(0, 3, rng.integers(1, 20))], int(rng.integers(1, 35)))
            for _ in range(7)
        ]
        each = [
            SamplingParams(max_tokens=n, temperature=float(i % 2), seed=i)
            for i, (_, n) in enumerate(load)
        ]
        done = guessing.generate([p for p, _ in load], each)
        for (prompt, _), params, output in zip(load, each, done, strict=True):
            (alone,) = engine(None).generate(prompt, params)
            assert output.token_ids == alone.token_ids
        assert_idle(guessing)


def test_cancel_and_several_outputs() -> None:
    guessing = engine(fixed("draft"), prefill_chunk=32)
    name = guessing.add_request(PROMPTS[0], PARAMS[1], n=3)
    other = guessing.add_request(PROMPTS[1], PARAMS[0])
    for _ in range(6):
        guessing.step()
        check(guessing)
    done = guessing.cancel(name)
    expected = engine(None).generate(PROMPTS[0], PARAMS[1], n=3)
    for a, b in zip(done, expected, strict=True):
        assert a.token_ids == b.token_ids[: len(a.token_ids)] and len(a.token_ids) > 5
    guessing.cancel(other)
    assert_idle(guessing)
    speculator = guessing.speculator
    assert speculator is not None and isinstance(speculator._proposer, DraftModel)
    assert not speculator._proposer._mirrors and speculator._proposer._cache.in_use == 0


def test_end_tokens_and_stop_strings_within_guesses() -> None:
    words = tokenizer()
    text = "one two three one two three one two END more"
    ids = [words.encode(c, add_special=False, parse_special=False)[0] for c in text]

    def next_token(tokens: list[int]) -> int:
        at = len(tokens) - 3
        return ids[at] if at < len(ids) else EOS

    bounds = limits(max_rows=16, context_length=128, num_blocks=64)
    for stop in ((), ("END",), ("wo E",)):
        outputs = []
        for speculation in (None, Speculation("ngram", 6, adaptive=False)):
            toy = ToyExecutable(bounds, scripted(words.vocab_size, next_token))
            e = LLMEngine(toy, words, speculation=speculation)
            (done,) = e.generate([5, 6, 7], SamplingParams(stop=stop, max_tokens=90))
            outputs.append((done.text, done.token_ids, done.finish_reason, done.stop))
            assert_idle(e)
        assert outputs[0] == outputs[1]


def test_guesses_keep_to_a_grammar() -> None:
    vocab = limits().vocab_size
    rooms = limits(context_length=300, num_blocks=200, max_rows=32)
    schema = {
        "type": "array",
        "minItems": 6,
        "maxItems": 8,
        "items": {
            "type": "object",
            "properties": {"name": {"enum": ["north", "south"]}, "on": {"type": "boolean"}},
            "required": ["name", "on"],
            "additionalProperties": False,
        },
    }
    blanks = [i for i in range(vocab) if not tokenizer().token_bytes(i).strip()]

    def model(tokens: np.ndarray) -> np.ndarray:
        row = logits_of(tokens, vocab)
        row[blanks] -= 30
        return row

    outputs = []
    for speculation in (None, Speculation("ngram", 5, adaptive=False)):
        e, _ = make(rooms, logits=model, speculation=speculation)
        grammar = Grammar("json_schema", schema)
        params = [
            SamplingParams(max_tokens=250, temperature=t, seed=1, grammar=grammar)
            for t in (0.0, 1.0)
        ]
        done = e.generate([[5, 6], [7]], params)
        assert all(6 <= len(json.loads(d.text)) <= 8 for d in done)
        outputs.append([d.token_ids for d in done])
    assert outputs[0] == outputs[1]
    figures = e.figures()["speculation"]
    assert figures["accepted"] > 20


def test_the_distribution_is_the_models() -> None:
    """Draws of a second token that was guessed, rightly in some of the runs."""
    rng = np.random.default_rng(0)
    rows = {n: rng.normal(size=VOCAB).astype(np.float32) * 2 for n in (3, 4, 5)}
    rows[3][1] += 5  # so 1, 1, 1 goes on with 1, and the guess is another
    rows[4][1] += 2
    guessing = LLMEngine(
        ToyExecutable(ROOM, lambda tokens: rows[len(tokens)]),
        None,
        speculation=Speculation("ngram", 3, adaptive=False),
    )
    params = SamplingParams(max_tokens=3, temperature=1.0)
    seconds: Counter[int] = Counter()
    count = 2400
    for first in range(0, count, 4):
        each = [params.replace(seed=s) for s in range(first, first + 4)]
        seconds.update(d.token_ids[1] for d in guessing.generate([[1, 1, 1]] * 4, each))
    p = np.exp(rows[4].astype(np.float64))
    expected = p / p.sum() * count
    observed = np.array([seconds[i] for i in range(VOCAB)], dtype=np.float64)
    often = expected > 8
    chi = ((observed - expected)[often] ** 2 / expected[often]).sum()
    assert chi < often.sum() + 5 * np.sqrt(2 * often.sum())
    figures = guessing.figures()["speculation"]
    assert 0.02 < figures["accepted"] / figures["proposed"] < 0.98 and figures["proposed"] > 500


def sequence_of(tokens: list[int]) -> Sequence:
    request = Request(tokens, SamplingParams())
    return Sequence(request, "x", np.array(tokens, np.int32), longest=64, vocab_size=VOCAB)


@pytest.mark.parametrize(
    ("tokens", "guesses"),
    [
        ([1, 2, 3, 4, 9, 1, 2, 3], [4, 9, 1]),
        ([1, 2, 3, 8, 2, 3, 7, 1, 2, 3], [8, 2, 3]),  # the longest match, not the latest
        ([5, 6, 1, 5, 6, 2, 5, 6], [2, 5, 6]),  # of equal ones, the latest
        ([4, 4, 4], [4, 4, 4]),  # goes round
        ([1, 2, 3, 4], []),
        ([7], []),
        ([1, 9, 2, 9], []),  # one token is not enough
    ],
)
def test_ngram_guesses(tokens: list[int], guesses: list[int]) -> None:
    sequence = sequence_of(tokens)
    NgramProposer().propose([(sequence, 3)])
    length = len(tokens)
    assert sequence.tokens[length : length + sequence.draft].tolist() == guesses


def test_costs_are_learnt() -> None:
    cost = StepCost()
    for _ in range(6):
        cost.observe(1, 0, 0.010)
        cost.observe(8, 0, 0.040)
    assert cost.token_share(1) is None and not cost.loses(1, 4, 1.0)
    for drafted in (1, 4, 2, 8, 3, 5):
        cost.observe(1, drafted, 0.009 + 0.004 * (1 + drafted))
    assert cost.token_share(1) == pytest.approx(0.4)
    assert cost.token_share(3) is None  # never measured
    assert cost.token_share(8) == pytest.approx(0.8)
    assert cost.loses(1, 4, 2.5) and not cost.loses(1, 4, 3.2)


def test_guesses_end_where_they_lose() -> None:
    """Simulated time: a token more costs as much as a step, so nothing is gained."""
    now = [0.0]
    toy = ToyExecutable(ROOM, periodic)

    def pass_time(step: int) -> None:
        now[0] += 0.010 * toy.steps[-1][0]

    toy.before = pass_time
    e = LLMEngine(toy, None, speculation=Speculation("ngram"), clock=lambda: now[0])
    for _ in range(4):
        e.generate(PROMPTS[0], SamplingParams(max_tokens=90))
    figures = e.figures()["speculation"]
    assert 0 < figures["proposed"] < 90 and figures["steps"] < 30

    toy.before = lambda step: now.__setitem__(0, now[0] + 0.010 + 0.0002 * toy.steps[-1][0])
    cheap = LLMEngine(toy, None, speculation=Speculation("ngram"), clock=lambda: now[0])
    for _ in range(4):
        cheap.generate(PROMPTS[0], SamplingParams(max_tokens=90))
    assert cheap.figures()["speculation"]["steps"] > 30
    speculator = cheap.speculator
    assert isinstance(speculator, Speculator) and not speculator._right


def test_no_guesses_while_prompts_are_computed() -> None:
    bounds = small_limits(max_rows=16, max_tokens=8, context_length=128, num_blocks=128)
    e = LLMEngine(
        ToyExecutable(bounds, periodic), None, speculation=fixed("ngram"), prefill_chunk=4
    )
    e.add_request(PROMPTS[0], PARAMS[0])
    for _ in range(9):
        e.step()
    before = e.figures()["speculation"]["proposed"]
    e.add_request([1] * 20, SamplingParams(max_tokens=3))
    for _ in range(5):
        e.step()
        assert e.figures()["speculation"]["proposed"] == before
        assert e.figures()["speculation"]["off"] == "prompts are computed"
    while e.has_work:
        e.step()
    assert e.figures()["speculation"]["proposed"] > before


def test_bad_settings() -> None:
    with pytest.raises(UsageError, match="allowed: ngram, draft"):
        Speculation("magic")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="most is 0"):
        Speculation(most=0)
    with pytest.raises(UsageError, match="needs the model"):
        Speculation("draft")
    other = ToyExecutable(small_limits(vocab_size=60))
    with pytest.raises(UsageError, match="draft model has 60 tokens; the model has 61"):
        engine(Speculation("draft", draft=other))


def test_the_reference() -> None:
    (done,) = engine(fixed("ngram")).generate(PROMPTS[2], PARAMS[0])
    assert done.token_ids == greedy_reference(periodic, PROMPTS[2], 60)

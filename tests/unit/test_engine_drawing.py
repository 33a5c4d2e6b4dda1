"""Tokens drawn by the executable, and steps launched ahead: the texts are those without."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from engine_drawing_toy import DrawingToy
from engine_toy import (
    ToyExecutable,
    check,
    greedy_reference,
    hashed_logits,
    scripted,
    small_limits,
    tokenizer,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pumice.engine import LLMEngine, SamplingParams
from pumice.engine.speculation import Speculation
from pumice.operators.sample_tokens.spec import reference

VOCAB = 23
MODEL = hashed_logits(VOCAB)
BOUNDS = small_limits(vocab_size=VOCAB)
PROMPTS = ([1, 2, 3], [4, 5], [6, 7, 8, 9, 10])


def engine(toy: ToyExecutable | None = None, **options: object) -> tuple[LLMEngine, DrawingToy]:
    made = toy or DrawingToy(BOUNDS, MODEL)
    assert isinstance(made, DrawingToy)
    return LLMEngine(made, None, **options), made  # type: ignore[arg-type]


def test_greedy_texts_are_launched_ahead() -> None:
    runs, toy = engine()
    params = SamplingParams(max_tokens=12)
    found = runs.generate(list(PROMPTS), params)
    for prompt, done in zip(PROMPTS, found, strict=True):
        assert done.token_ids == greedy_reference(MODEL, prompt, 12)
    assert toy.launches == len(toy.steps)
    assert toy.ahead >= 11 - len(PROMPTS)  # all but where prompts took their turn
    check(runs)


def test_a_single_stream_is_ahead_from_its_first_token_on() -> None:
    runs, toy = engine()
    runs.generate(PROMPTS[0], SamplingParams(max_tokens=10))
    assert (toy.launches, toy.ahead) == (10, 9)  # and none in vain: the length was known


def drawn_alone(prompt: list[int], params: SamplingParams, index: int = 0) -> list[int]:
    """By the operator's definition: the counter is the token's place in the text."""
    tokens = list(prompt)
    for _ in range(params.max_tokens or 0):
        inputs = {
            "logits": MODEL(np.array(tokens))[None],
            "temperature": np.array([params.temperature], np.float32),
            "seeds": np.array([(params.seed or 0) + index], np.int64),
            "positions": np.array([len(tokens)], np.int32),
            "top_k": np.array([params.top_k], np.int32),
            "top_p": np.array([params.top_p], np.float32),
            "min_p": np.array([params.min_p], np.float32),
        }
        tokens.append(int(reference({}, inputs)["tokens"][0]))
    return tokens[len(prompt) :]


def test_seeds_decide_whatever_runs_beside() -> None:
    params = [
        SamplingParams(max_tokens=9, temperature=1.1, seed=5, top_k=7),
        SamplingParams(max_tokens=7, temperature=0.8, seed=6, top_p=0.9, min_p=0.01),
        SamplingParams(max_tokens=11, temperature=1.4, seed=2**62),
    ]
    wanted = [drawn_alone(p, one) for p, one in zip(PROMPTS, params, strict=True)]
    runs, _ = engine()
    assert [done.token_ids for done in runs.generate(list(PROMPTS), params)] == wanted
    # beside a request that only the host can serve, which sees every row's logits
    beside = SamplingParams(max_tokens=12, logprobs=True, top_logprobs=2)
    runs, _ = engine()
    mixed = runs.generate([*PROMPTS, [11, 12]], [*params, beside])
    assert [done.token_ids for done in mixed[:3]] == wanted
    assert mixed[3].token_ids == greedy_reference(MODEL, [11, 12], 12)
    assert len(mixed[3].logprobs) == 12


def test_without_a_seed_texts_differ() -> None:
    runs, _ = engine()
    hot = SamplingParams(max_tokens=16, temperature=2.0)
    found = runs.generate([PROMPTS[0]] * 3, hot)
    assert len({tuple(done.token_ids) for done in found}) > 1


def test_what_ends_early_was_computed_a_step_too_far() -> None:
    toy = DrawingToy(BOUNDS, scripted(VOCAB, lambda tokens: len(tokens) + 1))
    runs, _ = engine(toy)
    params = SamplingParams(max_tokens=14, stop_token_ids=(9,))
    found = runs.generate([[0, 1, 2], [0, 1, 2, 3, 4]], params)
    assert [done.token_ids for done in found] == [[4, 5, 6, 7, 8, 9], [6, 7, 8, 9]]
    assert {done.finish_reason for done in found} == {"stop"}
    check(runs)
    assert runs.cache.in_use == 0
    # what is in the cache by now is right
    again = runs.generate([[0, 1, 2, 4, 5, 6, 7]], SamplingParams(max_tokens=3))
    assert again[0].token_ids == [8, 9, 10]
    assert again[0].cached_tokens > 0


def test_guesses_are_checked_by_the_device() -> None:
    toy = DrawingToy(BOUNDS, scripted(VOCAB, lambda tokens: (tokens[-1] + 1) % 5))
    runs, _ = engine(toy, speculation=Speculation("ngram", adaptive=False))
    found = runs.generate([[0, 1, 2, 3, 4, 0, 1]], SamplingParams(max_tokens=12))
    assert found[0].token_ids == [(2 + i) % 5 for i in range(12)]
    assert runs.speculator is not None and runs.speculator.accepted > 0
    assert toy.ahead == 0


def test_guesses_do_not_change_what_a_seed_draws() -> None:
    few = small_limits(vocab_size=VOCAB, context_length=64)

    def model(tokens: np.ndarray) -> np.ndarray:
        row = np.full(VOCAB, -4.0, np.float32)
        row[int(tokens[-1] + 1) % 4] = 2.0  # mostly a loop, so that guesses are right now and then
        return row

    params = SamplingParams(max_tokens=40, temperature=1.0, seed=11)
    texts = []
    for speculation in (None, Speculation("ngram", adaptive=False)):
        runs, _ = engine(DrawingToy(few, model), speculation=speculation)
        texts.append(runs.generate([[0, 1, 2, 3, 0, 1]], params)[0].token_ids)
        if runs.speculator is not None:
            assert 0 < runs.speculator.accepted < runs.speculator.proposed
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 4


def test_where_there_is_nothing_to_guess_steps_are_launched_ahead() -> None:
    def following(tokens: list[int]) -> int:
        return len(tokens) if len(tokens) < 30 else 7  # nothing repeats, and then all does

    bounds = small_limits(vocab_size=70)
    toy = DrawingToy(bounds, scripted(70, following))
    runs, _ = engine(toy, speculation=Speculation("ngram", adaptive=False))
    found = runs.generate([[0, 1, 2]], SamplingParams(max_tokens=60))
    assert found[0].token_ids == [*range(3, 30), *[7] * 33]
    assert 27 - 8 - 27 // 8 - 2 <= toy.ahead <= 27
    assert runs.speculator is not None and runs.speculator.accepted > 15


@pytest.mark.parametrize("seed", [None, 3])
def test_several_outputs_of_a_prompt(seed: int | None) -> None:
    runs, _ = engine()
    params = SamplingParams(max_tokens=8, temperature=1.3, seed=seed)
    found = runs.generate(PROMPTS[2], params, n=3)
    assert len(found) == 3
    if seed is not None:
        runs, _ = engine()
        again = runs.generate([PROMPTS[2], PROMPTS[0]], params, n=3)
        assert [d.token_ids for d in again[:3]] == [d.token_ids for d in found]
        assert found[0].token_ids == drawn_alone(PROMPTS[2], params)
    check(runs)


def test_damaged_logits_end_the_request() -> None:
    def model(tokens: np.ndarray) -> np.ndarray:
        row = MODEL(tokens)
        return np.full_like(row, np.nan) if len(tokens) == 6 else row

    runs, _ = engine(DrawingToy(BOUNDS, model))
    found = runs.generate([PROMPTS[0], PROMPTS[2]], SamplingParams(max_tokens=9))
    assert [d.finish_reason for d in found] == ["error", "error"]
    assert [len(d.token_ids) for d in found] == [3, 1]
    check(runs)


@pytest.mark.parametrize("step", [1, 3, 4])
def test_an_exception_in_a_launch_leaves_all_as_it_was(step: int) -> None:
    runs, toy = engine()

    def fail(number: int) -> None:
        if number == step:
            raise KeyboardInterrupt

    toy.before = fail
    names = [runs.add_request(p, SamplingParams(max_tokens=8)) for p in PROMPTS[:2]]
    found: dict[str, list[int]] = {}
    interrupts = 0
    while runs.has_work:
        try:
            deltas = runs.step()
        except KeyboardInterrupt:
            interrupts += 1
            continue
        for delta in deltas:
            if delta.completion is not None:
                found[delta.request_id] = delta.completion.token_ids
        check(runs)
    assert interrupts == 1
    for name, prompt in zip(names, PROMPTS, strict=False):
        assert found[name] == greedy_reference(MODEL, prompt, 8)


def test_the_cache_may_be_reset_between_steps() -> None:
    runs, _ = engine()
    name = runs.add_request(PROMPTS[0], SamplingParams(max_tokens=10))
    tokens: list[int] = []
    for count in range(40):
        if count % 3 == 2:
            runs.reset_cache()
        for delta in runs.step():
            assert delta.request_id == name
            tokens += delta.token_ids
        if not runs.has_work:
            break
    assert tokens == greedy_reference(MODEL, PROMPTS[0], 10)


# Under load


@dataclass(frozen=True)
class Job:
    prompt: list[int]
    params: SamplingParams
    arrives: int
    cancelled: int | None


styles = st.sampled_from(
    [{}, {}, {"temperature": 1.2, "seed": 1}, {"temperature": 0.9, "seed": 2, "top_p": 0.9},
     {"logprobs": True}, {"repetition_penalty": 1.5}]
)  # fmt: skip
jobs = st.builds(
    lambda prompt, count, style, arrives, cancelled: Job(
        prompt, SamplingParams(max_tokens=count, **style), arrives, cancelled
    ),
    st.lists(st.integers(0, 3), min_size=1, max_size=20),
    st.integers(1, 18),
    styles,
    st.integers(0, 25),
    st.none() | st.integers(0, 20),
)
bounds = st.builds(
    lambda size, blocks, tokens, sequences: small_limits(
        vocab_size=VOCAB, block_size=size, num_blocks=blocks // size + 2, max_tokens=tokens,
        max_sequences=sequences, max_rows=sequences, context_length=40,
    ),
    st.integers(1, 7), st.integers(40, 80), st.integers(1, 12), st.integers(1, 5),
)  # fmt: skip
ALONE: dict[tuple[tuple[int, ...], str], list[int]] = {}


def alone(job: Job) -> list[int]:
    key = tuple(job.prompt), repr(job.params)
    if key not in ALONE:
        room = small_limits(vocab_size=VOCAB, max_tokens=40, max_sequences=1)
        done = LLMEngine(DrawingToy(room, MODEL), None).generate(job.prompt, job.params)
        ALONE[key] = done[0].token_ids
        if job.params.greedy and not job.params.penalized:
            count = job.params.max_tokens or 0
            assert ALONE[key] == greedy_reference(MODEL, job.prompt, count)
    return ALONE[key]


@given(st.lists(jobs, min_size=1, max_size=8), bounds, st.booleans())
@settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
def test_random_load(load: list[Job], limits: object, prefix_cache: bool) -> None:
    runs = LLMEngine(DrawingToy(limits, MODEL), None, prefix_cache=prefix_cache)  # type: ignore[arg-type]
    names: dict[str, Job] = {}
    ended: set[str] = set()
    for now in range(2000):
        for job in load:
            if job.arrives == now:
                names[runs.add_request(job.prompt, job.params)] = job
        for name, job in names.items():
            if job.cancelled is not None and job.arrives + job.cancelled == now:
                for done in runs.cancel(name):
                    ended.add(name)
                    assert done.token_ids == alone(job)[: len(done.token_ids)]
        for delta in runs.step():
            if delta.completion is not None:
                ended.add(delta.request_id)
                assert delta.completion.finish_reason == "length"
                assert delta.completion.token_ids == alone(names[delta.request_id])
        check(runs)
        if now > 25 and not runs.has_work:
            break
    assert ended == set(names)
    assert runs.cache.in_use == 0


def test_text_comes_out_of_drawn_tokens() -> None:
    limits = small_limits(vocab_size=tokenizer().vocab_size)
    runs = LLMEngine(DrawingToy(limits, hashed_logits(limits.vocab_size)), tokenizer())
    plain = LLMEngine(ToyExecutable(limits, hashed_logits(limits.vocab_size)), tokenizer())
    params = SamplingParams(max_tokens=12)
    assert runs.generate("Hello", params)[0].text == plain.generate("Hello", params)[0].text

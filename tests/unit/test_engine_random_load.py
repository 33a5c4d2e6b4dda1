"""Random arrivals, cancels, sizes and tiny caches: the text is that of a request alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from engine_toy import (
    ToyExecutable,
    greedy_reference,
    hashed_logits,
)
from engine_toy import (
    small_limits as limits,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pumice.engine import LLMEngine, SamplingParams
from pumice.errors import ContextLengthError
from pumice.runtime.step import StepLimits

VOCAB = 23
MODEL = hashed_logits(VOCAB)


@dataclass(frozen=True)
class Job:
    """follows: the prompt is an earlier job's prompt and output, cut at the end, and then
    `prompt`."""

    prompt: list[int]
    follows: int | None
    cut: int
    params: SamplingParams
    arrives: int
    cancelled: int | None
    use_cache: bool
    salt: bytes


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    # Few beginnings, so that many prompts share them.
    base = draw(st.sampled_from(["0" * 40, "0123456789" * 4, "00000000001" * 4]))
    follows = draw(st.none() | st.integers(0, 8))
    prompt = [] if follows is not None else [int(c) for c in base[: draw(st.integers(1, 25))]]
    prompt += draw(st.lists(st.integers(0, 2), min_size=follows is not None, max_size=3))
    style = draw(st.sampled_from(["greedy", "greedy", "seed", "penalty"]))
    more: dict[str, object] = {}
    if style == "seed":
        more = {"temperature": 1.3, "top_p": 0.9, "seed": draw(st.integers(0, 5))}
    elif style == "penalty":
        more = {"repetition_penalty": 1.7, "frequency_penalty": 0.5}
    return Job(
        prompt,
        follows,
        draw(st.integers(0, 4)),
        SamplingParams(max_tokens=draw(st.integers(1, 20)), **more),
        arrives=draw(st.integers(0, 40) if follows is not None else st.integers(0, 12)),
        cancelled=draw(st.none() | st.integers(0, 30)),
        use_cache=draw(st.booleans() | st.just(True)),
        salt=draw(st.sampled_from([b"", b"", b"other"])),
    )


@st.composite
def small_limits(draw: st.DrawFn) -> StepLimits:
    size = draw(st.integers(1, 7))
    return limits(
        vocab_size=VOCAB,
        block_size=size,
        num_blocks=draw(st.integers(20, 60)) // size + 1,
        max_tokens=draw(st.integers(1, 12)),
        max_sequences=draw(st.integers(1, 5)),
        max_rows=draw(st.integers(1, 5)),
        context_length=draw(st.integers(20, 60)),
    )


def alone(prompt: list[int], params: SamplingParams) -> list[int]:
    """The whole output in an engine with room for everything and without a prefix cache."""
    if params.greedy and not params.penalized:
        return greedy_reference(MODEL, prompt, params.max_tokens or 0)
    room = limits(vocab_size=VOCAB, max_tokens=80, context_length=80, max_sequences=1)
    engine = LLMEngine(ToyExecutable(room, MODEL), None, prefix_cache=False)
    return engine.generate(prompt, params)[0].token_ids


def whole_prompts(load: list[Job]) -> list[list[int]]:
    prompts: list[list[int]] = []
    for index, job in enumerate(load):
        before: list[int] = []
        if job.follows is not None and job.follows < index:
            before = prompts[job.follows] + alone(prompts[job.follows], load[job.follows].params)
            before = before[: max(1, len(before) - job.cut)]
        prompts.append((before + job.prompt)[:45])
    return prompts


def run(load: list[Job], bounds: StepLimits, prefix_cache: bool, chunk: int | None) -> LLMEngine:
    """Plays the load, and checks every step and every output."""
    prompts = whole_prompts(load)
    executable = ToyExecutable(bounds, MODEL)
    engine = LLMEngine(executable, None, prefix_cache=prefix_cache, prefill_chunk=chunk)
    room = min(bounds.context_length, bounds.num_blocks * bounds.block_size)
    outputs: dict[int, list[int]] = {}
    streamed: dict[str, list[int]] = {}
    ids: dict[int, str] = {}
    reasons = {}
    for now in range(5000):
        for index, job in enumerate(load):
            if job.arrives == now:
                fits = len(prompts[index]) + (job.params.max_tokens or 0) <= room
                try:
                    ids[index] = engine.add_request(
                        prompts[index], job.params, use_cache=job.use_cache, cache_salt=job.salt
                    )
                    assert fits
                except ContextLengthError:
                    assert not fits
            if job.cancelled is not None and job.arrives + job.cancelled == now and index in ids:
                for done in engine.cancel(ids[index]):
                    outputs[index], reasons[index] = done.token_ids, done.finish_reason
                    assert ids[index] not in engine.alive
        for delta in engine.step():
            streamed.setdefault(delta.request_id, []).extend(delta.token_ids)
            if delta.completion is not None:
                index = next(i for i, name in ids.items() if name == delta.request_id)
                outputs[index] = delta.completion.token_ids
                reasons[index] = delta.completion.finish_reason
        assert engine.audit() == []
        if not engine.has_work and now > 70:
            break
    assert not engine.has_work
    assert engine.cache.in_use == 0
    assert outputs.keys() == ids.keys()
    for index, output in outputs.items():
        expected = alone(prompts[index], load[index].params)
        if reasons[index] == "cancelled":
            assert output == expected[: len(output)]
        else:
            assert reasons[index] == "length"
            assert output == expected
        assert streamed.get(ids[index], []) == output

    return engine


@given(
    st.lists(jobs(), min_size=1, max_size=10),
    small_limits(),
    st.sampled_from([True, True, False]),
    st.none() | st.integers(1, 5),
)
@settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
def test_random_load(
    load: list[Job], bounds: StepLimits, prefix_cache: bool, chunk: int | None
) -> None:
    run(load, bounds, prefix_cache, chunk)


def test_crowded() -> None:
    """Many requests on few blocks, so that sequences lose theirs all the time."""
    preemptions = cached = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        load = []
        for index in range(14):
            follows = int(rng.integers(0, index)) if index and rng.random() < 0.6 else None
            base = [0, 1, 2, int(rng.integers(0, 2))] * 6
            load.append(
                Job(
                    prompt=base[: int(rng.integers(1, 12))],
                    follows=follows,
                    cut=int(rng.integers(0, 5)),
                    params=SamplingParams(max_tokens=int(rng.integers(1, 22))),
                    arrives=int(rng.integers(0, 60)),
                    cancelled=int(rng.integers(0, 25)) if rng.random() < 0.2 else None,
                    use_cache=bool(rng.random() < 0.9),
                    salt=b"",
                )
            )
        size = int(rng.integers(1, 6))
        bounds = limits(
            vocab_size=VOCAB,
            block_size=size,
            num_blocks=70 // size + int(rng.integers(0, 9)),
            max_tokens=int(rng.integers(4, 14)),
            context_length=68,
        )
        engine = run(load, bounds, prefix_cache=seed % 4 > 0, chunk=None)
        preemptions += engine.scheduler.decisions.preempted
        cached += engine.stats.cached_tokens
    assert preemptions > 20
    assert cached > 500


def test_the_toy_model_notices_a_wrong_block() -> None:
    """The check above can fail: one wrong token in the cache changes what follows."""
    bounds = limits(vocab_size=VOCAB)
    executable = ToyExecutable(bounds, MODEL)
    engine = LLMEngine(executable, None)
    engine.add_request([1, 2, 3, 4, 5, 6], SamplingParams(max_tokens=12))
    first = engine.step()[0].token_ids
    executable.tokens[engine.scheduler.running[0].blocks[0] * bounds.block_size] += 1
    rest = first + [t for _ in range(11) for d in engine.step() for t in d.token_ids]
    assert rest != greedy_reference(MODEL, [1, 2, 3, 4, 5, 6], 12)
    assert rest[0] == greedy_reference(MODEL, [1, 2, 3, 4, 5, 6], 1)[0]
    assert not np.isnan(executable.tokens).any()

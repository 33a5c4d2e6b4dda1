"""Whatever arrives together, every request's text is the one it has alone."""

from __future__ import annotations

import dataclasses
import functools

import pytest
from engine_toy import EOS, assert_idle, check, greedy_ids, limits, make, run_all, tokenizer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pumice.engine.request import Completion
from pumice.engine.sampling_params import SamplingParams

EOS_BIAS = 1.5
LONGEST = 24
PREEMPTIONS = [0]


@dataclasses.dataclass(frozen=True)
class Case:
    prompt: tuple[int, ...]
    max_tokens: int
    arrival: int  # before which step
    seed: int | None  # None: greedy
    cancel_at: int | None
    salt: bytes = b""

    @property
    def params(self) -> SamplingParams:
        temperature = 0.0 if self.seed is None else 0.9
        return SamplingParams(
            max_tokens=self.max_tokens, temperature=temperature, seed=self.seed, top_p=0.95
        )


@functools.cache
def alone(prompt: tuple[int, ...], params_key: tuple[int, int | None]) -> Completion:
    case = Case(prompt, params_key[0], 0, params_key[1], None)
    engine, _ = make(limits(max_tokens=64), eos_bias=EOS_BIAS, prefix_cache=False)
    (output,) = engine.generate(list(prompt), case.params)
    return output


# Few beginnings, so that requests share blocks and diverge inside of them.
prompts = st.builds(
    lambda head, n, tail: (tuple([head] * n) + tuple(tail))[:14],
    st.integers(10, 11),
    st.integers(1, 12),
    st.lists(st.integers(10, 14), max_size=4),
)
cases = st.builds(
    Case,
    prompt=prompts,
    max_tokens=st.integers(1, LONGEST - 14),
    arrival=st.integers(0, 8),
    seed=st.none() | st.integers(0, 2),
    cancel_at=st.none() | st.none() | st.integers(0, 12),
    salt=st.sampled_from([b"", b"", b"x"]),
)


@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(
    requests=st.lists(cases, min_size=1, max_size=7),
    block_size=st.integers(1, 5),
    spare=st.integers(0, 2),
    max_tokens=st.integers(1, 9),
    max_sequences=st.integers(1, 5),
    max_rows=st.integers(1, 5),
    prefix_cache=st.booleans(),
    chunk=st.none() | st.integers(1, 4),
)
def test_every_request_finishes_with_the_text_it_has_alone(
    requests: list[Case],
    block_size: int,
    spare: int,
    max_tokens: int,
    max_sequences: int,
    max_rows: int,
    prefix_cache: bool,
    chunk: int | None,
) -> None:
    engine, _ = make(
        limits(
            max_tokens=max_tokens,
            max_sequences=max_sequences,
            max_rows=max_rows,
            block_size=block_size,
            context_length=LONGEST,
            num_blocks=-(-LONGEST // block_size) + spare,
        ),
        eos_bias=EOS_BIAS,
        prefix_cache=prefix_cache,
        prefill_chunk=chunk,
    )
    texts = ["" for _ in requests]
    outputs: dict[str, Completion] = {}
    step = 0
    while engine.has_work or any(case.arrival >= step for case in requests):
        for index, case in enumerate(requests):
            if case.arrival == step:
                options = {"request_id": str(index), "cache_salt": case.salt}
                engine.add_request(case.prompt, case.params, **options)
            if case.cancel_at == step:
                for cancelled in engine.cancel(str(index)):
                    outputs[str(index)] = cancelled
                check(engine)
        for delta in engine.step():
            texts[int(delta.request_id)] += delta.text
            if delta.completion is not None:
                assert delta.request_id not in outputs
                outputs[delta.request_id] = delta.completion
        check(engine)
        step += 1
        assert step < 3000, "no progress"
    assert_idle(engine)
    PREEMPTIONS[0] += engine.scheduler.decisions.preempted
    assert len(outputs) == len(requests)
    for index, case in enumerate(requests):
        output, expected = outputs[str(index)], alone(case.prompt, (case.max_tokens, case.seed))
        if output.finish_reason == "cancelled":
            count = len(output.token_ids)
            assert output.token_ids == expected.token_ids[:count]
            assert output.text == tokenizer().decode(output.token_ids)
        else:
            assert output.token_ids == expected.token_ids
            assert output.text == expected.text == texts[index]
            assert output.finish_reason == expected.finish_reason
        assert output.prompt_tokens == len(case.prompt)
        assert 0 <= output.cached_tokens < len(case.prompt)


def test_the_property_test_saw_preemptions() -> None:
    if not PREEMPTIONS[0]:
        pytest.skip("runs after the property test only")
    assert PREEMPTIONS[0] > 0


def test_the_engine_agrees_with_a_loop_without_engine() -> None:
    vocab = tokenizer().vocab_size
    for prompt in [(5,), (1, 2, 3), tuple(range(20, 51))]:
        engine, _ = make(limits(max_tokens=7), eos_bias=EOS_BIAS)
        (output,) = engine.generate(list(prompt), SamplingParams(max_tokens=25))
        expected = greedy_ids(prompt, 25, vocab, eos_bias=EOS_BIAS)
        assert output.token_ids == expected
        assert output.finish_reason == ("stop" if expected[-1] == EOS else "length")
        assert_idle(engine)


@pytest.mark.parametrize("prefix_cache", [False, True])
def test_preemption_gives_the_same_text(prefix_cache: bool) -> None:
    engine, _ = make(
        limits(num_blocks=10, max_tokens=16, context_length=40), prefix_cache=prefix_cache
    )
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    prompts_ = [[20 + i, 30 + i, 40 + i] for i in range(4)]
    outputs = engine.generate(prompts_, params)
    assert engine.scheduler.decisions.preempted > 0
    assert_idle(engine)
    for prompt, output in zip(prompts_, outputs, strict=True):
        single, _ = make(limits())
        assert output.token_ids == single.generate(prompt, params)[0].token_ids


def test_the_earliest_is_served_first_and_never_preempted() -> None:
    engine, _ = make(limits(num_blocks=8, context_length=32))
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    ids = [engine.add_request([i], params) for i in (10, 11, 12)]
    outputs: dict[str, Completion] = {}
    run_all(engine, outputs)
    assert list(outputs) == ids
    assert engine.scheduler.decisions.preempted > 0


def test_a_long_prompt_does_not_stop_the_others() -> None:
    bounds = limits(max_tokens=8, context_length=200, num_blocks=100)
    engine, fake = make(bounds, mixed_steps=True, prefill_chunk=8)
    first = engine.add_request([10], SamplingParams(max_tokens=20, ignore_eos=True))
    engine.step()
    engine.add_request(list(range(10, 110)), SamplingParams(max_tokens=1))
    while first in engine.alive:
        assert first in {delta.request_id for delta in engine.step()}
    assert max(map(sum, fake.shapes)) == 8


def test_a_chunk_bounds_the_prompt_tokens_of_a_step() -> None:
    engine, fake = make(limits(max_tokens=32), prefill_chunk=3)
    engine.generate(list(range(10, 21)), SamplingParams(max_tokens=2, ignore_eos=True))
    assert fake.shapes == [(3,), (3,), (3,), (2,), (1,)]

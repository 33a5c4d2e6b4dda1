"""How requests end, what is refused, recovery from exceptions, and the prefix cache."""

from __future__ import annotations

import numpy as np
import pytest
from engine_toy import EOS, assert_idle, check, greedy_ids, limits, make, tokenizer

from pumice.engine.sampling_params import SamplingParams
from pumice.errors import ContextLengthError, UsageError

VOCAB = limits().vocab_size


def script(text: str, prompt: int) -> object:
    """Logits that write `text` byte by byte after so many prompt tokens, then the end."""
    ids = [
        tokenizer().encode(chr(b), add_special=False, parse_special=False) for b in text.encode()
    ]
    assert all(len(i) == 1 for i in ids)

    def logits(tokens: list[int]) -> np.ndarray:
        row = np.zeros(VOCAB, np.float32)
        at = len(tokens) - prompt
        row[ids[at][0] if at < len(ids) else EOS] = 9
        return row

    return logits


def test_a_stop_string_over_token_borders_ends_the_text_before_it() -> None:
    engine, fake = make(logits=script("one ENx END two", 2))
    deltas = list(engine.stream([5, 6], SamplingParams(stop=("END", "zzz"))))
    done = deltas[-1].completion
    assert done is not None and done.text == "one ENx " == "".join(d.text for d in deltas)
    assert (done.finish_reason, done.stop) == ("stop", "END")
    assert len(done.token_ids) == len("one ENx END") == len(fake.steps)
    shown = ""
    for delta in deltas:
        shown += delta.text
        assert "one ENx ".startswith(shown)
    assert_idle(engine)


def test_a_begun_stop_string_is_shown_when_the_text_ends() -> None:
    engine, _ = make(logits=script("one EN", 1))
    (done,) = engine.generate([5], SamplingParams(stop="END"))
    assert (done.text, done.finish_reason, done.stop) == ("one EN", "stop", EOS)
    engine, _ = make(logits=script("one EN", 1))
    (done,) = engine.generate([5], SamplingParams(stop="END", max_tokens=6))
    assert (done.text, done.finish_reason) == ("one EN", "length")


def test_stop_token_ids_and_ignore_eos() -> None:
    expected = greedy_ids([5, 6], 30, VOCAB)
    assert EOS not in expected
    engine, _ = make()
    stop = expected[4]
    (done,) = engine.generate([5, 6], SamplingParams(stop_token_ids=(stop,)))
    count = expected.index(stop) + 1
    assert done.token_ids == expected[:count] and done.stop == stop
    assert done.text == tokenizer().decode(expected[: count - 1])

    def always_end(tokens: list[int]) -> np.ndarray:
        return np.eye(VOCAB, dtype=np.float32)[EOS]

    engine, _ = make(logits=always_end)
    (done,) = engine.generate([5], SamplingParams(max_tokens=4))
    assert (done.token_ids, done.finish_reason, done.stop) == ([EOS], "stop", EOS)
    (done,) = engine.generate([5], SamplingParams(max_tokens=4, ignore_eos=True))
    assert (done.token_ids, done.finish_reason, done.text) == ([EOS] * 4, "length", "")


def test_the_contexts_end_is_length() -> None:
    engine, _ = make(limits(context_length=16))
    (done,) = engine.generate([5] * 10, SamplingParams(ignore_eos=True))
    assert (len(done.token_ids), done.finish_reason) == (6, "length")
    (done,) = engine.generate([5] * 15, SamplingParams(ignore_eos=True))
    assert (len(done.token_ids), done.finish_reason) == (1, "length")


@pytest.mark.parametrize("count", [16, 17, 1234])
def test_a_prompt_without_room_names_both_sizes(count: int) -> None:
    engine, fake = make(limits(context_length=16))
    with pytest.raises(ContextLengthError) as caught:
        engine.generate([5] * count)
    assert f"{count:,}" in caught.value.message and "16" in caught.value.message
    assert caught.value.hint and not fake.steps
    assert_idle(engine)


def test_a_small_cache_bounds_the_context_too() -> None:
    engine, _ = make(limits(context_length=64, num_blocks=3))
    (done,) = engine.generate([5] * 11, SamplingParams(ignore_eos=True))
    assert done.finish_reason == "length" and len(done.token_ids) == 1
    with pytest.raises(ContextLengthError, match="12"):
        engine.generate([5] * 12)


@pytest.mark.parametrize("prompt", [[], [-1], [VOCAB], [1.5], [[1]], [True, "x"]])
def test_bad_prompts(prompt: list[object]) -> None:
    engine, _ = make()
    with pytest.raises(UsageError):
        engine.add_request(prompt)  # type: ignore[arg-type]
    assert_idle(engine)


def test_bad_ids_and_counts() -> None:
    engine, _ = make()
    with pytest.raises(UsageError, match=str(VOCAB)):
        engine.add_request([1], SamplingParams(logit_bias={VOCAB: 1.0}))
    engine.add_request([1], request_id="a")
    with pytest.raises(UsageError, match="'a'"):
        engine.add_request([1], request_id="a")
    with pytest.raises(UsageError, match="2 prompts"):
        engine.generate([[1], [2]], [SamplingParams()])
    assert engine.cancel("nobody") == []
    engine.cancel("a")
    assert_idle(engine)


def test_closing_a_stream_frees_it() -> None:
    engine, _ = make()
    stream = engine.stream([5, 6, 7], SamplingParams(ignore_eos=True))
    next(stream)
    assert engine.cache.in_use > 0
    stream.close()
    assert_idle(engine)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("step", [1, 2, 5])
def test_an_exception_in_the_executable(error: type[BaseException], step: int) -> None:
    engine, fake = make(limits(max_tokens=4))

    def fail(number: int) -> None:
        if number == step:
            raise error("x")

    fake.before = fail
    prompts = [[5, 6, 7, 8, 9], [5, 6, 7, 8, 10]]
    params = SamplingParams(max_tokens=12, ignore_eos=True, temperature=1, seed=4)
    with pytest.raises(error):
        engine.generate(prompts, params)
    assert_idle(engine)
    fake.before = lambda _: None
    again = engine.generate(prompts, params)
    fresh, _ = make()
    assert [d.token_ids for d in again] == [d.token_ids for d in fresh.generate(prompts, params)]
    assert_idle(engine)


def test_a_step_that_failed_may_be_repeated() -> None:
    engine, fake = make()
    expected = greedy_ids([5, 6], 5, VOCAB)
    engine.add_request([5, 6], SamplingParams(max_tokens=5, ignore_eos=True))
    got: list[int] = []
    for number in range(1, 20):
        fail = number % 2 == 0

        def before(_: int, fail: bool = fail) -> None:
            if fail:
                raise OSError

        fake.before = before
        try:
            got += [t for d in engine.step() for t in d.token_ids]
        except OSError:
            check(engine)
    assert got == expected
    assert_idle(engine)


def test_damaged_logits_end_only_their_request() -> None:
    def logits(tokens: list[int]) -> np.ndarray:
        return np.full(VOCAB, np.nan if tokens[0] == 9 else 0.0, dtype=np.float32)

    engine, _ = make(logits=logits)
    good, bad = engine.generate([[8], [9]], SamplingParams(max_tokens=3, ignore_eos=True))
    assert good.finish_reason == "length" and bad.finish_reason == "error"
    assert bad.error is not None and "finite" in bad.error
    assert_idle(engine)


def test_other_requests_deltas_are_not_lost() -> None:
    engine, _ = make()
    engine.add_request([7], SamplingParams(max_tokens=3, ignore_eos=True), request_id="other")
    engine.generate([8], SamplingParams(max_tokens=6, ignore_eos=True))
    got = [t for d in engine.step() if d.request_id == "other" for t in d.token_ids]
    assert got == greedy_ids([7], 3, VOCAB)


def test_a_second_turn_computes_only_what_is_new() -> None:
    params = SamplingParams(max_tokens=5, ignore_eos=True)
    engine, fake = make()
    plain, _ = make(prefix_cache=False)
    first = list(range(20, 33))
    answer = engine.generate(first, params)[0].token_ids
    second = [*first, *answer, 50, 51, 52]
    before = fake.computed
    (done,) = engine.generate(second, params)
    # The last token of an answer was never computed; a block of 4 that was begun is used too.
    assert done.cached_tokens == len(first) + len(answer) - 1
    assert fake.computed - before == len(second) - done.cached_tokens + 4
    (without,) = plain.generate(second, params)
    assert without.cached_tokens == 0 and without.token_ids == done.token_ids
    (uncached,) = engine.generate(second, params, use_cache=False)
    assert uncached.cached_tokens == 0 and uncached.token_ids == done.token_ids
    (salted,) = engine.generate(second, params, cache_salt=b"other")
    assert salted.cached_tokens == 0 and salted.token_ids == done.token_ids


def test_the_least_recently_used_blocks_are_evicted() -> None:
    engine, _ = make(limits(num_blocks=9))
    one = SamplingParams(max_tokens=1, ignore_eos=True)
    a, b, c = ([t] * 12 for t in (20, 21, 22))

    def cached(prompt: list[int]) -> int:
        return engine.generate([*prompt, 60, 61], one)[0].cached_tokens

    cached(a), cached(b)  # four blocks each: three full, one begun
    assert cached(a) == 12
    cached(c)  # takes the blank block, and b's
    assert cached(a) == 12
    assert cached(b) < 12
    assert_idle(engine)


def test_a_prompt_that_parts_within_a_block_goes_on_in_a_copy() -> None:
    one = SamplingParams(max_tokens=1, ignore_eos=True)
    common = list(range(20, 26))
    engine, fake = make(limits(block_size=8), copies=True)

    def cached(tokens: list[int], **options: bytes) -> int:
        before = fake.computed
        (done,) = engine.generate(tokens, one, **options)
        assert fake.computed - before == len(tokens) - done.cached_tokens
        (alone,) = make(prefix_cache=False)[0].generate(tokens, one)
        assert done.token_ids == alone.token_ids
        return done.cached_tokens

    assert cached([*common, *range(40, 50)]) == 0
    assert cached([*common, *range(60, 70)]) == 6 and engine.cache.copied == 1
    assert cached([*common, *range(40, 47), *range(60, 63)]) == 13  # a whole block, and a tail
    assert cached([*common[:3], *range(60, 70)]) == 3
    assert cached([common[0], *range(60, 70)]) == 0  # a quarter of a block at least
    assert cached([*common, *range(70, 80)], cache_salt=b"other") == 0
    assert_idle(engine)
    without, _ = make(limits(block_size=8))  # a device that does not copy blocks
    for last in (40, 60):
        (done,) = without.generate([*common, *range(last, last + 10)], one)
        assert done.cached_tokens == 0

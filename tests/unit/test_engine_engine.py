"""LLMEngine: requests, ends, streams, errors, interruption, the prefix cache."""

from __future__ import annotations

import numpy as np
import pytest
from engine_toy import (
    ToyExecutable,
    greedy_reference,
    hashed_logits,
    scripted,
)
from engine_toy import (
    plain_tokenizer as tokenizer,
)
from engine_toy import (
    small_limits as limits,
)

from pumice.engine import LLMEngine, SamplingParams
from pumice.errors import ContextLengthError, UsageError

PROMPT = [5, 6, 7, 8, 9, 10, 11]


def engine(**changes: int) -> LLMEngine:
    return LLMEngine(ToyExecutable(limits(**changes)), None)


def speaking(text: str, prompt: str = "the", **options: object) -> LLMEngine:
    """An engine whose model says `text`, one byte a token, and then its end token."""
    words = tokenizer()
    data = text.encode()
    byte_ids = {words.token_bytes(i): i for i in range(words.vocab_size)}
    script = [byte_ids[data[i : i + 1]] for i in range(len(data))] + [next(iter(words.eos_ids))]
    start = len(words.encode(prompt, add_special=False, parse_special=False))
    vocab = words.vocab_size

    def next_token(tokens: list[int]) -> int:
        return script[min(len(tokens) - start, len(script) - 1)]

    executable = ToyExecutable(limits(vocab_size=vocab), scripted(vocab, next_token))
    return LLMEngine(executable, words, **options)  # type: ignore[arg-type]


def test_a_generation_is_the_models() -> None:
    e = engine()
    (done,) = e.generate(PROMPT, SamplingParams(max_tokens=30))
    assert done.token_ids == greedy_reference(hashed_logits(61), PROMPT, 30)
    assert (done.finish_reason, done.stop, done.prompt_tokens) == ("length", None, 7)
    assert 0 < done.ttft_s and 0 < done.decode_s


def test_without_max_tokens_the_context_is_filled() -> None:
    (done,) = engine().generate(PROMPT)
    assert len(done.token_ids) == 64 - 7
    assert done.finish_reason == "length"


def test_lists_and_streams() -> None:
    e = engine()
    prompts = [PROMPT, [1], np.array([3, 4, 5])]
    each = [SamplingParams(max_tokens=n) for n in (3, 9, 5)]
    whole = [c.token_ids for c in e.generate(prompts, each)]
    assert [len(ids) for ids in whole] == [3, 9, 5]
    gathered: list[list[int]] = [[], [], []]
    for index, delta in e.generate(prompts, each, stream=True):
        gathered[index] += delta.token_ids
    assert gathered == whole
    assert [t for d in e.stream([1], each[1]) for t in d.token_ids] == whole[1]
    assert e.generate([]) == []
    with pytest.raises(UsageError, match="3 prompts came with 2"):
        e.generate(prompts, each[:2])


def test_long_prompts_do_not_stall_decoding() -> None:
    e = LLMEngine(ToyExecutable(limits(max_tokens=8)), None, prefill_chunk=8, mixed_steps=True)
    e.add_request([1, 2], SamplingParams(max_tokens=30))
    e.step()
    long = e.add_request(list(range(40)), SamplingParams(max_tokens=3))
    seen = []
    while long in e.alive:
        seen.append({d.request_id for d in e.step()})
    assert all("request-0" in names for names in seen)  # a token in every step
    executable = e.executable
    assert isinstance(executable, ToyExecutable)
    assert executable.steps[1] == (8, 2, 1)  # one decoded token, seven of the prompt


def test_a_request_that_never_fits_is_refused_at_once() -> None:
    e = engine()
    with pytest.raises(ContextLengthError, match=r"has 70 tokens; the context holds 64"):
        e.add_request([1] * 70)
    with pytest.raises(ContextLengthError, match=r"7 tokens and up to 58 generated ones are 65"):
        e.add_request(PROMPT, SamplingParams(max_tokens=58))
    small = engine(num_blocks=5)
    with pytest.raises(ContextLengthError, match=r"21 tokens; the whole cache holds 20"):
        small.add_request([1] * 21)
    with pytest.raises(ContextLengthError):
        e.generate([PROMPT, [1] * 70])
    assert not e.has_work and not small.has_work
    assert len(e.generate(PROMPT, SamplingParams(max_tokens=57))[0].token_ids) == 57


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "empty"),
        ([61], "token id 61; allowed: 0 to 60"),
        ([-1], "token id -1"),
        ([[1], [2, 3]], None),
        ([1.5], "allowed: text, or a list"),
        ("text", "without a tokenizer"),
    ],
)
def test_bad_prompts(prompt: object, message: str | None) -> None:
    e = engine()
    if message is None:
        assert len(e.generate(prompt, SamplingParams(max_tokens=1))) == 2  # type: ignore[call-overload]
        return
    with pytest.raises(UsageError, match=message):
        e.add_request(prompt)  # type: ignore[arg-type]


def test_bad_ids_and_names() -> None:
    e = engine()
    with pytest.raises(UsageError, match="logit_bias names token id 99; allowed: 0 to 60"):
        e.add_request(PROMPT, SamplingParams(logit_bias={99: 1}))
    with pytest.raises(UsageError, match="stop_token_ids names token id 61"):
        e.add_request(PROMPT, SamplingParams(stop_token_ids=(61,)))
    with pytest.raises(UsageError, match="without a tokenizer has no text"):
        e.add_request(PROMPT, SamplingParams(stop=("x",)))
    e.add_request(PROMPT, request_id="a")
    with pytest.raises(UsageError, match="'a' is in use"):
        e.add_request(PROMPT, request_id="a")
    for option in ({"max_running": 0}, {"prefill_chunk": 0}):
        with pytest.raises(UsageError, match="at least 1"):
            LLMEngine(ToyExecutable(limits()), None, **option)


def test_text_ends_at_the_end_token() -> None:
    (done,) = speaking("Hi 😀!").generate("the")
    assert done.text == "Hi 😀!"
    assert (done.finish_reason, done.stop) == ("stop", next(iter(tokenizer().eos_ids)))
    (done,) = speaking("Hi").generate("the", SamplingParams(ignore_eos=True, max_tokens=6))
    assert (done.text, len(done.token_ids), done.finish_reason) == ("Hi", 6, "length")
    space = tokenizer().encode(" ", add_special=False, parse_special=False)[0]
    (done,) = speaking("Hi 😀!").generate("the", SamplingParams(stop_token_ids=(space,)))
    assert (done.text, done.stop) == ("Hi", space)


def test_characters_are_shown_whole() -> None:
    pieces = [d.text for d in speaking("a😀b").stream("the")]
    assert [p for p in pieces if p] == ["a", "😀", "b"]
    (cut,) = speaking("a😀b").generate("the", SamplingParams(max_tokens=3))
    assert cut.text == "a\ufffd"
    deltas = list(speaking("a😀b").stream("the", SamplingParams(max_tokens=3)))
    assert "".join(d.text for d in deltas) == cut.text


def test_a_stop_string_over_token_borders() -> None:
    params = SamplingParams(stop=("DEFGHIJ", "zzz"))
    deltas = list(speaking("ABC DEF DEFGHIJKL").stream("the", params))
    last = deltas[-1].completion
    assert last is not None
    assert last.text == "ABC DEF " == "".join(d.text for d in deltas)
    assert (last.finish_reason, last.stop) == ("stop", "DEFGHIJ")
    (done,) = speaking("ABC DEFGH").generate("the", params)  # begun, and never complete
    assert done.text == "ABC DEFGH"


def test_cancel_frees_the_blocks_at_once() -> None:
    e = engine()
    a = e.add_request(PROMPT, SamplingParams(max_tokens=40))
    b = e.add_request([1, 2], SamplingParams(max_tokens=10))
    for _ in range(3):
        e.step()
    (done,) = e.cancel(a)
    assert done.finish_reason == "cancelled"
    assert done.token_ids == greedy_reference(hashed_logits(61), PROMPT, len(done.token_ids))
    assert e.audit() == [] and e.alive == [b] and e.cache.in_use == 1
    assert e.cancel(a) == [] and e.cancel("nobody") == []
    waiting = e.add_request(PROMPT)
    assert e.cancel(waiting)[0].token_ids == []
    closed = e.stream(PROMPT)
    next(closed)
    closed.close()
    assert e.alive == [b] and e.audit() == []


def test_a_failed_step_leaves_the_engine_usable() -> None:
    for error in (KeyboardInterrupt(), RuntimeError("device lost")):
        e = engine()
        other = e.add_request([1, 2, 3], SamplingParams(max_tokens=20))
        executable = e.executable
        assert isinstance(executable, ToyExecutable)

        def fail(step: int, error: BaseException = error) -> None:
            if step == 5:
                raise error

        executable.before = fail
        with pytest.raises(type(error)):
            e.generate([PROMPT, [1]], SamplingParams(max_tokens=30))
        assert e.alive == [other] and e.audit() == []
        tokens = []
        while e.has_work:
            tokens += [t for d in e.step() for t in d.token_ids]
        assert tokens == greedy_reference(hashed_logits(61), [1, 2, 3], 20)
        assert e.cache.in_use == 0


def test_an_interruption_in_the_bookkeeping(monkeypatch: pytest.MonkeyPatch) -> None:
    e = engine()
    e.add_request(PROMPT, SamplingParams(max_tokens=20), request_id="a")
    e.step()
    with monkeypatch.context() as patch:
        patch.setattr(e.cache, "learn", lambda sequence: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            e.step()
    (delta,) = e.step()
    assert delta.finish_reason == "error" and delta.completion is not None
    assert delta.completion.error == "the engine was interrupted"
    assert not e.has_work and e.audit() == [] and e.cache.in_use == 0
    (done,) = e.generate(PROMPT, SamplingParams(max_tokens=20))
    assert done.token_ids == greedy_reference(hashed_logits(61), PROMPT, 20)


def test_damaged_logits_end_their_own_request_only() -> None:
    good = hashed_logits(61)

    def model(tokens: np.ndarray) -> np.ndarray:
        return np.full(61, np.nan, np.float32) if len(tokens) == 9 else good(tokens)

    e = LLMEngine(ToyExecutable(limits(), model), None)
    bad, fine = e.generate([PROMPT, list(range(20))], SamplingParams(max_tokens=8))
    assert bad.finish_reason == "error" and bad.error is not None and len(bad.token_ids) == 2
    assert "after token 9" in bad.error
    assert fine.token_ids == greedy_reference(good, range(20), 8)


def test_a_next_turn_computes_only_what_is_new() -> None:
    e = engine()
    (first,) = e.generate(PROMPT, SamplingParams(max_tokens=11))
    conversation = PROMPT + first.token_ids + [2, 3]
    (second,) = e.generate(conversation, SamplingParams(max_tokens=5))
    assert second.cached_tokens == len(PROMPT) + 10  # the last token was never computed
    assert second.token_ids == greedy_reference(hashed_logits(61), conversation, 5)
    (other,) = e.generate(conversation, SamplingParams(max_tokens=5), cache_salt=b"tenant")
    (unshared,) = e.generate(conversation, SamplingParams(max_tokens=5), use_cache=False)
    assert other.cached_tokens == unshared.cached_tokens == 0
    (again,) = e.generate(conversation, SamplingParams(max_tokens=5), cache_salt=b"tenant")
    assert again.cached_tokens == 16  # whole blocks; of the last one, a token must be computed
    e.reset_cache()
    assert e.generate(conversation, SamplingParams(max_tokens=1))[0].cached_tokens == 0
    assert e.audit() == []


def test_the_least_recently_used_blocks_go_first() -> None:
    e = engine(num_blocks=9)
    one = SamplingParams(max_tokens=1)
    a, b, c = [1] * 10, [2] * 10, [3] * 24
    for prompt in (a, b, a, c):  # 3 blocks each and, for c, 6: three of those before
        e.generate(prompt, one)
    assert e.generate(a, one)[0].cached_tokens == 8
    assert e.generate(b, one)[0].cached_tokens == 0


def test_figures() -> None:
    e = engine()
    e.generate([PROMPT, PROMPT, [3]], SamplingParams(max_tokens=8))
    figures = e.figures()
    assert figures["finished"] == 3 and figures["running"] == figures["waiting"] == 0
    assert figures["blocks"] == 32 and figures["blocks_in_use"] == 0
    assert figures["decode_tokens"] == 3 * 7
    assert figures["prompt_tokens"] == 15
    assert figures["prefill_tokens_per_s"] > 0 and figures["decode_tokens_per_s"] > 0
    assert figures["mean_ttft_s"] > 0
    earlier = e.stats.since(e.stats)
    assert (earlier.steps, earlier.prefill_tokens, earlier.decode_rate) == (0, 0, 0.0)

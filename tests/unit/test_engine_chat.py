"""ChatModule: history, benchmark, statistics."""

from __future__ import annotations

import pytest
from engine_toy import assert_idle, limits, make

from pumice.engine.chat import ChatModule
from pumice.errors import ContextLengthError, UsageError


def big() -> dict[str, int]:
    return {"context_length": 400, "num_blocks": 200}


def test_history_and_reset() -> None:
    engine, _ = make(limits(**big()))
    chat = ChatModule(engine, system="Be short.", max_tokens=8)
    pieces: list[str] = []
    answer = chat.generate("the quick fox", progress_callback=pieces.append)
    assert answer and "".join(pieces) == answer
    assert chat.messages == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "the quick fox"},
        {"role": "assistant", "content": answer},
    ]
    chat.generate("and then")
    assert len(chat.messages) == 5
    chat.reset_chat()
    assert chat.messages == [{"role": "system", "content": "Be short."}]
    assert chat.generate("the quick fox") == answer
    assert_idle(engine)


def test_a_turn_computes_its_own_message_only() -> None:
    engine, fake = make(limits(**big()))
    chat = ChatModule(engine, max_tokens=8)
    chat.generate("the quick brown fox jumps over the lazy dog")
    before = fake.computed
    chat.generate("ok")
    stats = chat.stats_dict()
    assert stats["cached_tokens"] > 20
    assert fake.computed - before < 8 + 40


def test_a_stream_that_is_closed_keeps_what_was_shown() -> None:
    engine, _ = make(limits(**big()))
    chat = ChatModule(engine, max_tokens=30)
    stream, text = chat.stream("the quick fox"), ""
    while not text:
        text += next(stream).text
    stream.close()
    assert chat.messages[-1] == {"role": "assistant", "content": text}
    assert_idle(engine)


def test_a_conversation_that_does_not_fit() -> None:
    engine, _ = make(limits(context_length=40))
    chat = ChatModule(engine, max_tokens=4)
    with pytest.raises(ContextLengthError, match="40"):
        chat.generate("xyz " * 60)
    assert chat.messages == []
    assert_idle(engine)


@pytest.mark.parametrize("count", [1, 2, 17])
def test_benchmark_generates_exactly_so_many_tokens(count: int) -> None:
    engine, fake = make(limits(**big()), eos_bias=100)
    chat = ChatModule(engine)
    chat.benchmark_generate("the quick fox", count)
    assert chat.stats_dict()["cached_tokens"] == 0
    prompt = engine.prepare("the quick fox").prompt_length
    warm = prompt + min(2, count) - 1
    assert fake.computed - warm == prompt + count - 1
    assert chat.messages == []
    with pytest.raises(UsageError):
        chat.benchmark_generate("x", 0)


def test_statistics_for_people() -> None:
    engine, _ = make(limits(**big()))
    chat = ChatModule(engine, max_tokens=8)
    chat.generate("the quick fox")
    assert "tok/s" in chat.stats() and "\n" not in chat.stats()
    verbose = chat.stats(verbose=True)
    assert verbose.startswith(chat.stats()) and "0 of 200 blocks in use" in verbose


def test_a_bad_parameter_is_an_error_at_once() -> None:
    engine, _ = make()
    with pytest.raises(UsageError, match="temperature is -1"):
        ChatModule(engine, temperature=-1)
    with pytest.raises(UsageError, match="heat"):
        ChatModule(engine, heat=1)

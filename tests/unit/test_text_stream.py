"""Text streams: what is shown is certain, and all of it together is what decoding gives."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_helpers import HARD, byte_level_metadata, sentencepiece_metadata

from pumice.errors import UsageError
from pumice.text.stop import StopMatcher
from pumice.text.stream import TextStream
from pumice.text.tokenizer import Tokenizer

BYTE_LEVEL = Tokenizer.from_gguf_metadata(byte_level_metadata())
SENTENCEPIECE = Tokenizer.from_gguf_metadata(sentencepiece_metadata())
BOTH = pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCEPIECE], ids=["bytes", "spm"])


def byte_id(byte: int) -> int:
    """The SentencePiece vocabulary's token of one byte."""
    found = SENTENCEPIECE.id_of(f"<0x{byte:02X}>")
    assert found is not None
    return found


@BOTH
def test_one_id_at_a_time_shows_the_decoded_text(tokenizer: Tokenizer) -> None:
    for text in HARD:
        ids = tokenizer.encode(text, add_special=True, parse_special=False)
        stream = TextStream(tokenizer)
        shown = [stream.push([i]) for i in ids]
        shown.append(stream.finish())
        assert "".join(shown) == tokenizer.decode(ids)
        assert "�" not in "".join(shown)


def test_a_character_of_several_tokens_is_shown_whole() -> None:
    stream = TextStream(SENTENCEPIECE)
    pieces = [stream.push([byte_id(byte)]) for byte in "x😀é".encode()]
    assert pieces == ["x", "", "", "", "😀", "", "é"]
    assert stream.finish() == ""


def test_invalid_bytes_are_replaced_once_they_are_certain() -> None:
    stream = TextStream(SENTENCEPIECE)
    assert stream.push([byte_id(0xF0)]) == ""
    assert stream.push([byte_id(0x9F)]) == ""
    assert stream.push([byte_id(0x41)]) == "�A"  # the two bytes can begin no character any more
    assert stream.push([byte_id(0xFF)]) == "�"
    assert stream.push([byte_id(0xE2)]) == ""
    assert stream.finish() == "�"
    assert stream.finish() == ""


@given(st.lists(st.integers(0, 255), max_size=40), st.lists(st.integers(1, 5), max_size=40))
@settings(max_examples=200, deadline=None)
def test_any_bytes_in_any_portions(data: list[int], portions: list[int]) -> None:
    ids = [byte_id(byte) for byte in data]
    stream, shown, start = TextStream(SENTENCEPIECE, strip_leading_space=False), "", 0
    for count in [*portions, len(ids)]:
        shown += stream.push(ids[start : start + count])
        start += count
        assert bytes(data[:start]).decode("utf-8", "replace").startswith(shown)
    assert shown + stream.finish() == bytes(data).decode("utf-8", "replace")


def test_leading_space_goes_once_and_only_at_the_start() -> None:
    ids = SENTENCEPIECE.encode("the the", add_special=False, parse_special=False)
    assert TextStream(SENTENCEPIECE).push(ids) == "the the"
    assert TextStream(SENTENCEPIECE, strip_leading_space=False).push(ids) == " the the"
    control = TextStream(SENTENCEPIECE)
    assert control.push([1]) + control.push(ids) == "the the"
    spaces = SENTENCEPIECE.encode("  x", add_special=False, parse_special=False)
    assert TextStream(SENTENCEPIECE).push(spaces) == "  x"


def test_control_tokens_are_hidden_or_shown() -> None:
    ids = BYTE_LEVEL.encode("a<|im_end|>b", add_special=False, parse_special=True)
    assert TextStream(BYTE_LEVEL).push(ids) == "ab"
    assert TextStream(BYTE_LEVEL, skip_special=False).push(ids) == "a<|im_end|>b"


# ---- stop strings ------------------------------------------------------------------------------


def expected(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The stop string that is complete first; of several that end together, the longest."""
    found = [(text.index(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    end, length, stop = min(found)
    return text[: end + length], stop


@given(
    st.text("ab", max_size=40),
    st.lists(st.text("ab", min_size=1, max_size=5), max_size=4),
    st.lists(st.integers(1, 4), max_size=40),
)
@settings(max_examples=400, deadline=None)
def test_stop_strings_in_any_portions(text: str, stops: list[str], portions: list[int]) -> None:
    matcher, shown, start = StopMatcher(stops), "", 0
    certain, matched = expected(text, stops)
    for count in [*portions, len(text)]:
        shown += matcher.push(text[start : start + count])
        start += count
        assert certain.startswith(shown)
    shown += matcher.finish()
    assert (shown, matcher.matched) == (certain, matched)


def test_as_little_as_possible_is_held() -> None:
    matcher = StopMatcher(["###END", "##x"])
    assert matcher.push("abc#") == "abc"
    assert matcher.push("#") == ""
    assert matcher.push("#") == ""  # "###" may begin the first
    assert matcher.push("y") == "###y"
    assert matcher.push("##") == ""
    assert matcher.finish() == "##"


def test_stop_string_over_token_borders() -> None:
    ids = BYTE_LEVEL.encode("the quick brown fox", add_special=False, parse_special=False)
    stream = TextStream(BYTE_LEVEL, stop=["k bro"])
    shown = "".join(stream.push([i]) for i in ids) + stream.finish()
    assert shown == "the quic"
    assert stream.stopped_by == "k bro"
    assert stream.push(ids) == ""


def test_a_stop_string_may_end_in_the_last_bytes() -> None:
    stream = TextStream(SENTENCEPIECE, stop=["�"])
    assert stream.push([byte_id(0x41), byte_id(0xE2)]) == "A"
    assert stream.finish() == ""
    assert stream.stopped_by == "�"


@pytest.mark.timeout(60)  # quadratic work takes much longer
def test_long_stop_strings_and_long_text_are_linear() -> None:
    stop = "a" * 20_000 + "b"
    matcher = StopMatcher([stop, "a" * 10_000 + "c"])
    shown = "".join(matcher.push("a") for _ in range(200_000))
    assert len(shown) == 180_000
    assert len(shown + matcher.finish()) == 200_000


@pytest.mark.parametrize("stops", [[""], ["a", ""], "abc", [1]])
def test_stop_strings_that_are_none(stops: list[str]) -> None:
    with pytest.raises(UsageError, match="stop strings"):
        StopMatcher(stops)

"""Outputs of models are understood the same in one piece and in any others."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parser_samples import CITY, TOOLS, Sample, tag
from parser_samples_more import SAMPLES

from pumice.errors import UsageError
from pumice.server.parsers import (
    ContentDelta,
    Event,
    Family,
    Message,
    ToolCallArguments,
    ToolCallStart,
    choose_family,
    choose_reasoning,
    collect,
    make_parser,
)
from pumice.server.parsers.families import PARSERS

IDS = [f"{sample.family}: {sample.name}" for sample in SAMPLES]
FAMILIES: list[Family] = list(PARSERS)  # type: ignore[arg-type]


def events(sample: Sample, pieces: Iterable[str], *, eager: bool = False) -> list[Event]:
    ids = (f"id{i}" for i in range(1000))
    parser = make_parser(
        sample.family, TOOLS, reasoning=sample.mode, eager=eager, new_id=lambda: next(ids)
    )
    found = [event for piece in pieces for event in parser.push(piece)]
    return found + parser.finish()


def understood(message: Message) -> tuple[str, str, tuple[tuple[str, str], ...]]:
    calls = tuple((call.name, call.arguments) for call in message.tool_calls)
    return message.content, message.reasoning, calls


def check_order(found: list[Event]) -> None:
    """Calls are numbered as they begin, and arguments follow their start."""
    starts = [event.index for event in found if isinstance(event, ToolCallStart)]
    assert starts == list(range(len(starts)))
    begun = -1
    for event in found:
        if isinstance(event, ToolCallStart):
            begun = event.index
        elif isinstance(event, ToolCallArguments):
            assert event.index == begun
            assert event.fragment
        else:
            assert event.text


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_in_one_piece_and_by_characters(sample: Sample) -> None:
    expected = (sample.content, sample.reasoning, sample.calls)
    whole = events(sample, [sample.text])
    assert understood(collect(whole)) == expected
    single = events(sample, sample.text)
    check_order(single)
    assert collect(single) == collect(whole)
    for _, arguments in sample.calls:
        assert isinstance(json.loads(arguments), dict)


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_arguments_told_as_they_come(sample: Sample) -> None:
    whole = events(sample, [sample.text], eager=True)
    single = events(sample, sample.text, eager=True)
    check_order(single)
    assert collect(single) == collect(whole)
    if not sample.eager_differs:
        assert understood(collect(whole)) == (sample.content, sample.reasoning, sample.calls)


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
@settings(max_examples=12, deadline=None)
@given(data=st.data(), eager=st.booleans())
def test_any_pieces(sample: Sample, data: st.DataObject, eager: bool) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(sample.text)), max_size=12))
    places = sorted({0, len(sample.text), *cuts})
    pieces = [sample.text[a:b] for a, b in pairwise(places)]
    found = events(sample, pieces, eager=eager)
    check_order(found)
    assert collect(found) == collect(events(sample, [sample.text], eager=eager))


BITS = [
    "<tool_call>", "</tool_call>", "<think>", "</think>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]",
    "<|python_tag|>", "```json", "```", "\n", " ", "{", "}", "[", "]", ",", ";", '"', "\\", ":",
    '"name"', '"now"', '"arguments"', '"function"', CITY, '{"name": "now", "arguments": {}}',
    "<function=now>", "<parameter=city>", "</parameter>", "</function>", "now", "a", "1", "\xa0",
    "<\uff5ctool\u2581calls\u2581begin\uff5c>", "<\uff5ctool\u2581call\u2581begin\uff5c>",
    "<\uff5ctool\u2581sep\uff5c>", "<\uff5ctool\u2581call\u2581end\uff5c>",
    "<\uff5ctool\u2581calls\u2581end\uff5c>",
]  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(
    family=st.sampled_from(FAMILIES),
    bits=st.lists(st.sampled_from(BITS), max_size=14),
    mode=st.sampled_from(["off", "tagged", "open"]),
    eager=st.booleans(),
    cuts=st.lists(st.integers(0, 200), max_size=6),
)
def test_any_text_in_any_pieces(
    family: Family, bits: list[str], mode: str, eager: bool, cuts: list[int]
) -> None:
    text = "".join(bits)
    sample = Sample("drawn", family, text, mode=mode)  # type: ignore[arg-type]
    whole = events(sample, [text], eager=eager)
    check_order(whole)
    message = collect(whole)
    assert collect(events(sample, text, eager=eager)) == message
    places = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    pieces = [text[a:b] for a, b in pairwise(places)]
    assert collect(events(sample, pieces, eager=eager)) == message
    if not message.tool_calls and mode == "off":
        assert message.content == text
    if not eager:
        assert all(isinstance(json.loads(call.arguments), dict) for call in message.tool_calls)


def test_calls_are_told_at_once_or_as_they_come() -> None:
    sample = Sample("", "hermes", tag("get_weather", CITY))
    late = events(sample, sample.text)
    assert late == [ToolCallStart(0, "id0", "get_weather"), ToolCallArguments(0, CITY)]
    early = events(sample, sample.text, eager=True)
    assert early[0] == ToolCallStart(0, "id0", "get_weather")
    assert len(early) > len(CITY) // 2


def test_text_that_is_no_marker_is_not_held() -> None:
    parser = make_parser("hermes", TOOLS, reasoning="off")
    assert parser.push("a <") == [ContentDelta("a")]
    assert parser.push("b") == [ContentDelta(" <b")]
    assert parser.finish() == []


def test_without_tools_calls_are_content() -> None:
    for family in FAMILIES:
        parser = make_parser(family, [], reasoning="off")
        text = tag("now", "{}") + "[TOOL_CALLS] [{}]\n"
        assert parser.push(text) == [ContentDelta(text)]


def test_identifiers() -> None:
    ids = set()
    for family, length in (("hermes", 29), ("mistral", 9)):
        parser = make_parser(family, TOOLS, reasoning="off")  # type: ignore[arg-type]
        call = '{"name": "now", "arguments": {}}'
        text = f"[TOOL_CALLS][{call}, {call}]" if family == "mistral" else f"<tool_call>{call}" * 2
        calls = collect(parser.push(text) + parser.finish()).tool_calls
        assert [len(c.call_id) for c in calls] == [length, length]
        ids |= {c.call_id for c in calls}
    assert len(ids) == 4


@pytest.mark.parametrize("family", FAMILIES)
def test_markers_cannot_be_mistaken_for_each_other(family: Family) -> None:
    import importlib

    module, _, name = PARSERS[family].partition(":")
    markers = list(getattr(importlib.import_module(module), name).MARKERS)
    assert not any(a != b and a.startswith(b) for a in markers for b in markers)


@pytest.mark.parametrize(
    ("template", "architecture", "family"),
    [
        ("<tool_call>\n{{ call | tojson }}", "qwen2", "hermes"),
        ("<tool_call>\n<function={{ name }}>", "qwen3_moe", "qwen_coder"),
        ("{{ '[TOOL_CALLS]' }}", "llama", "mistral"),
        ("<\uff5ctool\u2581call\u2581begin\uff5c>", "llama", "deepseek"),
        ("Environment: ipython\n", "llama", "llama3"),
        ("{{ messages }}", "llama", "generic"),
        (None, "qwen3", "hermes"),
        (None, "gpt2", "generic"),
    ],
)
def test_family(template: str | None, architecture: str, family: str) -> None:
    assert choose_family(template, architecture) == family


def test_reasoning_of_a_template() -> None:
    assert choose_reasoning("… <think> …", "<|im_start|>assistant\n") == "tagged"
    assert choose_reasoning("… <think> …", "<|Assistant|><think>\n") == "open"
    assert choose_reasoning("… [THINK] …", "[/INST]") == "tagged"
    assert choose_reasoning(None, "Hi") == "off"


def test_what_is_refused() -> None:
    with pytest.raises(UsageError, match="'hermes'"):
        make_parser("vicuna", TOOLS, reasoning="off")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="allowed"):
        make_parser("hermes", TOOLS, reasoning=True)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no name"):
        make_parser("hermes", [{"type": "function", "function": {}}], reasoning="off")

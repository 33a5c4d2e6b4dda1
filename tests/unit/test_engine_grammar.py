"""Output that keeps to a grammar, whatever the model would rather say; and what is refused."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from engine_toy import (
    EOS,
    ToyExecutable,
    assert_idle,
    limits,
    logits_of,
    make,
    small_limits,
    tokenizer,
)

from pumice.engine import AsyncEngine, Grammar, LLMEngine, SamplingParams
from pumice.errors import GrammarError, UsageError

VOCAB = limits().vocab_size
ROOM = limits(context_length=600, num_blocks=300)


BLANKS = np.array(
    [20.0 * (not tokenizer().token_bytes(i).strip()) for i in range(VOCAB)], np.float32
)


def wordy(tokens: np.ndarray) -> np.ndarray:
    """Likes quotes and brackets that close, and no blanks, so that documents come to an end."""
    row = logits_of(tokens, VOCAB) - BLANKS
    for text, bias in (('"', 6.0), ("}", 6.0), ("]", 6.0), (",", 1.0), ("\\", -3.0)):
        row[tokenizer().encode(text, add_special=False, parse_special=False)[0]] += bias
    row[EOS] += 20
    return row


def outputs(grammar: Grammar, count: int = 6, **sampling: Any) -> list[str]:
    engine, _ = make(ROOM, logits=wordy)
    params = SamplingParams(temperature=1.0, max_tokens=400, grammar=grammar, **sampling)
    each = [params.replace(seed=s) for s in range(count)]
    done = engine.generate([[5, 6]] * count, each)
    assert_idle(engine)
    assert [d.finish_reason for d in done] == ["stop"] * count, done
    assert all(d.stop == EOS for d in done)
    return [d.text for d in done]


def schema(value: Any) -> Grammar:
    return Grammar("json_schema", value)


COLORS = {
    "type": "object",
    "properties": {
        "colors": {"type": "array", "items": {"$ref": "#/$defs/color"}, "minItems": 1},
        "n": {"type": "integer", "minimum": 3, "maximum": 12},
    },
    "required": ["colors", "n"],
    "additionalProperties": False,
    "$defs": {"color": {"enum": ["red", "gr\u00fcn", None]}},
}


def test_a_schema_holds_for_every_output() -> None:
    for text in outputs(schema(COLORS)):
        value = json.loads(text)
        assert list(value) == ["colors", "n"] and 3 <= value["n"] <= 12
        assert value["colors"] and set(value["colors"]) <= {"red", "gr\u00fcn", None}


def test_json_objects() -> None:
    for text in outputs(Grammar("json_object")):
        assert isinstance(json.loads(text), dict)


def test_greedy_penalties_and_bias_keep_to_the_grammar() -> None:
    engine, _ = make(ROOM, logits=wordy)
    brace = tokenizer().encode("x", add_special=False, parse_special=False)[0]
    for more in (
        {},
        {"repetition_penalty": 1.5, "frequency_penalty": 1.0},
        {"logit_bias": {brace: 100.0, EOS: 100.0}},
        {"temperature": 1.0, "seed": 3, "top_k": 3},
        {"temperature": 1.0, "seed": 3, "top_p": 0.5, "min_p": 0.01},
        {"logprobs": True, "top_logprobs": 3},
    ):
        params = SamplingParams(max_tokens=300, grammar=schema(COLORS), **more)  # type: ignore[arg-type]
        (done,) = engine.generate([5, 6], params)
        assert 3 <= json.loads(done.text)["n"] <= 12 and done.finish_reason == "stop"


def test_logprobs_are_those_of_the_model_without_the_grammar() -> None:
    engine, _ = make(ROOM, logits=wordy)
    params = SamplingParams(max_tokens=1, grammar=Grammar("regex", "q+"), logprobs=True)
    (done,) = engine.generate([5, 6], params)
    row = wordy(np.array([5, 6])).astype(np.float64)
    row -= np.log(np.exp(row - row.max()).sum()) + row.max()
    assert done.text[0] == "q" and row.argmax() != done.token_ids[0]
    assert done.logprobs[0].logprob == pytest.approx(row[done.token_ids[0]], abs=1e-4)


def test_a_mixed_batch() -> None:
    engine, _ = make(ROOM, logits=wordy)
    free = SamplingParams(temperature=1.0, seed=1, max_tokens=30)
    pattern = free.replace(grammar=Grammar("regex", "[a-c]{5,9}"))
    lark = free.replace(grammar=Grammar("lark", 'start: "yes" | "no"'))
    alone = [make(ROOM, logits=wordy)[0].generate([5], p)[0].text for p in (free, pattern, lark)]
    done = engine.generate([[5], [5], [5]], [free, pattern, lark])
    assert [d.text for d in done] == alone
    assert re.fullmatch("[a-c]{5,9}", done[1].text) and done[2].text in ("yes", "no")
    plain, constrained = engine.generate([[5], [6]], [free, pattern], n=1)
    assert plain.text == alone[0] and re.fullmatch("[a-c]{5,9}", constrained.text)


def test_outputs_of_one_prompt_have_a_grammar_each() -> None:
    engine, _ = make(ROOM, logits=wordy)
    params = SamplingParams(
        temperature=2.0, seed=1, max_tokens=30, grammar=Grammar("regex", "[a-z]{6}")
    )
    done = engine.generate([5, 6], params, n=4)
    assert all(re.fullmatch("[a-z]{6}", d.text) for d in done)
    assert len({d.text for d in done}) == 4


def test_preemption_does_not_lose_the_place() -> None:
    engine, _ = make(limits(num_blocks=8, context_length=32), logits=wordy)
    params = SamplingParams(temperature=1.0, max_tokens=24, grammar=Grammar("regex", "[a-z]{24}"))
    done = engine.generate([[5] * 8, [7] * 8, [8] * 8], [params.replace(seed=s) for s in range(3)])
    assert engine.scheduler.decisions.preempted > 0
    assert all(re.fullmatch("[a-z]{24}", d.text) for d in done)
    assert_idle(engine)


def test_only_an_end_token_follows_a_complete_grammar() -> None:
    row = np.zeros(VOCAB, np.float32)
    row[list(tokenizer().eos_ids)] = -50.0
    engine, _ = make(ROOM, logits=lambda tokens: row)
    (done,) = engine.generate([5], SamplingParams(grammar=Grammar("regex", "abc")))
    assert done.text == "abc" and done.stop in tokenizer().eos_ids


def test_a_failed_step_may_be_repeated() -> None:
    engine, toy = make(ROOM, logits=wordy)

    def before(step: int) -> None:
        if step % 2 == 0:
            raise OSError

    toy.before = before
    engine.add_request([5], SamplingParams(max_tokens=40, grammar=Grammar("regex", "[a-z]{9}")))
    text, failures = "", 0
    while engine.has_work:
        try:
            text += "".join(d.text for d in engine.step())
        except OSError:
            failures += 1
    assert re.fullmatch("[a-z]{9}", text) and failures > 3


EURO = {
    "type": "array",
    "items": {"$ref": "#/$defs/e"},
    "maxItems": 3,
    "$defs": {"e": {"enum": [1, "\u20ac"]}},
}
STRANGE = {
    "type": "object",
    "properties": {'\u00e9\n"': {"const": "\U0001f600 \u0007"}},
    "required": ['\u00e9\n"'],
    "additionalProperties": False,
}
LIST = {
    "anyOf": [
        {"type": "null"},
        {
            "type": "object",
            "properties": {"next": {"$ref": "#"}},
            "required": ["next"],
            "additionalProperties": False,
        },
    ]
}
REMARKS = '{"type": "boolean", "title": "x", "default": true, "examples": [], "x-vendor": 1}'
DRAFT_7 = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "definitions": {"a": {"type": "integer", "maximum": 9, "minimum": 0}},
    "$ref": "#/definitions/a",
}


def is_list(value: Any) -> bool:
    return value is None or (list(value) == ["next"] and is_list(value["next"]))


@pytest.mark.parametrize(
    ("value", "holds"),
    [
        ({"type": "object", "properties": {}}, lambda v: isinstance(v, dict)),
        ({"type": "string", "maxLength": 65536}, lambda v: isinstance(v, str)),
        ({"type": "string", "minLength": 3, "maxLength": 5}, lambda v: 3 <= len(v) <= 5),
        (EURO, lambda v: len(v) <= 3 and set(v) <= {1, "\u20ac"}),
        ({"type": "string", "pattern": r"\S", "maxLength": 20}, lambda v: v.strip() != ""),
        (STRANGE, lambda v: v == {'\u00e9\n"': "\U0001f600 \u0007"}),
        (LIST, is_list),
        (REMARKS, lambda v: isinstance(v, bool)),
        (DRAFT_7, lambda v: v in range(10)),
        (True, lambda v: True),
    ],
    ids=lambda v: "check" if callable(v) else str(v)[:40],
)
def test_schemas_that_are_taken(value: Any, holds: Callable[[Any], bool]) -> None:
    for text in outputs(schema(value), 4):
        assert holds(json.loads(text)), text


def test_deep_nesting() -> None:
    deep: dict[str, Any] = {"const": 1}
    for _ in range(60):
        deep = {
            "type": "object",
            "properties": {"a": deep},
            "required": ["a"],
            "additionalProperties": False,
        }
    text = outputs(schema(deep), 1)[0]
    assert re.sub(r"\s", "", text) == '{"a":' * 60 + "1" + "}" * 60
    for _ in range(200):
        deep = {"type": "array", "items": deep}
    engine, _ = make()
    with pytest.raises(GrammarError, match="deep"):
        engine.prepare([5], SamplingParams(grammar=schema(deep)))
    with pytest.raises(GrammarError, match="deep"):
        engine.prepare([5], SamplingParams(grammar=schema('{"items":' * 5000 + "{}" + "}" * 5000)))


def within(part: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"d": part}}


REFUSED: list[tuple[Any, str, str]] = [
    ({"type": "array", "uniqueItems": True}, "/uniqueItems", "uniqueItems"),
    (within({"items": {"contains": {}}}), "/properties/d/items/contains", "contains"),
    ({"properties": {"a/b": {"not": {}}}}, "/properties/a~1b/not", "not"),
    ({"anyOf": [{"type": "string"}, {"if": {}, "then": {}}]}, "/anyOf/1/", "if"),
    ({"type": "string", "maxLenght": 3}, "/maxLenght", "maxLenght"),
    ({"x-guidance": {"lenient": True}, "not": {}}, "/", "cannot be enforced"),
    (within({"type": "string", "format": "colour"}), "/properties/d/format", "colour"),
    (within({"pattern": r"^hello there indeed\!$"}), "/properties/d/pattern", r"\!"),
    ({"patternProperties": {r"\!": {}}}, r"/patternProperties/\!", r"\!"),
    (within({"type": "string", "pattern": "(?=a)b"}), "/properties/d", "look-around"),
    (within({"$ref": "#/$defs/none"}), "/properties/d", "/$defs/none"),
    (within({"$ref": "http://x.y/z"}), "/properties/d", "http://x.y/z"),
    ({"type": "object", "minProperties": 2}, "/minProperties", "required"),
    (within({"type": "text"}), "/properties/d/type", "text"),
    ({"type": "integer", "minimum": 4, "maximum": 3}, "", "minimum"),
    ({"properties": 3}, "/properties", "allowed: schemas by name"),
    ({"anyOf": {}}, "/anyOf", "allowed: a list"),
    (within(3), "/properties/d", "true or false"),
    ({"type": "string", "nullable": True}, "/nullable", "nullable"),
    ("{", "", "no JSON"),
    (False, "", "false"),
]


@pytest.mark.parametrize(("value", "where", "message"), REFUSED, ids=lambda v: str(v)[:40])
def test_schemas_that_are_refused(value: Any, where: str, message: str) -> None:
    engine, toy = make()
    with pytest.raises(GrammarError) as caught:
        engine.generate([5], SamplingParams(grammar=schema(value)))
    assert caught.value.where.startswith(where), caught.value.where
    assert message in str(caught.value)
    assert not toy.steps and not engine.has_work


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        (Grammar("regex", r"^hello there indeed\!$"), r"bad escape \! at character 19"),
        (Grammar("regex", "a\\"), "bad escape"),
        (Grammar("regex", "("), "unclosed group"),
        (Grammar("regex", "a(?=b)"), "look-around"),
        (Grammar("regex", "x^y"), "regular expression cannot be enforced"),
        (Grammar("lark", "start: nothing"), "unknown name"),
        (Grammar("lark", ""), "Lark grammar cannot be enforced"),
        (Grammar("regex", "a\ud83d"), "cannot be read"),
        (Grammar("json_schema", {"const": "\ud83d"}), "cannot be"),
        (Grammar("json_schema", {"minLength": 10**40}), "'minLength', got 1e40"),
        (Grammar("json_schema", {"allOf": [{"$ref": "#"}]}), "no output"),
    ],
)
def test_grammars_that_are_refused(grammar: Grammar, message: str) -> None:
    engine, _ = make()
    with pytest.raises(GrammarError, match=re.escape(message)):
        engine.prepare([5], SamplingParams(grammar=grammar))


def test_bad_grammar_objects() -> None:
    for kind, value in (("xml", ""), ("regex", None), ("json_object", "{}"), ("json_schema", 3)):
        with pytest.raises(GrammarError, match="allowed"):
            Grammar(kind, value)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="allowed: a Grammar"):
        SamplingParams(grammar="json")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="ignore_eos"):
        SamplingParams(grammar=Grammar("json_object"), ignore_eos=True)
    bare = LLMEngine(ToyExecutable(small_limits()), None)
    with pytest.raises(UsageError, match="end token"):
        bare.prepare([5], SamplingParams(grammar=Grammar("json_object")))


def test_closing_ends_the_thread() -> None:
    inner, _ = make(ROOM, logits=wordy)

    async def main() -> str:
        async with AsyncEngine(inner) as engine:
            params = SamplingParams(max_tokens=40, grammar=Grammar("regex", "[a-z]{9}"))
            return "".join([d.text async for d in engine.stream([5], params)])

    for _ in range(2):
        assert re.fullmatch("[a-z]{9}", asyncio.run(main()))
        assert not [t for t in threading.enumerate() if t.name.startswith("pumice")]

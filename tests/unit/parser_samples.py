"""Outputs of models, as they come and as they must be understood."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pumice.server.parsers import Family, Reasoning

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "detailed": {"type": "boolean"},
                    "limit": {"anyOf": [{"type": "number"}, {"type": "null"}]},
                    "note": {"type": ["string", "null"]},
                },
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "sum",
            "parameters": {
                "type": "object",
                "properties": {
                    "items": {
                        "type": "array",
                        "items": {"type": "object", "properties": {"x": {"type": "number"}}},
                    }
                },
            },
        },
    },
    {"name": "now", "description": "without parameters"},
]


@dataclass(frozen=True)
class Sample:
    """calls: (name, text of the arguments)."""

    name: str
    family: Family
    text: str
    content: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    reasoning: str = ""
    mode: Reasoning = "off"
    eager_differs: bool = False  # a call that was told before it turned out to be broken


CITY = '{"city": "Oslo"}'
NESTED = '{"items": [{"x": 1}, {"x": -2.5e3, "y": {"z": [[], {}]}}], "s": "}{][\\"}\\\\"}'
UNICODE = '{"city": "\\u00c5lesund \\ud83d\\ude00 – 東京 👩‍💻\\n"}'
PRETTY = '{\n  "city" : "Oslo" ,\n\t"days":3\n}'


def tag(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


WEATHER = ("get_weather", CITY)
CUT = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Os'
EXTRA_COMMA = '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo",,}}</tool_call>'
MEMO = '{"name": "get_weather", "memo": "a <tool_call> in a string", "arguments": {}}'

INVALID = "".join(
    f"<tool_call>{bad}</tool_call>"
    for bad in (
        "{'name': 1}", '{"a": 01}', '{"a": nul}', '{"a": "\\x"}', '{"a" 1}', "[]", "{a: 1}",
        '{"a": "\\u12g4"}', '{"a": 1 2}', '{"a": .5}', '{"a":"\t"}',
    )
)  # fmt: skip

HERMES = [
    Sample("text", "hermes", "Hello, world! \n\n", "Hello, world! \n\n"),
    Sample("empty", "hermes", ""),
    Sample("one", "hermes", tag(*WEATHER), calls=(WEATHER,)),
    Sample(
        "around",
        "hermes",
        f"Let me look.\n{tag(*WEATHER)}\nDone.",
        "Let me look.\nDone.",
        (WEATHER,),
    ),
    Sample(
        "twice the same",
        "hermes",
        f"{tag(*WEATHER)}\n{tag('get_weather', PRETTY)}\n",
        calls=(WEATHER, ("get_weather", PRETTY)),
    ),
    Sample("nested", "hermes", tag("sum", NESTED), calls=(("sum", NESTED),)),
    Sample("unicode", "hermes", tag("get_weather", UNICODE), calls=(("get_weather", UNICODE),)),
    Sample(
        "no arguments", "hermes", '<tool_call>{"name": "now"}</tool_call>', calls=(("now", "{}"),)
    ),
    Sample("null", "hermes", tag("now", "null"), calls=(("now", "{}"),)),
    Sample(
        "arguments first",
        "hermes",
        f'<tool_call>{{"arguments": {CITY}, "name": "get_weather"}}</tool_call>',
        calls=(WEATHER,),
    ),
    Sample(
        "arguments in a string",
        "hermes",
        tag("get_weather", '"{\\"city\\": \\"\\\\u00c5s\\"}"'),
        calls=(("get_weather", '{"city": "\\u00c5s"}'),),
    ),
    Sample(
        "half a surrogate pair in a string",
        "hermes",
        tag("get_weather", '"{\\"city\\": \\"\\ud83d\\"}"'),
        calls=(("get_weather", '{"city": "\\ud83d"}'),),
    ),
    Sample("no end tag", "hermes", tag(*WEATHER).removesuffix("</tool_call>"), calls=(WEATHER,)),
    Sample("end tag cut", "hermes", tag(*WEATHER)[:-4], calls=(WEATHER,)),
    Sample(
        "a list in the tag",
        "hermes",
        f'<tool_call>[{{"name": "now", "arguments": {{}}}}, {{"name": "get_weather", '
        f'"arguments": {CITY}}}]</tool_call>',
        calls=(("now", "{}"), WEATHER),
    ),
    Sample(
        "a brace too many",
        "hermes",
        f'<tool_call>{{"name": "get_weather", "arguments": {CITY}}}}}\n</tool_call>ok',
        "}\nok",
        (WEATHER,),
    ),
    Sample(
        "unknown tool",
        "hermes",
        f"a\n{tag('launch', CITY)}\n{tag(*WEATHER)} z",
        f"a\n{tag('launch', CITY)}\nz",
        (WEATHER,),
    ),
    Sample("only an unknown tool", "hermes", tag("launch", "{}"), tag("launch", "{}")),
    Sample("arguments that are a list", "hermes", tag("now", "[]"), tag("now", "[]"), ()),
    Sample(
        "a name that is a number",
        "hermes",
        '<tool_call>{"name": 1}</tool_call>',
        '<tool_call>{"name": 1}</tool_call>',
    ),
    Sample(
        "broken",
        "hermes",
        f"{EXTRA_COMMA}\n{tag(*WEATHER)}",
        EXTRA_COMMA,
        (WEATHER,),
        eager_differs=True,
    ),
    Sample(
        "a string without an end",
        "hermes",
        f'<tool_call>{{"name": "now", "arguments": {{"a": "b}}}}</tool_call>{tag(*WEATHER)}',
        '<tool_call>{"name": "now", "arguments": {"a": "b}}</tool_call>',
        (WEATHER,),
        eager_differs=True,
    ),
    Sample("cut", "hermes", f"Look: {CUT}", f"Look: {CUT}", eager_differs=True),
    Sample(
        "a tag in a string",
        "hermes",
        f"<tool_call>{MEMO}</tool_call>",
        calls=(("get_weather", "{}"),),
    ),
    Sample("part of a tag", "hermes", "a <tool_ca and <tool_call", "a <tool_ca and <tool_call"),
    Sample("a tag in text", "hermes", "The tag <tool_call> is odd.", "The tag <tool_call> is odd."),
    Sample("tag after tag", "hermes", f"<tool_call>{tag(*WEATHER)}", "<tool_call>", (WEATHER,)),
    Sample("space", "hermes", "  \n ", "  \n "),
    Sample(
        "too deep",
        "hermes",
        tag("now", '{"a": ' + "[" * 200 + "]" * 200 + "}"),
        tag("now", '{"a": ' + "[" * 200 + "]" * 200 + "}"),
        eager_differs=True,
    ),
    Sample("nothing valid", "hermes", INVALID, INVALID),
]

LLAMA3 = [
    Sample("bare", "llama3", f'{{"name": "get_weather", "parameters": {CITY}}}', calls=(WEATHER,)),
    Sample(
        "typed",
        "llama3",
        f'{{"type": "function", "name": "get_weather", "parameters": {CITY}}}',
        calls=(WEATHER,),
    ),
    Sample(
        "function",
        "llama3",
        f'{{"type": "function", "function": "get_weather", "parameters": {CITY}}}',
        calls=(WEATHER,),
    ),
    Sample(
        "python tag",
        "llama3",
        f'<|python_tag|>{{"name": "get_weather", "parameters": {CITY}}}; '
        f'{{"name": "now", "parameters": {{}}}}',
        calls=(WEATHER, ("now", "{}")),
    ),
    Sample("python code", "llama3", "<|python_tag|>print({1: 2})", "<|python_tag|>print({1: 2})"),
    Sample("json answer", "llama3", '{"answer": {"name": "now"}}', '{"answer": {"name": "now"}}'),
    Sample("a name alone", "llama3", '{"name": "now"}', '{"name": "now"}'),
    Sample(
        "unknown",
        "llama3",
        '{"name": "x", "parameters": {}}; {"name": "now", "parameters": {}}',
        '{"name": "x", "parameters": {}}',
        (("now", "{}"),),
    ),
    Sample(
        "in a line",
        "llama3",
        f'Use {{"name": "now", "parameters": {{}}}} or\n {{"name": "get_weather", "parameters": '
        f"{CITY}}} now",
        'Use {"name": "now", "parameters": {}} or\n now',
        (WEATHER,),
    ),
    Sample("cut", "llama3", '{"name": "now", "param', '{"name": "now", "param'),
    Sample("braces", "llama3", "{ } [1] \n[2] {\n{", "{ } [1] \n[2] {\n{"),
]

REASONING = [
    Sample(
        "tagged", "hermes", "<think>\nHm.\n\nOk\n</think>\n\nHi", "Hi", (), "Hm.\n\nOk", "tagged"
    ),
    Sample("nothing thought", "hermes", "<think>\n\n</think>\n\nHi", "Hi", (), "", "tagged"),
    Sample(
        "untagged", "hermes", "  Hi <think>x</think>", "  Hi <think>x</think>", (), "", "tagged"
    ),
    Sample(
        "open",
        "hermes",
        "a < b </thin\n</think>\nHi</think>",
        "Hi</think>",
        (),
        "a < b </thin",
        "open",
    ),
    Sample("open, repeated", "hermes", "\n<think>\na</think>b", "b", (), "a", "open"),
    Sample(
        "never closed",
        "hermes",
        f"a {tag(*WEATHER)}\n</thi",
        "",
        (),
        f"a {tag(*WEATHER)}\n</thi",
        "open",
    ),
    Sample(
        "then a call", "hermes", f"<think>a</think>\n{tag(*WEATHER)}", "", (WEATHER,), "a", "tagged"
    ),
    Sample("off", "hermes", "<think>a</think>", "<think>a</think>"),
    Sample("part of a tag", "hermes", "<thi", "<thi", (), "", "tagged"),
]

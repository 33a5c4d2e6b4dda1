"""Outputs of models whose calls are not Hermes' or Llama's; and all samples."""

from __future__ import annotations

from parser_samples import CITY, HERMES, LLAMA3, NESTED, REASONING, WEATHER, Sample, tag

from pumice.server.parsers.deepseek import (
    CALL_BEGIN,
    CALL_END,
    CALLS_BEGIN,
    CALLS_END,
    SEPARATOR,
)


def v3(name: str, arguments: str) -> str:
    return f"{CALL_BEGIN}function{SEPARATOR}{name}\n```json\n{arguments}\n```{CALL_END}"


def v31(name: str, arguments: str) -> str:
    return f"{CALL_BEGIN}{name}{SEPARATOR}{arguments}{CALL_END}"


def xml(name: str, **parameters: str) -> str:
    inner = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in parameters.items())
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


OLD = '[TOOL_CALLS] [{"name": "get_weather", "arguments": %s}, {"name": "%s", "arguments": %s}]'
MISTRAL = [
    Sample("list", "mistral", OLD % (CITY, "now", "{}"), calls=(WEATHER, ("now", "{}"))),
    Sample(
        "text first", "mistral", "Ok " + OLD % (CITY, "now", "{}"), "Ok", (WEATHER, ("now", "{}"))
    ),
    Sample(
        "list, one unknown",
        "mistral",
        OLD % (CITY, "x", "{}"),
        '{"name": "x", "arguments": {}}',
        (WEATHER,),
    ),
    Sample(
        "list, the middle broken",
        "mistral",
        f'[TOOL_CALLS][{{"name": "now", "arguments": {{}}}}, '
        f'{{"name": "sum", "arguments": {{,}}}}, '
        f'{{"name": "get_weather", "arguments": {CITY}}}] z',
        '{"name": "sum", "arguments": {,}}, z',
        (("now", "{}"), WEATHER),
        eager_differs=True,
    ),
    Sample(
        "named",
        "mistral",
        f"[TOOL_CALLS]get_weather[ARGS]{CITY}[TOOL_CALLS]now[ARGS]{{}}",
        calls=(WEATHER, ("now", "{}")),
    ),
    Sample(
        "with an id",
        "mistral",
        f"[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{CITY}",
        calls=(WEATHER,),
    ),
    Sample("name and braces", "mistral", f"a\n[TOOL_CALLS]sum{NESTED}", "a", (("sum", NESTED),)),
    Sample(
        "named, unknown",
        "mistral",
        f"[TOOL_CALLS]x[ARGS]{{}}[TOOL_CALLS]get_weather[ARGS]{CITY}",
        "[TOOL_CALLS]x[ARGS]{}",
        (WEATHER,),
    ),
    Sample("no call", "mistral", "[TOOL_CALLS] sorry [TOOL", "[TOOL_CALLS] sorry [TOOL"),
    Sample("an empty list", "mistral", "[TOOL_CALLS] []", "[TOOL_CALLS] []"),
    Sample(
        "thinking",
        "mistral",
        "[THINK]a\nb[/THINK]c[TOOL_CALLS]now[ARGS]{}",
        "c",
        (("now", "{}"),),
        "a\nb",
        "tagged",
    ),
]

DEEPSEEK = [
    Sample(
        "v3",
        "deepseek",
        f"Ok.{CALLS_BEGIN}{v3(*WEATHER)}\n{v3('sum', NESTED)}{CALLS_END}",
        "Ok.",
        (WEATHER, ("sum", NESTED)),
    ),
    Sample(
        "v3.1",
        "deepseek",
        f"{CALLS_BEGIN}{v31(*WEATHER)}{v31('now', '{}')}{CALLS_END}",
        calls=(WEATHER, ("now", "{}")),
    ),
    Sample("no outer tokens", "deepseek", f"{v3(*WEATHER)}\n", calls=(WEATHER,)),
    Sample(
        "unknown",
        "deepseek",
        f"{CALLS_BEGIN}{v31(*WEATHER)}{v31('x', '{}')}{CALLS_END}z",
        f"{v31('x', '{}')}z",
        (WEATHER,),
    ),
    Sample(
        "broken",
        "deepseek",
        f"{CALLS_BEGIN}{v31('now', '{,}')}{v31(*WEATHER)}{CALLS_END}",
        f"{CALLS_BEGIN}{v31('now', '{,}')}",
        (WEATHER,),
        eager_differs=True,
    ),
    Sample("cut", "deepseek", f"{CALLS_BEGIN}{v31(*WEATHER)}{CALLS_END[:-3]}", calls=(WEATHER,)),
    Sample(
        "thinking",
        "deepseek",
        f"I see.\n</think>\n\n{CALLS_BEGIN}{v3(*WEATHER)}{CALLS_END}",
        "",
        (WEATHER,),
        "I see.",
        "open",
    ),
    Sample(
        "a long name",
        "deepseek",
        f"{CALL_BEGIN}{'x' * 300}{SEPARATOR}{{}}",
        f"{CALL_BEGIN}{'x' * 300}{SEPARATOR}{{}}",
    ),
]

QWEN_CODER = [
    Sample(
        "one",
        "qwen_coder",
        f"Ok\n{xml('get_weather', city='Oslo', days='3', detailed='True')}",
        "Ok",
        (("get_weather", '{"city": "Oslo", "days": 3, "detailed": true}'),),
    ),
    Sample(
        "lists",
        "qwen_coder",
        xml("sum", items='[{"x": 1}]') + xml("now"),
        calls=(("sum", '{"items": [{"x": 1}]}'), ("now", "{}")),
    ),
    Sample(
        "text stays",
        "qwen_coder",
        xml("get_weather", city="12", note="null", limit="1.5", other="7"),
        calls=(("get_weather", '{"city": "12", "note": null, "limit": 1.5, "other": "7"}'),),
    ),
    Sample(
        "lines",
        "qwen_coder",
        xml("get_weather", city="\n a <b>\n</function>\n"),
        calls=(("get_weather", '{"city": "\\n a <b>\\n</function>\\n"}'),),
    ),
    Sample(
        "no outer tag",
        "qwen_coder",
        "<function=now></function></tool_call>\n",
        calls=(("now", "{}"),),
    ),
    Sample("json", "qwen_coder", tag(*WEATHER), calls=(WEATHER,)),
    Sample(
        "unknown",
        "qwen_coder",
        xml("x", a="b") + "\n" + xml("now"),
        xml("x", a="b"),
        (("now", "{}"),),
    ),
    Sample(
        "broken",
        "qwen_coder",
        "<function=now><param=1></function>" + xml("now"),
        "<function=now><param=1></function>",
        (("now", "{}"),),
    ),
    Sample(
        "not a number",
        "qwen_coder",
        xml("get_weather", days="NaN"),
        calls=(("get_weather", '{"days": "NaN"}'),),
    ),
]

GENERIC = [
    Sample(
        "fence",
        "generic",
        f'Sure:\n```json\n{{"name": "get_weather", "arguments": {CITY}}}\n```\n',
        "Sure:",
        (WEATHER,),
    ),
    Sample(
        "nested function",
        "generic",
        f'{{"type": "function", "id": "1", "function": {{"name": "get_weather", '
        f'"arguments": {CITY}}}}}',
        calls=(WEATHER,),
    ),
    Sample(
        "list",
        "generic",
        f'[{{"name": "now", "args": {{}}}}, {{"name": "get_weather", "input": {CITY}}}]',
        calls=(("now", "{}"), WEATHER),
    ),
    Sample("a fence of something", "generic", '```json\n{"a": 1}\n```', '```json\n{"a": 1}\n```'),
    Sample(
        "other tags",
        "generic",
        '<function_call>{"name": "now"}</function_call>',
        calls=(("now", "{}"),),
    ),
]

SAMPLES = [*HERMES, *LLAMA3, *MISTRAL, *DEEPSEEK, *QWEN_CODER, *GENERIC, *REASONING]

"""Calls that must come, and calls that must be right when they come: grammars that enforce it.

Calls that must come are `{"name": …, "arguments": {…}}`, or a list of such objects when several are
allowed, whatever a model's own notation is: the grammar leaves it no other. Calls of `strict`
functions that may come are in Hermes' notation: after `<tool_call>` nothing but a right call can
follow, and before it anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pumice.engine.grammar import Grammar
from pumice.engine.grammar_check import read_schema
from pumice.server.core.job import Tools

MOST_CALLS = 16


# One way to write white space, so that there is none without end.
_SPACES = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def has_strict(tools: Tools) -> bool:
    """Whether a function that the model sees is strict."""
    return any(tool["function"].get("strict") for tool in tools.shown)


def strict_grammar(tools: Tools) -> Grammar:
    """Text with calls in it, and of strict functions none but right ones.

    GrammarError for a schema that cannot be enforced. The rules are llguidance's for calls in
    running text (https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md).
    """
    names, rules = [], []
    for index, tool in enumerate(tools.shown):
        function = tool["function"]
        schema: Any = {"type": "object"}
        if function.get("strict"):
            schema = read_schema(function["parameters"])
        begin = json.dumps(f'\n{{"name": {json.dumps(function["name"])}, "arguments": ')
        body = json.dumps({**schema, "x-guidance": _SPACES})
        names.append(f"call_{index}")
        rules.append(f'call_{index}: {begin} %json {body} "}}\\n</tool_call>"')
    head = (
        f"start: call* TEXT\ncall: trigger ({' | '.join(names)})\n"
        'trigger[lazy]: TEXT "<tool_call>"\nTEXT: /(.|\\n)*/\n'
    )
    return Grammar("lark", head + "\n".join(rules))


def calls_schema(tools: Tools) -> dict[str, Any]:
    """The schema of an output that is nothing but calls; `tools.forced` is true."""
    definitions: dict[str, Any] = {}
    calls = []
    for index, tool in enumerate(tools.functions):
        function = tool["function"]
        if tools.name not in (None, function["name"]):
            continue
        place = f"parameters{index}"
        definitions[place] = _moved(function["parameters"], f"#/$defs/{place}")
        calls.append(
            {
                "type": "object",
                "properties": {
                    "name": {"const": function["name"]},
                    "arguments": {"$ref": f"#/$defs/{place}"},
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    call = calls[0] if len(calls) == 1 else {"anyOf": calls}
    if tools.parallel and tools.name is None:
        several = {"type": "array", "items": call, "minItems": 1, "maxItems": MOST_CALLS}
        return {**several, "$defs": definitions}
    return {**call, "$defs": definitions}


def _moved(schema: Any, root: str) -> Any:
    """A schema that is no longer the whole document: references to its own parts follow it."""
    if isinstance(schema, Mapping):
        return {
            key: root + value[1:]
            if key == "$ref" and isinstance(value, str) and value.startswith("#")
            else _moved(value, root)
            for key, value in schema.items()
        }
    if isinstance(schema, list):
        return [_moved(item, root) for item in schema]
    return schema

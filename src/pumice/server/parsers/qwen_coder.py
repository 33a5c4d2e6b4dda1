"""Qwen3-Coder's calls: XML-like, arguments as they are and not as JSON.

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    value
    </parameter>
    </function>
    </tool_call>

The model's own parser (qwen3coder_tool_parser.py beside its weights) makes a value what the tool's
schema says it is; so does this one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pumice.server.parsers.json_calls import JsonCallParser
from pumice.server.parsers.source import Reading
from pumice.server.parsers.tool_parser import refuse_constant

_TAG = "<tool_call>"
_FUNCTION = "<function="
_PARAMETER = "<parameter="
_MAX_NAME = 256


class QwenCoderParser(JsonCallParser):
    """XML-like calls, and JSON ones in the same tags. The outer tags may be missing."""

    MARKERS = {_TAG: "</tool_call>", _FUNCTION: "</tool_call>"}  # noqa: RUF012

    def section(self, opening: str) -> Reading[None]:
        source = self.source
        calls = self.writer.calls
        if opening == _TAG:
            yield from source.expect(_TAG)
            if (yield from source.skip_space()) in "[{":
                yield from self.read_objects(strict=False)
                yield from self.read_closing(self.MARKERS[_TAG], calls)
                return
        elif opening not in self.MARKERS:  # an object in the rest of a broken list
            yield from self.read_objects(strict=True)
            return
        yield from source.expect(_FUNCTION)
        name = yield from source.until(">", limit=_MAX_NAME)
        arguments = yield from self._read_parameters(name.strip())
        self.finish_call(name.strip(), arguments)
        yield from self.read_closing(self.MARKERS[opening], calls)

    def _read_parameters(self, name: str) -> Reading[str]:
        source = self.source
        properties = self.tools.get(name, {}).get("properties")
        schemas = properties if isinstance(properties, Mapping) else {}
        values: dict[str, Any] = {}
        while True:
            yield from source.skip_space()
            if (yield from source.accept("</function>")):
                return json.dumps(values, ensure_ascii=False)
            yield from source.expect(_PARAMETER)
            key = yield from source.until(">", limit=_MAX_NAME)
            text = yield from source.until("</parameter>")
            text = text.removeprefix("\n").removesuffix("\n")
            values[key.strip()] = _value(text, schemas.get(key.strip()))


def _value(text: str, schema: object) -> Any:
    """A parameter's text as its schema wants it; as it stands when it is nothing else."""
    types = _types(schema)
    if not types or ("string" in types and not (text == "null" and "null" in types)):
        return text
    try:
        return json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        lowered = text.strip().lower()
        if "boolean" in types and lowered in ("true", "false"):  # Python's True
            return lowered == "true"
        return text


def _types(schema: object) -> set[str]:
    """The types that a schema names, those of its alternatives included."""
    if not isinstance(schema, Mapping):
        return set()
    named = schema.get("type", [])
    types = {named} if isinstance(named, str) else {t for t in named if isinstance(t, str)}
    for key in ("anyOf", "oneOf"):
        for part in schema.get(key) or ():
            types |= _types(part)
    return types

"""Calls written as JSON objects: {"name": …, "arguments": {…}}, in tags, lists or on their own.

Formats: NousResearch's Hermes function calling (also Qwen2.5, Qwen3); Meta's Llama 3.1 "JSON based
tool calling"; and what models do that were made for no format.
"""

from __future__ import annotations

import json

from pumice.server.parsers.json_reader import read_members, read_string, read_value
from pumice.server.parsers.source import Broken, Reading
from pumice.server.parsers.tool_parser import ToolParser, decode_arguments

_ARGUMENTS = ("arguments", "parameters", "args", "input")
# Members of an object that may be a call although no marker says so.
_BARE_KEYS = frozenset({"name", "function", "type", "id", "index", *_ARGUMENTS})


class JsonCallParser(ToolParser):
    """The base of families whose calls are JSON objects."""

    def section(self, opening: str) -> Reading[None]:
        marked = opening in self.MARKERS
        calls = self.writer.calls
        if marked:
            yield from self.source.expect(opening)
        yield from self.read_objects(strict=not marked)
        yield from self.read_closing(self.MARKERS.get(opening), calls)

    def read_objects(self, *, strict: bool) -> Reading[None]:
        """Reads an object or an array of them; more may follow, after a comma, a semicolon or white
        space. strict: only an object that can be nothing else is a call.
        """
        source = self.source
        opening = yield from source.skip_space()
        in_array = opening == "[" or self.objects_anywhere
        if opening == "[":
            source.position += 1
            if (yield from source.skip_space()) != "{":
                raise Broken("no object in the list")
        while True:
            try:
                yield from self._read_call(strict or self.objects_anywhere)
            except Broken:
                self.objects_anywhere = in_array
                raise
            character = yield from source.skip_space()
            if in_array and character == "]":
                source.position += 1
                self.mark = source.position
                self.objects_anywhere = False
                return
            if character in ",;":
                source.position += 1
                character = yield from source.skip_space()
            if character != "{":
                return
            self.mark = source.position

    def _read_call(self, strict: bool) -> Reading[None]:
        source = self.source
        fields: dict[str, str] = {}
        yield from source.skip_space()
        calls = self.writer.calls
        yield from self._read_fields(fields, strict)
        if self.writer.calls > calls:  # it was told while it was read
            self.mark = source.position
            return
        arguments = next((fields[key] for key in _ARGUMENTS if key in fields), None)
        if strict and arguments is None:
            self.finish_call(None, None)
        else:
            self.finish_call(_name(fields), decode_arguments(arguments))

    def _read_fields(self, fields: dict[str, str], strict: bool) -> Reading[None]:
        """Reads an object; its members' texts go to `fields`, those of an object "function" in
        between.
        """
        source = self.source
        yield from source.expect("{")
        first = True
        while (yield from read_members(source, first)):
            first = False
            begin = source.position
            yield from read_string(source)
            key = json.loads(source.text[begin : source.position])
            if strict and key not in _BARE_KEYS:
                raise Broken("not a call's member")
            yield from source.skip_space()
            yield from source.expect(":")
            opening = yield from source.skip_space()
            nested = opening == "[" or (opening == "{" and key not in (*_ARGUMENTS, "function"))
            if strict and nested:
                raise Broken("not a call's member")
            begin = source.position
            name = _name(fields)
            if key == "function" and opening == "{" and "function" not in fields:
                fields["function"] = ""
                yield from self._read_fields(fields, strict)
                continue
            first_arguments = key in _ARGUMENTS and not any(k in fields for k in _ARGUMENTS)
            if self.eager and first_arguments and opening == "{" and name in self.tools:
                yield from self.read_live(str(name))
                fields[key] = ""
                continue
            yield from read_value(source)
            fields.setdefault(key, source.text[begin : source.position])


class HermesParser(JsonCallParser):
    """`<tool_call>{"name": …, "arguments": {…}}</tool_call>`."""

    MARKERS = {"<tool_call>": "</tool_call>"}  # noqa: RUF012


class Llama3Parser(JsonCallParser):
    """`{"name": …, "parameters": {…}}`, alone or after `<|python_tag|>`; semicolons between."""

    MARKERS = {"<|python_tag|>": None}  # noqa: RUF012
    BARE = True


class GenericParser(JsonCallParser):
    """Objects at the beginning of a line, in a fence of Markdown or in the usual tags."""

    MARKERS = {  # noqa: RUF012
        "<tool_call>": "</tool_call>",
        "<function_call>": "</function_call>",
        "```json": "```",
        "```tool_call": "```",
    }
    BARE = True


def _name(fields: dict[str, str]) -> object:
    text = fields.get("name") or fields.get("function")
    return json.loads(text) if text else None

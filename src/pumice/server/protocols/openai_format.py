"""`response_format` and `stream_options` of OpenAI's chat, with the formats that we add."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from pumice.engine.grammar import Grammar
from pumice.server.core import formats
from pumice.server.errors import bad_request
from pumice.server.protocols.fields import Fields
from pumice.server.settings import ServerSettings


class StreamOptions(Fields):
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class JsonSchemaFormat(Fields):
    name: str = Field(min_length=1, max_length=64)
    description: str | None = None
    schema_: dict[str, Any] | bool | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Fields):
    """type: text, json_object, json_schema; ours: regex with `pattern`, lark with `grammar`."""

    type: Literal["text", "json_object", "json_schema", "regex", "lark"]
    json_schema: JsonSchemaFormat | None = None
    pattern: str | None = None
    grammar: str | None = None


def grammar_of(given: ResponseFormat | None, settings: ServerSettings) -> Grammar | None:
    """What the output must look like. A schema is enforced whether or not it is `strict`; without
    a schema, json_schema is any JSON object.
    """
    if given is None or given.type == "text":
        return None
    where = "response_format"
    if given.type == "json_object":
        return formats.json_object()
    if given.type == "regex":
        return formats.text_grammar("regex", given.pattern, settings, f"{where}.pattern")
    if given.type == "lark":
        return formats.text_grammar("lark", given.grammar, settings, f"{where}.grammar")
    if given.json_schema is None:
        raise bad_request(f"{where} has no json_schema", f"{where}.json_schema")
    if given.json_schema.schema_ is None:
        return formats.json_object()
    return formats.json_schema(given.json_schema.schema_, settings, f"{where}.json_schema.schema")

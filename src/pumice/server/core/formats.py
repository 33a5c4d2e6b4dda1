"""What an answer must look like: OpenAI's `response_format` and its kin, as a grammar."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pumice.engine.grammar import Grammar
from pumice.server.errors import bad_request
from pumice.server.settings import ServerSettings


def json_object() -> Grammar:
    """Any JSON object."""
    return Grammar("json_object")


def json_schema(schema: Any, settings: ServerSettings, param: str) -> Grammar:
    """400 for what is no schema, or a too large one. Whether it can be enforced the engine says."""
    if not isinstance(schema, Mapping | bool):
        raise bad_request(f"{param} is no JSON schema; an object is expected", param)
    size = len(json.dumps(schema, ensure_ascii=False).encode())
    _check_size(size, settings, param)
    return Grammar("json_schema", dict(schema) if isinstance(schema, Mapping) else schema)


def text_grammar(kind: Any, value: Any, settings: ServerSettings, param: str) -> Grammar:
    """A regular expression, or a grammar in Lark's notation."""
    if not isinstance(value, str) or not value:
        raise bad_request(f"{param} is {value!r:.80}; a text that is not empty is expected", param)
    _check_size(len(value.encode()), settings, param)
    return Grammar(kind, value)


def _check_size(size: int, settings: ServerSettings, param: str) -> None:
    if size > settings.max_schema_bytes:
        raise bad_request(
            f"{param} has {size:,} bytes; {settings.max_schema_bytes:,} are allowed", param
        )

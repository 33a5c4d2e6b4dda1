"""Calls that must come: a JSON schema of them, which a grammar enforces.

The output is `{"name": …, "arguments": {…}}`, or a list of such objects when several calls are
allowed, whatever a model's own notation is: the grammar leaves it no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pumice.server.core.job import Tools

MOST_CALLS = 16


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

"""What of a JSON Schema can be enforced, and which property cannot.

JSON Schema takes keywords that it does not know for remarks. Here they are refused: who wrote one
expects something of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from pumice.errors import GrammarError

_MAX_DEPTH = 128  # of schemas within schemas
_MOST_BLAMED = 1000  # schemas that are tried on their own to find the faulty one

# Keywords by what they hold: one schema, a list of schemas, schemas by name, or something else.
_ONE = ("items", "additionalProperties", "additionalItems")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_PLAIN = (
    "$ref", "const", "enum", "type", "minItems", "maxItems", "required", "minProperties",
    "maxProperties", "minLength", "maxLength", "pattern", "format", "minimum", "maximum",
    "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
)  # fmt: skip
_REMARKS = (
    "$anchor", "$schema", "$id", "$comment", "id", "title", "description", "default", "examples",
    "example", "deprecated", "readOnly", "writeOnly", "contentMediaType", "contentEncoding",
    "discriminator",
)  # fmt: skip
_KNOWN = frozenset((*_ONE, *_LISTS, *_NAMED, *_PLAIN, *_REMARKS))
_ESCAPABLE = frozenset("^$\\.*+?()[]{}|/-")  # ECMA-262 in its Unicode mode; "-" in classes


def read_schema(value: Any) -> Any:
    """A schema as JSON's types; GrammarError for what is no JSON, or has a bad keyword."""
    try:
        schema = json.loads(value) if isinstance(value, str) else value
        schema = json.loads(json.dumps(schema, allow_nan=False))
    except RecursionError:
        raise GrammarError(_too_deep()) from None
    except (ValueError, TypeError) as error:
        raise GrammarError(f"the schema is no JSON: {error}") from None
    if schema is False:
        raise GrammarError("the schema is false, which no output is valid for")
    _check(schema)
    return schema


def _check(schema: Any) -> None:
    todo = [("", schema, 0)]
    while todo:
        where, part, depth = todo.pop()
        if depth > _MAX_DEPTH:
            raise GrammarError(_too_deep(), where=where)
        if isinstance(part, bool):
            continue
        if not isinstance(part, dict):
            raise _fault(where, f"a schema is an object, true or false, not {_short(part)}")
        for key, value in part.items():
            _check_keyword(where, key, value, part)
        todo += [(inner, child, depth + 1) for inner, child in _children(where, part)]


def _check_keyword(where: str, key: str, value: Any, part: dict[str, Any]) -> None:
    place = f"{where}/{_escaped(key)}"
    if key not in _KNOWN and (key == "x-guidance" or not key.startswith("x-")):
        raise _fault(place, f"{key!r} cannot be enforced")
    if key in _LISTS and not isinstance(value, list):
        raise _fault(place, f"{key!r} holds {_short(value)}; allowed: a list of schemas")
    if key in _NAMED and not isinstance(value, dict):
        raise _fault(place, f"{key!r} holds {_short(value)}; allowed: schemas by name")
    if key == "pattern" and isinstance(value, str):
        check_escapes(value, "the pattern", place)
    if key == "patternProperties":
        for pattern in value:
            check_escapes(pattern, "the pattern", f"{place}/{_escaped(pattern)}")
    if key == "minProperties" and isinstance(value, int):
        # A free name may come twice, and would count once.
        required = part.get("required", [])
        if value > max(1, len(required) if isinstance(required, list) else 0):
            raise _fault(place, f"{value} properties are enforced only as 'required'")


def _children(where: str, part: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """(JSON pointer, schema) of those directly inside."""
    for key in part:
        value, place = part[key], f"{where}/{_escaped(key)}"
        if key in _NAMED:
            for name, child in value.items():
                yield f"{place}/{_escaped(name)}", child
        elif key in _LISTS or (key == "items" and isinstance(value, list)):
            for index, child in enumerate(value):
                yield f"{place}/{index}", child
        elif key in _ONE:
            yield place, value


def blame(schema: Any, error: str, fault_of: Callable[[Any], str]) -> GrammarError:
    """The error of the innermost schema that is wrong in the same way when it is alone.

    fault_of(schema): what is wrong with it, or "".
    """
    where, part, left = "", schema, _MOST_BLAMED
    shared = (
        {k: schema[k] for k in ("$defs", "definitions", "$schema") if k in schema}
        if (isinstance(schema, dict))
        else {}
    )
    found = True
    while found and isinstance(part, dict):
        found = False
        for inner, child in _children(where, part):
            left -= 1
            if left < 0:
                break
            alone = {**shared, **child} if isinstance(child, dict) else child
            if inner.split("/")[1] not in ("$defs", "definitions") and fault_of(alone) == error:
                where, part, found = inner, child, True
                break
    if isinstance(part, dict):
        named = [key for key in part if key in _PLAIN and key in error]
        if len(named) == 1:
            where = f"{where}/{_escaped(named[0])}"
    return _fault(where, error)


def check_escapes(pattern: str, what: str, where: str = "") -> None:
    """GrammarError for a backslash before a character that has no special meaning.

    ECMA-262 calls it a syntax error (in its Unicode mode, which JSON Schema asks for); engines that
    take it do not agree on what it means.
    """
    index = 0
    while (index := pattern.find("\\", index)) >= 0:
        after = pattern[index + 1 : index + 2]
        if not (after.isalnum() and after.isascii()) and after not in _ESCAPABLE:
            shown = f"\\{after}" if after else "\\ at its end"
            raise _fault(
                where,
                f"{what} {_short(pattern)} has the bad escape {shown} at character {index}",
                hint=f"Write {after!r} without the backslash." if after else None,
            )
        index += 2


def _fault(where: str, message: str, hint: str | None = None) -> GrammarError:
    place = f"the schema at {where!r}: " if where else ""
    return GrammarError(f"{place}{message.strip()}", where=where, hint=hint)


def _too_deep() -> str:
    return f"the schema is nested more than {_MAX_DEPTH} deep"


def _escaped(name: str) -> str:
    """As a step of a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."

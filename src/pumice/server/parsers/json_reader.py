"""JSON (RFC 8259) read while it arrives: where a value ends, and that it is one."""

from __future__ import annotations

import re

from pumice.server.parsers.source import Broken, Reading, Source

MAX_DEPTH = 100

# A string's characters up to a quote, a backslash or what may not stand in a string unescaped.
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_HEX = frozenset("0123456789abcdefABCDEF")
_NUMBER_CHARACTERS = re.compile(r"[-+0-9.eE]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_LITERALS = {"t": "true", "f": "false", "n": "null"}


def read_value(source: Source, depth: int = 0) -> Reading[None]:
    """Reads one value, white space before it included. Broken at the first character that cannot
    be right, and below `MAX_DEPTH` levels of nesting.
    """
    character = yield from source.skip_space()
    if character == '"':
        yield from read_string(source)
    elif character in "{[":
        if depth >= MAX_DEPTH:
            raise Broken("nested too deep")
        yield from _read_nested(source, character, depth)
    elif character in _LITERALS:
        yield from source.expect(_LITERALS[character])
    else:
        yield from _read_number(source)


def read_string(source: Source) -> Reading[None]:
    """Reads a string with its quotes."""
    yield from source.expect('"')
    while True:
        match = _PLAIN.match(source.text, source.position)
        assert match is not None  # it matches nothing, too
        source.position = match.end()
        character = yield from source.peek()
        if character == '"':
            source.position += 1
            return
        if character == "\\":
            yield from _read_escape(source)
        elif character < " ":
            raise Broken("a control character in a string")


def read_members(source: Source, first: bool) -> Reading[bool]:
    """Reads what stands between an object's members: nothing or a comma. False at the object's
    end, which is read.
    """
    character = yield from source.skip_space()
    if character == "}":
        source.position += 1
        return False
    if not first:
        yield from source.expect(",")
        yield from source.skip_space()
    return True


def _read_nested(source: Source, opening: str, depth: int) -> Reading[None]:
    source.position += 1
    closing = "}" if opening == "{" else "]"
    if (yield from source.skip_space()) == closing:
        source.position += 1
        return
    while True:
        if opening == "{":
            yield from source.skip_space()
            yield from read_string(source)
            yield from source.skip_space()
            yield from source.expect(":")
        yield from read_value(source, depth + 1)
        character = yield from source.skip_space()
        source.position += 1
        if character == closing:
            return
        if character != ",":
            raise Broken(f"{character!r} after a value")


def _read_escape(source: Source) -> Reading[None]:
    source.position += 1
    character = yield from source.peek()
    source.position += 1
    if character == "u":
        for _ in range(4):
            if (yield from source.peek()) not in _HEX:
                raise Broken("an escape that is no character")
            source.position += 1
    elif character not in '"\\/bfnrt':
        raise Broken("an escape that JSON does not have")


def _read_number(source: Source) -> Reading[None]:
    start = source.position
    while True:
        match = _NUMBER_CHARACTERS.match(source.text, source.position)
        assert match is not None  # it matches nothing, too
        source.position = match.end()
        if source.position < len(source.text):
            break
        yield from source.wait()
    if _NUMBER.fullmatch(source.text, start, source.position) is None:
        raise Broken("no value")

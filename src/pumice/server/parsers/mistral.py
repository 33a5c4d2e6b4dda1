"""Mistral's calls, after the token `[TOOL_CALLS]`.

Formats (mistral-common's tokenizers): up to v7 a list `[{"name": …, "arguments": {…}}, …]`; from
v11 on `name[CALL_ID]id[ARGS]{…}` or `name[ARGS]{…}`, each call after a token of its own; in between
`name{…}`.
"""

from __future__ import annotations

import re

from pumice.server.parsers.json_calls import JsonCallParser
from pumice.server.parsers.source import Broken, Reading

_NAME = re.compile(r"[A-Za-z0-9_.\-]*")
_MAX_NAME = 256


class MistralParser(JsonCallParser):
    """Both forms."""

    MARKERS = {"[TOOL_CALLS]": None}  # noqa: RUF012

    def section(self, opening: str) -> Reading[None]:
        if opening in self.MARKERS:
            yield from self.source.expect(opening)
            if (yield from self.source.skip_space()) not in "[{":
                name = yield from self._read_word()
                if (yield from self.source.accept("[CALL_ID]")):
                    yield from self._read_word()
                yield from self.source.accept("[ARGS]")
                yield from self.read_arguments(name)
                return
        yield from self.read_objects(strict=False)

    def _read_word(self) -> Reading[str]:
        source = self.source
        start = source.position
        while True:
            match = _NAME.match(source.text, source.position)
            assert match is not None  # it matches nothing, too
            source.position = match.end()
            if source.position - start > _MAX_NAME:
                raise Broken("a name without an end")
            if source.position < len(source.text):
                return source.text[start : source.position]
            yield from source.wait()

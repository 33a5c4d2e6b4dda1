"""DeepSeek's calls: V3 and R1 name a type and put the arguments into a fence; V3.1 does neither.

    <|tool▁calls▁begin|><|tool▁call▁begin|>function<|tool▁sep|>NAME
    ```json
    {…}
    ```<|tool▁call▁end|>…<|tool▁calls▁end|>

    <|tool▁calls▁begin|><|tool▁call▁begin|>NAME<|tool▁sep|>{…}<|tool▁call▁end|>…<|tool▁calls▁end|>

The bars are U+FF5C, the underlines U+2581.
"""

from __future__ import annotations

from pumice.server.parsers.source import Reading
from pumice.server.parsers.tool_parser import ToolParser

CALLS_BEGIN = "<\uff5ctool\u2581calls\u2581begin\uff5c>"
CALLS_END = "<\uff5ctool\u2581calls\u2581end\uff5c>"
CALL_BEGIN = "<\uff5ctool\u2581call\u2581begin\uff5c>"
CALL_END = "<\uff5ctool\u2581call\u2581end\uff5c>"
SEPARATOR = "<\uff5ctool\u2581sep\uff5c>"
_FENCE = "```"
_MAX_NAME = 256


class DeepSeekParser(ToolParser):
    """V3, R1 and V3.1; also without the tokens around all calls, which R1 forgets."""

    MARKERS = {CALLS_BEGIN: CALLS_END, CALL_BEGIN: CALL_END}  # noqa: RUF012

    def section(self, opening: str) -> Reading[None]:
        source = self.source
        calls = self.writer.calls
        if calls:  # an end of all calls is no content, even if this one is broken
            self.closing = CALLS_END
        if opening == CALLS_BEGIN:
            yield from source.expect(CALLS_BEGIN)
            yield from source.skip_space()
        yield from source.expect(CALL_BEGIN)
        name = yield from source.until(SEPARATOR, limit=_MAX_NAME)
        fenced = (yield from source.skip_space()) != "{"
        if fenced:
            name = yield from source.until("\n", limit=_MAX_NAME)
            yield from source.skip_space()
            yield from source.expect(_FENCE)
            yield from source.accept("json")
        yield from self.read_arguments(name.strip())
        if self.writer.calls == calls:
            return
        self.closing = CALLS_END
        yield from self.read_closing(_FENCE if fenced else None, calls)
        yield from self.read_closing(CALL_END, calls)
        yield from self.read_closing(CALLS_END, calls)

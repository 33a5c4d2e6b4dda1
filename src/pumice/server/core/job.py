"""What a client wants, in no protocol's words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pumice.engine.grammar import Grammar

Message = dict[str, Any]
ToolChoice = Literal["auto", "none", "required"]


@dataclass(frozen=True)
class Tools:
    """
    functions: `{"type": "function", "function": {"name", "description", "parameters"}}` each.
    choice: none hides them from the model. name: the one that must be called; choice is then
    "required". parallel: more than one call in an answer.
    """

    functions: tuple[dict[str, Any], ...] = ()
    choice: ToolChoice = "auto"
    name: str | None = None
    parallel: bool = True

    @property
    def shown(self) -> tuple[dict[str, Any], ...]:
        """Those that the model gets to see."""
        return () if self.choice == "none" else self.functions

    @property
    def forced(self) -> bool:
        """Whether the answer must be calls."""
        return bool(self.functions) and self.choice == "required"


@dataclass(frozen=True)
class Job:
    """One call of a client.

    messages: a conversation, for the model's template: `role` and `content` (a text), assistants'
    `tool_calls` with arguments as objects, `tool_call_id` of a tool's. Or prompt: a text that is
    continued as it is, or its token ids.

    sampling: fields of `SamplingParams` that the client gave, without stop, grammar and max_tokens.
    max_tokens: of the output, an upper bound; None: as many as fit. n: so many choices.
    grammar: what the text of an answer must look like. template: further variables of the template.
    truncate: leave out the oldest messages (or tokens) of a conversation (or prompt) that does not
    fit, instead of refusing it. salt: whose prefix cache. reserve: tokens of output that truncation
    leaves room for. generates: False for a prompt that is embedded, and needs no room for more.
    """

    messages: tuple[Message, ...] = ()
    prompt: str | list[int] | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    n: int = 1
    tools: Tools = field(default_factory=Tools)
    grammar: Grammar | None = None
    template: Mapping[str, Any] = field(default_factory=dict)
    priority: int = 0
    deadline_s: float | None = None
    truncate: bool = False
    keep_last: int | None = None
    echo_special: bool = False
    continue_final: bool = False
    salt: bytes = b""
    generates: bool = True

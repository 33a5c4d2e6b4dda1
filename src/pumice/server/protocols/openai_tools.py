"""`tools` and `tool_choice`, as OpenAI's chat has them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from pumice.server.context import ServerContext
from pumice.server.core.job import Tools
from pumice.server.errors import bad_request
from pumice.server.protocols.fields import Fields

_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


class FunctionDefinition(Fields):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(Fields):
    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(Fields):
    name: str


class NamedToolChoice(Fields):
    type: Literal["function"]
    function: NamedFunction


class AllowedTools(Fields):
    mode: Literal["auto", "required"]
    tools: list[dict[str, Any]] = Field(min_length=1)


class AllowedToolChoice(Fields):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


ToolChoiceField = Literal["none", "auto", "required"] | NamedToolChoice | AllowedToolChoice


def tools_of(
    context: ServerContext,
    definitions: Sequence[ToolDefinition] | None,
    choice: Any,
    parallel: bool | None,
) -> Tools:
    """400 for a bad name, a name that is there twice, or a choice among no tools."""
    functions = [_function(context, i, d) for i, d in enumerate(definitions or ())]
    names = [f["function"]["name"] for f in functions]
    if len(names) > context.settings.max_tools:
        raise bad_request(
            f"there are {len(names)} tools; {context.settings.max_tools} are allowed", "tools"
        )
    for name in names:
        if names.count(name) > 1:
            raise bad_request(f"the function {name!r} is there twice", "tools")
    name = None
    if isinstance(choice, NamedToolChoice):
        name, choice = choice.function.name, "required"
        if name not in names:
            raise bad_request(
                f"tool_choice names {name!r:.80}; tools has {', '.join(names) or 'none'}",
                "tool_choice",
            )
    elif isinstance(choice, AllowedToolChoice):
        allowed = _allowed(choice.allowed_tools, names)
        functions = [f for f in functions if f["function"]["name"] in allowed]
        choice = choice.allowed_tools.mode
    if choice == "required" and not functions:
        raise bad_request("tool_choice asks for a call, and tools is empty", "tool_choice")
    return Tools(tuple(functions), choice or "auto", name, parallel is not False)


def _function(context: ServerContext, index: int, definition: ToolDefinition) -> dict[str, Any]:
    function = definition.function
    if not _NAME.fullmatch(function.name):
        raise bad_request(
            f"the function's name is {function.name!r:.80}; allowed: 1 to 64 of a-z, A-Z, 0-9, "
            "_, - and .",
            f"tools[{index}].function.name",
        )
    told: dict[str, Any] = {"name": function.name}
    if function.description is not None:
        told["description"] = function.description
    told["parameters"] = function.parameters or {"type": "object", "properties": {}}
    if function.strict is not None:
        told["strict"] = function.strict
    return {"type": "function", "function": told}


def _allowed(allowed: AllowedTools, names: list[str]) -> set[str]:
    chosen = set()
    for tool in allowed.tools:
        function = tool.get("function")
        name = function.get("name") if isinstance(function, dict) else tool.get("name")
        if name not in names:
            raise bad_request(f"allowed_tools names {name!r:.80}, which tools lacks", "tool_choice")
        chosen.add(name)
    return chosen

"""Variables of a model's template that requests set."""

from __future__ import annotations

from typing import Any

from pumice.server.context import ServerContext
from pumice.server.errors import bad_request, unsupported

_OWN = ("messages", "tools", "add_generation_prompt", "documents")


def template_of(
    context: ServerContext, effort: str | None, given: dict[str, Any] | None
) -> dict[str, Any]:
    """Variables of the template. An effort is refused where the template knows none."""
    variables = dict(given or {})
    for name in variables:
        if name in _OWN:
            raise bad_request(f"chat_template_kwargs may not hold {name!r}", "chat_template_kwargs")
    if effort is None:
        return variables
    source = "" if context.template is None else context.template.source
    if "reasoning_effort" in source:
        variables.setdefault("reasoning_effort", effort)
    elif "enable_thinking" in source:
        variables.setdefault("enable_thinking", effort != "none")
    elif effort != "none":
        raise unsupported("reasoning_effort", f"{context.name} has one way to think")
    return variables

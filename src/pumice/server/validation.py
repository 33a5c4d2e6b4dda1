"""What a validator found, as one sentence about one field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pumice.server.errors import ApiError, bad_request, unsupported

# Fields of the protocols that do not work here, and why or what does.
_UNSUPPORTED = {
    "audio": "answers are text",
    "prediction": "outputs are predicted from the prompt without being told",
    "web_search_options": "there are no built-in tools",
    "functions": "use tools",
    "function_call": "use tool_choice",
    "moderation": "nothing is moderated",
    "conversation": "use previous_response_id",
    "prompt": "prompts are not kept here",
    "context_management": "use truncation",
    "container": "there are no built-in tools",
    "mcp_servers": "there are no built-in tools",
    "inference_geo": "answers are made where this server is",
}
# What says most about a mistake is told; a field is often missing because another one is wrong.
_RANK = {"extra_forbidden": 3, "literal_error": 2, "missing": 0}
_KNOWN = {
    "extra_forbidden": "is not a field of this request",
    "missing": "is missing",
}


def explain(errors: Sequence[Any], body: Any) -> ApiError:
    """400 for the first error; of several alternatives of one field, the one that came furthest."""
    error = max(errors, key=lambda e: (_RANK.get(e["type"], 1), len(e["loc"])))
    where = _place(error["loc"], body)
    if error["type"] == "json_invalid":
        return bad_request("the body is no JSON")
    if not where:
        return bad_request(
            "the body is not a JSON object" if body is not None else "there is no body"
        )
    if error["type"] == "extra_forbidden" and where in _UNSUPPORTED:
        return unsupported(where, _UNSUPPORTED[where])
    known = _KNOWN.get(error["type"])
    if known:
        code = "unknown_parameter" if error["type"] == "extra_forbidden" else None
        return bad_request(f"{where} {known}", where, code)
    same = [e for e in errors if _place(e["loc"], body) == where]
    wanted = " or ".join(
        dict.fromkeys(str(e["msg"]).removeprefix("Input should be ") for e in same)
    )
    return bad_request(f"{where} is {_shown(error.get('input'))}; allowed: {wanted}", where)


def _place(location: Sequence[Any], body: Any) -> str:
    """`messages[0].content`, without the names of alternatives that a validator puts between."""
    text, value = "", body
    steps = list(
        location[1:] if location and location[0] in ("body", "query", "path") else location
    )
    for i, step in enumerate(steps):
        if isinstance(step, int) and isinstance(value, list):
            text += f"[{step}]"
            value = value[step] if step < len(value) else None
        elif isinstance(value, dict) and step in value:
            text += f".{step}" if text else str(step)
            value = value[step]
        elif isinstance(value, dict) and i == len(steps) - 1:
            text += f".{step}" if text else str(step)  # a field that is missing
    return text


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "null"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

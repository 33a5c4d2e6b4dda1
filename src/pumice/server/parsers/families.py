"""Which parser a model's outputs need, and the parsers by name."""

from __future__ import annotations

import importlib
import secrets
import string
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias, get_args

from pumice.errors import UsageError
from pumice.server.parsers.output import OutputParser
from pumice.server.parsers.reasoning import MISTRAL_TAGS, TAGS, Reasoning, ReasoningFilter
from pumice.server.parsers.tool_parser import ToolParser

Family: TypeAlias = Literal["hermes", "llama3", "mistral", "deepseek", "qwen_coder", "generic"]

PARSERS: Mapping[str, str] = {
    "hermes": "pumice.server.parsers.json_calls:HermesParser",
    "llama3": "pumice.server.parsers.json_calls:Llama3Parser",
    "mistral": "pumice.server.parsers.mistral:MistralParser",
    "deepseek": "pumice.server.parsers.deepseek:DeepSeekParser",
    "qwen_coder": "pumice.server.parsers.qwen_coder:QwenCoderParser",
    "generic": "pumice.server.parsers.json_calls:GenericParser",
}

# What a chat template says when it asks for calls of a family; the first that is there decides.
_SIGNS: tuple[tuple[str, Family], ...] = (
    ("<function=", "qwen_coder"),
    ("<tool_call>", "hermes"),
    ("[TOOL_CALLS]", "mistral"),
    ("tool\u2581call\u2581begin", "deepseek"),
    ("<|python_tag|>", "llama3"),
    ("Environment: ipython", "llama3"),
)
# For templates that say nothing of tools: what such models were trained on most.
_ARCHITECTURES: Mapping[str, Family] = {
    "qwen2": "hermes",
    "qwen2_moe": "hermes",
    "qwen3": "hermes",
    "qwen3_moe": "hermes",
    "mistral": "mistral",
    "mixtral": "mistral",
    "deepseek_v2": "deepseek",
    "deepseek_v3": "deepseek",
}


def choose_family(chat_template: str | None, architecture: str) -> Family:
    """The family of a model's calls. chat_template: its Jinja source. architecture: its
    `model_type`; decides when the template has no sign of a family.
    """
    for sign, family in _SIGNS:
        if sign in (chat_template or ""):
            return family
    return _ARCHITECTURES.get(architecture, "generic")


def make_parser(
    family: Family,
    tools: Iterable[Mapping[str, Any]],
    *,
    reasoning: Reasoning,
    eager: bool = False,
    new_id: Callable[[], str] | None = None,
) -> OutputParser:
    """A parser for one output. Special tokens must be in its text: `[TOOL_CALLS]` and some others
    are such.

    tools: as in OpenAI's request, {"type": "function", "function": {"name", "parameters"}}, or the
    inner object alone; none: calls stay content. reasoning: `reasoning.choose_reasoning` knows.
    eager: tell arguments as they come, right only when a grammar enforces calls; without it a call
    is told when it is whole, since a broken one is content. new_id: makes a call's identifier.
    UsageError for an unknown family or reasoning, or a tool without a name.
    """
    if family not in PARSERS:
        raise UsageError(f"the family of tool calls is {family!r}; allowed: {sorted(PARSERS)}")
    if reasoning not in get_args(Reasoning):
        raise UsageError(f"reasoning is {reasoning!r}; allowed: {list(get_args(Reasoning))}")
    schemas = dict(map(_schema, tools))
    parser = None
    if schemas:
        module, _, name = PARSERS[family].partition(":")
        kind: type[ToolParser] = getattr(importlib.import_module(module), name)
        default = mistral_id if family == "mistral" else openai_id
        parser = kind(schemas, new_id or default, eager=eager)
    tags = MISTRAL_TAGS if family == "mistral" else TAGS
    return OutputParser(ReasoningFilter(reasoning, tags), parser)


def openai_id() -> str:
    """A call's identifier as OpenAI's look."""
    return f"call_{secrets.token_hex(12)}"


def mistral_id() -> str:
    """A call's identifier that Mistral's templates accept: nine letters or digits."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))


def _schema(tool: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    function = tool.get("function", tool)
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not name:
        raise UsageError(f"a tool has no name: {tool!r}")
    schema = function.get("parameters")
    return name, schema if isinstance(schema, Mapping) else {}

"""What a request's output must look like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from pumice.errors import GrammarError

GrammarKind = Literal["json_object", "json_schema", "regex", "lark"]


@dataclass(frozen=True)
class Grammar:
    """
    kind and value: "json_object", None: any JSON object. "json_schema": a schema, as a mapping, a
    boolean or JSON text (JSON Schema 2020-12, as far as it can be enforced). "regex": a regular
    expression that the whole output matches. "lark": a context-free grammar in Lark's notation,
    as llguidance extends it.

    Whether the value is one that can be enforced is for `LLMEngine.prepare` to say; it knows the
    vocabulary. GrammarError for a kind that does not exist, or a value of another type.
    """

    kind: GrammarKind
    value: str | dict[str, Any] | bool | None = None

    def __post_init__(self) -> None:
        kinds = get_args(GrammarKind)
        if self.kind not in kinds:
            raise GrammarError(f"the grammar's kind is {self.kind!r}; allowed: {', '.join(kinds)}")
        allowed, what = _VALUES[self.kind]
        if not isinstance(self.value, allowed):
            raise GrammarError(
                f"a grammar of kind {self.kind!r} came with a {type(self.value).__name__}; "
                f"allowed: {what}"
            )


_VALUES: dict[str, tuple[tuple[type, ...], str]] = {
    "json_object": ((type(None),), "no value"),
    "json_schema": ((str, dict, bool), "a schema (an object, true or false, or its JSON text)"),
    "regex": ((str,), "a string"),
    "lark": ((str,), "a string"),
}

"""The Jinja environment that chat templates run in: Hugging Face's helpers, and bounds.

A template comes with a model from anywhere. Jinja's immutable sandbox keeps it away from Python;
the budget keeps it from running for ever and from filling the memory. Loop turns, calls and filters
are steps of the budget, what is written is counted, and an operation is refused when its result
would be too large.
"""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Callable
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from pumice.text import budget

_COUNTED_LITERAL = 64  # shorter pieces of a template's own text are bounded by the steps


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox with a budget."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Instrument().visit(super()._parse(source, name, filename))
        return tree

    def turn(self) -> None:
        """Called in every loop turn; `call` has counted it."""

    def write(self, count: int) -> None:
        """Called before the template's own text is written."""
        budget.current().write(count)

    def concat_checked(self, *parts: Any) -> str:
        """`a ~ b`."""
        budget.check_text(parts)
        return "".join(str(part) for part in parts)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        budget.current().step()
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps str.format
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(owner, str | bytes) and name == "join" and args:
            args = (list(args[0]), *args[1:])  # a generator has no size to check
        budget.check_method(owner, name, args, kwargs)
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        budget.check_operator(operator, left, right)
        return super().call_binop(context, operator, left, right)


def _call(method: str, arguments: list[nodes.Expr], line: int) -> nodes.Call:
    """A node that calls a method of the environment."""
    call = nodes.Call(nodes.EnvironmentAttribute(method), arguments, [], None, None)
    return call.set_lineno(line)  # type: ignore[return-value]


def _statement(call: nodes.Call) -> nodes.Node:
    return nodes.ExprStmt(call).set_lineno(call.lineno)


class _Instrument(NodeTransformer):
    """Puts the counting into a parsed template, where the environment has no other hook."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, _statement(_call("turn", [], node.lineno)))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call("concat_checked", node.nodes, node.lineno)

    def visit_Output(self, node: nodes.Output) -> nodes.Node | list[nodes.Node]:
        length = sum(len(part.data) for part in node.find_all(nodes.TemplateData))
        for constant in node.find_all(nodes.Const):  # Jinja computes `{{ "constant" }}` beforehand
            length += len(constant.value) if isinstance(constant.value, str) else 0
        self.generic_visit(node)
        if length < _COUNTED_LITERAL:
            return node
        return [_statement(_call("write", [nodes.Const(length)], node.lineno)), node]


def _finalize(value: Any) -> Any:
    """Runs on all that `{{ }}` writes: to the output, a macro's result or a variable."""
    if isinstance(value, str):
        budget.current().write(len(value))
    else:
        budget.check_text(value)
    return value


def _bounded(function: Callable[..., Any], check: Callable[..., None]) -> Callable[..., Any]:
    """A filter whose arguments, without Jinja's own, are checked first."""
    own = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)  # keeps Jinja's marks
    def run(*args: Any, **kwargs: Any) -> Any:
        budget.current().step()
        check(*args[own:], **kwargs)
        return function(*args, **kwargs)

    return run


def _check_text_filter(value: Any, *args: Any, **kwargs: Any) -> None:
    if not isinstance(value, str):
        budget.check_text(value)
    budget.check_widths(*args, *kwargs.values())


def _check_format_filter(value: Any, *args: Any, **kwargs: Any) -> None:
    budget.check_format(str(value))
    budget.check_text([*args, kwargs])


def _check_replace_filter(s: Any, old: Any, new: Any, count: Any = None) -> None:
    budget.check_text(s)
    budget.check_replace(s, old, new)


@jinja2.pass_eval_context
def _join(context: Any, value: Any, d: Any = "", attribute: str | int | None = None) -> str:
    """Jinja's `join`, without markup and with a bound."""
    budget.current().step()
    if attribute is not None:
        value = map(make_attrgetter(context.environment, attribute), value)
    items = list(value)
    budget.check_text([*items, *[str(d)] * len(items)])
    return str(d).join(str(item) for item in items)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As Hugging Face's: plain JSON, where Jinja's own filter escapes for HTML."""
    budget.current().step()
    budget.check_text(value)
    budget.check_widths(indent)
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    budget.check_format(format)
    return datetime.datetime.now().strftime(format)


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks the model's part; in a prompt it is its
    content.
    """

    tags = {"generation"}  # noqa: RUF012 - Jinja's interface

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


_TEXT_FILTERS = (
    *("string", "upper", "lower", "capitalize", "title", "trim", "escape", "e", "forceescape"),
    *("indent", "wordwrap", "wordcount", "truncate", "urlencode", "pprint", "center", "round"),
)
# For web pages, and their regular expressions take long on long text; or made to write much.
_LEFT_OUT_FILTERS = ("urlize", "striptags", "xmlattr", "batch", "slice")


def make_environment() -> ChatEnvironment:
    """A fresh environment with Transformers' settings."""
    environment = ChatEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _Generation],
        finalize=_finalize,
    )
    filters = environment.filters
    for name in _TEXT_FILTERS:
        filters[name] = _bounded(filters[name], _check_text_filter)
    for name in _LEFT_OUT_FILTERS:
        del filters[name]
    filters["format"] = _bounded(filters["format"], _check_format_filter)
    filters["replace"] = _bounded(filters["replace"], _check_replace_filter)
    filters["join"] = _join
    filters["tojson"] = _tojson
    del environment.globals["lipsum"]
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment

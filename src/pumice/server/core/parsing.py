"""How a job's output is read: by which parser, who looks for stop strings, what is enforced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pumice.engine.grammar import Grammar
from pumice.server.core.choice import Choice, OutputParser, PlainParser
from pumice.server.core.enforced import calls_schema, has_strict, strict_grammar
from pumice.server.core.job import Job
from pumice.server.core.tool_prompt import knows_tools
from pumice.server.errors import unsupported
from pumice.server.parsers import Family, Reasoning, choose_reasoning, make_parser

if TYPE_CHECKING:
    from pumice.server.context import ServerContext

_TAIL = 16  # tokens of a prompt's end that may open the reasoning
_NO_REASONING = "\n</think>\n\n"


@dataclass(frozen=True)
class Reader:
    """
    prompt: the job's, after which the output comes. plain: all of the output is content, and the
    engine looks for stop strings itself. show_control: control tokens are text, because the parser
    looks for some. grammar: what the output must look like.
    """

    job: Job
    prompt: list[int]
    family: Family
    reasoning: Reasoning
    show_control: bool
    grammar: Grammar | None

    @property
    def plain(self) -> bool:
        return self.reasoning == "off" and not self.job.tools.shown

    def choice(self, hidden: frozenset[str]) -> Choice:
        """For one output. hidden: control tokens, which are not shown whoever reads them."""
        return Choice(
            self._parser(),
            () if self.plain else self.job.stop,
            one_call=not self.job.tools.parallel,
            hidden=hidden if self.show_control else frozenset(),
        )

    def _parser(self) -> OutputParser:
        if self.plain:
            return PlainParser()
        tools = self.job.tools
        if tools.forced:
            return make_parser("generic", tools.functions, reasoning="off", eager=True)
        return make_parser(self.family, tools.shown, reasoning=self.reasoning)


def family_of(context: ServerContext, job: Job) -> Family:
    """How calls are written. A template that knows no tools is told by us."""
    if has_strict(job.tools) and context.template and not knows_tools(context.template.source):
        return "hermes"
    return context.family


def reader_for(context: ServerContext, job: Job, prompt: list[int]) -> Reader:
    """400 for formats that exclude each other.

    What is enforced begins at once, so a model that would reason first is told that it has.
    """
    tools, grammar = job.tools, job.grammar
    if tools.shown and grammar is not None:
        raise unsupported("response_format", "it does not go with tools; or set tool_choice: none")
    family: Family = family_of(context, job)
    strict = not tools.forced and has_strict(tools)
    if strict and family != "hermes":
        why = f"{context.name}'s notation of calls cannot be enforced when they may come or not"
        raise unsupported("tools", f"{why}; leave strict out, or set tool_choice: required")
    if tools.forced:
        grammar = Grammar("json_schema", calls_schema(tools))
    reasoning: Reasoning = "off"
    if job.prompt is None and not job.continue_final:
        tail = context.tokenizer.decode(prompt[-_TAIL:], skip_special=False)
        reasoning = choose_reasoning(context.tokenizer.chat_template, tail)
    if grammar is not None and reasoning != "off":
        if reasoning == "open":
            prompt = prompt + context.tokenizer.encode(
                _NO_REASONING, add_special=False, parse_special=True
            )
        reasoning = "off"
    if strict:
        grammar = strict_grammar(tools)
    watched = bool(tools.shown and not tools.forced) or reasoning != "off"
    return Reader(job, prompt, family, reasoning, watched and context.shows_control, grammar)

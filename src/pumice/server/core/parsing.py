"""How a job's output is read: which parser, where stop strings are looked for, what is enforced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pumice.engine.grammar import Grammar
from pumice.server.core.choice import Choice, OutputParser, PlainParser
from pumice.server.core.job import Job
from pumice.server.errors import ApiError

if TYPE_CHECKING:
    from pumice.server.context import ServerContext


@dataclass(frozen=True)
class Reader:
    """
    engine_stops: the engine looks for stop strings itself, in the whole text. show_control: control
    tokens are text, because the parser looks for some. grammar: what the output must look like.
    """

    job: Job
    engine_stops: bool = True
    show_control: bool = False
    grammar: Grammar | None = None

    def choice(self) -> Choice:
        """For one output."""
        stop = () if self.engine_stops else self.job.stop
        return Choice(self._parser(), stop, one_call=not self.job.tools.parallel)

    def _parser(self) -> OutputParser:
        return PlainParser()


def reader_for(context: ServerContext, job: Job, prompt: list[int]) -> Reader:
    """400 for what this model's output cannot be made to be."""
    if job.tools.shown:
        raise ApiError(501, "tools do not work yet", param="tools", code="not_implemented")
    return Reader(job, grammar=job.grammar)

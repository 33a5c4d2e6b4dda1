"""Tokens of the request that a task works for, for its line in the log."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass
class Tally:
    """Prompts are counted once, however many outputs they have."""

    prompt: int = 0
    output: int = 0

    def __str__(self) -> str:
        return f" {self.prompt}+{self.output} tokens" if self.prompt else ""


TALLY: ContextVar[Tally] = ContextVar("tally")

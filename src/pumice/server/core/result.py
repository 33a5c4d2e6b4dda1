"""A job's steps added up: the answers without streaming are what a reader of the stream has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pumice.engine.request import TokenLogprob
from pumice.server.core.generate import End, Generation, Step
from pumice.server.parsers.events import (
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
)


@dataclass
class Call:
    """arguments: a JSON object, as text."""

    call_id: str
    name: str
    arguments: str = ""


@dataclass
class Result:
    """One choice."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    end: End | None = None

    def add(self, step: Step) -> None:
        self.add_events(step.events)
        self.token_ids += step.token_ids
        self.logprobs += step.logprobs
        self.end = step.end or self.end

    def add_events(self, events: Iterable[Event]) -> None:
        for event in events:
            match event:
                case ContentDelta(text):
                    self.content += text
                case ReasoningDelta(text):
                    self.reasoning += text
                case ToolCallStart(_, call_id, name):
                    self.calls.append(Call(call_id, name))
                case ToolCallArguments(index, fragment):
                    self.calls[index].arguments += fragment


@dataclass(frozen=True)
class Usage:
    """Tokens of a job: its prompts counted once, all choices' outputs."""

    prompt: int
    output: int
    cached: int = 0
    reasoning: int = 0

    @staticmethod
    def of(prompt_tokens: int, ends: Iterable[End | None]) -> Usage:
        known = [end for end in ends if end is not None]
        return Usage(
            prompt=prompt_tokens,
            output=sum(end.output_tokens for end in known),
            cached=max((end.cached_tokens for end in known), default=0),
            reasoning=sum(end.reasoning_tokens for end in known),
        )

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt + other.prompt,
            self.output + other.output,
            self.cached + other.cached,
            self.reasoning + other.reasoning,
        )


async def collect(generation: Generation, choices: int) -> list[Result]:
    """Reads all of it."""
    results = [Result() for _ in range(choices)]
    try:
        async for step in generation.steps:
            results[step.index].add(step)
    finally:
        await generation.steps.aclose()
    return results

"""Reasoning, set apart from the answer: `<think>…</think>` at the beginning of an output."""

from __future__ import annotations

from enum import Enum
from typing import Literal, TypeAlias

# off: it is content. tagged: if the output begins with the tag. open: the prompt ended with the
# tag (templates of DeepSeek-R1, QwQ, Qwen3-Thinking), the output begins inside.
Reasoning: TypeAlias = Literal["off", "tagged", "open"]

TAGS = ("<think>", "</think>")
MISTRAL_TAGS = ("[THINK]", "[/THINK]")


class _State(Enum):
    BEFORE = "before"
    BEGINNING = "beginning"
    INSIDE = "inside"
    BEHIND = "behind"
    PASSED = "passed"


class ReasoningFilter:
    """Text in pieces → (reasoning, content), whatever the pieces.

    Line ends next to a tag belong to the markup. Text that may be part of a tag is held back. A
    tag within the answer is text: a model may be asked about it.
    """

    def __init__(self, reasoning: Reasoning, tags: tuple[str, str] = TAGS) -> None:
        self._opening, self._closing = tags
        self._held = ""
        start = {"off": _State.PASSED, "tagged": _State.BEFORE, "open": _State.BEGINNING}
        self._state = start[reasoning]
        self._opened = reasoning != "open"

    def push(self, text: str) -> tuple[str, str]:
        """What more text makes certain."""
        self._held += text
        reasoning = ""
        if self._state is _State.BEFORE:
            self._before()
        if self._state is _State.BEGINNING:
            self._beginning()
        if self._state is _State.INSIDE:
            reasoning = self._inside()
        if self._state is _State.BEHIND:
            self._held = self._held.lstrip("\r\n")
            if self._held:
                self._state = _State.PASSED
        content = ""
        if self._state is _State.PASSED:
            content, self._held = self._held, ""
        return reasoning, content

    def finish(self) -> tuple[str, str]:
        """The rest: no more text will come."""
        held, self._held = self._held, ""
        if self._state is _State.BEGINNING:
            return held.strip("\r\n"), ""
        if self._state is _State.INSIDE:
            return held.rstrip("\r\n"), ""
        return "", held

    def _before(self) -> None:
        text = self._held.lstrip()
        if text.startswith(self._opening):
            self._held = text[len(self._opening) :]
            self._state = _State.BEGINNING
        elif not self._opening.startswith(text):
            self._state = _State.PASSED

    def _beginning(self) -> None:
        text = self._held.lstrip("\r\n")
        if not self._opened:  # some models repeat the tag that their prompt ended with
            if text.startswith(self._opening):
                self._opened = True
                self._held = text[len(self._opening) :]
                self._beginning()
                return
            if self._opening.startswith(text):
                return
        if text:
            self._held = text
            self._state = _State.INSIDE

    def _inside(self) -> str:
        found = self._held.find(self._closing)
        if found >= 0:
            reasoning = self._held[:found].rstrip("\r\n")
            self._held = self._held[found + len(self._closing) :]
            self._state = _State.BEHIND
            return reasoning
        certain = len(self._held)
        for length in range(min(len(self._closing) - 1, certain), 0, -1):
            if self._closing.startswith(self._held[-length:]):
                certain -= length
                break
        reasoning = self._held[:certain].rstrip("\r\n")
        self._held = self._held[len(reasoning) :]
        return reasoning


def choose_reasoning(chat_template: str | None, prompt: str) -> Reasoning:
    """How the outputs of a model think. chat_template: its Jinja source. prompt: what the template
    made of the conversation; it decides whether the output begins inside.
    """
    template = chat_template or ""
    for opening, closing in (TAGS, MISTRAL_TAGS):
        if prompt.rstrip().endswith(opening):
            return "open"
        if opening in template or closing in template:
            return "tagged"
    return "off"

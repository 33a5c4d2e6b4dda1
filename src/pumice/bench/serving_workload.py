"""What is asked of a server: random text of wanted lengths, or a file of conversations."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pumice.bench.serving import Prompt
from pumice.errors import ModelFileError, StorageError, UsageError

# Words that are one token, with the space before them, in about every vocabulary.
_WORDS = (
    "the of and to in is that for it as was with be by on not he his but at are this have from "
    "or had an they which one you were all her she there would their we him been has when who "
    "will no more if out so up said what its about than into them can only other time new some "
    "could these two may first then do any like my now over such our man me even most made "
    "after also did many off before must well back through years where much your way down "
    "should because long each just state those people too mr how little good world make very "
    "year still see own work men day get here old life both between being under three never "
    "know same last another while us might great"
).split()
_CHARACTERS_PER_TOKEN = 4.0  # of English text, roughly; only for the lengths of a trace's answers


def random_prompts(
    count: int, input_tokens: int, output_tokens: int, *, spread: float, seed: int,
    shared_tokens: int = 0,
) -> list[Prompt]:  # fmt: skip
    """Prompts of random words, about a token each; they begin alike only by chance.

    spread: lengths are drawn evenly from (1 - spread) to (1 + spread) times what is asked.
    shared_tokens: words that all prompts begin with, to use a prefix cache.
    """
    for name, value in (("--input", input_tokens), ("--output", output_tokens)):
        if value < 1:
            raise UsageError(f"{name} is {value}; it must be at least 1 token")
    if not 0 <= spread < 1:
        raise UsageError(f"--spread is {spread:g}; allowed: 0 up to, but not, 1")
    if shared_tokens < 0:
        raise UsageError(f"--shared is {shared_tokens}; it must be at least 0")
    draw = random.Random(seed)

    def length(mean: int) -> int:
        return max(1, round(mean * draw.uniform(1 - spread, 1 + spread)))

    shared = draw.choices(_WORDS, k=shared_tokens)
    return [
        Prompt(
            " ".join([*shared, *draw.choices(_WORDS, k=length(input_tokens))]),
            length(output_tokens),
        )
        for _ in range(count)
    ]


def trace_prompts(path: Path, count: int, *, longest: int, seed: int) -> list[Prompt]:
    """Prompts out of a trace, in random order, again from the front when it is too short.

    path: JSON (a list) or JSON lines of conversations, ShareGPT's `{"conversations": [{"from":
    "human", "value": …}, {"from": "gpt", "value": …}]}` or `{"messages": [{"role", "content"}]}`.
    A conversation's first question is asked; the answer that follows in the file gives the length,
    at most `longest` tokens.
    """
    conversations = _read(path)
    prompts = [p for p in (_prompt(item, longest) for item in conversations) if p is not None]
    if not prompts:
        raise ModelFileError(
            f"{path} holds no question with an answer",
            hint='Expected: [{"conversations": [{"from": "human", "value": "…"}, '
            '{"from": "gpt", "value": "…"}]}, …]',
        )
    random.Random(seed).shuffle(prompts)
    return [prompts[i % len(prompts)] for i in range(count)]


def _read(path: Path) -> Sequence[Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise StorageError(f"--trace {path} cannot be read: {reason}") from None
    try:
        if text.lstrip().startswith("["):
            data = json.loads(text)
            return data if isinstance(data, list) else []
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError as error:
        raise ModelFileError(f"--trace {path} is no JSON: {error}") from None


def _prompt(item: Any, longest: int) -> Prompt | None:
    if not isinstance(item, Mapping):
        return None
    turns = item.get("conversations") or item.get("messages") or ()
    texts: dict[str, str] = {}
    for turn in turns:
        if not isinstance(turn, Mapping):
            return None
        role = turn.get("from", turn.get("role"))
        side = {"human": "question", "user": "question", "gpt": "answer", "assistant": "answer"}
        text = turn.get("value", turn.get("content"))
        if isinstance(text, str) and text.strip() and isinstance(role, str) and role in side:
            if side[role] == "answer" and "question" not in texts:
                continue
            texts.setdefault(side[role], text)
    if len(texts) < 2:
        return None
    tokens = round(len(texts["answer"]) / _CHARACTERS_PER_TOKEN)
    return Prompt(texts["question"], max(1, min(longest, tokens)))

"""Names and sizes of model tests, by llama-bench's convention.

pp512: one prompt of 512 tokens. tg128: 128 single-token steps after a prompt of one token. @d1024:
with 1024 tokens in the cache before. @b8: of 8 sequences together, whose tokens all count.
https://github.com/ggml-org/llama.cpp/tree/master/tools/llama-bench
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pumice.errors import UsageError


@dataclass(frozen=True)
class ModelTest:
    """kind: "pp" or "tg". tokens: how many are timed, of each sequence. depth: tokens in the cache
    before, of each. batch: sequences."""

    kind: str
    tokens: int
    depth: int = 0
    batch: int = 1

    @property
    def name(self) -> str:
        depth = f"@d{self.depth}" if self.depth else ""
        return f"{self.kind}{self.tokens}{depth}" + (f"@b{self.batch}" if self.batch > 1 else "")

    @property
    def all_tokens(self) -> int:
        """Of all sequences."""
        return self.batch * self.tokens

    @property
    def context(self) -> int:
        """Positions that a sequence of the test needs."""
        return self.depth + self.tokens + (1 if self.kind == "tg" else 0)


def expand(
    prompts: Sequence[int],
    generates: Sequence[int],
    depths: Sequence[int],
    batches: Sequence[int] = (1,),
) -> list[ModelTest]:
    """Every prompt length (of one sequence) and every generation length with every batch, at every
    depth; a length of 0 stands for no such test.
    """
    if 0 in batches:
        raise UsageError("a batch of 0 sequences has nothing to measure; 1 or more are allowed")
    tests = [
        ModelTest(kind, tokens, depth, batch)
        for depth in depths
        for kind, lengths, sizes in (("pp", prompts, (1,)), ("tg", generates, batches))
        for tokens in lengths
        for batch in sizes
        if tokens
    ]
    if not tests:
        raise UsageError(
            "there is nothing to measure: all lengths are 0",
            hint="Give a prompt length (-p 512) or a generation length (-n 128).",
        )
    return list(dict.fromkeys(tests))


def parse_lengths(option: str, text: str) -> list[int]:
    """ "512,1024" → [512, 1024]; UsageError names the option and the value."""
    try:
        lengths = [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{option} is {text!r}; give integers, separated by commas") from None
    for length in lengths:
        if not 0 <= length <= 1 << 24:
            raise UsageError(f"{option} is {text!r}; {length} is outside 0 to {1 << 24:,}")
    return lengths

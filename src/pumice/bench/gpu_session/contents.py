"""What a run holds: published shapes without weights for speed, and small models with weights for
answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pumice.bench.tests import ModelTest, expand, parse_lengths

FILE = "session.json"  # of a preparation


@dataclass(frozen=True)
class Speeds:
    """A published shape (or a checkpoint, of which only the shapes count) and its tests, as `pumice
    bench` takes them: prompts -p, generations -n, depths -d, batches -b, each a group of its own.
    profiles: names of tests whose step is profiled.
    """

    shape: str
    groups: tuple[tuple[str, str, str, str], ...]  # -p, -n, -d, -b
    profiles: tuple[str, ...] = ()

    @property
    def tests(self) -> list[ModelTest]:
        found: list[ModelTest] = []
        for prompts, generates, depths, batches in self.groups:
            found += expand(
                parse_lengths("-p", prompts),
                parse_lengths("-n", generates),
                parse_lengths("-d", depths),
                parse_lengths("-b", batches),
            )
        return list(dict.fromkeys(found))

    @property
    def sequences(self) -> int:
        return max(test.batch for test in self.tests)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Speeds:
        groups = tuple((str(p), str(n), str(d), str(b)) for p, n, d, b in data["groups"])
        return Speeds(str(data["shape"]), groups, tuple(data["profiles"]))


SPEEDS: tuple[Speeds, ...] = (
    Speeds(
        "llama-2-7b",
        (("512,4096", "128", "0", "1"), ("0", "512", "0", "1"), ("0", "128", "0", "8,32,64")),
        profiles=("tg128", "pp512", "tg128@b64"),
    ),
    # The plans' longest context is 8192: 8000 before, one token and 128 that are timed.
    Speeds(
        "llama-3-8b",
        (("512", "128", "0", "1"), ("0", "128", "8000", "1")),
        profiles=("tg128@d8000",),
    ),
    Speeds("llama-2-13b", (("512", "128", "0", "1"),)),
)
#: TINY models by architecture and weight format: the kinds of products that GPUs have.
TINY: tuple[tuple[str, str], ...] = (
    ("llama", "q4f16_1"), ("mistral", "q8f16"), ("qwen2", "f16"), ("qwen3", "q4f16_1"),
)  # fmt: skip
#: Of the small real model.
PROMPTS: Sequence[str] = (
    "The capital of France is",
    "Once upon a time, in a small village at the edge of a great forest, there lived",
    "def fibonacci(n):\n    ",
    "Water boils at a lower temperature on a mountain because",
)
ANSWER = 48  # tokens of each answer
#: An answer counts up to the first token whose logit is so near to the second best's: there, other
#: roundings may choose either, and what follows is another text.
NEAR_TIE = 0.03
TINY_PROMPT, TINY_ANSWER = 38, 8
TINY_CHUNKS = (15, 1, 16, 1, 5)  # a prompt's tokens, step by step

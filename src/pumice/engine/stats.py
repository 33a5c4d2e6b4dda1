"""What the engine has done, and how fast."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import asdict, dataclass, field
from typing import Any

_SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 30.0,
    60.0, 120.0,
)  # fmt: skip
_SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512)


class Histogram:
    """How many observations were not above each bound (and above all smaller ones).

    counts[i] belongs to bounds[i]; the last one to what is above all bounds. Not cumulative.
    """

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.count = 0
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.count += 1
        self.sum += value

    def as_dict(self) -> dict[str, Any]:
        return {
            "bounds": list(self.bounds),
            "counts": list(self.counts),
            "count": self.count,
            "sum": self.sum,
        }


@dataclass
class Histograms:
    """Since the engine was made. Seconds, but for `batch_size`: sequences of a step."""

    ttft_s: Histogram = field(default_factory=lambda: Histogram(_SECONDS))
    inter_token_s: Histogram = field(default_factory=lambda: Histogram(_SECONDS))
    queue_s: Histogram = field(default_factory=lambda: Histogram(_SECONDS))
    batch_size: Histogram = field(default_factory=lambda: Histogram(_SIZES))

    def as_dict(self) -> dict[str, Any]:
        return {name: histogram.as_dict() for name, histogram in vars(self).items()}


@dataclass
class Decisions:
    """What was decided about requests, since the engine was made.

    admitted: a sequence got its blocks, also again. preempted: it lost them. chunks: parts of
    prompts that were computed. rejected: the queue was full. cancelled, deadline: requests that
    ended so.
    """

    admitted: int = 0
    preempted: int = 0
    chunks: int = 0
    rejected: int = 0
    cancelled: int = 0
    deadline: int = 0


@dataclass
class EngineStats:
    """Sums since the engine was made or its stats were replaced.

    Seconds are those spent in steps. A step that holds both prompt and decoded tokens is divided
    by their numbers. A decoded token is one that was computed alone, after the prompt.
    """

    prefill_tokens: int = 0  # computed; those found in the cache are not among them
    prefill_s: float = 0.0
    decode_tokens: int = 0
    decode_s: float = 0.0
    prompt_tokens: int = 0  # of requests that began to run
    cached_tokens: int = 0  # of those, found in the cache
    steps: int = 0
    first_tokens: int = 0  # requests that have their first token
    ttft_s: float = 0.0  # from submission to the first token, summed over them
    last_ttft_s: float = 0.0
    finished: int = 0  # outputs

    def record(self, tokens: int, decode_tokens: int, wrong: int, seconds: float) -> None:
        """A step computed `tokens` tokens: `decode_tokens` decoded, `wrong` of them in vain."""
        self.steps += 1
        share = seconds * decode_tokens / tokens
        self.decode_tokens += decode_tokens - wrong
        self.decode_s += share
        self.prefill_tokens += tokens - decode_tokens
        self.prefill_s += seconds - share

    def first_token(self, seconds: float, prompt_tokens: int, cached_tokens: int) -> None:
        """A request has its first token, `seconds` after it was submitted."""
        self.first_tokens += 1
        self.ttft_s += seconds
        self.last_ttft_s = seconds
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens

    @property
    def prefill_rate(self) -> float:
        """Tokens per second; 0 before there were any."""
        return self.prefill_tokens / self.prefill_s if self.prefill_s else 0.0

    @property
    def decode_rate(self) -> float:
        """Tokens per second; 0 before there were any."""
        return self.decode_tokens / self.decode_s if self.decode_s else 0.0

    @property
    def hit_rate(self) -> float:
        """Part of the prompts' tokens that was in the cache."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def mean_ttft_s(self) -> float:
        return self.ttft_s / self.first_tokens if self.first_tokens else 0.0

    def since(self, earlier: EngineStats) -> EngineStats:
        """What was added since a copy was taken."""
        before = asdict(earlier)
        sums = {name: value - before[name] for name, value in asdict(self).items()}
        return EngineStats(**{**sums, "last_ttft_s": self.last_ttft_s})

    def as_dict(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "prefill_tokens_per_s": self.prefill_rate,
            "decode_tokens_per_s": self.decode_rate,
            "cache_hit_rate": self.hit_rate,
            "mean_ttft_s": self.mean_ttft_s,
        }

    def __str__(self) -> str:
        return f"prefill: {self.prefill_rate:.1f} tok/s, decode: {self.decode_rate:.1f} tok/s"

"""What the engine has done, and how fast."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


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
    finished: int = 0

    def record(self, tokens: int, decode_tokens: int, seconds: float) -> None:
        """A step computed `tokens` tokens, `decode_tokens` of them decoded."""
        self.steps += 1
        share = seconds * decode_tokens / tokens
        self.decode_tokens += decode_tokens
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

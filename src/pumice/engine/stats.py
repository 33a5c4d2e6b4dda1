"""What an engine has done, in numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class EngineStats:
    """Sums since the last reset. A step with more than one token of a sequence counts as prefill."""

    prefill_tokens: int = 0
    prefill_s: float = 0.0
    decode_tokens: int = 0
    decode_s: float = 0.0
    cached_tokens: int = 0
    steps: int = 0
    last_ttft_s: float = 0.0

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens computed a second; 0 before the first."""
        return self.prefill_tokens / self.prefill_s if self.prefill_s else 0.0

    @property
    def decode_rate(self) -> float:
        """Tokens generated a second in steps that only decode; 0 before the first."""
        return self.decode_tokens / self.decode_s if self.decode_s else 0.0

    def as_dict(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "prefill_tokens_per_s": self.prefill_rate,
            "decode_tokens_per_s": self.decode_rate,
        }

    def __str__(self) -> str:
        return f"prefill: {self.prefill_rate:.1f} tok/s, decode: {self.decode_rate:.1f} tok/s"

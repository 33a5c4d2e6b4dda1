"""What a serving benchmark measures, in the field's terms.

TTFT: seconds from sending a request to its first text. ITL: seconds between two pieces of text.
TPOT: seconds from the first text to the last, by the tokens after the first. Goodput: requests per
second that kept every bound of a service-level objective (DistServe, arXiv:2401.09670).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pumice.errors import UsageError

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class Prompt:
    """One request of a workload. max_tokens: length of the answer that is asked for."""

    text: str
    max_tokens: int


@dataclass
class Outcome:
    """One request's fate; times in seconds of one clock. arrivals: when each piece of text came.

    error: why there is no whole answer, in a few words; None for a whole one.
    """

    start: float
    end: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    output_tokens: int = 0
    finish_reason: str | None = None
    error: str | None = None

    @property
    def ttft(self) -> float:
        return self.arrivals[0] - self.start

    @property
    def tpot(self) -> float | None:
        """None for an answer of one token."""
        if self.output_tokens < 2:
            return None
        return (self.arrivals[-1] - self.arrivals[0]) / (self.output_tokens - 1)

    @property
    def itls(self) -> list[float]:
        return [b - a for a, b in zip(self.arrivals, self.arrivals[1:], strict=False)]


@dataclass(frozen=True)
class Objective:
    """A bound on TTFT and on TPOT, in seconds; None: no bound."""

    ttft: float | None = None
    tpot: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("--slo-ttft", self.ttft), ("--slo-tpot", self.tpot)):
            if value is not None and not value > 0:
                raise UsageError(f"{name} is {1000 * value:g} ms; it must be above 0")

    def __bool__(self) -> bool:
        return self.ttft is not None or self.tpot is not None

    def kept(self, outcome: Outcome) -> bool:
        """Whether a whole answer was as fast as promised."""
        tpot = outcome.tpot
        return (self.ttft is None or outcome.ttft <= self.ttft) and (
            self.tpot is None or tpot is None or tpot <= self.tpot
        )


@dataclass(frozen=True)
class Point:
    """One load: `concurrency` requests at a time, or `rate` new ones a second."""

    concurrency: int | None = None
    rate: float | None = None

    @property
    def name(self) -> str:
        return f"{self.rate:g}/s" if self.concurrency is None else f"{self.concurrency} at once"


@dataclass(frozen=True)
class Measurement:
    """A load and what became of its requests. seconds: from the first sent to the last answered."""

    point: Point
    outcomes: Sequence[Outcome]
    seconds: float

    @property
    def whole(self) -> list[Outcome]:
        return [o for o in self.outcomes if o.error is None and o.arrivals]

    @property
    def errors(self) -> Counter[str]:
        """Reason → count. A whole answer without text has none of the figures, and is told here."""
        reasons = Counter(o.error for o in self.outcomes if o.error is not None)
        empty = sum(o.error is None and not o.arrivals for o in self.outcomes)
        return Counter({**reasons, **({"no text in the answer": empty} if empty else {})})

    def spread(self, name: str) -> dict[str, float] | None:
        """mean, p50, p90, p99 of "ttft", "tpot", "itl" or "latency", in milliseconds."""
        import numpy as np

        values = self.values(name)
        if not values:
            return None
        data = 1000 * np.asarray(values)
        found = {f"p{p}": float(np.percentile(data, p)) for p in PERCENTILES}
        return {"mean": float(data.mean()), **found}

    def values(self, name: str) -> list[float]:
        """All values of a figure, in seconds."""
        whole = self.whole
        if name == "itl":
            return [gap for o in whole for gap in o.itls]
        if name == "tpot":
            return [o.tpot for o in whole if o.tpot is not None]
        if name == "latency":
            return [o.end - o.start for o in whole]
        return [o.ttft for o in whole]

    @property
    def peak(self) -> int:
        """The most requests that were under way at one time."""
        changes = [(o.start, 1) for o in self.outcomes] + [(o.end, -1) for o in self.outcomes]
        most = now = 0
        for _, change in sorted(changes):
            now += change
            most = max(most, now)
        return most

    def row(self, objective: Objective) -> dict[str, Any]:
        """A JSON object of all figures. Tokens per second count whole answers only."""
        whole = self.whole
        prompt = sum(o.prompt_tokens for o in whole)
        output = sum(o.output_tokens for o in whole)
        data: dict[str, Any] = {
            "concurrency": self.point.concurrency,
            "rate": self.point.rate,
            "requests": len(self.outcomes),
            "completed": len(whole),
            "errors": dict(self.errors),
            "seconds": round(self.seconds, 4),
            "peak_concurrency": self.peak,
            "requests_per_s": round(len(whole) / self.seconds, 4),
            "output_tokens_per_s": round(output / self.seconds, 3),
            "total_tokens_per_s": round((prompt + output) / self.seconds, 3),
            "prompt_tokens": prompt,
            "output_tokens": output,
        }
        for name in ("ttft", "tpot", "itl", "latency"):
            spread = self.spread(name)
            data[f"{name}_ms"] = spread and {k: round(v, 3) for k, v in spread.items()}
        if objective:
            kept = sum(map(objective.kept, whole))
            data |= {
                "slo_ttft_ms": objective.ttft and 1000 * objective.ttft,
                "slo_tpot_ms": objective.tpot and 1000 * objective.tpot,
                "goodput_requests_per_s": round(kept / self.seconds, 4),
                "slo_kept": round(kept / len(self.outcomes), 4),
            }
        return data

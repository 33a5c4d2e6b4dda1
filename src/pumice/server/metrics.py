"""Figures for Prometheus: what the engine counts, and what clients see."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pumice.engine.stats import Histogram

if TYPE_CHECKING:
    from pumice.engine.async_engine import AsyncEngine

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_SHORT = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 5)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536)

# The engine's figures that only grow; every other number is a gauge.
_COUNTERS = frozenset(
    {
        "prefill_tokens", "prefill_s", "decode_tokens", "decode_s", "prompt_tokens",
        "cached_tokens", "cache_hit_tokens", "steps", "first_tokens", "ttft_s", "finished",
        "admitted", "preempted", "chunks", "rejected", "cancelled", "deadline", "blocks_copied",
        "speculation_steps", "speculation_proposed", "speculation_accepted",
    }
)  # fmt: skip


class Metrics:
    """A registry of its own, so that several servers may be in one process."""

    def __init__(self, engine: AsyncEngine, model: str) -> None:
        import prometheus_client
        from prometheus_client import CollectorRegistry, Counter

        self.registry = CollectorRegistry()
        self.registry.register(_EngineCollector(engine, model))

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Any:
            return prometheus_client.Histogram(
                f"pumice_{name}", text, ("model_name",), buckets=buckets, registry=self.registry
            ).labels(model)

        self._ttft = histogram("time_to_first_token_seconds", "Request to first token.", _SECONDS)
        self.registry.register(token_times := _TokenTimes(model))
        self._itl = token_times.histogram
        self._latency = histogram("request_latency_seconds", "Request to last token.", _SECONDS)
        self._prompt = histogram("request_prompt_tokens", "Tokens of a prompt.", _TOKENS)
        self._output = histogram("request_output_tokens", "Tokens of a choice.", _TOKENS)
        self._http = Counter(
            "pumice_http_requests", "Answers.", ("method", "route", "status"),
            registry=self.registry,
        )  # fmt: skip
        self._ends = Counter(
            "pumice_request_finished", "Choices by how they ended.", ("model_name", "reason"),
            registry=self.registry,
        )  # fmt: skip
        self._model = model

    def answered(self, method: str, route: str, status: int) -> None:
        """An HTTP request was answered. route: its pattern, so that ids make no new series."""
        self._http.labels(method, route, str(status)).inc()

    def watch(self) -> Watch:
        """Follows one job."""
        return Watch(self)

    def render(self) -> bytes:
        """The exposition text."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry)


class Watch:
    """One job's times."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self.start = time.perf_counter()
        self.first: float | None = None
        self._last: dict[int, float] = {}

    def tokens(self, index: int, count: int) -> None:
        """A choice has `count` more tokens."""
        if not count:
            return
        now = time.perf_counter()
        if self.first is None:
            self.first = now
            self._metrics._ttft.observe(now - self.start)
        before = self._last.get(index)
        if before is not None:
            for _ in range(count):
                self._metrics._itl.observe((now - before) / count)
        self._last[index] = now

    def end(self, reason: str, prompt_tokens: int, output_tokens: int) -> None:
        """A choice has ended."""
        metrics = self._metrics
        metrics._latency.observe(time.perf_counter() - self.start)
        metrics._prompt.observe(prompt_tokens)
        metrics._output.observe(output_tokens)
        metrics._ends.labels(metrics._model, reason).inc()


class _EngineCollector:
    """The engine's own figures, read when they are asked for."""

    def __init__(self, engine: AsyncEngine, model: str) -> None:
        self._engine = engine
        self._model = model

    def describe(self) -> list[Any]:
        return []

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        figures = self._engine.figures()
        guesses = figures.get("speculation") or {}
        told = figures | {f"speculation_{name}": value for name, value in guesses.items()}
        for name, value in told.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            counts = name in _COUNTERS
            family = CounterMetricFamily if counts else GaugeMetricFamily
            metric = family(f"pumice_engine_{name}", _said(name), labels=("model_name",))
            metric.add_metric((self._model,), float(value))
            yield metric
        for name, histogram in figures.get("histograms", {}).items():
            bounds = [f"{bound:g}" for bound in histogram["bounds"]]
            yield _family(
                f"pumice_engine_{name}_histogram", _said(name), self._model, bounds,
                histogram["counts"], histogram["sum"],
            )  # fmt: skip


class _TokenTimes:
    """The times between tokens: the client library's own histogram, with its locks and loops over
    buckets, would be a tenth of what a token of a stream costs.
    """

    def __init__(self, model: str) -> None:
        self.histogram = Histogram(_SHORT)
        self._model = model

    def describe(self) -> list[Any]:
        return []

    def collect(self) -> Iterator[Any]:
        yield _family(
            "pumice_inter_token_latency_seconds", "Between tokens of a choice.", self._model,
            [str(float(bound)) for bound in _SHORT], self.histogram.counts, self.histogram.sum,
        )  # fmt: skip


def _family(
    name: str, text: str, model: str, bounds: list[str], counts: list[int], total: float
) -> Any:
    """A histogram's lines. counts: not cumulative, one more than there are bounds."""
    from prometheus_client.core import HistogramMetricFamily

    buckets, below = [], 0
    for bound, count in zip([*bounds, "+Inf"], counts, strict=True):
        below += count
        buckets.append((bound, float(below)))
    metric = HistogramMetricFamily(name, text, labels=("model_name",))
    metric.add_metric((model,), buckets, total)
    return metric


def _said(name: str) -> str:
    return f"The engine's {name.replace('_', ' ')}."

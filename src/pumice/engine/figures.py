"""What an engine tells about itself."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pumice.engine.sequence import Sequence
from pumice.engine.stats import EngineStats, Histograms

if TYPE_CHECKING:
    from pumice.engine.engine import LLMEngine


def note_token(stats: EngineStats, histograms: Histograms, sequence: Sequence, now: float) -> None:
    """A sequence has got a token."""
    if sequence.first_token_time is not None:
        histograms.inter_token_s.observe(now - sequence.last_token_time)
    else:
        sequence.first_token_time = now
        if sequence.index == 0:
            waited = now - sequence.arrival
            histograms.ttft_s.observe(waited)
            cached = sequence.cached_tokens or 0
            stats.first_token(waited, sequence.prompt_length, cached)
    sequence.last_token_time = now


def figures(engine: LLMEngine) -> dict[str, Any]:
    """The stats, and the state of queue and cache now."""
    scheduler, cache = engine.scheduler, engine.cache
    return {
        **engine.stats.as_dict(),
        **asdict(scheduler.decisions),
        "running": len(scheduler.running),
        "waiting": len(scheduler.waiting),
        "cache_hit_tokens": engine.stats.cached_tokens,
        "blocks": cache.num_blocks,
        "blocks_in_use": cache.in_use,
        "blocks_cached": cache.cached,
        "blocks_copied": cache.copied,
        "prefill_chunk": scheduler.pace.chunk(len(scheduler.running) or 1),
        "speculation": None if engine.speculator is None else engine.speculator.figures(),
        "histograms": engine.histograms.as_dict(),
    }

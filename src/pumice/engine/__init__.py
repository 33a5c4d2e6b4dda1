"""Requests to text: batching, cache, sampling, conversations. Knows no model and no device."""

from __future__ import annotations

from pumice.engine.async_engine import AsyncEngine
from pumice.engine.chat import ChatModule
from pumice.engine.engine import LLMEngine
from pumice.engine.request import Completion, Delta, SamplingParams, TokenLogprob

__all__ = [
    "AsyncEngine",
    "ChatModule",
    "Completion",
    "Delta",
    "LLMEngine",
    "SamplingParams",
    "TokenLogprob",
]

"""Requests to text: batching, cache, sampling, conversations. Knows no model and no device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pumice.engine.async_engine import AsyncEngine
    from pumice.engine.chat import ChatModule
    from pumice.engine.engine import LLMEngine
    from pumice.engine.grammar import Grammar
    from pumice.engine.request import Completion, Delta, Request, TokenLogprob
    from pumice.engine.sampling_params import SamplingParams
    from pumice.engine.speculation import Speculation

__all__ = [
    "AsyncEngine",
    "ChatModule",
    "Completion",
    "Delta",
    "Grammar",
    "LLMEngine",
    "Request",
    "SamplingParams",
    "Speculation",
    "TokenLogprob",
]

_LAZY = {
    "AsyncEngine": "pumice.engine.async_engine:AsyncEngine",
    "ChatModule": "pumice.engine.chat:ChatModule",
    "Completion": "pumice.engine.request:Completion",
    "Grammar": "pumice.engine.grammar:Grammar",
    "Delta": "pumice.engine.request:Delta",
    "LLMEngine": "pumice.engine.engine:LLMEngine",
    "Request": "pumice.engine.request:Request",
    "SamplingParams": "pumice.engine.sampling_params:SamplingParams",
    "Speculation": "pumice.engine.speculation:Speculation",
    "TokenLogprob": "pumice.engine.request:TokenLogprob",
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used: asyncio, for one, is not everybody's."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module, _, attribute = _LAZY[name].partition(":")
    return getattr(importlib.import_module(module), attribute)

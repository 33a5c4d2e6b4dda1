"""Pumice compiles open language models for the hardware people already own, and runs them fast.

from pumice import ChatModule
print(ChatModule(model="smollm2-135m").generate("What is the capital of France?"))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pumice._version import __version__

if TYPE_CHECKING:
    from pumice.api import AsyncEngine, ChatModule, Engine
    from pumice.compiler.compile import compile_model as compile
    from pumice.engine.request import SamplingParams

__all__ = ["AsyncEngine", "ChatModule", "Engine", "SamplingParams", "__version__", "compile"]

_LAZY = {
    "AsyncEngine": ("pumice.api", "AsyncEngine"),
    "ChatModule": ("pumice.api", "ChatModule"),
    "Engine": ("pumice.api", "Engine"),
    "SamplingParams": ("pumice.engine.request", "SamplingParams"),
    "compile": ("pumice.compiler.compile", "compile_model"),
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used, so that `import pumice` stays quick."""
    if name not in _LAZY:
        raise AttributeError(f"module 'pumice' has no attribute {name!r}")
    import importlib

    module, attribute = _LAZY[name]
    return getattr(importlib.import_module(module), attribute)

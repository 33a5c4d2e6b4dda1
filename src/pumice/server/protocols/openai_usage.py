"""OpenAI's `usage`."""

from __future__ import annotations

from typing import Any

from pumice.server.core.result import Usage


def usage_body(usage: Usage) -> dict[str, Any]:
    """CompletionUsage."""
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.output,
        "total_tokens": usage.prompt + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }

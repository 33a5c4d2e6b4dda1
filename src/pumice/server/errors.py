"""What a client is told when something fails: a status, a kind and a sentence, never a path.

The shape is the protocol's: OpenAI's `{"error": {...}}`, Anthropic's `{"type": "error", ...}`, or
Ollama's `{"error": "..."}`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException

from pumice import errors
from pumice.errors import PumiceError


class ApiError(HTTPException):
    """An answer that is an error.

    param: the field that is at fault, as `messages[0].content`. code: OpenAI's machine-readable
    kind. retry_after: seconds, for 429 and 503.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
        retry_after: float | None = None,
    ) -> None:
        told = dict(headers or {})
        if retry_after is not None:
            told["Retry-After"] = str(max(1, math.ceil(retry_after)))
        super().__init__(status, message, headers=told or None)
        self.status = status
        self.message = message
        self.param = param
        self.code = code


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400."""
    return ApiError(400, message, param=param, code=code)


def unsupported(param: str, why: str) -> ApiError:
    """400 for a field that exists in the protocol and does not work here."""
    return ApiError(400, f"{param} is not supported: {why}", param=param, code="unsupported_value")


_STATUS: tuple[tuple[str, int, str | None], ...] = (
    ("ContextLengthError", 400, "context_length_exceeded"),
    ("GrammarError", 400, "unsupported_schema"),
    ("QueueFullError", 429, "queue_full"),
    ("EngineClosedError", 503, "shutting_down"),
    ("UsageError", 400, None),
    ("UnsupportedError", 400, "unsupported_value"),
)


def from_exception(error: BaseException, *, retry_after: float = 1) -> ApiError:
    """The answer to an exception. What is not the client's fault is told without any detail."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, HTTPException):
        return ApiError(error.status_code, str(error.detail), headers=error.headers)
    if isinstance(error, PumiceError):
        for name, status, code in _STATUS:
            kind = getattr(errors, name, None)
            if kind is not None and isinstance(error, kind):
                param = getattr(error, "where", None) or _named(error)
                wait = retry_after if status in (429, 503) else None
                return ApiError(status, error.message, code=code, param=param, retry_after=wait)
    return ApiError(500, "the server failed on this request; its log says why", code="internal")


def _named(error: PumiceError) -> str | None:
    """The sampling parameter that a UsageError's sentence begins with."""
    from pumice.engine.sampling_params import SamplingParams

    word = error.message.partition(" ")[0].partition("[")[0]
    return word if word in SamplingParams.__dataclass_fields__ else None


_KINDS: Mapping[int, tuple[str, str]] = {  # status → OpenAI's type, Anthropic's type
    400: ("invalid_request_error", "invalid_request_error"),
    401: ("authentication_error", "authentication_error"),
    403: ("permission_error", "permission_error"),
    404: ("invalid_request_error", "not_found_error"),
    405: ("invalid_request_error", "invalid_request_error"),
    408: ("invalid_request_error", "timeout_error"),
    409: ("invalid_request_error", "invalid_request_error"),
    413: ("invalid_request_error", "request_too_large"),
    429: ("rate_limit_error", "rate_limit_error"),
    501: ("not_implemented_error", "invalid_request_error"),
    503: ("service_unavailable_error", "overloaded_error"),
}


def body_of(error: ApiError, path: str) -> dict[str, Any]:
    """The JSON of an error, in the shape of the protocol that a path belongs to."""
    fallback = (
        ("invalid_request_error",) * 2 if error.status < 500 else ("server_error", "api_error")
    )
    openai, anthropic = _KINDS.get(error.status, fallback)
    if path.startswith("/v1/messages"):
        return {"type": "error", "error": {"type": anthropic, "message": error.message}}
    if path.startswith("/api/"):
        return {"error": error.message}
    return {
        "error": {
            "message": error.message,
            "type": openai,
            "param": error.param,
            "code": error.code,
        }
    }

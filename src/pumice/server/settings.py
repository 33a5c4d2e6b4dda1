"""What a server allows, in one frozen object."""

from __future__ import annotations

from dataclasses import dataclass

from pumice.errors import UsageError

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class ServerSettings:
    """
    names: what the model is called in requests; the first is what answers say.
    api_keys: any of them opens every route; none: no key is asked for. /health is always open.
    cors_origins: web pages of these origins may call the server ("*": any); none by default.
    hosts: names by which the server may be called beside its address, `localhost` and plain
    addresses ("*": any). A web page that makes its own name lead here (DNS rebinding) is refused.

    Limits: max_body bytes of a request; max_prompt_chars of its text; max_json_depth levels;
    max_stops strings of max_stop_chars; max_schema_bytes of a JSON schema or a grammar; max_tools;
    max_choices (`n`, and prompts × n); max_embeddings of a request; max_image_url characters of a
    link or data URL; max_stored answers (and max_stored_bytes) of /v1/responses, the oldest go
    first.

    Seconds: header_timeout for a request's head, body_timeout for its body, write_timeout for a
    reader that takes nothing, keep_alive for an idle connection, drain_timeout for what runs when
    the server is told to end, ping between signs of life of a stream, early_error during which an
    error may still become the status instead of an event. retry_after: what a full queue tells.
    """

    names: tuple[str, ...] = ("default",)
    api_keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    max_body: int = 8 << 20
    max_prompt_chars: int = 4 << 20
    max_json_depth: int = 64
    max_stops: int = 16
    max_stop_chars: int = 256
    max_schema_bytes: int = 256 << 10
    max_tools: int = 128
    max_choices: int = 64
    max_embeddings: int = 2048
    max_image_url: int = 8 << 20
    max_stored: int = 1000
    max_stored_bytes: int = 64 << 20
    header_timeout: float = 10.0
    body_timeout: float = 60.0
    write_timeout: float = 60.0
    keep_alive: float = 15.0
    drain_timeout: float = 30.0
    ping: float = 15.0
    early_error: float = 2.0
    retry_after: int = 1
    access_log: bool = True

    def __post_init__(self) -> None:
        if not self.names or not all(self.names):
            raise UsageError(f"names is {self.names!r}; the model needs at least one name")
        for key in self.api_keys:
            if len(key) < 8 or not key.isascii() or not key.isprintable() or " " in key:
                raise UsageError(
                    "an API key is unfit; allowed: 8 or more printable ASCII characters, no spaces",
                    hint="python3 -c 'import secrets; print(secrets.token_urlsafe(24))'",
                )
        for field in (
            "max_body", "max_prompt_chars", "max_json_depth", "max_stops", "max_stop_chars",
            "max_schema_bytes", "max_tools", "max_choices", "max_embeddings", "max_image_url",
            "header_timeout", "body_timeout", "write_timeout", "keep_alive", "ping",
        ):  # fmt: skip
            if getattr(self, field) <= 0:
                raise UsageError(f"{field} is {getattr(self, field)}; it must be above 0")
        for field in ("max_stored", "max_stored_bytes", "drain_timeout", "early_error"):
            if getattr(self, field) < 0:
                raise UsageError(f"{field} is {getattr(self, field)}; it must be at least 0")

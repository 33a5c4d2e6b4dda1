"""Who may call: the key, and where a browser's request comes from.

Keys are compared by their digests, every one of them and in constant time. A request that carries
`Origin` comes from a web page: only pages of this server, and those of `cors_origins`, may. A
request whose `Host` is a strange name was led here by somebody's name server (DNS rebinding), which
matters when no key is asked for.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from pumice.server.context import ServerContext
from pumice.server.errors import ApiError

OPEN_ROUTES = ("/health",)


class Guard:
    """ASGI middleware. Leaves the caller's salt for the prefix cache in scope["state"]["salt"]:
    callers with different keys share nothing.
    """

    def __init__(self, app: ASGIApp, context: ServerContext) -> None:
        self._app = app
        self._settings = context.settings
        self._digests = [_digest(key) for key in context.settings.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            salt = b""
            if scope["path"] not in OPEN_ROUTES:
                self._check_host(headers)
                self._check_origin(headers)
                if self._digests:
                    salt = self._check_key(headers)
            scope.setdefault("state", {})["salt"] = salt
        await self._app(scope, receive, send)

    def _check_key(self, headers: Headers) -> bytes:
        key = _given_key(headers)
        digest = _digest(key or "")
        known = False
        for allowed in self._digests:  # all of them, so that time says nothing about which
            known |= hmac.compare_digest(digest, allowed)
        if known:
            return digest
        page = "text/html" in headers.get("accept", "")
        raise ApiError(
            401,
            "the API key is not one of this server's"
            if key
            else "this server asks for an API key: Authorization: Bearer KEY, or x-api-key: KEY",
            code="invalid_api_key",
            headers={"WWW-Authenticate": 'Basic realm="pumice"' if page else "Bearer"},
        )

    def _check_host(self, headers: Headers) -> None:
        if self._digests or "*" in self._settings.hosts:
            return
        name = _host_name(headers.get("host", ""))
        if name in ("", "localhost") or name in self._settings.hosts or _is_address(name):
            return
        raise ApiError(403, f"this server is not called {name!r:.80}; see --allow-host")

    def _check_origin(self, headers: Headers) -> None:
        origin = headers.get("origin")
        allowed = self._settings.cors_origins
        if origin is None or origin in allowed or "*" in allowed:
            return
        if urlsplit(origin).netloc != headers.get("host", ""):
            raise ApiError(403, "pages of this origin may not call this server; see --cors-origin")


def _digest(key: str) -> bytes:
    return hashlib.sha256(b"pumice key\0" + key.encode("utf-8", "surrogateescape")).digest()


def _given_key(headers: Headers) -> str | None:
    """From `Authorization` (Bearer; Basic, whose password it is, for browsers) or `x-api-key`."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode("utf-8").partition(":")[2]
        except (binascii.Error, ValueError):
            return None
    return headers.get("x-api-key")


def _host_name(host: str) -> str:
    """`Host` without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if ":" in host else host


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True

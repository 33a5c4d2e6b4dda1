"""`/` and `/ui/*`: the page's files, read once, under a policy that lets nothing else in."""

from __future__ import annotations

import hashlib
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import Response

STATIC = Path(__file__).parent / "static"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# No inline script or style, nothing from elsewhere, in no other page's frame.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def make_router(context: object = None) -> APIRouter:
    """The page needs nothing of a server but its other routes."""
    router = APIRouter(include_in_schema=False)
    for path in sorted(STATIC.iterdir()):
        if path.suffix in _TYPES:
            _add(router, "/" if path.name == "index.html" else f"/ui/{path.name}", path)
    return router


def _add(router: APIRouter, route: str, path: Path) -> None:
    content = path.read_bytes()
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {
        "Content-Security-Policy": POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",  # asked for again each time, sent again only when it changed
        "ETag": tag,
    }

    async def file(request: Request) -> Response:
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=_TYPES[path.suffix], headers=headers)

    router.add_api_route(route, file, methods=["GET", "HEAD"])

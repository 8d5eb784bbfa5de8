"""Compress large responses. Streams are not compressed, because compression would buffer them."""

from typing import Final

from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

LEAST_BYTES: Final = 1024
LEVEL: Final = 5
JOBS: Final = ("/api/v1/jobs/", "/ui/jobs/")


class Compressed:
    """For static files and the graphs of jobs, which may be megabytes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._compressing = GZipMiddleware(app, minimum_size=LEAST_BYTES, compresslevel=LEVEL)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._compressing if scope["type"] == "http" and _is_large(scope["path"]) else self._app
        await app(scope, receive, send)


def _is_large(path: str) -> bool:
    return path.startswith("/ui/static/") or (path.startswith(JOBS) and path.endswith("/graph"))

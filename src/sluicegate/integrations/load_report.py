"""Middlewares that report a server's load to its clients, in the header of `server_load.py`.

    app = LoadReportMiddleware(app)                             ASGI: Starlette, FastAPI, ...
    app.wsgi_app = WsgiLoadReportMiddleware(app.wsgi_app)       WSGI: Flask, Django, ...

Each response says how many other requests are in progress, those whose bodies are still being sent
included. The number is that of this middleware, so of one process: with several worker processes
behind one port, a client hears of the one that has answered. Put it outside of other middlewares,
so that all requests are counted. A response that has the header already keeps its own.
"""

import threading
from collections.abc import Iterable, Iterator
from typing import Any

from sluicegate.integrations import asgi, wsgi
from sluicegate.integrations.server_load import LOAD_HEADER, load_report

__all__ = ["LoadReportMiddleware", "WsgiLoadReportMiddleware"]

_RAW_HEADER = LOAD_HEADER.encode()


class LoadReportMiddleware:
    """For ASGI. Websockets and lifespan pass untouched, and are not counted."""

    def __init__(self, app: asgi.App) -> None:
        self._app = app
        self._in_progress = 0

    async def __call__(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_load(message: asgi.Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": self._with_load(message.get("headers") or ())}
            await send(message)

        self._in_progress += 1
        try:
            await self._app(scope, receive, send_with_load)
        finally:
            self._in_progress -= 1

    def _with_load(self, headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        fields = list(headers)
        if all(name.lower() != _RAW_HEADER for name, _ in fields):
            fields.append((_RAW_HEADER, load_report(self._in_progress - 1).encode()))
        return fields

    def __repr__(self) -> str:
        return f"LoadReportMiddleware({self._app!r}, in_progress={self._in_progress})"


class WsgiLoadReportMiddleware:
    """For WSGI, in any number of threads.

    A body that is a list or the server's file wrapper is returned untouched, for servers send these
    in ways of their own; the request counts until then. Any other counts until it is closed.
    """

    def __init__(self, app: wsgi.App) -> None:
        self._app = app
        self._in_progress = 0
        self._lock = threading.Lock()

    def __call__(
        self, environ: wsgi.Environ, start_response: wsgi.StartResponse
    ) -> Iterable[bytes]:
        def start_with_load(
            status: str, headers: list[tuple[str, str]], *exc_info: Any
        ) -> wsgi.Write:
            if all(name.lower() != LOAD_HEADER for name, _ in headers):
                headers = [*headers, (LOAD_HEADER, load_report(self._in_progress - 1))]
            return start_response(status, headers, *exc_info)

        self._count(1)
        try:
            body = self._app(environ, start_with_load)
        except BaseException:
            self._count(-1)
            raise
        if isinstance(body, list | tuple) or _is_file(body, environ):
            self._count(-1)
            return body
        return _CountedBody(body, self)

    def _count(self, change: int) -> None:
        with self._lock:
            self._in_progress += change

    def __repr__(self) -> str:
        return f"WsgiLoadReportMiddleware({self._app!r}, in_progress={self._in_progress})"


class _CountedBody:
    """The body of a response; its request is in progress until the server closes it."""

    def __init__(self, body: Iterable[bytes], middleware: WsgiLoadReportMiddleware) -> None:
        self._body = body
        self._middleware: WsgiLoadReportMiddleware | None = middleware

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body)

    def close(self) -> None:
        middleware, self._middleware = self._middleware, None
        try:
            if hasattr(self._body, "close"):
                self._body.close()
        finally:
            if middleware is not None:
                middleware._count(-1)


def _is_file(body: Iterable[bytes], environ: wsgi.Environ) -> bool:
    wrapper = environ.get("wsgi.file_wrapper")
    return isinstance(wrapper, type) and isinstance(body, wrapper)

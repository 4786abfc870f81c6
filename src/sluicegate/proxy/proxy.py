"""`Proxy`: a small reverse proxy as an ASGI application, for services that are not Python.

    app = QuotaASGIMiddleware(Proxy("http://127.0.0.1:8080"), node, service=..., user=...)

One request in, one request out to the upstream, both bodies as streams: no more than some 64 KiB
of either is held, and who reads slowly holds the other side up.

- Fields of one connection (RFC 9110, 7.6.1) are not passed on, nor those that `Connection` names.
  Host is the client's. X-Forwarded-For, -Proto and -Host are added, For to what is there.
- The body's length goes on as it came: with Content-Length, or chunked.
- An upstream that cannot be reached is 502, one that does not answer in time 504, each with a
  body that says so; after the answer has begun the connection is cut, so that the client sees
  that it is not whole. A client that goes away ends the upstream's request.
- Websockets and other upgrades are refused with 501: they would pass bytes that nobody counts.
- Header lines are bounded, to 64 KiB; see `BoundedProtocol`.

It is quick enough for services of some thousand requests per second and core; it is no cache, and
it has no routes: one upstream.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

try:
    import aiohttp
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    from yarl import URL
except ModuleNotFoundError as _missing:
    raise ModuleNotFoundError(
        "the proxy needs more packages (aiohttp, httptools, uvicorn, yarl): "
        "pip install 'sluicegate[proxy]'",
        name=_missing.name,
    ) from _missing

from sluicegate.integrations.asgi import Message, Receive, Scope, Send

__all__ = ["BoundedProtocol", "Proxy"]

MOST_HEADER_BYTES = 64 << 10
CONNECT_TIMEOUT = 5.0
POOL_TIMEOUT = 10.0
READ_TIMEOUT = 60.0
IDLE = 4.0  # shorter than the 5 s after which many servers drop a quiet connection
MOST_CONNECTIONS = 1000

_HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
_REPLACED = frozenset((b"expect", b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host"))
_WITHOUT_BODY = (204, 304)

log = logging.getLogger("sluicegate.proxy")


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's, with a bound on what comes without being a body: it would keep it all."""

    _quiet = 0  # bytes since the last one of a body, or the end of a request

    def data_received(self, data: bytes) -> None:
        if self._quiet > MOST_HEADER_BYTES:
            self.send_400_response("The header lines are too long.")
            return
        self._quiet += len(data)
        super().data_received(data)

    def on_body(self, body: bytes) -> None:
        self._quiet = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._quiet = 0
        super().on_message_complete()


class Proxy:
    """Passes requests on to one upstream. `async with` opens and closes its connections."""

    def __init__(self, upstream: str, *, read_timeout: float = READ_TIMEOUT) -> None:
        parts = urlsplit(upstream)
        is_plain = not (parts.query or parts.fragment or parts.username)
        if parts.scheme not in ("http", "https") or not parts.hostname or not is_plain:
            raise ValueError(
                f"upstream must be a URL like 'http://127.0.0.1:8080', got {upstream!r}"
            )
        self.upstream = upstream.rstrip("/")
        self._timeout = aiohttp.ClientTimeout(
            total=None, connect=POOL_TIMEOUT, sock_connect=CONNECT_TIMEOUT, sock_read=read_timeout
        )
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=MOST_CONNECTIONS, keepalive_timeout=IDLE),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=self._timeout,
            auto_decompress=False,
            skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent", "Content-Type"),
            max_line_size=MOST_HEADER_BYTES,
            max_field_size=MOST_HEADER_BYTES,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"the proxy passes on http, got {scope['type']!r}")
        refused = _unfit(scope)
        if refused is not None:
            await _explain(send, *refused)
            return
        exchange = _Exchange(receive, send)
        try:
            await self._pass_on(scope, exchange)
        except TimeoutError as error:
            await self._fail(exchange, HTTPStatus.GATEWAY_TIMEOUT, error)
        except (aiohttp.ClientError, OSError) as error:
            await self._fail(exchange, HTTPStatus.BAD_GATEWAY, error)

    async def _pass_on(self, scope: Scope, exchange: "_Exchange") -> None:
        if self._session is None:
            raise RuntimeError("the proxy is not open: use it in `async with`")
        headers, has_body = _upstream_headers(scope)
        query = scope["query_string"]
        path = scope["raw_path"].decode("ascii")
        target = f"{self.upstream}{path}?{query.decode('ascii')}" if query else self.upstream + path
        async with self._session.request(
            scope["method"],
            URL(target, encoded=True),
            headers=headers,
            data=exchange.request_body() if has_body else None,
            allow_redirects=False,
        ) as response:
            await exchange.answer(response, scope["method"])

    async def _fail(self, exchange: "_Exchange", status: HTTPStatus, error: Exception) -> None:
        if exchange.is_client_gone:
            return
        log.warning("upstream %s: %s: %s", self.upstream, type(error).__name__, error)
        if not exchange.has_begun:
            what = (
                "did not answer in time"
                if status == HTTPStatus.GATEWAY_TIMEOUT
                else "cannot be reached, or broke off"
            )
            await _explain(exchange.send, status, f"the service behind this proxy {what}")
        # Else to return is all: the server sees an answer that is not whole, and cuts.

    def __repr__(self) -> str:
        return f"Proxy({self.upstream!r})"


class _ClientGone(OSError):
    """The client went away while its request was read."""


class _Exchange:
    """One request and its answer."""

    __slots__ = ("_has_all", "_receive", "has_begun", "is_client_gone", "send")

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self.send = send
        self.has_begun = False
        self.is_client_gone = False
        self._has_all = True

    async def request_body(self) -> AsyncIterator[bytes]:
        """The client's body, piece by piece, as the upstream takes it."""
        self._has_all = False
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.is_client_gone = True
                raise _ClientGone("the client went away")
            body: bytes = message.get("body", b"")
            if body:
                yield body
            if not message.get("more_body", False):
                self._has_all = True
                return

    async def answer(self, response: aiohttp.ClientResponse, method: str) -> None:
        """The upstream's answer, piece by piece, as the client takes it."""
        named = _named_by_connection(response.raw_headers)
        headers = [
            (name, value)
            for name, value in ((name.lower(), value) for name, value in response.raw_headers)
            if name not in _HOP_BY_HOP
            and name not in named
            and not (name == b"content-length" and response.status in _WITHOUT_BODY)
        ]
        self.has_begun = True
        start = {"type": "http.response.start", "status": response.status, "headers": headers}
        await self.send(start)
        content = response.content
        piece = b"" if method == "HEAD" else await content.readany()
        if not content.at_eof():
            piece = await self._stream(content, piece)
        if not self.is_client_gone:
            await self.send(_body(piece, more=False))

    async def _stream(self, content: aiohttp.StreamReader, piece: bytes) -> bytes:
        """All but the last piece. An answer that takes its time is watched for its client."""
        passing = asyncio.ensure_future(self._pass_pieces(content, piece))
        # The body of the request is read by another task as long as there is some.
        watching = asyncio.ensure_future(self._watch()) if self._has_all else None
        tasks = [passing] if watching is None else [passing, watching]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if passing.done():
                return passing.result()
            self.is_client_gone = True
            return b""
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pass_pieces(self, content: aiohttp.StreamReader, piece: bytes) -> bytes:
        while not content.at_eof():
            if piece:
                await self.send(_body(piece, more=True))
            piece = await content.readany()
        return piece

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


def _body(piece: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": piece, "more_body": more}


def _unfit(scope: Scope) -> tuple[HTTPStatus, str] | None:
    """Why a request is not passed on at all, if so."""
    size = hosts = 0
    for name, value in scope["headers"]:
        size += len(name) + len(value)
        if name == b"host":
            hosts += 1
        elif name == b"transfer-encoding" and value.strip().lower() != b"chunked":
            kind = value.decode("latin-1")[:50]
            return HTTPStatus.NOT_IMPLEMENTED, f"this proxy does not know the coding {kind!r}"
        elif name == b"upgrade":
            kind = value.decode("latin-1")[:50]
            if kind.lower() not in ("h2c", ""):  # which one may ignore
                return HTTPStatus.NOT_IMPLEMENTED, f"this proxy does not pass on {kind!r}"
    if size > MOST_HEADER_BYTES:
        most = MOST_HEADER_BYTES >> 10
        return (
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            f"header lines of {size} bytes are more than {most} KiB",
        )
    if hosts > 1:  # whose word would count: ours, or the upstream's reading? (RFC 9112, 3.2)
        return HTTPStatus.BAD_REQUEST, f"a request has one Host, not {hosts}"
    method = scope["method"]
    if method in ("CONNECT", "TRACE"):
        return HTTPStatus.NOT_IMPLEMENTED, f"this proxy does not pass on {method}"
    if not scope["raw_path"].startswith(b"/") or not scope["query_string"].isascii():
        return HTTPStatus.BAD_REQUEST, "the target of a request is an absolute path in ASCII"
    return None


def _upstream_headers(scope: Scope) -> tuple[list[tuple[str, str]], bool]:
    """The header lines for the upstream, and whether a body follows them."""
    headers: list[tuple[str, str]] = []
    named = _named_by_connection(scope["headers"])
    forwarded_for: list[str] = []
    host, length, is_chunked = "", None, False
    for name, value in scope["headers"]:
        if name == b"x-forwarded-for":
            forwarded_for.append(_text(value))
        elif name == b"content-length":
            length = _text(value)
        elif name == b"transfer-encoding":
            is_chunked = True
        elif name not in _HOP_BY_HOP and name not in _REPLACED and name not in named:
            if name == b"host":
                host = _text(value)
            headers.append((name.decode("latin-1"), _text(value)))
    if length is not None and not is_chunked:
        headers.append(("content-length", length))
    client = scope.get("client")
    if client:
        forwarded_for.append(client[0])
    if forwarded_for:
        headers.append(("x-forwarded-for", ", ".join(forwarded_for)))
    headers.append(("x-forwarded-proto", scope["scheme"]))
    if host:
        headers.append(("x-forwarded-host", host))
    return headers, is_chunked or length not in (None, "0")


def _named_by_connection(headers: Any) -> frozenset[bytes]:
    """The fields that `Connection` says are for one connection only."""
    for name, _ in headers:
        if name == b"connection" or name.lower() == b"connection":
            break
    else:
        return frozenset()
    lines = [value for name, value in headers if name.lower() == b"connection"]
    return frozenset(token.strip().lower() for line in lines for token in line.split(b","))


def _text(value: bytes) -> str:
    """A header's value for aiohttp, which writes UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


async def _explain(send: Send, status: HTTPStatus, detail: str) -> None:
    members = {"type": "about:blank", "title": status.phrase, "status": status, "detail": detail}
    body = json.dumps(members).encode()
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", str(len(body)).encode()),
    ]
    with contextlib.suppress(OSError):  # the client has gone
        await send({"type": "http.response.start", "status": int(status), "headers": headers})
        await send(_body(body, more=False))

"""`MetricsEndpoint`: answers `GET /metrics`, on the event loop of a worker.

One request per connection, and as much HTTP as a scraper needs: a server of its own would be a
dependency of every worker. What is read, the time, and the connections at once are bounded.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable

from sluicegate.errors import ConfigError, Unavailable, reason_of

__all__ = ["MetricsEndpoint", "parse_host_and_port"]

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_MAX_HEAD = 16 * 1024  # bytes
_TIMEOUT = 10.0  # seconds for one connection
_MAX_CONNECTIONS = 32

log = logging.getLogger("sluicegate.dispatch")


class MetricsEndpoint:
    """Serves the text that `collect` returns."""

    def __init__(self, host: str, port: int, collect: Callable[[], Awaitable[str]]) -> None:
        self._host = host
        self._port = port
        self._collect = collect
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Where it listens; the port is a free one if 0 was asked for."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"http://[{host}]:{port}/metrics" if ":" in host else f"http://{host}:{port}/metrics"

    async def start(self) -> None:
        try:
            self._server = await asyncio.start_server(
                self._accept, self._host, self._port, limit=_MAX_HEAD
            )
        except OSError as error:
            # asyncio repeats the address in its message.
            reason = os.strerror(number) if (number := error.errno or 0) > 0 else reason_of(error)
            where = f"{self._host}:{self._port}"
            raise Unavailable(f"cannot listen on {where}: {reason}") from None

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= _MAX_CONNECTIONS:
            writer.transport.abort()
            return
        connection = asyncio.ensure_future(self._serve(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._answer(head))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError) as error:
            log.debug("metrics: a connection failed: %s", error)
        finally:
            writer.transport.abort()

    async def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b"\r\n")[0].partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if path != b"/metrics":
            return _response("404 Not Found", "the metrics are at /metrics\n")
        if method not in (b"GET", b"HEAD"):
            return _response("405 Method Not Allowed", "use GET\n", "Allow: GET, HEAD\r\n")
        try:
            text = await self._collect()
        except Exception:
            log.exception("metrics: could not collect them")
            return _response("500 Internal Server Error", "the log of the worker has more\n")
        return _response("200 OK", text, has_body=method == b"GET")


def parse_host_and_port(text: str) -> tuple[str, int]:
    """HOST:PORT; an IPv6 address is in brackets."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise ConfigError(f"expected HOST:PORT, like 127.0.0.1:9100, got {text!r}")
    return host, int(port)


def _response(status: str, text: str, more: str = "", *, has_body: bool = True) -> bytes:
    body = text.encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {_CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\n"
        f"{more}Connection: close\r\n\r\n"
    )
    return head.encode() + (body if has_body else b"")

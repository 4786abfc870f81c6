"""The HTTP side of the port: uvicorn's protocol, with a bound on connections and request times.

Every connection starts here, and moves on to a `NodeSocket` when it asks for a websocket. So the
connections that are counted here are those of the HTTP API and those that send nothing. Their
number is bounded, and none may take long over its request. When a new one arrives at the bound,
the one that has been silent for longest is closed: otherwise anybody who can reach the port could
block it with a few hundred silent connections. Only when all of them wait for their answers is it
the new one that is rejected.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

__all__ = ["BoundedHttpProtocol", "IdleConnections"]

_REQUEST_SECONDS = 10.0
_ANSWER_SECONDS = 60.0
_BODY = b'{"error_code": "Overloaded", "error_message": "overloaded: too many HTTP connections"}'
_OVERLOADED = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\n"
    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
)


class IdleConnections:
    """The connections that have no websocket, at most `capacity` of them."""

    def __init__(self, on_reject: Callable[[], None], capacity: int = 500) -> None:
        self.capacity = capacity
        self.connections: dict[BoundedHttpProtocol, None] = {}  # the longest silent first
        self._on_reject = on_reject

    def add(self, connection: "BoundedHttpProtocol") -> None:
        """Add a connection; at the bound, reject the longest silent one, or else this one."""
        if len(self.connections) < self.capacity:
            self.connections[connection] = None
            return
        self._on_reject()
        silent = next((each for each in self.connections if each.is_awaiting_request), None)
        if silent is None:
            connection.reject()
            return
        del self.connections[silent]
        silent.reject()
        self.connections[connection] = None

    def remove(self, connection: "BoundedHttpProtocol") -> None:
        self.connections.pop(connection, None)

    def touch(self, connection: "BoundedHttpProtocol") -> None:
        """It was answered just now, so it is the last one to be rejected."""
        if connection in self.connections:
            del self.connections[connection]
            self.connections[connection] = None

    def reap(self, now: float) -> None:
        """Close those that have exceeded their time."""
        for connection in list(self.connections):
            connection.abort_if_overdue(now)


class BoundedHttpProtocol(H11Protocol):
    """One HTTP connection."""

    def __init__(
        self,
        idle_connections: IdleConnections,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._idle_connections = idle_connections
        self._request_since: float | None = None  # a request is being read or answered

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._request_since = self.loop.time()
        self._idle_connections.add(self)

    def reject(self) -> None:
        """Answer 503 and close."""
        self.transport.write(_OVERLOADED)
        self.transport.close()

    @property
    def is_awaiting_request(self) -> bool:
        """Whether it is the client's turn to send something."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def connection_lost(self, exc: Exception | None) -> None:
        self._idle_connections.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._request_since is None:
            self._request_since = self.loop.time()
        if not self.transport.is_closing():
            super().data_received(data)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._idle_connections.remove(self)
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        self._request_since = None
        self._idle_connections.touch(self)
        super().on_response_complete()

    def abort_if_overdue(self, now: float) -> None:
        if self._request_since is None:
            return
        allowed = _REQUEST_SECONDS if self.is_awaiting_request else _ANSWER_SECONDS
        if now - self._request_since > allowed:
            self.transport.abort()

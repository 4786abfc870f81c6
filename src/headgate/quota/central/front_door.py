"""The HTTP side of the port: uvicorn's protocol, with bounds on those who have not said who.

Everyone comes in here, and leaves for a `NodeSocket` when he asks for a websocket. So the
connections that are counted here are those of the HTTP API and those that say nothing. There may be
so many of them, and none may take long over its request; else whoever can reach the port could hold
it shut with a few thousand silent connections.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

__all__ = ["FrontDoor", "Hall"]

_REQUEST_SECONDS = 10.0
_ANSWER_SECONDS = 60.0
_WHY = b'{"error_code": "Overloaded", "error_message": "overloaded: too many callers"}'
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\n"
    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(_WHY), _WHY)
)


class Hall:
    """Those who are inside the door and have no websocket."""

    def __init__(self, refused: Callable[[], None], most: int = 500) -> None:
        self.most = most
        self.callers: set[FrontDoor] = set()
        self.refused = refused

    def tend(self, now: float) -> None:
        for caller in list(self.callers):
            caller.tend(now)


class FrontDoor(H11Protocol):
    """One HTTP connection."""

    def __init__(
        self,
        hall: Hall,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._hall = hall
        self._asked_at: float | None = None  # since when a request is being read or answered

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._asked_at = self.loop.time()
        if len(self._hall.callers) >= self._hall.most:
            self._hall.refused()
            transport.write(_FULL)
            transport.close()
        else:
            self._hall.callers.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._hall.callers.discard(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._asked_at is None:
            self._asked_at = self.loop.time()
        if not self.transport.is_closing():
            super().data_received(data)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._hall.callers.discard(self)
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        self._asked_at = None
        super().on_response_complete()

    def tend(self, now: float) -> None:
        """Let go of one who takes too long."""
        if self._asked_at is None:
            return
        is_asking = self.cycle is None or self.cycle.response_complete or self.cycle.more_body
        if now - self._asked_at > (_REQUEST_SECONDS if is_asking else _ANSWER_SECONDS):
            self.transport.abort()

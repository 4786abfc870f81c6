"""The HTTP side of the port: uvicorn's protocol, with bounds on those who have not said who.

Everyone comes in here, and leaves for a `NodeSocket` when he asks for a websocket. So the
connections that are counted here are those of the HTTP API and those that say nothing. There may be
so many of them, and none may take long over its request. When there are that many and another one
comes, the one that has been silent for longest gives way: else whoever can reach the port could
hold it shut with a few hundred connections that say nothing. Only when all of them wait for their
answers is it the new one that is turned away.
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
        self.callers: dict[FrontDoor, None] = {}  # the longest silent first
        self._refused = refused

    def enter(self, caller: "FrontDoor") -> None:
        """Let one in; if there is no room, somebody goes."""
        if len(self.callers) < self.most:
            self.callers[caller] = None
            return
        self._refused()
        silent = next((each for each in self.callers if each.is_asking), None)
        if silent is None:
            caller.turn_away()
            return
        del self.callers[silent]
        silent.turn_away()
        self.callers[caller] = None

    def leave(self, caller: "FrontDoor") -> None:
        self.callers.pop(caller, None)

    def heard(self, caller: "FrontDoor") -> None:
        """He has been answered, and may ask again: he is the last to give way."""
        if caller in self.callers:
            del self.callers[caller]
            self.callers[caller] = None

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
        self._hall.enter(self)

    def turn_away(self) -> None:
        """There is no room for him."""
        self.transport.write(_FULL)
        self.transport.close()

    @property
    def is_asking(self) -> bool:
        """Whether it is his turn to say something."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def connection_lost(self, exc: Exception | None) -> None:
        self._hall.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._asked_at is None:
            self._asked_at = self.loop.time()
        if not self.transport.is_closing():
            super().data_received(data)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._hall.leave(self)
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        self._asked_at = None
        self._hall.heard(self)
        super().on_response_complete()

    def tend(self, now: float) -> None:
        """Let go of one who takes too long."""
        if self._asked_at is None:
            return
        if now - self._asked_at > (_REQUEST_SECONDS if self.is_asking else _ANSWER_SECONDS):
            self.transport.abort()

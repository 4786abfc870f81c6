"""The running server of a central: one port, the websockets and the HTTP API behind it, the clock.

`uvicorn` and `starlette` are needed from here on, and only from here on: whoever imports
`sluicegate` for a node or a limiter does not need them.
"""

import asyncio
import functools
import itertools
import socket
import ssl
from collections.abc import Iterator
from typing import Any, cast

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from sluicegate.errors import ConfigError, Unavailable
from sluicegate.quota.central.http import api
from sluicegate.quota.central.net.connection import Connection, Refusal
from sluicegate.quota.central.net.connections import Switchboard
from sluicegate.quota.central.net.handshake import Handshake
from sluicegate.quota.central.net.http_protocol import FrontDoor, Hall
from sluicegate.quota.central.net.tokens import Tokens, is_this_machine
from sluicegate.quota.central.net.websocket import NodeSocket, Session
from sluicegate.quota.central.scheduler import Pulse
from sluicegate.quota.central.state_file import StateFile

__all__ = ["Server"]

_STOP_SECONDS = 5
_ANSWER_SECONDS = 1.0
_ROUNDS = 3


class Server:
    """Listens for one `Switchboard`."""

    def __init__(
        self,
        board: Switchboard,
        state_file: StateFile | None,
        *,
        host: str,
        port: int,
        tls_cert: str | None,
        tls_key: str | None,
    ) -> None:
        self._board = board
        self._hall = Hall(lambda: board.metrics.refused("overloaded"))
        self._pulse = Pulse(board, state_file, self._hall.tend)
        self._host = host
        self._port = port
        self._sockets: list[socket.socket] = []
        self._main: asyncio.Task[None] | None = None

        def make_socket(**of_uvicorn: Any) -> NodeSocket:
            visit = _Visit(board)
            return NodeSocket(
                visit.open_session,
                board.receiving,
                visit.refused,
                board.bounds.frame_bytes,
                **of_uvicorn,
            )

        application = Starlette(
            routes=api.routes(board), exception_handlers=api.exception_handlers()
        )
        config = uvicorn.Config(
            _AdminOnly(application, board.tokens),
            http=cast("type[asyncio.Protocol]", functools.partial(FrontDoor, self._hall)),
            ws=cast("type[asyncio.Protocol]", make_socket),
            lifespan="off",
            access_log=False,
            log_config=None,
            log_level="warning",
            server_header=False,
            timeout_graceful_shutdown=_STOP_SECONDS,
        )
        config.load()
        if tls_cert is not None:
            config.ssl = _tls(tls_cert, tls_key)
        self._uvicorn = uvicorn.Server(config)
        self._uvicorn.lifespan = config.lifespan_class(config)

    @property
    def port(self) -> int:
        """The port it listens on; the real one, if it was to take any."""
        return int(self._sockets[0].getsockname()[1])

    async def start(self) -> None:
        self._sockets = list(_listen(self._host, self._port))
        await self._uvicorn.startup(sockets=self._sockets)
        self._main = asyncio.create_task(self._uvicorn.main_loop())
        self._pulse.start()

    async def close(self) -> None:
        """Stop accepting, answer what has come in, tell the nodes, and write the state.

        The nodes are told before the state is written, so that nothing is acknowledged that is
        not in it. `Unavailable` in the end, if it could not be written.
        """
        for server in self._uvicorn.servers:
            server.close()
        await self._pulse.stop()
        await self._answer_the_rest()
        self._board.stop()
        is_saved = await self._pulse.save()
        if self._main is not None:
            self._main.cancel()
            await asyncio.gather(self._main, return_exceptions=True)
        await self._uvicorn.shutdown(sockets=self._sockets)
        if not is_saved:
            raise Unavailable("the state was not written at the stop; the log says why")

    async def _answer_the_rest(self) -> None:
        """What has arrived is read in the next round of the loop; a long frame takes some more."""
        until = self._board.now() + _ANSWER_SECONDS
        for turn in itertools.count():
            await asyncio.sleep(0)
            if turn >= _ROUNDS and (not self._board.is_busy or self._board.now() > until):
                break


class _Visit:
    """One websocket, for which the board remembers who it is when it is ended."""

    def __init__(self, board: Switchboard) -> None:
        self._board = board
        self._connection: Connection | None = None

    def open_session(
        self, socket: NodeSocket, handshake: Handshake, address: str, port: int
    ) -> Session | Refusal:
        session = self._board.open_session(socket, handshake, address, port)
        if not isinstance(session, Refusal):
            self._connection = session.connection
        return session

    def refused(self, refusal: Refusal, address: str) -> None:
        self._board.refused(refusal, address, self._connection)


class _AdminOnly:
    """Lets through to the HTTP API who shows the admin token; /healthz is for everyone."""

    def __init__(self, app: ASGIApp, tokens: Tokens) -> None:
        self._app = app
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/healthz":
            await self._app(scope, receive, send)
        elif self._tokens.admin is None and not is_this_machine(_header(scope, b"host")):
            why = "denied: without a token the API is for localhost alone"
            await api.refusal(403, "Denied", why)(scope, receive, send)
        elif self._tokens.allows("admin", _header(scope, b"authorization")):
            await self._app(scope, receive, send)
        else:
            why = "denied: the admin token is needed: Authorization: Bearer TOKEN"
            response = api.refusal(401, "Denied", why, {"WWW-Authenticate": "Bearer"})
            await response(scope, receive, send)


def _header(scope: Scope, wanted: bytes) -> str | None:
    """A header's value. Said twice it is not believed, but it is not absent."""
    values = [value.decode("latin-1") for name, value in scope["headers"] if name == wanted]
    return ", ".join(values) or None


def _listen(host: str, port: int) -> Iterator[socket.socket]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        listener = socket.create_server(
            cast("tuple[str, int]", address[:2]), family=family, backlog=2048
        )
    except OSError as error:
        raise Unavailable(f"cannot listen on {host}:{port}: {error}") from None
    listener.setblocking(False)
    # Those who are accepted have it from here: a quota must not wait for the acknowledgement of
    # the Ack before it.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    yield listener


def _tls(cert: str, key: str | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"the certificate {cert} and the key {key} cannot be used: {error}"
        ) from None
    return context

"""`Server`: listens on one port for websockets and the HTTP API, and runs the `Scheduler`.

`uvicorn` and `starlette` are needed from here on, and only from here on: a program that imports
`sluicegate` for a node or a limiter does not need them.
"""

import asyncio
import functools
import itertools
import os
import socket
from collections.abc import Iterator
from typing import Any, Literal, cast

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from sluicegate.errors import Unavailable
from sluicegate.quota.central.http.api import routes
from sluicegate.quota.central.http.responses import error_response, exception_handlers
from sluicegate.quota.central.net.connection import CloseReason, Connection
from sluicegate.quota.central.net.handshake import Handshake
from sluicegate.quota.central.net.http_protocol import BoundedHttpProtocol, IdleConnections
from sluicegate.quota.central.net.registry import ConnectionRegistry
from sluicegate.quota.central.net.tokens import Tokens, is_this_machine
from sluicegate.quota.central.net.websocket import NodeSocket, Session
from sluicegate.quota.central.scheduler import Scheduler
from sluicegate.quota.central.server_socket import tls_context
from sluicegate.quota.central.state_file import StateFile

__all__ = ["Server"]

_STOP_SECONDS = 5
_DRAIN_SECONDS = 1.0
_DRAIN_TURNS = 3


class Server:
    """Serves the connections of one `ConnectionRegistry`."""

    def __init__(
        self,
        registry: ConnectionRegistry,
        state_file: StateFile | None,
        *,
        host: str,
        port: int,
        tls_cert: str | None,
        tls_key: str | None,
    ) -> None:
        self._registry = registry
        self._idle_connections = IdleConnections(lambda: registry.metrics.refused("overloaded"))
        self._scheduler = Scheduler(registry, state_file, self._idle_connections.reap)
        self._host = host
        self._port = port
        self._sockets: list[socket.socket] = []
        self._main: asyncio.Task[None] | None = None

        def make_socket(**uvicorn_arguments: Any) -> NodeSocket:
            callbacks = _SocketCallbacks(registry)
            return NodeSocket(
                callbacks.open_session,
                registry.receive_budget,
                callbacks.record_close,
                registry.bounds.frame_bytes,
                **uvicorn_arguments,
            )

        application = Starlette(routes=routes(registry), exception_handlers=exception_handlers())
        config = uvicorn.Config(
            _TokenCheck(application, registry.tokens),
            http=cast(
                "type[asyncio.Protocol]",
                functools.partial(BoundedHttpProtocol, self._idle_connections),
            ),
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
            config.ssl = tls_context(tls_cert, tls_key)
        self._uvicorn = uvicorn.Server(config)
        self._uvicorn.lifespan = config.lifespan_class(config)

    @property
    def port(self) -> int:
        """The port it listens on; the actual one, if it was started with port 0."""
        return int(self._sockets[0].getsockname()[1])

    async def start(self) -> None:
        self._sockets = list(_listen(self._host, self._port))
        await self._uvicorn.startup(sockets=self._sockets)
        self._main = asyncio.create_task(self._uvicorn.main_loop())
        self._scheduler.start()

    async def close(self) -> None:
        """Stop accepting, answer what has arrived, close the connections, and write the state.

        The connections are closed before the state is written, so that nothing is acknowledged
        that is not in it. Raises `Unavailable` at the end if it could not be written.
        """
        for server in self._uvicorn.servers:
            server.close()
        await self._scheduler.stop()
        await self._drain()
        self._registry.stop()
        is_saved = await self._scheduler.save()
        if self._main is not None:
            self._main.cancel()
            await asyncio.gather(self._main, return_exceptions=True)
        await self._uvicorn.shutdown(sockets=self._sockets)
        if not is_saved:
            raise Unavailable("the state was not written at shutdown (see the log)")

    async def _drain(self) -> None:
        """Answer what has arrived: the loop reads it in its next turn; a long frame takes more."""
        until = self._registry.now() + _DRAIN_SECONDS
        for turn in itertools.count():
            await asyncio.sleep(0)
            if turn >= _DRAIN_TURNS and (
                not self._registry.is_busy or self._registry.now() > until
            ):
                break


class _SocketCallbacks:
    """The registry's callbacks for one websocket; remembers its connection for its close."""

    def __init__(self, registry: ConnectionRegistry) -> None:
        self._registry = registry
        self._connection: Connection | None = None

    def open_session(
        self, socket: NodeSocket, handshake: Handshake, address: str, port: int
    ) -> Session | CloseReason:
        session = self._registry.open_session(socket, handshake, address, port)
        if not isinstance(session, CloseReason):
            self._connection = session.connection
        return session

    def record_close(self, close_reason: CloseReason, address: str) -> None:
        self._registry.record_close(close_reason, address, self._connection)


class _TokenCheck:
    """Requires the admin token for the HTTP API, and that of peers for /api/state.

    /healthz is open to all.
    """

    def __init__(self, app: ASGIApp, tokens: Tokens) -> None:
        self._app = app
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/healthz":
            await self._app(scope, receive, send)
            return
        role: Literal["admin", "peer"] = "peer" if scope["path"] == "/api/state" else "admin"
        token = self._tokens.peer if role == "peer" else self._tokens.admin
        if token is None and not is_this_machine(_header(scope, b"host")):
            why = "denied: without a token only localhost may use the API"
            await error_response(403, "Denied", why)(scope, receive, send)
        elif self._tokens.allows(role, _header(scope, b"authorization")):
            await self._app(scope, receive, send)
        else:
            is_missing = _header(scope, b"authorization") is None
            name = "an admin token" if role == "admin" else "a peer token"
            what = f"{name} is required" if is_missing else f"invalid {role} token"
            why = f"denied: {what}"
            response = error_response(401, "Denied", why, {"WWW-Authenticate": "Bearer"})
            await response(scope, receive, send)


def _header(scope: Scope, wanted: bytes) -> str | None:
    """The value of a header. A repeated one is joined: it must not match, nor count as absent."""
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
        # create_server adds the address to the reason.
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise Unavailable(f"cannot listen on {host}:{port}: {reason}") from None
    listener.setblocking(False)
    # Accepted sockets inherit this: a quota must not wait for the TCP acknowledgement of the Ack
    # before it.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    yield listener

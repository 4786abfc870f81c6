"""`Witness`: a member that votes in the election of the centrals, and never leads.

Two centrals have no fault tolerance: neither has a majority without the other. A witness on a third
machine is the third vote. It has no limits, no ledger and no nodes, only the protocol of the peers,
and `/healthz`.

    async with Witness("w", peers, "0.0.0.0:7412", "w.state", token="..."): ...
"""

import asyncio
import functools
import http
import logging
import signal
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from sluicegate.errors import ConfigError, ProtocolError, Unavailable, reason_of
from sluicegate.quota.central.leadership import EpochFloor
from sluicegate.quota.central.lending.messages import Borrow, Lend
from sluicegate.quota.central.member import paxos_lease, peer_tls
from sluicegate.quota.central.membership import PAXOS, check_membership
from sluicegate.quota.central.net.connection import (
    HELLO_HEADERS,
    PEER,
    STOPPING,
    CloseReason,
    PeerHello,
    truncate_reason,
)
from sluicegate.quota.central.net.handshake import Handshake, check_handshake
from sluicegate.quota.central.net.peer_link import PeerOptions
from sluicegate.quota.central.net.peer_stream import PeerStream
from sluicegate.quota.central.net.peer_transport import PeerTransport
from sluicegate.quota.central.net.peer_wire import LARGEST_PEER_MESSAGE, PeerMessage
from sluicegate.quota.central.net.tokens import Tokens, is_loopback
from sluicegate.quota.central.server_socket import parse_address, tls_context

__all__ = ["Witness"]

_logger = logging.getLogger("sluicegate.quota")

_PING_INTERVAL, _PING_TIMEOUT = 15.0, 25.0
_CLOSE_TIMEOUT = 0.5
_MAX_SILENT = 50  # connections that have not asked for a websocket yet; there are few peers

# What strangers send is no error of the witness: one of their handshakes that fails is not logged.
_server_logger = logging.getLogger("sluicegate.quota.witness")
_server_logger.setLevel(logging.WARNING)
_server_logger.addFilter(lambda record: record.msg != "opening handshake failed")


class Witness:
    """One witness. The arguments are those of `Central`; `state` is a file of its own."""

    def __init__(
        self,
        name: str,
        peers: Mapping[str, str],
        listen: str,
        state: str | Path,
        *,
        peer_token: str | None = None,
        tls_cert: str | Path | None = None,
        tls_key: str | Path | None = None,
        peer_ca: str | Path | None = None,
        lease: float | None = None,
    ) -> None:
        membership = check_membership(name, peers, PAXOS, lease, state)
        assert membership is not None
        self.name = name
        self._host, self._port = parse_address(listen)
        self._tokens = Tokens(peer=peer_token)
        if not is_loopback(self._host) and peer_token is None:
            raise ConfigError(
                f"other machines may reach {listen}, but the token of the peers is missing: add "
                f'peer = "..." to the token file, the same on all members'
            )
        if (tls_cert is None) != (tls_key is None):
            raise ConfigError("expected both --tls-cert and --tls-key, got only one")
        self._tls: ssl.SSLContext | None = None
        if tls_cert is not None:
            self._tls = tls_context(str(tls_cert), str(tls_key))
        tls = peer_tls(membership, None if peer_ca is None else str(peer_ca))
        self._transport = PeerTransport(membership.peers, PeerOptions(name, peer_token, tls))
        self._election = paxos_lease(membership, self._transport, EpochFloor(), is_candidate=False)
        self._transport.receive = self._receive
        self._server: Server | None = None
        self._silent: dict[ServerConnection, None] = {}  # the longest silent first

    def __repr__(self) -> str:
        return f"Witness({self.name}, {self._election!r})"

    @property
    def url(self) -> str:
        """Where it listens."""
        assert self._server is not None
        port = next(iter(self._server.sockets)).getsockname()[1]
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'http' if self._tls is None else 'https'}://{host}:{port}"

    async def start(self) -> None:
        try:
            self._server = await serve(
                self._serve_peer,
                self._host,
                self._port,
                ssl=self._tls,
                subprotocols=[Subprotocol(PEER)],
                select_subprotocol=lambda _, asked: PEER if PEER in asked else None,  # type: ignore[arg-type,return-value]
                process_request=_answer_http,
                create_connection=functools.partial(_BoundedConnection, self._silent),  # type: ignore[arg-type]
                logger=_server_logger,
                compression=None,
                max_size=LARGEST_PEER_MESSAGE,
                ping_interval=_PING_INTERVAL,
                ping_timeout=_PING_TIMEOUT,
                close_timeout=_CLOSE_TIMEOUT,
                server_header=None,
            )
        except OSError as error:
            raise Unavailable(
                f"cannot listen on {self._host}:{self._port}: {reason_of(error)}"
            ) from None
        self._transport.start()
        try:
            await self._election.start()
        except BaseException:
            await self.close()
            raise
        _logger.info("witness %s listens on %s", self.name, self.url)

    async def close(self) -> None:
        server, self._server = self._server, None
        await self._election.close()
        await self._transport.close()
        if server is not None:
            server.close(code=STOPPING.code, reason=STOPPING.reason)
            await server.wait_closed()

    async def __aenter__(self) -> "Witness":
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def run(self, started: Callable[["Witness"], object]) -> None:
        """Vote until SIGTERM or SIGINT; `started` is called when it listens."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        async with self:
            started(self)
            await stop.wait()

    def _receive(self, peer: str, message: PeerMessage) -> None:
        if isinstance(message, Borrow | Lend):
            raise ProtocolError("a witness leads no service")
        self._election.receive(peer, message)

    async def _serve_peer(self, connection: ServerConnection) -> None:
        """Serve one connection that a peer has opened, or say why not."""
        assert connection.request is not None
        self._silent.pop(connection, None)
        headers = connection.request.headers
        hello = PeerHello(*(_join(headers, header) for header in HELLO_HEADERS))
        peer = hello.name or ""
        refused = self._refuse(connection.request) or self._transport.refuse(hello)
        if refused is not None:
            _logger.info("connection closed: %s (%s)", connection.remote_address, refused.reason)
            await connection.close(refused.code, truncate_reason(refused.reason))
            return
        stream = PeerStream(
            connection, lambda message: self._transport.receive(peer, message), wants_answer=False
        )
        self._transport.accept(peer, stream)
        try:
            await stream.run()
        except (ConnectionClosed, ProtocolError) as error:
            _logger.info("connection of peer %s ended: %s", peer, error)
        finally:
            self._transport.forget(peer, stream)

    def _refuse(self, request: Request) -> CloseReason | None:
        headers = request.headers
        handshake = Handshake(
            path=request.path.partition("?")[0],
            subprotocols=[
                name.strip()
                for header in headers.get_all("Sec-WebSocket-Protocol")
                for name in header.split(",")
            ],
            authorization=_join(headers, "Authorization"),
            origin=_join(headers, "Origin"),
            host=_join(headers, "Host"),
        )
        if PEER not in handshake.subprotocols:
            return CloseReason.denied(f"a witness serves no nodes: expected the subprotocol {PEER}")
        kind = check_handshake(handshake, self._tokens, 1.0)
        return kind if isinstance(kind, CloseReason) else None


class _BoundedConnection(ServerConnection):
    """A connection. When too many are silent, the one that has been so for longest is closed.

    Otherwise anybody who can reach the port could take all file descriptors, and with them the
    vote: neither the connection of a peer nor the file could be opened.
    """

    def __init__(self, silent: dict[ServerConnection, None], *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._silent = silent

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._silent[self] = None
        if len(self._silent) > _MAX_SILENT:
            oldest = next(iter(self._silent))
            del self._silent[oldest]
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._silent.pop(self, None)
        super().connection_lost(exc)


def _join(headers: Headers, name: str) -> str | None:
    """The value of a header. A repeated one is joined: it must not match, nor count as absent."""
    return ", ".join(headers.get_all(name)) or None


def _answer_http(connection: ServerConnection, request: Request) -> Response | None:
    """The answer to what is not a websocket. A central that starts asks all peers for a state."""
    if request.path == "/healthz":
        return connection.respond(http.HTTPStatus.OK, "ok")
    if "Upgrade" not in request.headers:
        return connection.respond(
            http.HTTPStatus.NOT_FOUND, "this is a witness: it has /healthz, and no API or state\n"
        )
    return None

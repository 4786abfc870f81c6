"""`PeerLink`: the connection from this central to one of its peers, made again whenever it ends.

Proposals are sent over it, and the peer's answers come back over it. While there is no connection,
what is to be sent is dropped: an old proposal is of no use. Each kind of failure is logged once,
until a connection holds.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.typing import Subprotocol

from sluicegate.errors import ProtocolError
from sluicegate.quota.backoff import Backoff
from sluicegate.quota.central.net.connection import HELLO_HEADERS, PEER, PeerHello
from sluicegate.quota.central.net.peer_stream import PeerStream
from sluicegate.quota.central.net.peer_wire import LARGEST_PEER_MESSAGE, PeerMessage

__all__ = ["PeerLink", "PeerOptions"]

_logger = logging.getLogger("sluicegate.quota")

_OPEN_TIMEOUT = 2.0
_PING_INTERVAL = 1.0
_PING_TIMEOUT = 2.0
_CLOSE_TIMEOUT = 0.5
_LONGEST_BACKOFF = 1.0  # there are few peers, and without them nobody leads
_HOLDS_AFTER = 10.0
_DENIED, _REPLACED = 1008, 4001


@dataclass(frozen=True, slots=True)
class PeerOptions:
    """What all links of a member have in common. `tls` is for peers with a wss:// URL."""

    name: str
    token: str | None = None
    tls: ssl.SSLContext | None = None


class _ConnectWithoutRedirects(connect):
    """Follows no redirect: the token is for the configured peer only."""

    def process_redirect(self, exc: Exception) -> Exception:
        return exc


class PeerLink:
    """One peer. `receive(peer, message)` gets its answers; it may raise ProtocolError.

    `members`: the names of all, this one included, for the peer to compare.
    """

    def __init__(
        self,
        peer: str,
        url: str,
        options: PeerOptions,
        receive: Callable[[str, PeerMessage], None],
        backoff: Backoff | None = None,
        members: Iterable[str] = (),
    ) -> None:
        self.peer = peer
        self.url = url
        self._options = options
        self._receive = receive
        self._members = ",".join(sorted(members))
        self._backoff = backoff or Backoff(longest=_LONGEST_BACKOFF)
        self._stream: PeerStream | None = None
        self._logged_problem: str | None = None

    def __repr__(self) -> str:
        return f"PeerLink({self.peer}, {self.url}, connected={self.is_connected})"

    @property
    def is_connected(self) -> bool:
        return self._stream is not None

    def send(self, message: PeerMessage) -> None:
        """Send a message, or drop it."""
        if self._stream is not None:
            self._stream.send(message)

    async def run(self) -> None:
        """Stay connected, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            is_denied = is_replaced = False
            try:
                await self._connect_once()
                problem = "connection closed"
            except ConnectionClosed as closed:
                code = None if closed.rcvd is None else closed.rcvd.code
                is_denied, is_replaced = code == _DENIED, code == _REPLACED
                problem = _describe(closed)
                if is_replaced:
                    # Two processes with one name have one vote twice.
                    problem = (
                        f"another process has connected to it as {self._options.name}: is this "
                        f"name used twice, or this peer listed under two names? ({problem})"
                    )
            except (OSError, WebSocketException, ProtocolError, UnicodeError) as error:
                problem = f"{type(error).__name__}: {error}"  # UnicodeError: no name of a host
            except Exception as error:
                # Without its link to a peer a member would never have its vote again.
                problem = f"{type(error).__name__}: {error}"
                if problem != self._logged_problem:
                    _logger.exception("connection to peer %s failed", self.peer)
            lasted = loop.time() - began
            if lasted >= _HOLDS_AFTER:
                self._logged_problem = None
            if problem != self._logged_problem:
                self._logged_problem = problem
                level = logging.ERROR if is_denied or is_replaced else logging.WARNING
                _logger.log(level, "connection to peer %s failed: %s", self.peer, problem)
            await asyncio.sleep(self._backoff.next_delay(lasted=lasted, is_permanent=is_denied))

    async def _connect_once(self) -> None:
        options = self._options
        hello = PeerHello(options.name, self.peer, self._members)
        headers = {name: text for name, text in zip(HELLO_HEADERS, hello, strict=True) if text}
        if options.token is not None:
            headers["Authorization"] = f"Bearer {options.token}"
        async with _ConnectWithoutRedirects(
            self.url,
            subprotocols=[Subprotocol(PEER)],
            compression=None,
            additional_headers=headers,
            proxy=None,
            open_timeout=_OPEN_TIMEOUT,
            ping_interval=_PING_INTERVAL,
            ping_timeout=_PING_TIMEOUT,
            close_timeout=_CLOSE_TIMEOUT,
            max_size=LARGEST_PEER_MESSAGE,
            ssl=options.tls if self.url.startswith("wss:") else None,
        ) as connection:
            if connection.subprotocol != PEER:
                raise ProtocolError(f"server does not support {PEER}: is it a central with peers?")
            stream = PeerStream(
                connection, lambda message: self._receive(self.peer, message), wants_answer=True
            )
            # One that denies us says so in a close frame, right after the handshake.
            await (await connection.ping())
            self._stream = stream
            _logger.info("peer connected: %s (%s)", self.peer, self.url)
            try:
                await stream.run()
            finally:
                self._stream = None


def _describe(closed: ConnectionClosed) -> str:
    """Why a connection ended, without the codes of websockets where a reason says it."""
    if closed.rcvd is not None:
        return f"{closed.rcvd.reason or 'closed by the peer'} (code {closed.rcvd.code})"
    if closed.sent is not None:
        return closed.sent.reason or "closed"
    return "connection lost"

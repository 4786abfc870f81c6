"""`ConnectionRegistry`: all connections of a central, and which session belongs to which node.

The registry is between the sessions and the `CentralState`: it hands messages to the state, and
delivers the state's messages to the sessions of their nodes. The HTTP API reads from it, too. It
belongs to the server's loop and does no I/O of its own.

The log has one line when a node connects, and one when it disconnects, with the reason. A classic
node has no name before its first report, and is logged at the next liveness check. At the stop
there is one line for all of them.

`now` is monotonic, `started` wall time; seconds.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from sluicegate.quota.central.http.metrics import CentralMetrics
from sluicegate.quota.central.leadership import Leadership
from sluicegate.quota.central.limit_sources.sync import LimitsSync
from sluicegate.quota.central.net.ban_list import BanList
from sluicegate.quota.central.net.connection import (
    PEER,
    STOPPING,
    V1,
    CloseReason,
    Connection,
    Kind,
)
from sluicegate.quota.central.net.handshake import Handshake, check_handshake
from sluicegate.quota.central.net.node_session import NodeSession
from sluicegate.quota.central.net.tokens import Tokens
from sluicegate.quota.central.net.websocket import NodeSocket, ReceiveBudget, Session
from sluicegate.quota.central.state import CentralState
from sluicegate.quota.central.warm_up import WarmUp
from sluicegate.quota.messages import Ack, Ask, Quota, Report
from sluicegate.quota.wire import Bounds, CentralWire

__all__ = ["ConnectionRegistry", "OpenSession"]

# Creates the session of a connection, or says why not; the last argument: whether it presented the
# admin token.
OpenSession: TypeAlias = Callable[[NodeSocket, Connection, bool], Session | CloseReason]

_logger = logging.getLogger("sluicegate.quota")

_WRITE_TIMEOUT_SECONDS = 5.0  # for a node that does not read
_WRITE_TIMEOUT_SLOTS = 5
_CLOSED_BY_PEER = "connection closed, no leave message"
_LEFT = "the node left"
_COUNTED_KINDS = ("denied", "overloaded", "bad frame", "replaced")


class ConnectionRegistry:
    """The connections of one central, and the parts that its sessions and its API share."""

    def __init__(
        self,
        state: CentralState,
        limits_sync: LimitsSync,
        leadership: Leadership,
        warm_up: WarmUp,
        *,
        tokens: Tokens,
        max_connections: int,
        bounds: Bounds,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = state.name
        self.state = state
        self.limits_sync = limits_sync
        self.leadership = leadership
        self.warm_up = warm_up
        self.metrics = CentralMetrics()
        self.started = time.time()
        self.now = clock
        self.tokens = tokens
        self.bounds = bounds
        self.receive_budget = ReceiveBudget()
        self.asked: Callable[[], None] | None = None  # called after each ask: a node may wait now
        self._max_connections = max_connections
        self._ban_list = BanList()
        self._protocols: dict[Kind, OpenSession] = {V1: self._open_node_session}
        self._sockets: dict[NodeSocket, Connection] = {}
        self._nodes: dict[str, NodeSession] = {}

    def __repr__(self) -> str:
        return f"ConnectionRegistry({self.state!r}, connections={len(self._sockets)})"

    def connections(self) -> list[Connection]:
        return list(self._sockets.values())

    # Connecting and disconnecting

    def register(self, kind: Kind, open_session: OpenSession) -> None:
        """Serve another protocol: `open_session` creates the session of each connection."""
        self._protocols[kind] = open_session

    def open_session(
        self, socket: NodeSocket, handshake: Handshake, address: str, port: int
    ) -> Session | CloseReason:
        """The session for a socket after its handshake, or why it is refused."""
        kind = check_handshake(handshake, self.tokens, self.state.ledger.slot_seconds)
        # A node may share the address of a peer, and must not be able to keep it out.
        if kind != PEER and self._ban_list.is_banned(self.now(), address):
            return CloseReason.denied("too many bad frames")
        if isinstance(kind, CloseReason):
            return kind
        if kind not in self._protocols:
            return CloseReason.denied(f"protocol {kind} is not served")
        # There is one connection of each peer, and nodes must not be able to keep them out.
        if len(self._sockets) >= self._max_connections and kind != PEER:
            return CloseReason.overloaded(f"too many connections, at most {self._max_connections}")
        connection = Connection(kind, address, port, time.time(), hello=handshake.hello)
        is_admin = self.tokens.allows("admin", handshake.authorization)
        session = self._protocols[kind](socket, connection, is_admin)
        if not isinstance(session, CloseReason):
            self._sockets[socket] = connection
        return session

    def _open_node_session(
        self, socket: NodeSocket, connection: Connection, is_admin: bool
    ) -> Session:
        return NodeSession(self, socket, connection, CentralWire(self.bounds))

    def join(self, node: str, session: NodeSession) -> None:
        """`session` belongs to `node` from now on; an earlier session of the node is closed."""
        before = self._nodes.get(node)
        self._nodes[node] = session
        if before is not None:
            before.close(CloseReason.replaced(node))
        self._log_connected(session.connection)

    def leave(self, session: NodeSession, socket: NodeSocket) -> None:
        self.remove(socket)
        node = session.connection.node
        if node is not None and self._nodes.get(node) is session:
            del self._nodes[node]

    def remove(self, socket: NodeSocket) -> None:
        connection = self._sockets.pop(socket, None)
        if connection is None or connection.node is None:
            return
        if connection.end_reason != STOPPING.reason:
            self._log_connected(connection)
            _logger.info(
                "node disconnected: %s (%s)", connection, connection.end_reason or _CLOSED_BY_PEER
            )

    def _log_connected(self, connection: Connection) -> None:
        if connection.node is not None and not connection.is_logged:
            connection.is_logged = True
            _logger.info("node connected: %s", connection)

    def record_close(
        self, close_reason: CloseReason, address: str, connection: Connection | None
    ) -> None:
        """The central closes a connection; None: its handshake was refused."""
        if connection is not None:
            connection.end_reason = close_reason.reason
        if close_reason.kind not in _COUNTED_KINDS:
            return
        self.metrics.refused(close_reason.kind)
        if close_reason.kind == "bad frame":
            self.bad_frame(address)
        if connection is None or connection.node is None:
            _logger.info("connection closed: %s (%s)", address, close_reason.reason)

    def bad_frame(self, address: str) -> None:
        self.metrics.bad_frame()
        self._ban_list.record(self.now(), address)

    def check_liveness(self) -> None:
        """Ping silent nodes, and close connections that are dead; about once a second."""
        now = self.now()
        write_timeout = max(
            _WRITE_TIMEOUT_SECONDS, _WRITE_TIMEOUT_SLOTS * self.state.ledger.slot_seconds
        )
        for socket, connection in list(self._sockets.items()):
            self._log_connected(connection)
            socket.check_liveness(now, write_timeout)

    @property
    def is_busy(self) -> bool:
        """Whether something that was received is not answered yet."""
        return any(socket.is_busy for socket in self._sockets)

    def stop(self) -> None:
        """Close all connections."""
        _logger.info("closing all connections (%d): %s", len(self._sockets), STOPPING.reason)
        for socket in list(self._sockets):
            socket.close(STOPPING)

    # Messages

    def resolve_names(self, now: float, report: Report) -> Iterator[None]:
        """Look up the names of a long report, in steps, before it is handled."""
        return self.state.ledger.resolve_names(self.state.slot(now), report)

    def handle(self, now: float, message: Report | Ask) -> None:
        """Process a message of a `sluicegate.v1` node."""
        if isinstance(message, Report) and message.epoch > self.state.epoch:
            self.leadership.hear(now, message)
        self.deliver(self.state.receive(now, message))
        if isinstance(message, Ask) and self.asked is not None:
            self.asked()
        if isinstance(message, Report) and message.leaving and message.node in self._nodes:
            self._nodes[message.node].connection.end_reason = _LEFT

    def is_outlived(self, message: Report | Ask) -> bool:
        """Whether it comes from an earlier boot of its node: nothing of it is booked."""
        return self.state.ledger.is_outlived(message.node, message.boot)

    def may_send(self, quota: Quota) -> bool:
        """Whether this central leads at this moment, all or some services, in the quota's epoch.

        To be asked last, right before it is sent: it may have waited, or the process may have been
        frozen since it was made.
        """
        return self.state.grants and quota.epoch == self.state.epoch

    def deliver(self, messages: Iterable[tuple[str, Ack | Quota]]) -> None:
        """Send each message to its node, if it is connected."""
        for node, message in messages:
            session = self._nodes.get(node)
            if session is not None:
                session.send(message)

"""Everyone who is connected: which session stands for which node, and who hears what.

The switchboard is between the sessions and the `CentralState`: it hands messages to the state,
and what the state says to the session of the node it is for. It is also what the HTTP API looks
at. It belongs to the server's loop and does no I/O of its own.

Alone, without an election, a central leads from its start. Its epoch must be higher than any
that nodes have seen of it: the wall clock sees to that, and if the clock was wrong in an earlier
life, a report tells, and it leads again with a higher epoch.

The log has a line for each node that comes, and one when it goes, with the reason. A classic node
has no name before its first report, and is told of when it is looked after next. At the stop there
is one line for all of them.

`now` is monotonic, `started` wall time; seconds.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from sluicegate.errors import ProtocolError
from sluicegate.quota.central.http.metrics import CentralMetrics
from sluicegate.quota.central.net.ban_list import BadFrames
from sluicegate.quota.central.net.connection import STOPPING, V1, Connection, Kind, Refusal
from sluicegate.quota.central.net.handshake import Handshake, admit
from sluicegate.quota.central.net.session import NodeSession
from sluicegate.quota.central.net.tokens import Tokens
from sluicegate.quota.central.net.websocket import NodeSocket, Receiving, Session
from sluicegate.quota.central.sources.sync import LimitsSync
from sluicegate.quota.central.state import CentralState
from sluicegate.quota.messages import Ack, Ask, Quota, Report
from sluicegate.quota.wire import Bounds, CentralWire

__all__ = ["Switchboard", "epoch_bound"]

# Makes the session of a connection; the last argument: whether it has shown the admin token.
OpenSession: TypeAlias = Callable[[NodeSocket, Connection, bool], Session]

_logger = logging.getLogger("sluicegate.quota")

# An epoch is the time of a start. No clock was more than so many seconds ahead: ten years.
_EPOCHS_AHEAD = 10 * 365 * 86_400
_PATIENCE_SECONDS = 5.0  # with one who does not read
_PATIENCE_SLOTS = 5
_CLOSED = "the other end has closed the connection"
_LEAVES = "it leaves"
_REFUSALS_COUNTED = ("denied", "overloaded", "bad frame", "replaced")


def epoch_bound(wall: float) -> int:
    """What no epoch of ours has come to by `wall`, of whatever report or file it is told."""
    return int(wall) + _EPOCHS_AHEAD


class Switchboard:
    """Who is connected to one central."""

    def __init__(
        self,
        state: CentralState,
        keeper: LimitsSync,
        *,
        tokens: Tokens,
        max_connections: int,
        bounds: Bounds,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = state.name
        self.state = state
        self.keeper = keeper
        self.metrics = CentralMetrics()
        self.started = time.time()
        self.now = clock
        self.tokens = tokens
        self.bounds = bounds
        self.receiving = Receiving()
        self._max_connections = max_connections
        self._bad_frames = BadFrames()
        self._protocols: dict[Kind, OpenSession] = {V1: self._open_node_session}
        self._sockets: dict[NodeSocket, Connection] = {}
        self._nodes: dict[str, NodeSession] = {}

    def __repr__(self) -> str:
        return f"Switchboard({self.state!r}, connections={len(self._sockets)})"

    def connections(self) -> list[Connection]:
        return list(self._sockets.values())

    # Coming and going

    def register(self, kind: Kind, open_session: OpenSession) -> None:
        """Serve another protocol: `open_session` makes the session of each connection."""
        self._protocols[kind] = open_session

    def open_session(
        self, socket: NodeSocket, handshake: Handshake, address: str, port: int
    ) -> Session | Refusal:
        """What is spoken over a socket that has shaken hands, or why nothing is."""
        if self._bad_frames.is_barred(self.now(), address):
            return Refusal.denied("too many bad frames")
        kind = admit(handshake, self.tokens, self.state.ledger.slot_seconds)
        if isinstance(kind, Refusal):
            return kind
        if kind not in self._protocols:
            return Refusal.denied(f"this central does not speak {kind}")
        if len(self._sockets) >= self._max_connections:
            return Refusal.overloaded(f"{self._max_connections} connections are all there can be")
        connection = Connection(kind, address, port, time.time())
        self._sockets[socket] = connection
        is_admin = self.tokens.allows("admin", handshake.authorization)
        return self._protocols[kind](socket, connection, is_admin)

    def _open_node_session(
        self, socket: NodeSocket, connection: Connection, is_admin: bool
    ) -> Session:
        return NodeSession(self, socket, connection, CentralWire(self.bounds))

    def join(self, node: str, session: NodeSession) -> None:
        """`session` speaks for `node` from now on; who did before is sent away."""
        before = self._nodes.get(node)
        self._nodes[node] = session
        if before is not None:
            before.close(Refusal.replaced(node))
        self._tell_come(session.connection)

    def leave(self, session: NodeSession, socket: NodeSocket) -> None:
        self.gone(socket)
        node = session.connection.node
        if node is not None and self._nodes.get(node) is session:
            del self._nodes[node]

    def gone(self, socket: NodeSocket) -> None:
        connection = self._sockets.pop(socket, None)
        if connection is None or connection.node is None:
            return
        if connection.ending != STOPPING.reason:
            self._tell_come(connection)
            _logger.info("%s has gone: %s", connection, connection.ending or _CLOSED)

    def _tell_come(self, connection: Connection) -> None:
        if connection.node is not None and not connection.is_told:
            connection.is_told = True
            _logger.info("%s has come", connection)

    def refused(self, refusal: Refusal, address: str, connection: Connection | None) -> None:
        """A connection was ended, by us; None: nobody had been let in yet."""
        if connection is not None:
            connection.ending = refusal.reason
        if refusal.kind not in _REFUSALS_COUNTED:
            return
        self.metrics.refused(refusal.kind)
        if refusal.kind == "bad frame":
            self.bad_frame(address)
        if connection is None or connection.node is None:
            _logger.info("the connection from %s was ended: %s", address, refusal.reason)

    def bad_frame(self, address: str) -> None:
        self.metrics.bad_frame()
        self._bad_frames.note(self.now(), address)

    def tend(self) -> None:
        """Look after all connections, about once a second."""
        now = self.now()
        patience = max(_PATIENCE_SECONDS, _PATIENCE_SLOTS * self.state.ledger.slot_seconds)
        for socket, connection in list(self._sockets.items()):
            self._tell_come(connection)
            socket.tend(now, patience)

    @property
    def is_busy(self) -> bool:
        """Whether something that has come in is not answered yet."""
        return any(socket.is_busy for socket in self._sockets)

    def stop(self) -> None:
        """Tell everyone that there is nothing more to come."""
        _logger.info("%d connections end: %s", len(self._sockets), STOPPING.reason)
        for socket in list(self._sockets):
            socket.close(STOPPING)

    # Messages

    def finding(self, now: float, report: Report) -> Iterator[None]:
        """What takes long of a report, in steps, before it is taken."""
        return self.state.ledger.finding(self.state.slot(now), report)

    def take(self, now: float, message: Report | Ask) -> None:
        """A message of a node that speaks our own protocol."""
        if isinstance(message, Report) and message.epoch > self.state.epoch:
            self._lead_beyond(now, message)
        self.deliver(self.state.receive(now, message))
        if isinstance(message, Report) and message.leaving and message.node in self._nodes:
            self._nodes[message.node].connection.ending = _LEAVES

    def is_outlived(self, message: Report | Ask) -> bool:
        """Whether it comes from a life of its node that is over: nothing of it is booked."""
        return self.state.ledger.is_outlived(message.node, message.boot)

    def _lead_beyond(self, now: float, report: Report) -> None:
        if not self.state.leads:
            return
        bound = epoch_bound(time.time())
        if report.epoch >= bound:
            raise ProtocolError(
                f"node {report.node!r} knows of epoch {report.epoch}, expected less than {bound}"
            )
        _logger.warning(
            "node %s knows of epoch %d, ours is %d: leading on in a higher one",
            report.node,
            report.epoch,
            self.state.epoch,
        )
        self.state.lead(now, report.epoch + 1)

    def deliver(self, messages: Iterable[tuple[str, Ack | Quota]]) -> None:
        """Send each message to its node, if it is connected."""
        for node, message in messages:
            session = self._nodes.get(node)
            if session is not None:
                session.send(message)

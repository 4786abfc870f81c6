"""A node that speaks `headgate.v1`: its frames become messages, the state's messages its frames.

The first message tells the node's id, and the connection stands for that node from then on; an
earlier connection of the same node is replaced, for a node that has come back after a cut is here
before the old connection is known to be dead. A malformed frame ends the connection: what
follows it in a binary stream builds on it.
"""

from typing import Protocol

from headgate.errors import ProtocolError
from headgate.quota.central.connection import Connection, Refusal
from headgate.quota.central.metrics import CentralMetrics
from headgate.quota.central.node_socket import NodeSocket
from headgate.quota.central.outbox import Outbox
from headgate.quota.protocol import Ack, Ask, Quota, Report
from headgate.quota.wire import CentralWire

__all__ = ["Exchange", "NodeSession"]


class Exchange(Protocol):
    """What a session needs of the one that knows all of them."""

    metrics: CentralMetrics

    def now(self) -> float: ...

    def join(self, node: str, session: "NodeSession") -> None: ...

    def take(self, now: float, message: Report | Ask) -> None: ...

    def is_outlived(self, message: Report | Ask) -> bool: ...

    def leave(self, session: "NodeSession", socket: NodeSocket) -> None: ...


class NodeSession:
    """One connection of one node."""

    def __init__(
        self, exchange: Exchange, socket: NodeSocket, connection: Connection, wire: CentralWire
    ) -> None:
        self.connection = connection
        self._exchange = exchange
        self._socket = socket
        self._wire = wire
        self._outbox = Outbox()

    def received(self, frame: bytes | str) -> Refusal | None:
        now = self._exchange.now()
        try:
            message = self._wire.read(frame)
            if self._exchange.is_outlived(message):
                return Refusal.denied(
                    f"node {message.node} has begun anew since: are there two of that name?"
                )
            self._identify(message)
            self._exchange.take(now, message)
        except ProtocolError as error:
            return Refusal.bad_frame(str(error))
        kind = "report" if isinstance(message, Report) else "ask"
        self.connection.frames += 1
        if isinstance(message, Report):
            self.connection.last_slot = message.slot
        self._exchange.metrics.frame(kind, len(frame))
        self._exchange.metrics.answered(self._exchange.now() - now)
        return None

    def _identify(self, message: Report | Ask) -> None:
        if self.connection.node is None:
            self.connection.node = message.node
            self._exchange.join(message.node, self)
        elif self.connection.node != message.node:
            raise ProtocolError(
                f"the connection of node {self.connection.node} speaks for {message.node}"
            )

    def send(self, message: Ack | Quota) -> None:
        """Send it, or let it wait while the node does not read."""
        if not self._socket.is_writable:
            self._outbox.put(message)
            return
        try:
            frame = self._wire.write(message)
        except ValueError as error:  # more than a frame may hold: that is this node's trouble alone
            self.close(Refusal.overloaded(str(error)))
            return
        if isinstance(message, Quota):
            self.connection.quota_sent = self._exchange.now()
        self._exchange.metrics.frame("quota" if isinstance(message, Quota) else "ack", len(frame))
        self._socket.send(frame)

    def close(self, refusal: Refusal) -> None:
        self._socket.close(refusal)

    def writable(self) -> None:
        while self._socket.is_writable and (message := self._outbox.take()) is not None:
            self.send(message)

    def lost(self) -> None:
        self._exchange.leave(self, self._socket)

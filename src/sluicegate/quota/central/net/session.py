"""A node that speaks `sluicegate.v1`: its frames become messages, the state's messages its frames.

The first message tells the node's id, and the connection stands for that node from then on; an
earlier connection of the same node is replaced, for a node that has come back after a cut is here
before the old connection is known to be dead. A malformed frame ends the connection: what
follows it in a binary stream builds on it.

What takes long is done in steps, so that the others have their turns: the names of a report are
looked up some at a time, users are asked for some at a time, and a quota is written some shares at
a time. A report is booked in one step, after its names: nothing is ever half booked.
"""

from collections.abc import Iterator
from typing import Protocol

from sluicegate.errors import ProtocolError
from sluicegate.quota.central.http.metrics import CentralMetrics
from sluicegate.quota.central.net.connection import Connection, Refusal
from sluicegate.quota.central.net.send_queue import Outbox
from sluicegate.quota.central.net.websocket import NodeSocket, Work
from sluicegate.quota.messages import Ack, Ask, Quota, Report
from sluicegate.quota.wire import CentralWire

__all__ = ["Exchange", "NodeSession"]

_SMALL_BYTES = 1 << 14  # so many are a report that is booked in a few milliseconds, whoever is new
_USERS_AT_ONCE = 250  # of an ask


class Exchange(Protocol):
    """What a session needs of the one that knows all of them."""

    metrics: CentralMetrics

    def now(self) -> float: ...

    def join(self, node: str, session: "NodeSession") -> None: ...

    def finding(self, now: float, report: Report) -> Iterator[None]: ...

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
        self._is_writing = False

    def received(self, frame: bytes | str) -> Work:
        now = self._exchange.now()
        try:
            message = self._wire.read(frame)
            if self._exchange.is_outlived(message):
                return Refusal.denied(
                    f"node {message.node} has begun anew since: are there two of that name?"
                )
            self._identify(message)
            if isinstance(message, Ask):
                for part in _parts(message):
                    self._exchange.take(self._exchange.now(), part)
                    yield
            else:
                if len(frame) > _SMALL_BYTES:
                    yield from self._exchange.finding(now, message)
                    yield
                self._exchange.take(self._exchange.now(), message)
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
        """Send it, or let it wait while the node does not read or another one is being written."""
        if self._is_writing or not self._socket.is_writable:
            self._outbox.put(message)
            return
        self._is_writing = True
        writing = self._write(message)
        for _ in writing:
            self._socket.work(self._go_on(writing))
            break

    def _go_on(self, writing: Work) -> Work:
        """Write the rest of it, and then what has come to wait for it."""
        refusal = yield from writing
        self.writable()
        return refusal

    def _write(self, message: Ack | Quota) -> Work:
        try:
            frame = yield from self._wire.writing(message)
        except ValueError as error:  # more than a frame may hold: that is this node's trouble alone
            refusal = Refusal.overloaded(str(error))
            self.close(refusal)
            return refusal
        finally:
            self._is_writing = False
        if isinstance(message, Quota):
            self.connection.quota_sent = self._exchange.now()
        self._exchange.metrics.frame("quota" if isinstance(message, Quota) else "ack", len(frame))
        self._socket.send(frame)
        return None

    def close(self, refusal: Refusal) -> None:
        self._socket.close(refusal)

    def writable(self) -> None:
        while (
            self._socket.is_writable
            and not self._is_writing
            and (message := self._outbox.take()) is not None
        ):
            self.send(message)

    def lost(self) -> None:
        self._exchange.leave(self, self._socket)


def _parts(ask: Ask) -> Iterator[Ask]:
    """The same, of a few users each."""
    if sum(map(len, ask.users.values())) <= _USERS_AT_ONCE:
        yield ask
        return
    for service, users in ask.users.items():
        for at in range(0, len(users), _USERS_AT_ONCE):
            yield ask._replace(users={service: users[at : at + _USERS_AT_ONCE]})

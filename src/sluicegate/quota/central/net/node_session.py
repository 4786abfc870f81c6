"""`NodeSession`: the `sluicegate.v1` protocol on one connection, from frames to messages and back.

The first message names the node, and the connection belongs to that node from then on. It replaces
an earlier connection of the same node: a node that reconnects after a cut is back before the old
connection is known to be dead. A malformed frame ends the connection: what follows it in a binary
stream builds on it.

Long work is done in steps, so that other connections have their turns: the names of a report are
looked up some at a time, users are asked for some at a time, and a quota is written some shares at
a time. A report is booked in one step, after its names: nothing is ever half booked.

A quota is sent only while this central leads. That is checked when it is sent, since it may have
waited for the node to read. If the lease ends while a long quota is being written, the connection
is closed: frames build on each other, so the quota cannot be left out.
"""

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from sluicegate.errors import ProtocolError
from sluicegate.quota.central.net.connection import CloseReason, Connection
from sluicegate.quota.central.net.send_queue import SendQueue
from sluicegate.quota.central.net.websocket import NodeSocket, Work
from sluicegate.quota.messages import Ack, Ask, Quota, Report
from sluicegate.quota.wire import CentralWire

if TYPE_CHECKING:
    from sluicegate.quota.central.net.registry import ConnectionRegistry

__all__ = ["NodeSession"]

_SMALL_BYTES = (
    1 << 14
)  # a report of this size is booked in a few milliseconds, even if all users are new
_USERS_AT_ONCE = 250  # of an ask
_NO_LEADER = CloseReason(1012, "no leader: this central no longer leads; connect again")


class NodeSession:
    """One connection of one node."""

    def __init__(
        self,
        registry: "ConnectionRegistry",
        socket: NodeSocket,
        connection: Connection,
        wire: CentralWire,
    ) -> None:
        self.connection = connection
        self._registry = registry
        self._socket = socket
        self._wire = wire
        self._send_queue = SendQueue()
        self._is_writing = False

    def received(self, frame: bytes | str) -> Work:
        now = self._registry.now()
        try:
            message = self._wire.read(frame)
            if self._registry.is_outlived(message):
                return CloseReason.denied(
                    f"node {message.node} has restarted since: do two nodes share this name?"
                )
            self._identify(message)
            if isinstance(message, Ask):
                for part in _split_ask(message):
                    self._registry.handle(self._registry.now(), part)
                    yield
            else:
                if len(frame) > _SMALL_BYTES:
                    yield from self._registry.resolve_names(now, message)
                    yield
                self._registry.handle(self._registry.now(), message)
        except ProtocolError as error:
            return CloseReason.bad_frame(str(error))
        kind = "report" if isinstance(message, Report) else "ask"
        self.connection.frames += 1
        if isinstance(message, Report):
            self.connection.last_slot = message.slot
        self._registry.metrics.frame(kind, len(frame))
        self._registry.metrics.answered(self._registry.now() - now)
        return None

    def _identify(self, message: Report | Ask) -> None:
        if self.connection.node is None:
            self.connection.node = message.node
            self._registry.join(message.node, self)
        elif self.connection.node != message.node:
            raise ProtocolError(
                f"expected messages of node {self.connection.node}, got one of {message.node}"
            )

    def send(self, message: Ack | Quota) -> None:
        """Send it, or queue it while the node does not read or another one is being written."""
        if self._is_writing or not self._socket.is_writable:
            self._send_queue.put(message)
            return
        self._is_writing = True
        writing = self._write(message)
        for _ in writing:
            self._socket.schedule(self._finish_write(writing))
            break

    def _finish_write(self, writing: Work) -> Work:
        """Write the rest of it, and then what has been queued meanwhile."""
        close_reason = yield from writing
        self.writable()
        return close_reason

    def _write(self, message: Ack | Quota) -> Work:
        if isinstance(message, Quota) and not self._registry.may_send(message):
            self._is_writing = False
            return None
        if isinstance(message, Ack) and message.leads and not self._registry.state.leads:
            message = message._replace(leads=False)
        try:
            frame = yield from self._wire.writing(message)
        except ValueError as error:  # more than a frame may hold: only this node is affected
            close_reason = CloseReason.overloaded(str(error))
            self.close(close_reason)
            return close_reason
        finally:
            self._is_writing = False
        if isinstance(message, Quota):
            if not self._registry.may_send(message):
                self.close(_NO_LEADER)
                return _NO_LEADER
            self.connection.quota_sent = self._registry.now()
        self._registry.metrics.frame("quota" if isinstance(message, Quota) else "ack", len(frame))
        self._socket.send(frame)
        return None

    def close(self, close_reason: CloseReason) -> None:
        self._socket.close(close_reason)

    def writable(self) -> None:
        while (
            self._socket.is_writable
            and not self._is_writing
            and (message := self._send_queue.take()) is not None
        ):
            self.send(message)

    def lost(self) -> None:
        self._registry.leave(self, self._socket)


def _split_ask(ask: Ask) -> Iterator[Ask]:
    """The same ask in parts of a few users each."""
    if sum(map(len, ask.users.values())) <= _USERS_AT_ONCE:
        yield ask
        return
    for service, users in ask.users.items():
        rest = iter(users.items())
        while some := dict(islice(rest, _USERS_AT_ONCE)):
            yield ask._replace(users={service: some})

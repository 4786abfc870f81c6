"""A classic node, or one who looks through the classic monitor, on one connection.

A frame that makes no sense is answered with an error; only when there are many of them in a
minute does the connection end, for a classic node cannot tell why and would come back at once.
Each frame has its answer, and in order: whoever sends several ahead tells the answers apart by
nothing else. So no frame is looked at while the other end does not read; when it is, its answer is
the newest there is. (A node of our own protocol is told the newest quota only; here a quota that
was left out would be taken for the next one.)
A central that stands by ends the connection at the first report, as the classic one did: the node
goes to the next central.
"""

from collections.abc import Generator

from sluicegate.quota.central.classic.monitor import Monitor
from sluicegate.quota.central.classic.protocol import ClassicBook, InvalidMessage, error, parse
from sluicegate.quota.central.net.connection import Connection, Refusal
from sluicegate.quota.central.net.connections import OpenSession, Switchboard
from sluicegate.quota.central.net.websocket import NodeSocket, Session, Work

__all__ = ["ClassicSession", "classic_sessions"]

_MOST_BAD = 10  # in a minute
_SMALL_BYTES = 1 << 16
_MINUTE = 60.0
_NO_FAULT = ("InvalidSubject", "TooLarge")  # told, but nothing is wrong with the frame


def classic_sessions(board: Switchboard) -> OpenSession:
    """What serves the classic protocol on the connections of a central."""
    book = ClassicBook(board.state, board.bounds)
    monitor = Monitor(board.state, board.connections)

    def open_session(socket: NodeSocket, connection: Connection, is_admin: bool) -> Session:
        return ClassicSession(board, socket, connection, book, monitor if is_admin else None)

    return open_session


class ClassicSession:
    """One connection that speaks the classic protocol."""

    def __init__(
        self,
        exchange: Switchboard,
        socket: NodeSocket,
        connection: Connection,
        book: ClassicBook,
        monitor: Monitor | None,
    ) -> None:
        self.connection = connection
        self._exchange = exchange
        self._socket = socket
        self._book = book
        self._monitor = monitor  # None: it may not look
        self._bad = 0
        self._bad_since = 0.0

    def received(self, frame: bytes | str) -> Work:
        while not self._socket.is_writable:
            self._socket.hold()
            yield
        now = self._exchange.now()
        self.connection.frames += 1
        try:
            answer = yield from self._answer(now, frame)
        except InvalidMessage as fault:
            answer = error(fault.code, str(fault))
            if fault.code not in _NO_FAULT:
                self._exchange.bad_frame(self.connection.address)
                if self._has_too_many(now):
                    return Refusal.bad_frame(f"the {_MOST_BAD}th in a minute: {fault}")
        if answer is None:
            return Refusal.overloaded("this central stands by, another one leads")
        if len(answer) > _SMALL_BYTES:
            yield
        self._exchange.metrics.frame("classic_answer", len(answer))
        self._socket.send_text(answer)
        self._exchange.metrics.answered(self._exchange.now() - now)
        return None

    def _answer(self, now: float, frame: bytes | str) -> Generator[None, None, bytes | None]:
        if not isinstance(frame, str):
            raise InvalidMessage("InvalidMessage", "expected a text frame, got a binary one")
        message = parse(frame)
        if len(frame) > _SMALL_BYTES:
            yield
        if "monitor" in message:
            self._exchange.metrics.frame("monitor", len(frame))
            if self._monitor is None:
                raise InvalidMessage("Denied", "the monitor needs the admin token")
            return (yield from self._monitor.answer(now, message))
        self._exchange.metrics.frame("classic_report", len(frame))
        if not self._exchange.state.leads:
            return None
        answer = yield from self._book.report(now, message)
        self.connection.node = message["node_id"]
        self.connection.last_slot = int(message["slot_number"]) - 1
        self.connection.quota_sent = now
        return answer

    def _has_too_many(self, now: float) -> bool:
        if now - self._bad_since > _MINUTE:
            self._bad, self._bad_since = 0, now
        self._bad += 1
        return self._bad >= _MOST_BAD

    def writable(self) -> None:
        """Nothing waits here: the socket goes on with the frames it holds."""

    def lost(self) -> None:
        self._exchange.gone(self._socket)

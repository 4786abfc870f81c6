"""`ClassicSession`: the classic protocol on one connection, for a node or a monitoring client.

A malformed frame is answered with an error; only when there are many of them in a minute is the
connection closed, for a classic node does not see the reason and would reconnect at once.
Each frame is answered, in order: a client that sends several ahead can match the answers by
nothing else. So no frame is processed while the peer does not read; when it is, its answer is the
newest there is. (A `sluicegate.v1` node is sent the newest quota only; here a quota that was left
out would be taken for the next one.)
A standby central closes the connection at the first report, as the classic one did: the node goes
to the next central. The reason says which one leads, and where.
"""

from collections.abc import Generator

from sluicegate.quota.central.classic.monitor import Monitor
from sluicegate.quota.central.classic.protocol import (
    ClassicReportHandler,
    InvalidMessage,
    error,
    parse,
)
from sluicegate.quota.central.net.connection import CloseReason, Connection
from sluicegate.quota.central.net.registry import ConnectionRegistry, OpenSession
from sluicegate.quota.central.net.websocket import NodeSocket, Session, Work

__all__ = ["ClassicSession", "classic_session_factory"]

_MAX_BAD_FRAMES = 10  # in a minute
_SMALL_BYTES = 1 << 16
_MINUTE = 60.0
_NOT_BAD_FRAMES = ("InvalidSubject", "TooLarge")  # the frame itself is well-formed


def classic_session_factory(registry: ConnectionRegistry) -> OpenSession:
    """Create the factory of classic sessions for a central."""
    report_handler = ClassicReportHandler(registry.state, registry.bounds)
    monitor = Monitor(registry.state, registry.connections)

    def open_session(socket: NodeSocket, connection: Connection, is_admin: bool) -> Session:
        return ClassicSession(
            registry, socket, connection, report_handler, monitor if is_admin else None
        )

    return open_session


class ClassicSession:
    """One connection that speaks the classic protocol."""

    def __init__(
        self,
        registry: ConnectionRegistry,
        socket: NodeSocket,
        connection: Connection,
        report_handler: ClassicReportHandler,
        monitor: Monitor | None,
    ) -> None:
        self.connection = connection
        self._registry = registry
        self._socket = socket
        self._report_handler = report_handler
        self._monitor = monitor  # None: not an administrator
        self._bad = 0
        self._bad_since = 0.0

    def received(self, frame: bytes | str) -> Work:
        while not self._socket.is_writable:
            self._socket.pause_input()
            yield
        now = self._registry.now()
        self.connection.frames += 1
        try:
            answer = yield from self._answer(now, frame)
        except InvalidMessage as fault:
            answer = error(fault.code, str(fault))
            if fault.code not in _NOT_BAD_FRAMES:
                self._registry.bad_frame(self.connection.address)
                if self._has_too_many_bad(now):
                    return CloseReason.bad_frame(
                        f"{_MAX_BAD_FRAMES} bad frames in a minute, the last: {fault}"
                    )
        if answer is None:
            return CloseReason.overloaded(self._standby_reason())
        if len(answer) > _SMALL_BYTES:
            yield
        self._registry.metrics.frame("classic_answer", len(answer))
        self._socket.send_text(answer)
        self._registry.metrics.answered(self._registry.now() - now)
        return None

    def _answer(self, now: float, frame: bytes | str) -> Generator[None, None, bytes | None]:
        if not isinstance(frame, str):
            raise InvalidMessage("InvalidMessage", "expected a text frame, got a binary one")
        message = parse(frame)
        if len(frame) > _SMALL_BYTES:
            yield
        if "monitor" in message:
            self._registry.metrics.frame("monitor", len(frame))
            if self._monitor is None:
                raise InvalidMessage("Denied", "the monitor requires the admin token")
            return (yield from self._monitor.answer(now, message))
        self._registry.metrics.frame("classic_report", len(frame))
        if not self._registry.state.leads:
            return None
        answer = yield from self._report_handler.report(now, message)
        self.connection.node = message["node_id"]
        self.connection.last_slot = int(message["slot_number"]) - 1
        self.connection.quota_sent = now
        return answer

    def _standby_reason(self) -> str:
        leadership = self._registry.leadership
        if leadership.leader is None:
            return "this central is on standby, no leader is known"
        where = "" if leadership.leader_url is None else f" at {leadership.leader_url}"
        return f"this central is on standby, {leadership.leader} leads{where}"

    def _has_too_many_bad(self, now: float) -> bool:
        if now - self._bad_since > _MINUTE:
            self._bad, self._bad_since = 0, now
        self._bad += 1
        return self._bad >= _MAX_BAD_FRAMES

    def writable(self) -> None:
        """Nothing is queued here: the socket resumes the frames it has paused."""

    def lost(self) -> None:
        self._registry.remove(self._socket)

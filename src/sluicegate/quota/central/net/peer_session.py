"""`PeerSession`: the connection that another central has opened, on the central's own port.

Its proposals come in here, and the answers go back. A bad frame ends this connection only.
"""

from collections.abc import Callable

from sluicegate.errors import ProtocolError
from sluicegate.quota.central.net.connection import CloseReason, Connection, PeerHello
from sluicegate.quota.central.net.peer_transport import PeerTransport
from sluicegate.quota.central.net.peer_wire import (
    LARGEST_PEER_MESSAGE,
    PeerMessage,
    read_message,
    write_message,
)
from sluicegate.quota.central.net.registry import ConnectionRegistry, OpenSession
from sluicegate.quota.central.net.websocket import NodeSocket, Session, Work

__all__ = ["PeerSession", "peer_session_factory"]


def peer_session_factory(registry: ConnectionRegistry, transport: PeerTransport) -> OpenSession:
    """Create the factory of the sessions of peers for a central."""

    def open_session(
        socket: NodeSocket, connection: Connection, is_admin: bool
    ) -> Session | CloseReason:
        hello = connection.hello or PeerHello()
        refused = transport.refuse(hello)
        if refused is not None:
            return refused
        peer = hello.name or ""

        def lost() -> None:
            registry.remove(socket)
            transport.forget(peer, session)

        session = PeerSession(
            socket, connection, lambda message: transport.receive(peer, message), lost
        )
        transport.accept(peer, session)
        return session

    return open_session


class PeerSession:
    """`receive` gets the messages and may raise ProtocolError; `on_lost` is told of the end."""

    def __init__(
        self,
        socket: NodeSocket,
        connection: Connection,
        receive: Callable[[PeerMessage], None],
        on_lost: Callable[[], None],
    ) -> None:
        self.connection = connection
        self._socket = socket
        self._receive = receive
        self._on_lost = on_lost
        socket.limit_frames(LARGEST_PEER_MESSAGE)

    def send(self, message: PeerMessage) -> None:
        """Send a message; drop it if the peer does not read."""
        if self._socket.is_writable:
            self._socket.send_text(write_message(message))

    def close(self, close_reason: CloseReason) -> None:
        self._socket.close(close_reason)

    def received(self, frame: bytes | str) -> Work:
        self.connection.frames += 1
        try:
            self._receive(read_message(frame, wants_answer=False))
        except ProtocolError as error:
            return CloseReason.bad_frame(str(error))
        return None
        yield  # a message is handled in one step

    def writable(self) -> None:
        """Nothing is queued here."""

    def lost(self) -> None:
        self._on_lost()

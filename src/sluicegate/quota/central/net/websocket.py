"""`NodeSocket`: one websocket as an asyncio protocol, with bounded work and a reason at its close.

uvicorn accepts the connection and reads its head; from the upgrade on it belongs to this class,
without ASGI in between: a frame is answered in the call that receives it. (ASGI wants a task and a
queue for each connection. It takes a fifth more time for a report of a hundred users; but what
counts is that behind it one cannot see that a node has stopped reading, nor bound how long a flood
of small frames keeps the loop.) `websockets` parses the frames; the session interprets them.

Rules it keeps, so that a connection can hurt only itself:

- A turn takes at most a few milliseconds; the rest of the work waits while other connections have
  theirs. A frame that takes long is processed by its session in steps of some milliseconds each. A
  turn that took longer all the same is followed by a rest of ten times as long.
- The bytes of frames that are incomplete or not yet processed are bounded over all connections;
  a connection whose frames are small is never closed for it.
- While the peer does not read, it is not read from, and the session must not send. After some
  slots of this the connection is closed. A session that owes an answer to each frame also pauses
  the frames that have arrived already, until the peer reads again: so no more than one answer
  waits, and TCP makes the peer wait.
- After the close frame it reads on for a moment and discards what it reads: a socket that is
  closed with bytes unread takes the close frame, and with it the reason, from the peer.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeAlias, cast

from uvicorn.config import Config
from uvicorn.server import ServerState
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import OPEN
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from sluicegate.quota.central.net.connection import (
    FAILED,
    HELLO_HEADERS,
    PEER,
    STOPPING,
    CloseReason,
    Connection,
    PeerHello,
    truncate_reason,
)
from sluicegate.quota.central.net.handshake import Handshake
from sluicegate.quota.wire import SUBPROTOCOL

__all__ = ["NodeSocket", "ReceiveBudget", "Session", "Work"]

# A job done in steps of some milliseconds each. If it returns a CloseReason, the connection ends.
Work: TypeAlias = Generator[None, None, CloseReason | None]

_logger = logging.getLogger("sluicegate.quota.websocket")
_logger.setLevel(logging.WARNING)  # opening and closing connections is routine

_TURN_SECONDS = 0.004
# Between two looks at the clock. Small frames cost most by the byte: a piece has 340 of them.
_SMALL_BYTES = 1 << 16
_PIECE_BYTES = 2048
_LONG_TURN_SECONDS = 0.02  # a connection whose turn took longer
_REST_FACTOR = 10  # rests for this many times as long
_MAX_REST_SECONDS = 1.0
_WRITE_BUFFER_BYTES = 1 << 18
_MAX_FRAGMENTS = 4096
# Text is parsed in one step, and objects and lists cost most: this many take 20 ms.
_MAX_BRACKETS = 30_000
_MAX_COMMAS = 150_000  # numbers and names cost less, but not nothing
_LINGER_SECONDS = 2.0
_PING_AFTER_SECONDS = 15.0
_LOST_AFTER_SECONDS = 40.0
_DATA_OPCODES = (Opcode.TEXT, Opcode.BINARY, Opcode.CONT)


class Session(Protocol):
    """The protocol spoken over one socket: that of nodes, the classic one, or that of peers."""

    connection: Connection

    def received(self, frame: bytes | str) -> Work:
        """Process a complete frame. The next one is read when this is done."""

    def writable(self) -> None:
        """The peer reads again."""

    def lost(self) -> None:
        """The connection has ended, from either side."""


class ReceiveBudget:
    """Bounds the bytes received for frames that are not done yet, over all connections."""

    def __init__(self, max_bytes: int = 128 << 20) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0


class NodeSocket(asyncio.Protocol):
    """A websocket from its handshake to its end. `open_session` accepts or refuses it."""

    def __init__(
        self,
        open_session: "Callable[[NodeSocket, Handshake, str, int], Session | CloseReason]",
        receive_budget: ReceiveBudget,
        on_close: Callable[[CloseReason, str], None],
        frame_bytes: int,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.is_writable = True
        self._open_session = open_session
        self._receive_budget = receive_budget
        self._on_close = on_close
        self._connections = cast("set[Any]", server_state.connections)
        self._loop = _loop or asyncio.get_running_loop()
        self._websocket = ServerProtocol(
            max_size=frame_bytes,
            logger=_logger,
            subprotocols=[Subprotocol(SUBPROTOCOL), Subprotocol(PEER)],
            # The default refuses clients that ask for no subprotocol.
            select_subprotocol=lambda _, asked: next(
                (name for name in asked if name in (SUBPROTOCOL, PEER)), None
            ),
        )
        self._transport: asyncio.Transport
        self._address = "?"
        self._port = 0
        self._session: Session | None = None
        self._is_closing = False
        self._unread = bytearray()
        self._pending: deque[Work] = deque()  # jobs not done yet; the first is under way
        self._is_turn_scheduled = False
        self._is_input_paused = False  # until the peer reads again
        self._is_input_over = False  # nothing comes after `_unread`
        self._budget_used = 0  # bytes of this connection in `receive_budget`
        self._fragments: list[bytes] = []
        self._is_text = False
        self._last_received = self._loop.time()
        self._last_ping = self._last_received
        self._write_blocked_since: float | None = None

    # As uvicorn and asyncio call it

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self._address, self._port = str(peer[0]), int(peer[1])
        self._connections.add(self)

    def data_received(self, data: bytes) -> None:
        self._last_received = self._loop.time()
        if self._is_closing:
            return
        self._unread += data
        if not self._is_turn_scheduled:
            self._run_turn()

    def eof_received(self) -> bool:
        """Nothing more comes. What has arrived is still processed, where that is possible."""
        self._is_input_over = True
        return self.is_busy and self._transport.can_write_eof()  # False: asyncio closes it

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._end_session()

    def pause_writing(self) -> None:
        self.is_writable = False
        self._write_blocked_since = self._loop.time()
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self.is_writable = True
        self._write_blocked_since = None
        self._last_received = self._loop.time()  # it reads, so it is alive; it was not read from
        was_paused, self._is_input_paused = self._is_input_paused, False
        if was_paused:
            self._schedule_turn()
        elif not self._is_turn_scheduled:
            self._transport.resume_reading()
        if self._session is not None:
            self._session.writable()

    def shutdown(self) -> None:
        """The server stops."""
        self.close(STOPPING)

    # As its session and the server call it

    def send(self, frame: bytes | str) -> None:
        if self._is_closing or self._websocket.state is not OPEN:
            return
        if isinstance(frame, str):
            self._websocket.send_text(frame.encode())
        else:
            self._websocket.send_binary(frame)
        self._flush()

    def send_text(self, frame: bytes) -> None:
        """Text that is UTF-8 already."""
        if not self._is_closing and self._websocket.state is OPEN:
            self._websocket.send_text(frame)
            self._flush()

    def limit_frames(self, size: int) -> None:
        """Take no larger frames from now on, in bytes."""
        self._websocket.max_message_size = size

    def schedule(self, work: Work) -> None:
        """Run a job in steps, with the turns of other connections in between."""
        if self._is_closing:
            return
        self._pending.append(work)
        self._schedule_turn()

    def pause_input(self) -> None:
        """Pause all jobs, also the one under way, until the peer reads again."""
        self._is_input_paused = not self.is_writable

    def close(self, close_reason: CloseReason) -> None:
        """Close the connection and send the reason."""
        if self._is_closing:
            return
        self._on_close(close_reason, self._address)
        if self._websocket.state is OPEN:
            self._websocket.send_close(close_reason.code, truncate_reason(close_reason.reason))
        self._flush()
        self._end_session()
        self._linger()

    @property
    def is_busy(self) -> bool:
        return self._is_turn_scheduled or self._is_input_paused

    def check_liveness(self, now: float, write_timeout: float) -> None:
        """Ping a silent peer; close the connection if it does not answer or does not read.

        To be called about once a second.
        """
        if self._is_closing:
            return
        if self._write_blocked_since is not None:
            if now - self._write_blocked_since > write_timeout:
                self.close(CloseReason.overloaded("the node does not read"))
        elif self.is_busy:
            self._last_received = now  # it is not read from meanwhile, so silence proves nothing
        elif now - self._last_received > _LOST_AFTER_SECONDS:
            self.close(CloseReason(1001, "lost: no answer to a ping"))
        elif now - max(self._last_received, self._last_ping) > _PING_AFTER_SECONDS:
            self._last_ping = now
            self._websocket.send_ping(b"")
            self._flush()

    # Reading

    def _schedule_turn(self) -> None:
        if not self._is_turn_scheduled:
            self._is_turn_scheduled = True
            self._loop.call_soon(self._run_turn)

    def _run_turn(self) -> None:
        """Process what has arrived, for at most `_TURN_SECONDS`."""
        self._is_turn_scheduled = False
        # CPU time, because a busy machine is not this node's fault. Measured only where the turn
        # may be long: reading this clock costs as much as booking a small report.
        is_large = bool(self._pending) or self._budget_used + len(self._unread) > _SMALL_BYTES
        working = time.thread_time() if is_large else 0.0
        begun = self._loop.time()
        took = 0.0
        at = 0
        while not self._is_closing and not self._is_input_paused and took < _TURN_SECONDS:
            if self._pending:
                self._run_step()
            elif at < len(self._unread):
                piece = bytes(self._unread[at : at + _PIECE_BYTES])
                at += len(piece)
                self._read(piece)
            else:
                break
            took = self._loop.time() - begun
        if self._is_closing:
            self._unread.clear()
            return
        del self._unread[:at]
        worked = time.thread_time() - working if is_large else 0.0
        is_left = bool(self._unread or self._pending)
        if worked > _LONG_TURN_SECONDS or (is_left and not self._is_input_paused):
            self._is_turn_scheduled = True
            self._transport.pause_reading()
            rest = (
                min(worked * _REST_FACTOR, _MAX_REST_SECONDS)
                if worked > _LONG_TURN_SECONDS
                else 0.0
            )
            self._loop.call_later(rest, self._run_turn)
        elif self._is_input_over and not is_left:
            self._transport.close()
        elif self.is_writable:
            self._transport.resume_reading()

    def _run_step(self) -> None:
        """Run one step of the oldest job."""
        try:
            next(self._pending[0])
        except StopIteration as done:
            if self._pending:  # else the connection has ended in this step
                self._pending.popleft()
                self._release_budget()
            if done.value is not None:
                self.close(done.value)
        except Exception:
            # A fault of the central. Left open, this connection would never be read again.
            _logger.exception("processing a frame failed: %s", self._address)
            self.close(FAILED)

    def _read(self, piece: bytes) -> None:
        self._budget_used += len(piece)
        self._receive_budget.used_bytes += len(piece)
        self._websocket.receive_data(piece)
        events = self._websocket.events_received()
        for event in events:
            self._on_event(event)
        if events:
            self._release_budget()
        self._flush()
        if self._websocket.parser_exc is not None:
            self._on_protocol_error(self._websocket.parser_exc)
        elif (
            self._receive_budget.used_bytes > self._receive_budget.max_bytes
            and self._budget_used > _SMALL_BYTES
        ):
            self.close(CloseReason.overloaded("receive buffers are full"))

    def _release_budget(self) -> None:
        """Give the bytes back if no frame is kept; what is left of a piece is at most a piece."""
        if not self._fragments and not self._pending:
            self._receive_budget.used_bytes -= self._budget_used
            self._budget_used = 0

    def _on_event(self, event: object) -> None:
        if isinstance(event, Request):
            self._accept(event)
        elif isinstance(event, Frame) and event.opcode in _DATA_OPCODES and not self._is_closing:
            if event.opcode is not Opcode.CONT:
                self._is_text = event.opcode is Opcode.TEXT
            self._fragments.append(bytes(event.data))
            if event.fin:
                self._on_message()
            elif len(self._fragments) > _MAX_FRAGMENTS:
                self.close(CloseReason.bad_frame(f"more than {_MAX_FRAGMENTS} fragments"))

    def _on_message(self) -> None:
        data = self._fragments[0] if len(self._fragments) == 1 else b"".join(self._fragments)
        self._fragments.clear()
        if self._session is None:
            return
        frame: bytes | str = data
        if self._is_text:
            brackets = data.count(b"{") + data.count(b"[")
            if brackets > _MAX_BRACKETS:
                why = f"text must have at most {_MAX_BRACKETS} objects and lists, got {brackets}"
                self.close(CloseReason.too_big(why))
                return
            commas = data.count(b",")
            if commas > _MAX_COMMAS:
                why = f"text must have at most {_MAX_COMMAS} values, got {commas + 1}"
                self.close(CloseReason.too_big(why))
                return
            try:
                frame = data.decode()
            except UnicodeDecodeError as error:
                self.close(CloseReason.bad_frame(f"text must be UTF-8: {error.reason}"))
                return
        self._pending.append(self._session.received(frame))

    def _accept(self, request: Request) -> None:
        response = self._websocket.accept(request)
        self._websocket.send_response(response)
        self._flush()
        if response.status_code != 101:
            self._end_session()
            self._linger()
            return
        headers = request.headers
        handshake = Handshake(
            path=request.path.partition("?")[0],
            subprotocols=[
                name.strip()
                for header in headers.get_all("Sec-WebSocket-Protocol")
                for name in header.split(",")
            ],
            authorization=_single_header(headers.get_all("Authorization")),
            slot_seconds=_single_header(headers.get_all("Sluicegate-Slot-Seconds")),
            origin=_single_header(headers.get_all("Origin")),
            host=_single_header(headers.get_all("Host")),
            hello=PeerHello(*(_single_header(headers.get_all(header)) for header in HELLO_HEADERS)),
        )
        session = self._open_session(self, handshake, self._address, self._port)
        if isinstance(session, CloseReason):
            self.close(session)
        else:
            self._session = session

    def _on_protocol_error(self, error: Exception) -> None:
        """`websockets` has found an invalid frame, and has written the close frame already."""
        if not self._is_closing:
            self._on_close(CloseReason.bad_frame(str(error)), self._address)
            self._end_session()
            self._linger()

    # The end

    def _flush(self) -> None:
        writes = self._websocket.data_to_send()
        if not writes:
            return
        self._transport.write(b"".join(writes))
        if b"" in writes and not self._is_closing:  # `websockets` marks the end so
            if self._pending:
                self._is_input_over = True  # the last frames are still to be processed
            else:
                self._end_session()
                self._linger()

    def _end_session(self) -> None:
        """Discard everything that arrives from now on."""
        self._is_closing = True
        self._receive_budget.used_bytes -= self._budget_used
        self._budget_used = 0
        self._fragments.clear()
        self._pending = deque()  # a new one: this may run in a step of a job in the old one
        session, self._session = self._session, None
        if session is not None:
            session.lost()

    def _linger(self) -> None:
        if self._transport.is_closing():
            return
        self._transport.resume_reading()
        if self._transport.can_write_eof():
            with contextlib.suppress(OSError):  # the peer may be gone already
                self._transport.write_eof()
        else:  # TLS cannot be half-closed
            self._loop.call_later(_LINGER_SECONDS / 8, self._transport.close)
        self._loop.call_later(_LINGER_SECONDS, self._transport.abort)


def _single_header(values: list[str]) -> str | None:
    """The value of a header. A repeated one is joined: it must not match, nor count as absent."""
    return values[0] if len(values) == 1 else (", ".join(values) or None)

"""One websocket as an asyncio protocol: frames in, frames out, and an end with a reason.

uvicorn accepts the connection and reads its head; from the upgrade on it is ours, without ASGI
in between: a frame is answered in the call that brings it. (ASGI wants a task and a queue for
each connection. It takes a fifth more time for a report of a hundred users; but what counts is that
behind it one cannot see that a node has stopped reading, nor bound how long a flood of small frames
keeps the loop.) The frames are taken apart by `websockets`; what they mean is the session's
business.

Rules it keeps, so that a connection can hurt only itself:

- It works for at most a few milliseconds at a time; what is left waits for the others' turn. So
  does a frame that takes long: a session works on it in steps, each of them some milliseconds. A
  step that took longer all the same is followed by a rest of ten times as long.
- What comes in for frames that are not whole yet, or not done yet, is bounded over all connections;
  those whose frames are small are never turned away for it.
- While the other end does not read, it is not read from, and the session is told not to send. If
  it goes on so for some slots the connection ends. A session that owes an answer to each frame
  holds the frames that are here already, too, until the other end reads again: so no more than one
  answer waits, and TCP makes the other end wait.
- After the close frame it reads on for a moment, and throws away what it reads: a socket that is
  closed with bytes unread takes the close frame, and with it the reason, from the other end.
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
    STOPPING,
    Connection,
    Refusal,
    cut_reason,
)
from sluicegate.quota.central.net.handshake import Handshake
from sluicegate.quota.wire import SUBPROTOCOL

__all__ = ["NodeSocket", "Receiving", "Session", "Work"]

# Something that is done in steps of some milliseconds; a refusal in the end ends the connection.
Work: TypeAlias = Generator[None, None, Refusal | None]

_logger = logging.getLogger("sluicegate.quota.websocket")
_logger.setLevel(logging.WARNING)  # that a connection opens or closes is no news in a fleet

_TURN_SECONDS = 0.004
# Between two looks at the clock. Small frames cost most by the byte: a piece has 340 of them.
_SMALL_BYTES = 1 << 16
_PIECE_BYTES = 2048
_LONG_SECONDS = 0.02  # who has kept the others waiting for so long
_REST = 10  # rests for so many times as long
_LONGEST_REST_SECONDS = 1.0
_WRITE_BUFFER_BYTES = 1 << 18
_MOST_FRAGMENTS = 4096
# Text is read in one go, and it is the objects and lists in it that cost: so many take 20 ms.
_MOST_BRACKETS = 30_000
_MOST_COMMAS = 150_000  # numbers and names cost less, but not nothing
_LINGER_SECONDS = 2.0
_PING_AFTER_SECONDS = 15.0
_LOST_AFTER_SECONDS = 40.0
_CONTINUED = (Opcode.TEXT, Opcode.BINARY, Opcode.CONT)


class Session(Protocol):
    """What is spoken over a socket."""

    connection: Connection

    def received(self, frame: bytes | str) -> Work:
        """A whole frame has come. The next one is read when this is done."""

    def writable(self) -> None:
        """The other end reads again."""

    def lost(self) -> None:
        """The connection has ended, whoever ended it."""


class Receiving:
    """How many bytes have come in for frames that are not done yet, over all connections."""

    def __init__(self, most: int = 128 << 20) -> None:
        self.most = most
        self.bytes = 0


class NodeSocket(asyncio.Protocol):
    """A websocket from its handshake to its end. `open_session` says who may have one."""

    def __init__(
        self,
        open_session: "Callable[[NodeSocket, Handshake, str, int], Session | Refusal]",
        receiving: Receiving,
        refused: Callable[[Refusal, str], None],
        frame_bytes: int,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.is_writable = True
        self._open_session = open_session
        self._receiving = receiving
        self._refused = refused
        self._connections = cast("set[Any]", server_state.connections)
        self._loop = _loop or asyncio.get_running_loop()
        self._websocket = ServerProtocol(
            max_size=frame_bytes,
            logger=_logger,
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            # Left alone it refuses who asks for none.
            select_subprotocol=lambda _, asked: next(
                (name for name in asked if name == SUBPROTOCOL), None
            ),
        )
        self._transport: asyncio.Transport
        self._address = "?"
        self._port = 0
        self._session: Session | None = None
        self._is_ending = False
        self._unread = bytearray()
        self._works: deque[Work] = deque()  # what is not done yet; the first is begun
        self._has_turn = False  # a later turn is on its way
        self._is_held = False  # what is here waits until the other end reads
        self._is_last = False  # nothing comes after what is here
        self._partial = 0  # bytes of ours in `receiving`
        self._fragments: list[bytes] = []
        self._is_text = False
        self._heard = self._loop.time()
        self._pinged = self._heard
        self._stuck_since: float | None = None

    # As uvicorn and asyncio call it

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self._address, self._port = str(peer[0]), int(peer[1])
        self._connections.add(self)

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        if self._is_ending:
            return
        self._unread += data
        if not self._has_turn:
            self._take_turn()

    def eof_received(self) -> bool:
        """Nothing more comes. What has come is worked on all the same, where that can be done."""
        self._is_last = True
        return self.is_busy and self._transport.can_write_eof()  # False: asyncio closes it

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._end()

    def pause_writing(self) -> None:
        self.is_writable = False
        self._stuck_since = self._loop.time()
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self.is_writable = True
        self._stuck_since = None
        self._heard = self._loop.time()  # who reads is alive; what he says could not be heard
        is_held, self._is_held = self._is_held, False
        if is_held:
            self._take_turn_soon()
        elif not self._has_turn:
            self._transport.resume_reading()
        if self._session is not None:
            self._session.writable()

    def shutdown(self) -> None:
        """The server stops."""
        self.close(STOPPING)

    # As its session and the server call it

    def send(self, frame: bytes | str) -> None:
        if self._is_ending or self._websocket.state is not OPEN:
            return
        if isinstance(frame, str):
            self._websocket.send_text(frame.encode())
        else:
            self._websocket.send_binary(frame)
        self._flush()

    def send_text(self, frame: bytes) -> None:
        """Text that is UTF-8 already."""
        if not self._is_ending and self._websocket.state is OPEN:
            self._websocket.send_text(frame)
            self._flush()

    def work(self, work: Work) -> None:
        """Do something in steps, between which it is the others' turn."""
        if self._is_ending:
            return
        self._works.append(work)
        self._take_turn_soon()

    def hold(self) -> None:
        """Let what has come in wait, also what is begun, until the other end reads."""
        self._is_held = not self.is_writable

    def close(self, refusal: Refusal) -> None:
        """End it, and say why."""
        if self._is_ending:
            return
        self._refused(refusal, self._address)
        if self._websocket.state is OPEN:
            self._websocket.send_close(refusal.code, cut_reason(refusal.reason))
        self._flush()
        self._end()
        self._linger()

    @property
    def is_busy(self) -> bool:
        return self._has_turn or self._is_held

    def tend(self, now: float, patience: float) -> None:
        """Look after it, about once a second: who does not answer or does not read is let go."""
        if self._is_ending:
            return
        if self._stuck_since is not None:
            if now - self._stuck_since > patience:
                self.close(Refusal.overloaded("does not read"))
        elif self.is_busy:
            self._heard = now  # it is not read from meanwhile: that nothing is heard is our doing
        elif now - self._heard > _LOST_AFTER_SECONDS:
            self.close(Refusal(1001, "lost: no answer to a ping"))
        elif now - max(self._heard, self._pinged) > _PING_AFTER_SECONDS:
            self._pinged = now
            self._websocket.send_ping(b"")
            self._flush()

    # Reading

    def _take_turn_soon(self) -> None:
        if not self._has_turn:
            self._has_turn = True
            self._loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        """Go on with what has come in, until it is the others' turn."""
        self._has_turn = False
        # By the time it worked: a machine that has other things to do is not this node's fault.
        # Only where it can have been long: to ask for it costs as much as to book a small report.
        is_large = bool(self._works) or self._partial + len(self._unread) > _SMALL_BYTES
        working = time.thread_time() if is_large else 0.0
        begun = self._loop.time()
        took = 0.0
        at = 0
        while not self._is_ending and not self._is_held and took < _TURN_SECONDS:
            if self._works:
                self._go_on()
            elif at < len(self._unread):
                piece = bytes(self._unread[at : at + _PIECE_BYTES])
                at += len(piece)
                self._read(piece)
            else:
                break
            took = self._loop.time() - begun
        if self._is_ending:
            self._unread.clear()
            return
        del self._unread[:at]
        worked = time.thread_time() - working if is_large else 0.0
        is_left = bool(self._unread or self._works)
        if worked > _LONG_SECONDS or (is_left and not self._is_held):
            self._has_turn = True
            self._transport.pause_reading()
            rest = min(worked * _REST, _LONGEST_REST_SECONDS) if worked > _LONG_SECONDS else 0.0
            self._loop.call_later(rest, self._take_turn)
        elif self._is_last and not is_left:
            self._transport.close()
        elif self.is_writable:
            self._transport.resume_reading()

    def _go_on(self) -> None:
        """One step of what was begun first."""
        try:
            next(self._works[0])
        except StopIteration as done:
            if self._works:  # else the connection has ended in this step
                self._works.popleft()
                self._let_go()
            if done.value is not None:
                self.close(done.value)
        except Exception:
            # Our own fault. Without an end this would be a connection that nobody reads any more.
            _logger.exception("a frame from %s could not be worked on", self._address)
            self.close(FAILED)

    def _read(self, piece: bytes) -> None:
        self._partial += len(piece)
        self._receiving.bytes += len(piece)
        self._websocket.receive_data(piece)
        events = self._websocket.events_received()
        for event in events:
            self._take(event)
        if events:
            self._let_go()
        self._flush()
        if self._websocket.parser_exc is not None:
            self._failed(self._websocket.parser_exc)
        elif self._receiving.bytes > self._receiving.most and self._partial > _SMALL_BYTES:
            self.close(Refusal.overloaded("too much is coming in at once"))

    def _let_go(self) -> None:
        """Nothing of a frame is kept any more; what is left of a piece is no more than a piece."""
        if not self._fragments and not self._works:
            self._receiving.bytes -= self._partial
            self._partial = 0

    def _take(self, event: object) -> None:
        if isinstance(event, Request):
            self._open(event)
        elif isinstance(event, Frame) and event.opcode in _CONTINUED and not self._is_ending:
            if event.opcode is not Opcode.CONT:
                self._is_text = event.opcode is Opcode.TEXT
            self._fragments.append(bytes(event.data))
            if event.fin:
                self._whole()
            elif len(self._fragments) > _MOST_FRAGMENTS:
                self.close(Refusal.bad_frame(f"more than {_MOST_FRAGMENTS} fragments"))

    def _whole(self) -> None:
        data = self._fragments[0] if len(self._fragments) == 1 else b"".join(self._fragments)
        self._fragments.clear()
        if self._session is None:
            return
        frame: bytes | str = data
        if self._is_text:
            brackets = data.count(b"{") + data.count(b"[")
            if brackets > _MOST_BRACKETS:
                why = f"text must have at most {_MOST_BRACKETS} objects and lists, got {brackets}"
                self.close(Refusal.too_big(why))
                return
            commas = data.count(b",")
            if commas > _MOST_COMMAS:
                why = f"text must have at most {_MOST_COMMAS} values, got {commas + 1}"
                self.close(Refusal.too_big(why))
                return
            try:
                frame = data.decode()
            except UnicodeDecodeError as error:
                self.close(Refusal.bad_frame(f"text that is not UTF-8: {error.reason}"))
                return
        self._works.append(self._session.received(frame))

    def _open(self, request: Request) -> None:
        response = self._websocket.accept(request)
        self._websocket.send_response(response)
        self._flush()
        if response.status_code != 101:
            self._end()
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
            authorization=_one(headers.get_all("Authorization")),
            slot_seconds=_one(headers.get_all("Sluicegate-Slot-Seconds")),
            origin=_one(headers.get_all("Origin")),
            host=_one(headers.get_all("Host")),
        )
        session = self._open_session(self, handshake, self._address, self._port)
        if isinstance(session, Refusal):
            self.close(session)
        else:
            self._session = session

    def _failed(self, error: Exception) -> None:
        """`websockets` has found a frame that is none, and has written the close frame already."""
        if not self._is_ending:
            self._refused(Refusal.bad_frame(str(error)), self._address)
            self._end()
            self._linger()

    # The end

    def _flush(self) -> None:
        writes = self._websocket.data_to_send()
        if not writes:
            return
        self._transport.write(b"".join(writes))
        if b"" in writes and not self._is_ending:  # its sign that nothing comes any more
            if self._works:
                self._is_last = True  # who says good-bye has told something before
            else:
                self._end()
                self._linger()

    def _end(self) -> None:
        """Nothing that comes in counts from now on."""
        self._is_ending = True
        self._receiving.bytes -= self._partial
        self._partial = 0
        self._fragments.clear()
        self._works = deque()  # a new one: this may be called in a step of what is in the old one
        session, self._session = self._session, None
        if session is not None:
            session.lost()

    def _linger(self) -> None:
        if self._transport.is_closing():
            return
        self._transport.resume_reading()
        if self._transport.can_write_eof():
            with contextlib.suppress(OSError):  # the other end may be gone already
                self._transport.write_eof()
        else:  # TLS has no half of a connection
            self._loop.call_later(_LINGER_SECONDS / 8, self._transport.close)
        self._loop.call_later(_LINGER_SECONDS, self._transport.abort)


def _one(values: list[str]) -> str | None:
    """A header that stands there once; said twice it is not believed, but it is not absent."""
    return values[0] if len(values) == 1 else (", ".join(values) or None)

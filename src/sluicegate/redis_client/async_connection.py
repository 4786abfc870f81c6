"""`AsyncConnection`: one pipelined connection to Redis, shared by all calls of an event loop.

Commands of one pass of the loop go out in one write, unless a caller that has gathered its own
asks for a write at once, which saves a pass. Replies come in the order of the commands. A
cancelled call keeps its place in that order, so no call gets another's reply. One timer watches the
earliest deadline of all: per call it would cost more than the call. When the oldest call is late,
all behind it are, and the connection is closed. Deadlines are in seconds of `time.monotonic()`.
"""

import asyncio
import socket
from collections import deque
from time import monotonic
from typing import Any, cast

from sluicegate.errors import ProtocolError, SluicegateError, Unavailable
from sluicegate.redis_client.address import Endpoint
from sluicegate.redis_client.resp import Replies

__all__ = ["MAX_IN_FLIGHT", "AsyncConnection"]

MAX_IN_FLIGHT = 65_536


class _Call:
    __slots__ = ("answered", "deadline", "missing", "replies")

    def __init__(
        self, missing: int, deadline: float, answered: "asyncio.Future[list[Any]]"
    ) -> None:
        self.missing = missing
        self.deadline = deadline
        self.answered = answered
        self.replies: list[Any] = []

    def fail(self, error: SluicegateError) -> None:
        if not self.answered.done():
            # One of its own for each: a shared one would gather the tracebacks of all.
            self.answered.set_exception(type(error)(*error.args))


class AsyncConnection(asyncio.Protocol):
    """The protocol object of an open transport. `is_open` turns False once and for all."""

    def __init__(self, endpoint: Endpoint, raw: socket.socket) -> None:
        self.endpoint = endpoint
        self.is_open = False
        self._raw = raw
        self._loop = asyncio.get_running_loop()
        self._replies = Replies()
        self._calls: deque[_Call] = deque()
        self._outgoing: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._lost: asyncio.Future[None] = self._loop.create_future()

    def exchange(
        self, payload: bytes, count: int, deadline: float, *, at_once: bool = False
    ) -> "asyncio.Future[list[Any]]":
        """Send packed commands; the future has their `count` replies."""
        answered: asyncio.Future[list[Any]] = self._loop.create_future()
        if not self.is_open or len(self._calls) >= MAX_IN_FLIGHT:
            why = f"{MAX_IN_FLIGHT} calls are in flight" if self.is_open else "connection closed"
            answered.set_exception(Unavailable(f"cannot call Redis at {self.endpoint}: {why}"))
            return answered
        self._calls.append(_Call(count, deadline, answered))
        if not self._outgoing and not at_once:
            self._loop.call_soon(self._flush)
        self._outgoing.append(payload)
        if at_once:
            self._flush()
        if self._timer is None or deadline < self._timer_at:
            self._set_timer(deadline)
        return answered

    def accept(self, max_reply_bytes: int) -> None:
        """Accept replies of up to this size, which may be larger than those of most commands."""
        self._replies.max_bytes = max_reply_bytes

    def drop(self) -> None:
        """Close, without waiting until that is done."""
        self._fail_all(Unavailable(f"the connection to Redis at {self.endpoint} was closed"))

    async def close(self) -> None:
        self.drop()
        if self._transport is not None:
            await self._lost

    def abandon(self) -> None:
        """In a forked child: close our copy of the socket, and leave the parent's loop alone.

        Not by the transport, which would take the socket out of the epoll that the
        child still shares with its parent.
        """
        self.is_open = False
        self._calls.clear()
        self._raw.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        try:
            self._replies.feed(data)
            while self._calls:
                call = self._calls[0]
                call.replies += self._replies.take(call.missing - len(call.replies))
                if len(call.replies) < call.missing:
                    return
                self._calls.popleft()
                if not call.answered.done():
                    call.answered.set_result(call.replies)
            if self._replies.has_more():
                raise ProtocolError(f"Redis at {self.endpoint} sent more replies than commands")
        except ProtocolError as error:
            self._fail_all(error)

    def connection_lost(self, error: Exception | None) -> None:
        why = error or "closed by the server"
        self._fail_all(Unavailable(f"lost the connection to Redis at {self.endpoint}: {why}"))
        if not self._lost.done():
            self._lost.set_result(None)

    def _flush(self) -> None:
        payload = b"".join(self._outgoing)
        self._outgoing.clear()
        if payload and self.is_open and self._transport is not None:
            self._transport.write(payload)

    def _set_timer(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_later(max(deadline - monotonic(), 0.0), self._check_deadlines)

    def _check_deadlines(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        now = monotonic()
        late = Unavailable(f"timed out waiting for Redis at {self.endpoint}")
        # The loop itself may have been held up: then the answers are here and nobody has
        # looked yet. Let it look once before anyone is called late.
        if self._calls and self._calls[0].deadline <= now:
            self._loop.call_soon(self._loop.call_soon, self._fail_if_late, late)
            return
        for call in self._calls:
            if call.deadline <= now:
                call.fail(late)
        waiting = [call.deadline for call in self._calls if not call.answered.done()]
        if waiting:
            self._set_timer(min(waiting))

    def _fail_if_late(self, late: Unavailable) -> None:
        if self._calls and self._calls[0].deadline <= monotonic():
            self._fail_all(late)
        elif self._calls:  # whatever timer was set meanwhile may be for a later one
            self._check_deadlines()

    def _fail_all(self, error: SluicegateError) -> None:
        self.is_open = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._calls:
            self._calls.popleft().fail(error)
        if self._transport is not None:
            self._transport.abort()

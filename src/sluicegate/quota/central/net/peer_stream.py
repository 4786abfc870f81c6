"""`PeerStream`: messages between two centrals on one websocket of the `websockets` library.

Frames are text, one message each, of some kilobytes at most. Sending never waits: what does not
fit into the queue is dropped, which is a loss to its sender.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from websockets.asyncio.connection import Connection as WebsocketConnection
from websockets.exceptions import ConnectionClosed

from sluicegate.errors import ProtocolError
from sluicegate.quota.central.net.connection import CloseReason, truncate_reason
from sluicegate.quota.central.net.peer_wire import PeerMessage, read_message, write_message

__all__ = ["PeerStream"]

_MAX_QUEUED = 64


class PeerStream:
    """One connection to or from a peer, as long as it lasts. `receive` gets its messages."""

    def __init__(
        self,
        connection: WebsocketConnection,
        receive: Callable[[PeerMessage], None],
        *,
        wants_answer: bool,
    ) -> None:
        self._connection = connection
        self._receive = receive
        self._wants_answer = wants_answer
        self._queue: deque[PeerMessage] = deque()
        self._has_queued = asyncio.Event()
        self._close_reason: CloseReason | None = None

    def send(self, message: PeerMessage) -> None:
        """Queue a message, or drop it."""
        if len(self._queue) < _MAX_QUEUED:
            self._queue.append(message)
            self._has_queued.set()

    def close(self, close_reason: CloseReason) -> None:
        """End it, after what is queued."""
        self._close_reason = close_reason
        self._has_queued.set()

    async def run(self) -> None:
        """Send and receive until the connection ends. Raises ConnectionClosed or ProtocolError."""
        sending = asyncio.create_task(self._send_queued())
        try:
            while True:
                frame = await self._connection.recv()
                self._receive(read_message(frame, wants_answer=self._wants_answer))
        except ProtocolError as error:
            await self._close(CloseReason.bad_frame(str(error)))
            raise
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _send_queued(self) -> None:
        try:
            while True:
                await self._has_queued.wait()
                self._has_queued.clear()
                while self._queue:
                    await self._connection.send(write_message(self._queue.popleft()).decode())
                if self._close_reason is not None:
                    await self._close(self._close_reason)
        except ConnectionClosed:
            pass  # `run` raises it

    async def _close(self, close_reason: CloseReason) -> None:
        await self._connection.close(close_reason.code, truncate_reason(close_reason.reason))

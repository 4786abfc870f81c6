"""`BlockingReader`: commands that wait in Redis for data, over a connection of their own.

On the shared connection of a pool they would hold up every command behind them. A reader opens its
connection when it needs one, and again after a failure or a redirection; the caller decides when
to try again.
"""

from time import monotonic
from typing import Any

from sluicegate.errors import Unavailable
from sluicegate.redis_client.async_connection import AsyncConnection
from sluicegate.redis_client.async_pool import AsyncRedisPool
from sluicegate.redis_client.resp import MAX_REPLY_BYTES, ErrorReply

__all__ = ["BlockingReader"]


class BlockingReader:
    """One command at a time to the server that holds `key`.

    A reply of more than `max_reply_bytes` raises `ProtocolError`.
    """

    def __init__(
        self,
        pool: AsyncRedisPool,
        key: bytes,
        timeout: float,
        *,
        max_reply_bytes: int = MAX_REPLY_BYTES,
    ) -> None:
        self._max_reply_bytes = max_reply_bytes
        self._pool = pool
        self._key = key
        self._timeout = timeout
        self._connection: AsyncConnection | None = None

    @property
    def is_open(self) -> bool:
        return self._connection is not None and self._connection.is_open

    async def read(self, payload: bytes, block: float) -> Any:
        """The reply to one packed command that blocks for at most `block` seconds in Redis.

        An error that Redis answers is raised, and so is `Unavailable`.
        """
        connection = self._connection
        if connection is None or not connection.is_open:
            connection = await self._pool.connect(self._key, monotonic() + self._timeout)
            connection.accept(self._max_reply_bytes)
            self._connection = connection
        try:
            deadline = monotonic() + block + self._timeout
            (reply,) = await connection.exchange(payload, 1, deadline, at_once=True)
        except Unavailable:
            self._pool.invalidate()
            raise
        if isinstance(reply, ErrorReply):
            # UNBLOCKED: the server became a replica while the command waited.
            if reply.code in ("MOVED", "ASK", "UNBLOCKED") or reply.is_of_replica:
                self._pool.invalidate()
                await self.close()
            raise reply
        return reply

    async def close(self) -> None:
        """Close the connection; a blocked `read` raises `Unavailable`."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

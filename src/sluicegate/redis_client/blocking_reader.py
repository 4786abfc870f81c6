"""`BlockingReader`: commands that wait in Redis for data, over a connection of their own.

On the shared connection of a pool they would hold up every command behind them. A reader opens its
connection when it needs one, and again after a failure, when the caller decides to try again. It
follows the redirections of a cluster by itself.
"""

import asyncio
from time import monotonic
from typing import Any

from sluicegate.errors import Unavailable
from sluicegate.redis_client.address import Endpoint
from sluicegate.redis_client.async_connection import AsyncConnection
from sluicegate.redis_client.async_pool import ASKING, TRY_AGAIN_AFTER, AsyncRedisPool
from sluicegate.redis_client.pool import MAX_REDIRECTIONS
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

        An error that Redis answers is raised, and so is `Unavailable`. A slot that is being moved
        is followed, for up to `timeout` seconds while its keys are on two servers.
        """
        reply = await self._follow(payload, block)
        deadline = monotonic() + self._timeout
        while isinstance(reply, ErrorReply) and reply.is_of_moving_slot:
            if deadline - monotonic() <= TRY_AGAIN_AFTER:
                raise reply
            await asyncio.sleep(TRY_AGAIN_AFTER)
            reply = await self._follow(payload, block)
        if not isinstance(reply, ErrorReply):
            return reply
        # UNBLOCKED: the server became a replica while the command waited.
        if reply.code == "UNBLOCKED" or reply.is_of_replica:
            self._pool.invalidate()
            await self.close()
        raise reply

    async def _follow(self, payload: bytes, block: float) -> Any:
        """One command to the server of the key, to which redirections lead."""
        endpoint: Endpoint | None = None
        is_asking = False
        for _ in range(MAX_REDIRECTIONS):
            connection = await self._connected(endpoint)
            deadline = monotonic() + block + self._timeout
            try:
                if is_asking:
                    _, reply = await connection.exchange(ASKING + payload, 2, deadline)
                else:
                    (reply,) = await connection.exchange(payload, 1, deadline, at_once=True)
            except Unavailable:
                self._pool.invalidate()
                raise
            is_redirected = isinstance(reply, ErrorReply) and reply.code in ("MOVED", "ASK")
            if is_asking or is_redirected:
                await self.close()  # the next command is for the owner of the slot
            if not is_redirected:
                break
            endpoint = self._pool.redirect(self._key, reply)
            is_asking = reply.code == "ASK"
        return reply

    async def _connected(self, endpoint: Endpoint | None) -> AsyncConnection:
        connection = self._connection
        if connection is None or not connection.is_open:
            deadline = monotonic() + self._timeout
            connection = await self._pool.connect(self._key, deadline, endpoint)
            connection.accept(self._max_reply_bytes)
            self._connection = connection
        return connection

    async def close(self) -> None:
        """Close the connection; a blocked `read` raises `Unavailable`."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

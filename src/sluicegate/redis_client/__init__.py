"""A thin Redis client, for threads and for asyncio.

`RedisPool` and `AsyncRedisPool` send packed commands and read the replies, each call
before one deadline. Addresses, sentinels and clusters are read with redis-py, replies
with hiredis; both are imported only when a pool is made.
"""

from sluicegate.redis_client.async_pool import AsyncRedisPool
from sluicegate.redis_client.blocking_reader import BlockingReader
from sluicegate.redis_client.pool import RedisPool
from sluicegate.redis_client.resp import MAX_REPLY_BYTES, ErrorReply, pack

__all__ = [
    "MAX_REPLY_BYTES",
    "AsyncRedisPool",
    "BlockingReader",
    "ErrorReply",
    "RedisPool",
    "pack",
]

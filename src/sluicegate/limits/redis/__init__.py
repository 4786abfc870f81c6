"""A limit across hosts, through Redis: exact, or leased in lots.

`RedisKeyed` for threads and `AsyncRedisKeyed` for asyncio are shells around one `DecisionEngine`,
which has no socket: it asks Redis by a script (`script.py`,
`lua/`), spends leases (`_leases.pyx`), or, while Redis is unavailable (`circuit_breaker.py`), lets
each node have its share (`local_fallback.py`).
"""

from sluicegate.limits.redis.async_keyed import AsyncRedisKeyed
from sluicegate.limits.redis.keyed import RedisKeyed
from sluicegate.limits.redis.metrics import RedisMetrics

__all__ = ["AsyncRedisKeyed", "RedisKeyed", "RedisMetrics"]

"""A limit in one process, on one host, or across hosts: who may go now, who must wait, how long.

Each limiter is one class with the same few verbs: `try_acquire` (now or not),
`check` (the same, with the reasons), `acquire` and `acquire_async` (wait). `Keyed`
holds one limiter per key, `SharedKeyed` the same for all processes of a host,
`RedisKeyed` for many hosts; `limited` puts a limit around a function.

The algorithms are functions on a few numbers (`_algorithms.pxd`), compiled; the classes
around them read the clock once per call. Waiting is in Python (`waiting.py`), as
plans without timers that threads and tasks carry out.
"""

from sluicegate.limits._decision import Decision
from sluicegate.limits._keyed import Keyed
from sluicegate.limits._leaky_bucket import LeakyBucket
from sluicegate.limits._rate_limiter import RateLimiter
from sluicegate.limits._shared_keyed import SharedKeyed
from sluicegate.limits._shared_table import SharedTable
from sluicegate.limits._token_bucket import TokenBucket
from sluicegate.limits._windows import FixedWindow, SlidingCounter, SlidingWindow
from sluicegate.limits.adaptive import AdaptiveConcurrency
from sluicegate.limits.concurrency import ConcurrencyLimit
from sluicegate.limits.errors import RateLimited
from sluicegate.limits.limit import Limit, parse_limits
from sluicegate.limits.limited import limited
from sluicegate.limits.redis import AsyncRedisKeyed, RedisKeyed

__all__ = [
    "AdaptiveConcurrency",
    "AsyncRedisKeyed",
    "ConcurrencyLimit",
    "Decision",
    "FixedWindow",
    "Keyed",
    "LeakyBucket",
    "Limit",
    "RateLimited",
    "RateLimiter",
    "RedisKeyed",
    "SharedKeyed",
    "SharedTable",
    "SlidingCounter",
    "SlidingWindow",
    "TokenBucket",
    "limited",
    "parse_limits",
]

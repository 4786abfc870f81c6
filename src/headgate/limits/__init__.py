"""A limit in one process, on one host, or across hosts: who may go now, who must wait, how long.

Each limiter is one class with the same few verbs: `try_acquire` (now or not),
`check` (the same, with the reasons), `acquire` and `acquire_async` (wait). `Keyed`
holds one limiter per key, `SharedKeyed` the same for all processes of a host,
`RedisKeyed` for many hosts; `limited` puts a limit around a function.

The algorithms are functions on a few numbers (`_cells.pxd`), compiled; the classes
around them read the clock once per call. Waiting is in Python (`waiting.py`), as
plans without timers that threads and tasks carry out.
"""

from headgate.limits._decision import Decision
from headgate.limits._keyed import Keyed
from headgate.limits._leaky_bucket import LeakyBucket
from headgate.limits._rate_limiter import RateLimiter
from headgate.limits._token_bucket import TokenBucket
from headgate.limits._windows import FixedWindow, SlidingCounter, SlidingWindow
from headgate.limits.adaptive import AdaptiveConcurrency
from headgate.limits.concurrency import ConcurrencyLimit
from headgate.limits.denial import RateLimited
from headgate.limits.limit import Limit, parse_limits
from headgate.limits.limited import limited
from headgate.limits.redis import AsyncRedisKeyed, RedisKeyed
from headgate.limits.shared import SharedKeyed, SharedTable

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

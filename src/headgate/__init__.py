"""Headgate keeps a fleet of servers inside its limits.

Decide here, agree in the background: each decision is a look at local memory, and
agreement between machines happens off the request's path.
"""

from headgate.clock import ManualClock, SystemClock
from headgate.errors import (
    ClockMovedBackwards,
    ConfigError,
    HeadgateError,
    ProtocolError,
    Unavailable,
)
from headgate.ids import Snowflake, SnowflakeParts
from headgate.limits import (
    AdaptiveConcurrency,
    AsyncRedisKeyed,
    ConcurrencyLimit,
    Decision,
    FixedWindow,
    Keyed,
    LeakyBucket,
    Limit,
    RateLimited,
    RateLimiter,
    RedisKeyed,
    SlidingCounter,
    SlidingWindow,
    TokenBucket,
    limited,
    parse_limits,
)

__all__ = [
    "AdaptiveConcurrency",
    "AsyncRedisKeyed",
    "ClockMovedBackwards",
    "ConcurrencyLimit",
    "ConfigError",
    "Decision",
    "FixedWindow",
    "HeadgateError",
    "Keyed",
    "LeakyBucket",
    "Limit",
    "ManualClock",
    "ProtocolError",
    "RateLimited",
    "RateLimiter",
    "RedisKeyed",
    "SlidingCounter",
    "SlidingWindow",
    "Snowflake",
    "SnowflakeParts",
    "SystemClock",
    "TokenBucket",
    "Unavailable",
    "limited",
    "parse_limits",
]

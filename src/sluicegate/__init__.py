"""Sluicegate keeps a fleet of servers inside its limits.

Decide here, agree in the background: each decision is a look at local memory, and
agreement between machines happens off the request's path.

A name is imported when it is first used, so that a program, or a command, pays only for its parts.
"""

from typing import TYPE_CHECKING

from sluicegate._lazy import lazy_exports

if TYPE_CHECKING:
    from sluicegate.clock import ManualClock, SystemClock
    from sluicegate.dispatch import (
        Busy,
        Dispatcher,
        Duplicate,
        HandlerFailed,
        NoWorkers,
        SyncDispatcher,
        TimedOut,
        Worker,
    )
    from sluicegate.errors import (
        ClockMovedBackwards,
        ConfigError,
        ProtocolError,
        SluicegateError,
        TableFull,
        Unavailable,
    )
    from sluicegate.ids import Snowflake, SnowflakeParts
    from sluicegate.limits import (
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
        SharedKeyed,
        SharedTable,
        SlidingCounter,
        SlidingWindow,
        TokenBucket,
        limited,
        parse_limits,
    )
    from sluicegate.pacing import Cluster, ClusterCounter, ClusterLimiter
    from sluicegate.quota import Central, Ledger, Node, Service, Throttled

__all__ = [
    "AdaptiveConcurrency",
    "AsyncRedisKeyed",
    "Busy",
    "Central",
    "ClockMovedBackwards",
    "Cluster",
    "ClusterCounter",
    "ClusterLimiter",
    "ConcurrencyLimit",
    "ConfigError",
    "Decision",
    "Dispatcher",
    "Duplicate",
    "FixedWindow",
    "HandlerFailed",
    "Keyed",
    "LeakyBucket",
    "Ledger",
    "Limit",
    "ManualClock",
    "NoWorkers",
    "Node",
    "ProtocolError",
    "RateLimited",
    "RateLimiter",
    "RedisKeyed",
    "Service",
    "SharedKeyed",
    "SharedTable",
    "SlidingCounter",
    "SlidingWindow",
    "SluicegateError",
    "Snowflake",
    "SnowflakeParts",
    "SyncDispatcher",
    "SystemClock",
    "TableFull",
    "Throttled",
    "TimedOut",
    "TokenBucket",
    "Unavailable",
    "Worker",
    "limited",
    "parse_limits",
]

__getattr__ = lazy_exports(
    globals(),
    {
        "sluicegate.clock": ["ManualClock", "SystemClock"],
        "sluicegate.dispatch": [
            "Busy",
            "Dispatcher",
            "Duplicate",
            "HandlerFailed",
            "NoWorkers",
            "SyncDispatcher",
            "TimedOut",
            "Worker",
        ],
        "sluicegate.errors": [
            "ClockMovedBackwards",
            "ConfigError",
            "ProtocolError",
            "SluicegateError",
            "TableFull",
            "Unavailable",
        ],
        "sluicegate.ids": ["Snowflake", "SnowflakeParts"],
        "sluicegate.limits": [
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
        ],
        "sluicegate.pacing": ["Cluster", "ClusterCounter", "ClusterLimiter"],
        "sluicegate.quota": ["Central", "Ledger", "Node", "Service", "Throttled"],
    },
)

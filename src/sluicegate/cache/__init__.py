"""Caches with a bounded size: eight policies that decide what to evict, one mapping.

`Fifo`, `Lru`, `Lfu`, `Clock`, `Arc`, `Sieve`, `S3Fifo` and `TinyLfu` differ in what they evict
and in nothing else: each is a `MutableMapping` with a time to live, weights, and counters.
`cached` puts one around a function; `replay` shows which of them suits recorded traffic.

    >>> from sluicegate.cache import Lru
    >>> cache = Lru(2)
    >>> cache["a"] = 1
    >>> cache["b"] = 2
    >>> cache["a"]
    1
    >>> cache["c"] = 3
    >>> sorted(cache)
    ['a', 'c']
"""

from typing import TYPE_CHECKING

from sluicegate._lazy import lazy_exports

if TYPE_CHECKING:
    from sluicegate.cache._arc import Arc
    from sluicegate.cache._cache import Cache
    from sluicegate.cache._lfu import Lfu
    from sluicegate.cache._queues import Clock, Fifo, Lru, Sieve
    from sluicegate.cache._s3fifo import S3Fifo
    from sluicegate.cache._tinylfu import TinyLfu
    from sluicegate.cache.memoize import Cached, cached
    from sluicegate.cache.policies import POLICIES, make
    from sluicegate.cache.stats import CacheStats
    from sluicegate.cache.trace import Trace, read_trace
    from sluicegate.cache.trace_replay import Replay, TraceReplay, replay

__all__ = [
    "POLICIES",
    "Arc",
    "Cache",
    "CacheStats",
    "Cached",
    "Clock",
    "Fifo",
    "Lfu",
    "Lru",
    "Replay",
    "S3Fifo",
    "Sieve",
    "TinyLfu",
    "Trace",
    "TraceReplay",
    "cached",
    "make",
    "read_trace",
    "replay",
]

__getattr__ = lazy_exports(
    globals(),
    {
        "sluicegate.cache._arc": ["Arc"],
        "sluicegate.cache._cache": ["Cache"],
        "sluicegate.cache._lfu": ["Lfu"],
        "sluicegate.cache._queues": ["Clock", "Fifo", "Lru", "Sieve"],
        "sluicegate.cache._s3fifo": ["S3Fifo"],
        "sluicegate.cache._tinylfu": ["TinyLfu"],
        "sluicegate.cache.memoize": ["Cached", "cached"],
        "sluicegate.cache.policies": ["POLICIES", "make"],
        "sluicegate.cache.stats": ["CacheStats"],
        "sluicegate.cache.trace": ["Trace", "read_trace"],
        "sluicegate.cache.trace_replay": ["Replay", "TraceReplay", "replay"],
    },
)

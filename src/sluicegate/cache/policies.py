"""The policies by their names, for configuration files and comparisons."""

from typing import Any

from sluicegate.cache._arc import Arc
from sluicegate.cache._cache import Cache
from sluicegate.cache._lfu import Lfu
from sluicegate.cache._queues import Clock, Fifo, Lru, Sieve
from sluicegate.cache._s3fifo import S3Fifo
from sluicegate.cache._tinylfu import TinyLfu

__all__ = ["POLICIES", "make"]

POLICIES: dict[str, type[Cache[Any, Any]]] = {
    "fifo": Fifo,
    "lru": Lru,
    "lfu": Lfu,
    "clock": Clock,
    "arc": Arc,
    "sieve": Sieve,
    "s3fifo": S3Fifo,
    "tinylfu": TinyLfu,
}


def make(name: str, capacity: int, **options: Any) -> Cache[Any, Any]:
    """A cache with the policy of that name: `make("S3-FIFO", 1000, ttl=60)`.

    Upper and lower case, `-` and `_` make no difference.
    """
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, got {name!r}")
    policy = POLICIES.get(name.lower().replace("-", "").replace("_", ""))
    if policy is None:
        raise ValueError(f"name must be one of {', '.join(POLICIES)}, got {name!r}")
    return policy(capacity, **options)

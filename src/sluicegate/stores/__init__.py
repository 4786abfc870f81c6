"""Where the counters of a pacing cluster live: in memory, or in Redis."""

from typing import TYPE_CHECKING

from sluicegate._lazy import lazy_exports

if TYPE_CHECKING:
    from sluicegate.stores.memory import MemoryStore
    from sluicegate.stores.redis import RedisStore

__all__ = ["MemoryStore", "RedisStore"]

__getattr__ = lazy_exports(
    globals(),
    {
        "sluicegate.stores.memory": ["MemoryStore"],
        "sluicegate.stores.redis": ["RedisStore"],
    },
)

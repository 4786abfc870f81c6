"""`CacheStats`: the counters of a cache at one moment."""

from typing import NamedTuple

__all__ = ["CacheStats"]


class CacheStats(NamedTuple):
    """`evictions` were for room (one that was too heavy to be stored at all counts, too),
    `expirations` for age. `size` is the number of entries, `weight` their total weight.
    """

    hits: int
    misses: int
    evictions: int
    expirations: int
    size: int
    weight: int
    capacity: int

    @property
    def hit_ratio(self) -> float:
        """Hits per access, from 0 to 1; 0 when there was none."""
        accesses = self.hits + self.misses
        return self.hits / accesses if accesses else 0.0

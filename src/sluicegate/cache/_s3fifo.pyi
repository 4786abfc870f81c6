from typing import TypeVar

from sluicegate.cache._cache import Cache

__all__ = ["S3Fifo"]

_K = TypeVar("_K")
_V = TypeVar("_V")

class S3Fifo(Cache[_K, _V]): ...

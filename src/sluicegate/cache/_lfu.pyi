from typing import TypeVar

from typing_extensions import disjoint_base

from sluicegate.cache._cache import Cache

__all__ = ["Lfu"]

_K = TypeVar("_K")
_V = TypeVar("_V")

@disjoint_base
class Lfu(Cache[_K, _V]): ...

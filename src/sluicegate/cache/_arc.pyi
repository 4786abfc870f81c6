from typing import TypeVar

from typing_extensions import disjoint_base

from sluicegate.cache._cache import Cache

__all__ = ["Arc"]

_K = TypeVar("_K")
_V = TypeVar("_V")

@disjoint_base
class Arc(Cache[_K, _V]): ...

from typing import TypeVar

from typing_extensions import disjoint_base

from sluicegate.cache._cache import Cache

__all__ = ["Clock", "Fifo", "Lru", "Sieve"]

_K = TypeVar("_K")
_V = TypeVar("_V")

class Clock(Cache[_K, _V]): ...

class Fifo(Cache[_K, _V]): ...

class Lru(Cache[_K, _V]): ...

@disjoint_base
class Sieve(Cache[_K, _V]): ...

"""The views that `values()` and `items()` return.

Those of `collections.abc` read values by `cache[key]`, which counts as a use. These read the
cache of one moment, so it may change while somebody iterates.
"""

from collections.abc import ItemsView, Iterator, ValuesView
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from sluicegate.cache._cache import Cache

__all__ = ["CacheItems", "CacheValues"]

K = TypeVar("K")
V = TypeVar("V")

_ABSENT = object()


class CacheValues(ValuesView[V]):
    """The values."""

    __slots__ = ()
    _mapping: "Cache[object, V]"

    def __iter__(self) -> Iterator[V]:
        return iter(self._mapping._snapshot()[1])

    def __contains__(self, value: object) -> bool:
        return any(one is value or one == value for one in self)


class CacheItems(ItemsView[K, V]):
    """The pairs of key and value."""

    __slots__ = ()
    _mapping: "Cache[K, V]"

    def __iter__(self) -> Iterator[tuple[K, V]]:
        return zip(*self._mapping._snapshot(), strict=True)

    def __contains__(self, item: object) -> bool:
        if not isinstance(item, tuple) or len(item) != 2:
            return False
        value = self._mapping.peek(item[0], _ABSENT)
        return value is item[1] or value == item[1]

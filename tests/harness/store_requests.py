"""Requests to a store, written briefly: a writer that tells its totals."""

import math
import time
from itertools import count

from sluicegate.stores import RedisStore
from sluicegate.stores.store import (
    CounterKey,
    CounterTotals,
    CounterUpdate,
    Store,
    SyncReply,
    SyncRequest,
)

__all__ = ["ALWAYS", "RedisAt", "Writer", "minute", "update"]

ALWAYS = CounterKey("clicks", (), 0.0, 0.0, 0.0)


_TOMORROW = time.time() // 60.0 * 60.0 + 86_400.0


def minute(number: int = 0) -> CounterKey:
    """A counter per minute, in one of tomorrow's minutes: it does not expire during a test."""
    begin = _TOMORROW + number * 60.0
    return CounterKey("ads:pass", (), begin, begin + 60.0, 60.0)


def update(
    key: CounterKey,
    total: float,
    *,
    rate: float = 0.0,
    want: float = 0.0,
    unit: float = 1.0,
    ceiling: float = math.inf,
) -> CounterUpdate:
    return CounterUpdate(key, total, int(total), rate, want, unit, ceiling)


class RedisAt:
    """A RedisStore whose script takes the time of the request, as MemoryStore does."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store

    def sync(self, request: SyncRequest) -> SyncReply:
        return self._store._sync(request, request.time)

    def close(self) -> None:
        self._store.close()

    def __repr__(self) -> str:
        return f"RedisAt({self._store!r})"


class Writer:
    """One life of one node. `store` is where it syncs; its time is the real one, or given."""

    def __init__(self, store: Store, name: str, cluster: str = "shop") -> None:
        self.store = store
        self.name = name
        self.cluster = cluster
        self._numbers = count(1)

    def request(
        self,
        *updates: CounterUpdate,
        at: float | None = None,
        may_fold: bool = False,
        live_for: float = 600.0,
    ) -> SyncRequest:
        return SyncRequest(
            self.cluster,
            self.name,
            next(self._numbers),
            time.time() if at is None else at,
            live_for,
            0.0,
            may_fold,
            list(updates),
        )

    def sync(self, *updates: CounterUpdate, **options: float) -> SyncReply:
        return self.store.sync(self.request(*updates, **options))

    def tell(self, key: CounterKey, total: float, **options: float) -> CounterTotals:
        """Tell one total, and return the cluster's."""
        (totals,) = self.sync(update(key, total, **options)).totals
        return totals

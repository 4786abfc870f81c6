"""Threads lose nothing: eight of them, ten million adds, and the sum is exact."""

from collections.abc import Callable

import pytest

from sluicegate import Cluster
from sluicegate.stores import MemoryStore
from sluicegate.stores.store import SyncReply, SyncRequest
from tests.harness.threads import run_in_threads

THREADS = 8
ADDS = 10_000_000 // THREADS


class Totals(MemoryStore):
    """Notes what one writer tells: the last total of each counter and period."""

    def __init__(self) -> None:
        super().__init__()
        self.told: dict[tuple[str, float], tuple[float, int]] = {}

    def sync(self, request: SyncRequest) -> SyncReply:
        for update in request.updates:
            self.told[update.key.name, update.key.begin] = (update.sum, update.count)
        return super().sync(request)

    def of(self, name: str) -> float:
        """Over all periods; sums and counts must agree, for all adds are of 1."""
        found = [told for (counter, _), told in self.told.items() if counter == name]
        assert [total for total, _ in found] == [count for _, count in found]
        return sum(total for total, _ in found)


def adding(add: Callable[[float], None]) -> Callable[[], None]:
    def work() -> None:
        for _ in range(ADDS):
            add(1.0)

    return work


@pytest.mark.no_cover
def test_eight_threads_lose_no_add_while_a_ninth_syncs() -> None:
    store = MemoryStore()
    with Cluster(store, sync_interval=0.01) as cluster:
        hits = cluster.counter("hits")
        run_in_threads(adding(hits.add) for _ in range(THREADS))
        assert hits.local() == THREADS * ADDS
        assert hits.local_count == THREADS * ADDS
    observer = Cluster(store)
    seen = observer.counter("hits")
    observer.sync()
    assert seen.value() == THREADS * ADDS


@pytest.mark.no_cover
def test_no_request_is_lost_when_periods_turn_under_eight_threads() -> None:
    store = Totals()
    passed: list[int] = []
    with Cluster(store, sync_interval=0.01) as cluster:
        hits = cluster.counter("hits", period=0.02)
        ads = cluster.limiter("ads", target=50, period=0.02)

        def work() -> None:
            count = 0
            for _ in range(ADDS // 50):
                hits.add()
                count += ads.acquire()
            passed.append(count)

        run_in_threads(work for _ in range(THREADS))
    assert len(passed) == THREADS
    assert len(store.told) > 4  # there were several periods
    assert store.of("hits") == THREADS * (ADDS // 50)
    assert store.of("ads:request") == THREADS * (ADDS // 50)
    assert store.of("ads:pass") == store.of("ads:reward") == sum(passed) > 0

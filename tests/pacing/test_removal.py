"""Counters that are removed and made again: the store's totals stay exact."""

import logging
import time
from collections.abc import Callable

import pytest

from sluicegate import Cluster, ManualClock
from sluicegate.stores import MemoryStore
from sluicegate.stores.store import SyncReply, SyncRequest

START = 1_000_000_020.0


class SlowStore(MemoryStore):
    """Calls a function when a request is carried out, before the node has the reply."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], object] | None = None

    def sync(self, request: SyncRequest) -> SyncReply:
        reply = super().sync(request)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return reply


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def store() -> SlowStore:
    return SlowStore()


@pytest.fixture
def cluster(clock: ManualClock, store: SlowStore) -> Cluster:
    return Cluster(store, node_id="a", clock=clock)


def stored(cluster: Cluster, name: str) -> float:
    """What a new node sees."""
    observer = Cluster(cluster._store, node_id="observer", clock=cluster._clock.source)
    counter = observer.counter(name)
    observer.sync()
    value = counter.value()
    observer.close()
    return value


def test_an_endless_counter_goes_on_after_another_removal(cluster: Cluster) -> None:
    hits = cluster.counter("hits")
    hits.add(10)
    cluster.sync()
    cluster.remove("hits")
    cluster.sync()
    cluster.counter("other")
    cluster.remove("other")
    cluster.sync()
    cluster.counter("hits").add(3)
    cluster.sync()
    assert stored(cluster, "hits") == 13.0


@pytest.mark.parametrize("zone", ["Etc/UTC", "Asia/Tokyo", "America/New_York"])
@pytest.mark.parametrize("is_closed", [False, True])
def test_last_counts_are_told_before_another_timezone(
    cluster: Cluster, zone: str, is_closed: bool
) -> None:
    cluster.counter("hits").add(10)
    cluster.remove("hits")
    cluster.counter("hits", timezone=zone).add(3)
    if is_closed:
        cluster.close()
    else:
        cluster.sync()
        cluster.sync()
    assert stored(cluster, "hits") == 13.0


def test_a_chain_of_timezones_loses_nothing(cluster: Cluster) -> None:
    cluster.counter("hits").add(1)
    for number, zone in enumerate(("Asia/Tokyo", "Etc/UTC", "Europe/Berlin"), 1):
        cluster.remove("hits")
        cluster.counter("hits", timezone=zone).add(10**number)
    for _ in range(4):
        cluster.sync()
    assert stored(cluster, "hits") == 1111.0


def test_a_limiter_goes_on_with_another_timezone(cluster: Cluster, clock: ManualClock) -> None:
    ads = cluster.limiter("ads", target=600, period=60)
    for _ in range(100):
        clock.advance(0.1)
        ads.acquire()
    passed = ads.passes.local()
    assert passed > 0
    cluster.remove("ads")
    again = cluster.limiter("ads", target=600, period=60, timezone="Europe/Berlin")
    cluster.sync()
    assert again.passes.value() == passed


def test_a_new_writer_during_a_sync_counts_nothing_twice(
    cluster: Cluster, store: SlowStore
) -> None:
    hits = cluster.counter("hits")
    cluster.counter("days", period=86400).add()
    cluster.sync()
    cluster.remove("days")
    cluster.sync()
    hits.add(5)
    store.meanwhile = lambda: cluster.counter("days", period=86400, timezone="Asia/Tokyo")
    cluster.sync()
    cluster.sync()
    assert stored(cluster, "hits") == 5.0
    assert hits.value() == 5.0


def test_counts_of_a_second_removal_during_a_sync_are_told(
    cluster: Cluster, store: SlowStore
) -> None:
    cluster.counter("hits").add(1)
    cluster.remove("hits")

    def use_again() -> None:
        cluster.counter("hits").add(2)
        cluster.remove("hits")

    store.meanwhile = use_again
    cluster.sync()
    cluster.sync()
    assert stored(cluster, "hits") == 3.0


def test_more_removals_than_are_kept_stay_exact(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluicegate.pacing.retired_counters._MOST_KEPT", 10)
    for life in range(3):
        for number in range(25):
            cluster.counter(f"c{number}").add(1 + life)
        if life:
            cluster.sync()
        for number in range(25):
            cluster.remove(f"c{number}")
        cluster.sync()
        cluster.sync()
        assert len(cluster.state._retired.counters()) <= 25
    assert [stored(cluster, f"c{number}") for number in (0, 24)] == [6.0, 6.0]


def test_ended_periods_are_forgotten(cluster: Cluster, clock: ManualClock) -> None:
    for number in range(50):
        cluster.counter(f"c{number}", period=60).add()
        cluster.remove(f"c{number}")
    cluster.sync()
    clock.advance(4000.0)
    cluster.counter("last")
    cluster.remove("last")
    cluster.sync()
    assert [one.name for one in cluster.state._retired.counters()] == ["last"]


@pytest.mark.no_cover
def test_a_removal_does_not_walk_all_earlier_ones(cluster: Cluster) -> None:
    def removing(count: int) -> float:
        family = cluster.counter_family("hits", labels=["user"], max_members=count)
        for user in range(count):
            family.labels(str(user))
        began = time.process_time()
        for member in family.members():
            cluster.state.retire([member])
        return time.process_time() - began

    assert removing(9_000) < 2.0


def test_a_limiter_that_fails_does_not_end_the_sync_of_others(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    hits = cluster.counter("hits")
    for name in ("bad", "good"):
        cluster.limiter(name, target=100, period=60)
    _, control = cluster.state.limiters["bad", ()]

    def fail(*_: object) -> None:
        raise OverflowError("too large")

    for method in ("updates", "receive", "coast"):
        monkeypatch.setattr(control, method, fail)
    hits.add(2)
    with caplog.at_level(logging.ERROR):
        cluster.sync()
        cluster.sync()
    assert hits.history[-1][2] == 2.0
    assert len(cluster.limiters["good"].passes.history) == 2
    assert len(caplog.records) == 1
    assert "ClusterLimiter 'bad'" in caplog.records[0].getMessage()


def test_a_limiter_with_a_number_no_store_takes_is_left_out(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    hits = cluster.counter("hits")
    bad = cluster.limiter("bad", target=100, period=60)
    _, control = cluster.state.limiters["bad", ()]
    (update,) = bad.passes._updates()
    told = [(bad.passes, [update._replace(want=float("nan"))])]
    monkeypatch.setattr(control, "updates", lambda *_: told)
    hits.add(2)
    cluster.sync()
    assert hits.history[-1][2] == 2.0


def test_days_of_another_timezone_are_another_counter(cluster: Cluster, clock: ManualClock) -> None:
    """Their period has begun earlier: as one counter the store would take all of it for late."""
    other = Cluster(cluster._store, node_id="b", clock=clock)
    cluster.counter("hits", period=86_400).add(10)
    cluster.sync()
    cluster.remove("hits")
    tokyo = [
        node.counter("hits", period=86_400, timezone="Asia/Tokyo") for node in (cluster, other)
    ]
    for counter in tokyo:
        counter.add(5)
    for node in (cluster, other, cluster):
        node.sync()
    assert [counter.value() for counter in tokyo] == [10.0, 10.0]


def test_a_day_limiter_goes_on_when_its_timezone_changes(
    cluster: Cluster, clock: ManualClock
) -> None:
    passed = []
    for zone in ("UTC", "Asia/Tokyo", "America/New_York"):
        days = cluster.limiter("days", target=86_400, period=86_400, timezone=zone)
        before = days.passes.local()
        for _ in range(600):
            clock.advance(1.0)
            if cluster.state.next_sync(clock.now()) <= clock.now():
                cluster.sync()
            days.acquire()
            days.acquire()
        passed.append(days.passes.local() - before)
        cluster.remove("days")
    assert min(passed) > 500, passed


def test_a_new_name_changes_no_local_count(
    cluster: Cluster, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluicegate.pacing.retired_counters._MOST_KEPT", 3)
    hits = cluster.counter("hits", period=86_400)
    hits.add(100)
    cluster.sync()
    for number in range(5):
        cluster.counter(f"c{number}").add()
        cluster.remove(f"c{number}")
    cluster.sync()
    name = cluster.state._writer
    cluster.sync()
    assert cluster.state._writer != name
    assert (hits.local(), hits.local_count, hits.value(), hits.cluster_count) == (100, 1, 100, 1)
    hits.add(7)
    cluster.sync()
    assert (hits.local(), hits.value()) == (107, 107)
    assert hits.history[-1][1:] == (107, 107)


def test_no_new_name_is_taken_while_a_request_is_unanswered(
    cluster: Cluster, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the store has carried it out is not known, so it must be told under the same name."""
    monkeypatch.setattr("sluicegate.pacing.retired_counters._MOST_KEPT", 3)
    hits = cluster.counter("hits")
    for number in range(5):
        cluster.counter(f"c{number}").add()
        cluster.remove(f"c{number}")
    hits.add(100)

    def lose_reply() -> None:
        raise ConnectionError("the reply is lost")

    cluster.sync()
    hits.add(100)
    store.meanwhile = lose_reply
    with pytest.raises(ConnectionError):
        cluster.sync()
    cluster.sync()
    cluster.sync()
    assert stored(cluster, "hits") == 200.0

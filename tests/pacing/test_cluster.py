"""`Cluster`: definitions, lifecycle, failures of the store; driven by hand with a manual clock."""

import asyncio
import gc
import logging
import math
import threading
import weakref
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from sluicegate import Cluster, ManualClock
from sluicegate.errors import Unavailable
from sluicegate.stores import MemoryStore
from sluicegate.stores.store import CounterTotals, SyncReply, SyncRequest
from tests.harness.waits import wait_for

START = 1_000_000_020.0  # a minute begins here


class FlakyStore(MemoryStore):
    """Raises `error` instead of answering, while there is one. Remembers its last answer."""

    error: Exception | None = None
    last: tuple[SyncRequest, SyncReply]

    def sync(self, request: SyncRequest) -> SyncReply:
        if self.error is not None:
            raise self.error
        reply = super().sync(request)
        self.last = (request, reply)
        return reply

    def totals(self, name: str) -> CounterTotals:
        """Of a counter, as the last answer has them."""
        request, reply = self.last
        names = [update.key.name for update in request.updates]
        return reply.totals[names.index(name)]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def store() -> FlakyStore:
    return FlakyStore()


@pytest.fixture
def cluster(store: FlakyStore, clock: ManualClock) -> Cluster:
    return Cluster(store, "shop", node_id="a", clock=clock)


def peer_of(store: FlakyStore, clock: ManualClock) -> Cluster:
    return Cluster(store, "shop", node_id="b", clock=clock)


def drive(clock: ManualClock, seconds: float, *clusters: Cluster) -> None:
    """Let time pass, and sync each cluster when it is due."""
    for _ in range(round(seconds / 0.1)):
        clock.advance(0.1)
        for cluster in clusters:
            if cluster.state.next_sync(clock.now()) <= clock.now():
                cluster.sync()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"store": None}, "store must be a MemoryStore.*None"),
        ({"store": MemoryStore}, "store must be a MemoryStore\\(\\).*<class"),
        ({"store": SimpleNamespace(sync=print)}, "methods sync\\(\\) and close\\(\\)"),
        ({"name": "a{b}"}, "name must not contain braces.* got 'a{b}'"),
        ({"name": ""}, "name must not be empty, got ''"),
        ({"name": 3}, "name must be a str, got 3"),
        ({"name": "x" * 201}, "name must have at most 200 bytes"),
        ({"node_id": "\ud800"}, "node_id must be encodable as UTF-8"),
        ({"sync_interval": 0}, "sync_interval must be from 0.01 to 3600, got 0"),
        ({"sync_interval": 1e-3}, "sync_interval must be from 0.01 to 3600, got 0.001"),
        ({"sync_interval": 1e4}, "sync_interval must be from 0.01 to 3600, got 10000.0"),
        ({"sync_interval": math.nan}, "sync_interval must be .* got nan"),
        ({"decay": 1.0}, "decay must be from 0 to less than 1, got 1.0"),
        ({"nodes": 0}, "nodes must be from 1 to 2\\^53, got 0"),
        ({"clock": 7}, "clock must have a method now"),
    ],
)
def test_wrong_arguments_of_a_cluster_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        Cluster(**({"store": MemoryStore()} | arguments))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "a limiter needs target=, got none"),
        ({"target": 1}, "needs period, or begin and end"),
        ({"target": 0, "period": 60}, "target must be from 1e-06 to 1e\\+15, got 0"),
        ({"target": "5", "period": 60}, "target must be a number, got '5'"),
        ({"target": 1, "period": -1}, "period must be from 0.001 to .*, got -1"),
        ({"target": 1, "period": 60, "begin": 1, "end": 2}, "either period, or begin and end"),
        ({"target": 1, "begin": 5}, "begin and end go together"),
        ({"target": 1, "begin": 5, "end": 5}, "begin must be before end"),
        ({"target": 1, "period": 60, "reserve": 60}, "reserve must be .* 60 s .* got 60"),
        ({"target": 1, "period": 60, "boost": 0.5}, "boost must be from 1 to .* got 0.5"),
        ({"target": 1, "period": 60, "decay": 1}, "decay must be from 0 to 0.999, got 1"),
        ({"target": 1, "period": 60, "explore": 0.1}, "explore needs scored=True"),
        ({"target": 1, "period": 60, "scored": 1}, "scored must be True or False, got 1"),
        ({"target": 1, "period": 60, "curve": [1.0]}, "curve must be 24 weights"),
        ({"target": 1, "period": 60, "curve": "learned"}, "24 weights or 'learn', got 'learned'"),
        ({"target": 1, "period": 60, "reward_rate": 0}, "reward_rate must be .* got 0"),
        ({"target": 1, "period": 60, "reward_within": -1}, "reward_within must be .* got -1"),
        ({"target": 1, "period": 60, "burst_interval": 0}, "burst_interval must be .* got 0"),
        ({"target": 1, "period": 60, "timezone": "Mars"}, "timezone must be .* got 'Mars'"),
        ({"target": 1, "period": 60, "timezone": 5}, "timezone must be .* got 5"),
        ({"target": 1, "period": 60, "timezone": b"UTC"}, "timezone must be .* got b'UTC'"),
        ({"target": 1, "period": 60, "timezone": ["UTC"]}, "timezone must be .* got \\['UTC'\\]"),
        ({"target": 1e16, "period": 60}, "target must be from .* got 1e\\+16"),
        ({"target": 1e-7, "period": 60}, "target must be from .* got 1e-07"),
        ({"target": True, "period": 60}, "target must be a number, got True"),
        ({"target": 1, "period": 1e-4}, "period must be from 0.001 .* got 0.0001"),
        ({"target": 1, "period": 1e10}, "period must be from 0.001 .* got 1"),
        ({"target": 1, "period": 60, "reward_rate": 1e-10}, "reward_rate must be from 1e-09 to"),
        ({"target": 1, "period": 60, "reward_rate": 1e10}, "reward_rate must be from 1e-09 to"),
        ({"target": 1, "period": 60, "curve": [1e10] * 24}, "curve must be 24 weights from 0 to"),
        ({"target": 1, "period": 60, "speed": 1}, "a limiter has no option speed"),
    ],
)
def test_wrong_options_of_a_limiter_are_named(
    cluster: Cluster, options: dict[str, Any], message: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        cluster.limiter("ads", **options)
    assert cluster.limiters == {}
    cluster.limiter("ads", target=1, period=60)  # the name is still free


def test_a_name_like_that_of_a_limiters_counter_is_refused(cluster: Cluster) -> None:
    with pytest.raises(ValueError, match="name must not end with :request.* got 'ads:pass'"):
        cluster.counter("ads:pass")


def test_the_same_definition_gives_the_same_object(cluster: Cluster) -> None:
    hits = cluster.counter("hits", period=60)
    assert cluster.counter("hits", period=60.0) is hits
    begin, end = datetime(2001, 9, 9, tzinfo=UTC), datetime(2001, 9, 10, tzinfo=UTC)
    ads = cluster.limiter("ads", target=10, begin=begin, end=end)
    again = cluster.limiter("ads", target=10.0, begin=begin.timestamp(), end=end.timestamp())
    assert again is ads
    assert cluster.limiters == {"ads": ads}


@pytest.mark.parametrize("change", [{"target": 11}, {"boost": 3.0}, {"period": 30}])
def test_another_definition_of_the_same_name_raises(
    cluster: Cluster, change: dict[str, Any]
) -> None:
    cluster.limiter("ads", target=10, period=60)
    with pytest.raises(ValueError, match="'ads' is defined already"):
        cluster.limiter("ads", **{"target": 10, "period": 60, **change})
    with pytest.raises(ValueError, match="'ads' is defined already"):
        cluster.counter("ads", period=60)


def test_a_removed_limiter_passes_nothing_and_its_counts_are_told(
    cluster: Cluster, store: FlakyStore, clock: ManualClock
) -> None:
    peer = peer_of(store, clock)
    ads = cluster.limiter("ads", target=600, period=60)
    seen = peer.limiter("ads", target=600, period=60)
    drive(clock, 10.0, cluster, peer)
    passed = sum(ads.acquire() for _ in range(50))
    assert passed > 0
    cluster.remove("ads")
    assert not ads.take()
    assert cluster.limiters == {}
    cluster.sync()
    clock.advance(0.1)
    peer.sync()
    assert seen.passes.value() == pytest.approx(passed)
    with pytest.raises(KeyError, match="is named 'ads'"):
        cluster.remove("ads")


def test_a_limiter_that_is_made_again_goes_on_with_its_totals(
    cluster: Cluster, store: FlakyStore, clock: ManualClock
) -> None:
    """A writer's totals only grow: one that began at 0 again would take back what was told."""
    peer = peer_of(store, clock)
    hits = cluster.counter("hits", period=60)
    seen = peer.counter("hits", period=60)
    hits.add(5)
    cluster.sync()
    cluster.remove("hits")
    again = cluster.counter("hits", period=60)  # before its last counts were told
    again.add(2)
    cluster.sync()
    cluster.remove("hits")
    cluster.sync()
    cluster.counter("hits", period=60).add(1)  # after
    cluster.sync()
    peer.sync()
    assert seen.value() == 8.0


def test_close_tells_all_and_gives_holds_back(
    cluster: Cluster, store: FlakyStore, clock: ManualClock
) -> None:
    peer = peer_of(store, clock)
    mine = cluster.limiter("ads", target=1000, period=60)
    other = peer.limiter("ads", target=1000, period=60)
    passed = 0
    for _ in range(200):
        drive(clock, 0.1, cluster, peer)
        passed += sum(mine.acquire() for _ in range(5)) + sum(other.acquire() for _ in range(5))
    assert store.totals("ads:pass").granted > 0.0
    cluster.close()
    assert not mine.take()
    clock.advance(0.1)
    peer.sync()
    told = store.totals("ads:pass")
    assert told.sum == passed
    assert told.held == pytest.approx(told.granted)  # nobody holds anything but the peer
    assert told.rate == pytest.approx(other.passes.rate)
    assert peer.status().nodes == 1


def test_a_closed_cluster_says_so(cluster: Cluster) -> None:
    cluster.close()
    cluster.close()
    for call in (cluster.start, cluster.sync, lambda: cluster.counter("hits")):
        with pytest.raises(RuntimeError, match="cluster 'shop' is closed"):
            call()
    assert "closed" in repr(cluster)


def test_close_gives_up_at_its_deadline(
    cluster: Cluster, store: FlakyStore, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.counter("hits").add()
    store.error = Unavailable("no answer")
    cluster.close(timeout=0.3)
    assert "the final sync failed" in caplog.text
    assert cluster.status().failures >= 1


def test_a_store_that_is_away_is_logged_once_and_once_when_it_is_back(
    cluster: Cluster, store: FlakyStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sluicegate.pacing")
    cluster.sync()
    assert caplog.messages == []
    store.error = Unavailable("connection refused")
    for _ in range(3):
        with pytest.raises(Unavailable):
            cluster.sync()
    assert len(caplog.messages) == 1
    assert "cannot sync" in caplog.text
    assert "connection refused" in caplog.text
    status = cluster.status()
    assert (status.is_in_touch, status.syncs, status.failures) == (False, 1, 3)
    assert status.last_error == "Unavailable: connection refused"
    store.error = None
    cluster.sync()
    cluster.sync()
    assert len(caplog.messages) == 2
    assert "answers again" in caplog.messages[1]
    assert cluster.status().last_error is None


def test_any_error_of_a_store_is_survived_by_the_thread(
    store: FlakyStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.error = ZeroDivisionError("a bug in a store")
    with Cluster(store, "shop", sync_interval=0.02) as cluster:
        hits = cluster.counter("hits")
        hits.add(3)
        wait_for(lambda: cluster.status().failures >= 3, seen=cluster.status)
        store.error = None
        wait_for(lambda: cluster.status().syncs >= 2, seen=cluster.status)
    assert sum("a bug in a store" in message for message in caplog.messages) == 1
    peer = Cluster(store, "shop")
    seen = peer.counter("hits")
    peer.sync()
    assert seen.value() == 3.0


def test_a_thread_follows_a_manual_clock(
    cluster: Cluster, clock: ManualClock, store: FlakyStore
) -> None:
    with cluster:
        wait_for(lambda: cluster.status().syncs == 1, seen=cluster.status)
        clock.advance(2.0)
        wait_for(lambda: cluster.status().syncs == 2, seen=cluster.status)


def test_a_thread_that_sleeps_is_woken_when_a_sync_is_asked_for() -> None:
    with Cluster(MemoryStore(), sync_interval=3600.0) as cluster:
        wait_for(lambda: cluster.status().syncs, seen=cluster.status)
        cluster.state._last_sync -= 1800.0  # long enough ago for another one
        syncs = cluster.status().syncs
        cluster.state.ask_for_sync()
        wait_for(lambda: cluster.status().syncs > syncs, seen=cluster.status)


def test_a_node_comes_back_after_an_outage_with_all_its_counts(
    cluster: Cluster, store: FlakyStore, clock: ManualClock
) -> None:
    peer = peer_of(store, clock)
    hits, seen = cluster.counter("hits"), peer.counter("hits")
    hits.add(1)
    cluster.sync()
    store.error = Unavailable("away")
    for _ in range(40):  # twenty minutes
        hits.add(1)
        clock.advance(30.0)
        with pytest.raises(Unavailable):
            cluster.sync()
    store.error = None
    cluster.sync()
    peer.sync()
    assert seen.value() == 41.0


class SkippingStore(MemoryStore):
    """Cannot keep the counters of these names."""

    names: frozenset[str] = frozenset()

    def sync(self, request: SyncRequest) -> SyncReply:
        places = [i for i, update in enumerate(request.updates) if update.key.name in self.names]
        kept = [one for one in request.updates if one.key.name not in self.names]
        time, nodes, totals, _ = super().sync(request._replace(updates=kept))
        for place in places:
            totals.insert(place, CounterTotals(0.0, 0, 0.0, 0.0, 0.0, 0.0))
        return SyncReply(time, nodes, totals, frozenset(places))


def test_a_limiter_whose_counter_the_store_skips_goes_on_with_its_share(
    clock: ManualClock,
) -> None:
    store = SkippingStore()
    store.names = frozenset(["ads:pass"])
    nodes = [Cluster(store, node_id=name, clock=clock) for name in "ab"]
    limiters = [node.limiter("ads", target=120, period=60) for node in nodes]
    hits = [node.counter("hits") for node in nodes]
    passed = 0
    for _ in range(590):
        clock.advance(0.1)
        for node, limiter, counter in zip(nodes, limiters, hits, strict=True):
            if node.state.next_sync(clock.now()) <= clock.now():
                node.sync()
            counter.add()
            passed += limiter.acquire()
    assert 100 <= passed <= 126
    for node in (*nodes, nodes[0]):
        node.sync()
    assert hits[0].value() == 1180.0  # other counters are in touch
    store.names = frozenset()
    for node in (*nodes, nodes[0]):
        node.sync()
    assert limiters[0].passes.value() == passed  # nothing is lost


def test_async_with_starts_and_closes() -> None:
    async def run() -> Cluster:
        async with Cluster(MemoryStore(), sync_interval=0.05) as cluster:
            cluster.counter("hits").add()
            await asyncio.to_thread(wait_for, lambda: cluster.status().syncs >= 2)
        return cluster

    assert "closed" in repr(asyncio.run(run()))


def test_there_is_one_thread_and_it_ends() -> None:
    def running() -> int:
        return sum(thread.name == "sluicegate-pacing" for thread in threading.enumerate())

    before = running()
    cluster = Cluster(MemoryStore())
    cluster.start()
    cluster.start()
    assert running() == before + 1
    cluster.close()
    assert running() == before


def test_a_cluster_that_nobody_uses_is_collected() -> None:
    cluster = Cluster(MemoryStore())
    cluster.limiter("ads", target=1, period=60)
    gone = weakref.ref(cluster)
    del cluster
    gc.collect()
    assert gone() is None


def test_the_status_says_how_long_ago_the_store_answered(
    cluster: Cluster, clock: ManualClock
) -> None:
    assert cluster.status().since_answer == math.inf
    cluster.sync()
    clock.advance(7.0)
    assert cluster.status().since_answer == pytest.approx(7.0)


def test_a_first_answer_at_close_revives_nothing() -> None:
    cluster = Cluster(MemoryStore(), clock=ManualClock(1_000_000_020.0))
    ads = cluster.limiter("ads", target=6000, period=60)
    cluster.close()
    assert not ads.acquire()
    assert ads.is_over


def test_a_cluster_that_was_not_started_is_warned_of_once(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster(MemoryStore(), "shop", node_id="a", nodes=3, clock=clock)
    ads = cluster.limiter("ads", target=600, period=60)
    for _ in range(1300):
        clock.advance(0.1)
        ads.acquire()
    assert caplog.text.count("call start()") == 1
    assert "passes 1/3 of each target (nodes=3)" in caplog.text


def test_a_cluster_that_is_synced_by_hand_is_not_warned_of(
    cluster: Cluster, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    ads = cluster.limiter("ads", target=600, period=60)
    cluster.sync()
    for _ in range(100):
        drive(clock, 0.1, cluster)
        ads.acquire()
    assert "start()" not in caplog.text


def test_a_clashing_definition_is_told_by_what_differs(cluster: Cluster) -> None:
    cluster.limiter("ads", target=600, period=60)
    with pytest.raises(ValueError, match=r"with boost=4.0: remove it first, got boost=3.0$"):
        cluster.limiter("ads", target=600, period=60, boost=3)
    with pytest.raises(ValueError, match=r"kind='limiter': remove it first, got kind='counter'$"):
        cluster.counter("ads", period=60)
    assert cluster.limiter("ads", target=600, period=60, timezone="UTC") is not None

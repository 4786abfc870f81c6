import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate import ManualClock
from sluicegate.pacing import Cluster, ClusterCounter
from sluicegate.stores import MemoryStore
from tests.harness.threads import run_in_threads

MINUTE = 1_000_000_020.0  # a whole one, in Unix time


def nodes(count: int, clock: ManualClock) -> list[tuple[Cluster, ClusterCounter]]:
    store = MemoryStore()
    clusters = [Cluster(store, node_id=f"node-{i}", clock=clock) for i in range(count)]
    return [(cluster, cluster.counter("hits", period=60)) for cluster in clusters]


def test_the_value_is_the_sum_of_all_nodes() -> None:
    clock = ManualClock(MINUTE)
    (here, hits), (there, others) = nodes(2, clock)
    hits.add(2.5)
    others.add(4.0)
    there.sync()
    here.sync()
    assert hits.local() == 2.5
    assert hits.value() == 6.5
    assert hits.cluster_count == 2


def test_between_syncs_the_others_go_on_at_their_rate() -> None:
    clock = ManualClock(MINUTE)
    (here, hits), (there, others) = nodes(2, clock)
    for _ in range(10):
        clock.advance(2.0)
        others.add(20.0)
        there.sync()
        here.sync()
    clock.advance(1.0)
    assert hits.value() == pytest.approx(210.0, rel=0.01)
    assert hits.share == 0.0
    assert others.share == 1.0


def test_a_node_is_projected_from_its_own_last_sync() -> None:
    clock = ManualClock(MINUTE)
    (here, hits), (there, others) = nodes(2, clock)
    for _ in range(10):
        clock.advance(2.0)
        others.add(20.0)
        there.sync()
    clock.advance(1.5)
    here.sync()  # the other one has not synced for 1.5 s
    assert hits.value() == pytest.approx(215.0, rel=0.01)


def test_a_period_ends_on_time_and_nothing_is_lost() -> None:
    clock = ManualClock(MINUTE)
    store = MemoryStore()
    cluster = Cluster(store, clock=clock)
    hits = cluster.counter("hits", period=60)
    clock.advance(59.0)
    hits.add(3.0)
    clock.advance(1.0)
    hits.add(4.0)
    assert hits.local() == 4.0
    assert hits.span == (MINUTE + 60, MINUTE + 120)
    cluster.sync()
    record = next(iter(store._clusters["default"].counters.values()))
    assert (record.ended.sum, record.sum) == (3.0, 4.0)


def test_a_counter_without_a_period_never_ends() -> None:
    clock = ManualClock(MINUTE)
    hits = Cluster(MemoryStore(), clock=clock).counter("hits")
    hits.add()
    clock.advance(1e6)
    hits.add()
    assert hits.value() == 2.0


def test_the_history_has_the_last_syncs() -> None:
    clock = ManualClock(MINUTE)
    (here, hits), (there, others) = nodes(2, clock)
    others.add(5.0)
    there.sync()
    for _ in range(100):
        hits.add()
        here.sync()
    assert len(hits.history) == 64
    assert hits.history[-1] == (MINUTE, 100.0, 105.0)


def test_a_clock_that_steps_back_opens_no_old_period() -> None:
    clock = ManualClock(MINUTE + 1)
    hits = Cluster(MemoryStore(), clock=clock).counter("hits", period=60)
    hits.add(7.0)
    clock.advance(-30.0)
    hits.add(1.0)
    assert hits.local() == 8.0
    clock.advance(89.0)
    assert hits.local() == 0.0


@given(st.lists(st.floats(0, 1e6), max_size=50))
def test_every_amount_counts_once(amounts: list[float]) -> None:
    hits = Cluster(MemoryStore(), clock=ManualClock(MINUTE)).counter("hits", period=60)
    for amount in amounts:
        hits.add(amount)
    assert hits.local() == pytest.approx(math.fsum(amounts))
    assert hits.local_count == len(amounts)


def test_threads_lose_nothing() -> None:
    cluster = Cluster(MemoryStore())
    hits = cluster.counter("hits")

    def add() -> None:
        for _ in range(200_000):
            hits.add()

    run_in_threads([add] * 8)
    cluster.sync()
    assert hits.value() == 1_600_000.0


@pytest.mark.parametrize("amount", [-1.0, 2e15, math.nan, math.inf])
def test_wrong_amounts_are_refused(amount: float) -> None:
    hits = Cluster(MemoryStore()).counter("hits")
    with pytest.raises(
        ValueError, match=re.escape(f"v must be a number from 0 to 1e15, got {amount}")
    ):
        hits.add(amount)
    assert hits.local_count == 0

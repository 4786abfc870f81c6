"""One limiter on a few nodes, in virtual time; whole clusters are in tests/sim/pacing."""

import math
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate import ManualClock, Unavailable
from sluicegate.pacing import Cluster, ClusterLimiter
from sluicegate.stores import MemoryStore
from sluicegate.stores.store import SyncReply, SyncRequest

MINUTE = 1_000_000_020.0  # a whole one, in Unix time
TICK = 0.1


class UnreliableStore(MemoryStore):
    """A store that can be away."""

    is_away = False

    def sync(self, request: SyncRequest) -> SyncReply:
        if self.is_away:
            raise Unavailable("away")
        return super().sync(request)


class StoreWithClock:
    """A store that has its own time, as Redis does."""

    def __init__(self, store: MemoryStore, clock: ManualClock) -> None:
        self._store = store
        self._clock = clock

    def sync(self, request: SyncRequest) -> SyncReply:
        return self._store.sync(request._replace(time=self._clock.now()))

    def close(self) -> None: ...


class Nodes:
    """Nodes of one limiter that all get the same traffic."""

    def __init__(self, count: int, **limiter: object) -> None:
        self.clock = ManualClock(MINUTE)
        self.store = UnreliableStore()
        self.clusters = [
            Cluster(self.store, node_id=f"node-{i}", clock=self.clock) for i in range(count)
        ]
        self.limiters: list[ClusterLimiter] = [
            cluster.limiter("ads", **limiter)  # type: ignore[arg-type]
            for cluster in self.clusters
        ]
        self._requests = 0.0
        self._next = 0

    def run(
        self,
        seconds: float,
        rate: float,
        ask: Callable[[ClusterLimiter], bool] = ClusterLimiter.acquire,
    ) -> int:
        """Let requests come, `rate` per second over all nodes; return how many passed."""
        passed = 0
        for _ in range(round(seconds / TICK)):
            now = self.clock.now()
            for cluster in self.clusters:
                if cluster.state.next_sync(now) <= now:
                    with suppress(Unavailable):
                        cluster.sync()
            self._requests += rate * TICK
            while self._requests >= 1.0:
                self._requests -= 1.0
                passed += ask(self.limiters[self._next])
                self._next = (self._next + 1) % len(self.limiters)
            self.clock.advance(TICK)
        return passed


@pytest.mark.parametrize("count", [1, 3, 8])
@pytest.mark.parametrize("target", [1, 5, 10, 100])
def test_exactly_the_target_passes(target: int, count: int) -> None:
    nodes = Nodes(count, target=target, period=60)
    assert [nodes.run(60, rate=50) for _ in range(3)] == [target] * 3


def test_passes_follow_the_line() -> None:
    nodes = Nodes(4, target=1000, period=60)
    nodes.run(60, rate=100)
    for quarter in range(1, 5):
        passed = nodes.run(15, rate=100)
        assert passed == pytest.approx(250, abs=10), f"quarter {quarter}"


def test_a_cold_limiter_begins_at_once() -> None:
    nodes = Nodes(4, target=1000, period=60)
    assert nodes.run(2, rate=100) == pytest.approx(33, abs=8)


def test_a_reserve_finishes_early() -> None:
    nodes = Nodes(4, target=600, period=60, reserve=30)
    nodes.run(60, rate=100)
    assert nodes.run(30, rate=100) == pytest.approx(600, abs=6)
    assert nodes.run(30, rate=100) <= 6


def test_with_too_few_requests_all_pass() -> None:
    nodes = Nodes(4, target=6000, period=60)
    nodes.run(60, rate=20)
    assert nodes.run(60, rate=20) == 1200


def test_a_target_may_change_while_running() -> None:
    nodes = Nodes(4, target=600, period=60)
    nodes.run(90, rate=100)
    for limiter in nodes.limiters:
        limiter.target = 1200
    nodes.run(30, rate=100)
    assert 1194 <= nodes.run(60, rate=100) <= 1200


def test_begin_and_end_happen_once() -> None:
    nodes = Nodes(2, target=100, begin=MINUTE + 10, end=MINUTE + 40)
    assert nodes.run(10, rate=50) == 0
    assert nodes.run(30, rate=50) == 100
    assert nodes.run(20, rate=50) == 0
    assert all(limiter.is_over for limiter in nodes.limiters)


def test_costs_of_any_size_are_paced() -> None:
    nodes = Nodes(3, target=6000.0, period=60)
    nodes.run(60, rate=100, ask=lambda limiter: limiter.acquire(7.5))
    passed = nodes.run(60, rate=100, ask=lambda limiter: limiter.acquire(7.5))
    assert 0.99 * 6000 <= passed * 7.5 <= 6000


def test_a_request_larger_than_the_target_never_passes() -> None:
    nodes = Nodes(2, target=5.0, period=60)
    assert nodes.run(120, rate=20, ask=lambda limiter: limiter.acquire(6.0)) == 0


def test_nodes_go_on_with_their_share_while_the_store_is_away() -> None:
    nodes = Nodes(4, target=1000, period=60)
    nodes.run(70, rate=100)
    nodes.store.is_away = True
    nodes.run(50, rate=100)
    passed = [nodes.run(60, rate=100) for _ in range(3)]
    assert passed == pytest.approx([1000] * 3, rel=0.05)
    nodes.store.is_away = False
    nodes.run(60, rate=100)
    assert 995 <= nodes.run(60, rate=100) <= 1000


def test_the_return_of_the_store_is_not_felt() -> None:
    nodes = Nodes(3, target=1000, period=60)
    nodes.run(70, rate=100)
    nodes.store.is_away = True
    nodes.run(10, rate=100)
    nodes.store.is_away = False
    assert [nodes.run(2, rate=100) for _ in range(10)] == pytest.approx([33.3] * 10, abs=5)


def test_what_passes_while_the_store_is_away_is_told_at_its_return() -> None:
    nodes = Nodes(2, target=1000, period=3600)
    nodes.run(60, rate=100)
    nodes.store.is_away = True
    nodes.run(120, rate=100)
    nodes.store.is_away = False
    nodes.run(4, rate=100)
    (record,) = (
        record
        for (name, *_), record in nodes.store._clusters["default"].counters.items()
        if name == "ads:request"
    )
    assert record.sum == pytest.approx(18_400, abs=400)


@pytest.mark.parametrize("target", [5, 20, 60])
def test_a_node_that_thaws_after_its_hold_has_lapsed_spends_only_its_share(target: int) -> None:
    nodes = Nodes(2, target=target, period=60)
    for frozen_at in range(10, 50, 5):
        passed = nodes.run(frozen_at, rate=20)
        frozen = nodes.clusters.pop(0)
        passed += nodes.run(7.5, rate=20)
        nodes.clusters.insert(0, frozen)
        # Requests come before the thread that syncs.
        for _ in range(50):
            nodes.clock.advance(1e-5)
            passed += nodes.limiters[0].acquire()
        passed += nodes.run(60 - frozen_at - 7.5 - 50e-5, rate=20)
        nodes.clock.advance(-((nodes.clock.now() - MINUTE) % 60) + 60)
        assert passed <= target, f"frozen at {frozen_at} s"


@pytest.mark.parametrize(("count", "target", "period"), [(3, 5, 2), (8, 10, 1), (8, 50, 2)])
def test_short_periods_keep_the_target(count: int, target: int, period: int) -> None:
    nodes = Nodes(count, target=target, period=period)
    nodes.run(10 * period, rate=400)
    assert max(nodes.run(period, rate=400) for _ in range(10)) <= target


def test_a_node_whose_clock_is_a_day_ahead_stops_nobody() -> None:
    nodes = Nodes(2, target=600, period=60)
    nodes.run(60, rate=100)
    store = StoreWithClock(nodes.store, nodes.clock)
    ahead = Cluster(store, node_id="ahead", clock=ManualClock(nodes.clock.now() + 86_400))
    limiter = ahead.limiter("ads", target=600, period=60)
    ahead.sync()
    assert limiter.passes.span[0] == nodes.clock.now()
    assert nodes.run(60, rate=100) == pytest.approx(600, abs=6)


def test_rewards_are_what_the_target_counts() -> None:
    nodes = Nodes(4, target=300, period=60)
    rewards = 0
    passes = 0

    def ask(limiter: ClusterLimiter) -> bool:
        nonlocal rewards, passes
        if not limiter.take():
            return False
        passes += 1
        if passes % 4 == 0:
            limiter.reward()
            rewards += 1
        return True

    nodes.run(120, rate=100, ask=ask)
    rewards = 0
    nodes.run(60, rate=100, ask=ask)
    assert rewards == pytest.approx(300, rel=0.02)
    assert nodes.limiters[0].reward_rate == pytest.approx(0.25, rel=0.05)


def test_passes_are_bounded_even_if_nobody_reports_rewards() -> None:
    nodes = Nodes(3, target=600, period=60, reward_rate=0.5)
    nodes.run(60, rate=100, ask=ClusterLimiter.take)
    assert nodes.run(60, rate=100, ask=ClusterLimiter.take) == pytest.approx(1200, rel=0.01)


def test_the_best_scored_requests_pass() -> None:
    nodes = Nodes(2, target=600, period=60, scored=True)
    scores = iter(range(10**9))
    passed: list[int] = []

    def ask(limiter: ClusterLimiter) -> bool:
        score = next(scores) * 7919 % 1000
        passes = limiter.acquire(1.0, score)
        if passes:
            passed.append(score)
        return passes

    nodes.run(60, rate=100, ask=ask)
    passed.clear()
    nodes.run(60, rate=100, ask=ask)
    assert len(passed) == pytest.approx(600, rel=0.01)
    assert sum(passed) > 0.98 * 600 * 950


def test_a_node_with_better_requests_gets_a_larger_share() -> None:
    nodes = Nodes(2, target=600, period=60, scored=True)
    best = nodes.limiters[0]
    scores = iter(range(10**9))

    def ask(limiter: ClusterLimiter) -> bool:
        return limiter.acquire(1.0, next(scores) * 7919 % 1000 + (1000 if limiter is best else 0))

    nodes.run(120, rate=100, ask=ask)
    assert best.passes.local() > 0.95 * sum(one.passes.local() for one in nodes.limiters)


def test_ties_at_the_cut_are_split() -> None:
    nodes = Nodes(2, target=600, period=60, scored=True)
    nodes.run(60, rate=100, ask=lambda limiter: limiter.acquire(1.0, 5.0))
    assert nodes.run(60, rate=100, ask=lambda limiter: limiter.acquire(1.0, 5.0)) == pytest.approx(
        600, rel=0.01
    )


def test_some_trial_traffic_passes_below_the_cut() -> None:
    nodes = Nodes(1, target=600, period=60, scored=True, explore=0.01)
    scores = iter(range(10**9))
    low = 0

    def ask(limiter: ClusterLimiter) -> bool:
        nonlocal low
        score = next(scores) * 7919 % 1000
        passes = limiter.acquire(1.0, score)
        low += passes and score < 800
        return passes

    nodes.run(60, rate=100, ask=ask)
    low = 0
    nodes.run(60, rate=100, ask=ask)
    assert low == pytest.approx(0.01 * 6000 * 0.8, rel=0.3)


@given(
    target=st.integers(1, 500),
    count=st.integers(1, 6),
    rate=st.floats(1, 60),
    costs=st.lists(st.floats(0.5, 4.0), min_size=1, max_size=5),
)
def test_never_more_than_the_target_passes(
    target: int, count: int, rate: float, costs: list[float]
) -> None:
    nodes = Nodes(count, target=target, period=20)
    spent = 0.0
    asked = 0

    def ask(limiter: ClusterLimiter) -> bool:
        nonlocal spent, asked
        asked += 1
        cost = costs[asked % len(costs)]
        passes = limiter.acquire(cost)
        spent += cost * passes
        return passes

    for _ in range(3):
        spent = 0.0
        nodes.run(20, rate, ask)
        assert spent <= target * (1 + 1e-6)


@pytest.mark.parametrize("amount", [0.0, -1.0, 1e-10, 1.1e15, math.nan, math.inf])
def test_wrong_amounts_are_refused(amount: float) -> None:
    limiter = Cluster(MemoryStore()).limiter("ads", target=10, period=60)
    with pytest.raises(ValueError, match="v must be a number from 1e-9 to 1e15, got"):
        limiter.take(amount)


@pytest.mark.parametrize(
    ("score", "kind", "message"),
    [
        ("x", TypeError, "score must be a number, got 'x'"),
        (math.nan, ValueError, "score must be a number from -1e100 to 1e100, got nan"),
        (math.inf, ValueError, "score must be a number from -1e100 to 1e100, got inf"),
    ],
)
def test_wrong_scores_are_refused(score: Any, kind: type[Exception], message: str) -> None:
    limiter = Cluster(MemoryStore()).limiter("ads", target=10, period=60, scored=True)
    with pytest.raises(kind, match=message):
        limiter.take(score=score)
    assert limiter.requests.local_count == 0


@pytest.mark.parametrize("target", [0, -1, 1e-7, 2e15, math.inf, math.nan])
def test_a_target_out_of_bounds_is_refused(target: float) -> None:
    limiter = Cluster(MemoryStore()).limiter("ads", target=10, period=60)
    with pytest.raises(ValueError, match="target must be from 1e-06 to .* got"):
        limiter.target = target
    assert limiter.target == 10.0


def test_negative_scores_keep_the_target() -> None:
    """The sum of cuts is below zero then; a store that refused it never heard of the limiter."""
    nodes = Nodes(3, target=120, period=60, scored=True)
    random = Random(3)

    def ask(limiter: ClusterLimiter) -> bool:
        return limiter.acquire(score=-random.random())

    passed = [nodes.run(60, 20, ask) for _ in range(3)]
    assert max(passed) <= 120, passed
    assert min(passed) >= 117, passed
    assert nodes.limiters[0].score_cut < 0.0


@pytest.mark.parametrize("sync_interval", [1.0, 2.0])
def test_a_unit_follows_the_traffic_to_another_node(sync_interval: float) -> None:
    """A node whose traffic has ended gives back its unit, and claims none in later periods."""
    clock, store = ManualClock(MINUTE), MemoryStore()
    nodes = [
        Cluster(store, node_id=name, sync_interval=sync_interval, clock=clock) for name in "ab"
    ]
    limiters = [node.limiter("ads", target=1, period=60) for node in nodes]
    passed = []
    for minute in range(8):
        before = sum(limiter.passes._total_count for limiter in limiters)
        for _ in range(600):
            clock.advance(TICK)
            for node in nodes:
                if node.state.next_sync(clock.now()) <= clock.now():
                    node.sync()
            limiters[minute >= 3].acquire()
            limiters[minute >= 3].acquire()
        passed.append(sum(limiter.passes._total_count for limiter in limiters) - before)
    assert passed == [1] * 8


def test_syncs_an_hour_apart_are_those_of_one_writer() -> None:
    clock = ManualClock(MINUTE)
    cluster = Cluster(MemoryStore(), node_id="a", sync_interval=3600.0, clock=clock)
    hits = cluster.counter("hits")
    for _ in range(12):
        clock.advance(1800.0)
        hits.add(100)
        if cluster.state.next_sync(clock.now()) <= clock.now():
            cluster.sync()
    assert cluster.status().nodes == 1
    assert (hits.local(), hits.value(), hits.share) == (1200.0, 1200.0, 1.0)


def test_no_request_larger_than_the_share_passes_while_the_store_is_away() -> None:
    nodes = Nodes(2, target=60, period=60)
    nodes.run(20, rate=10)
    nodes.store.is_away = True
    nodes.run(10, rate=0)
    assert not any(limiter.acquire(31) for limiter in nodes.limiters)
    assert nodes.limiters[0].acquire(1)


def test_a_lowered_target_holds_at_once() -> None:
    clock = ManualClock(MINUTE)
    cluster = Cluster(MemoryStore(), node_id="a", sync_interval=30.0, clock=clock)
    ads = cluster.limiter("ads", target=60_000, period=60)
    for tick in range(599):
        clock.advance(TICK)
        if cluster.state.next_sync(clock.now()) <= clock.now():
            cluster.sync()
        if tick == 200:
            ads.target = ads.passes.local() + 70
            target = ads.target
        for _ in range(200):
            ads.acquire()
    assert ads.passes.local() == target


def test_a_lag_at_the_end_is_made_up_no_faster_than_by_the_boost() -> None:
    clock, store = ManualClock(MINUTE + 51.3), MemoryStore()
    nodes = [Cluster(store, node_id=name, clock=clock) for name in "ab"]
    limiters = [node.limiter("ads", target=600, period=60, boost=2) for node in nodes]
    seconds = [0] * 9
    for _ in range(86):
        clock.advance(TICK)
        for node, limiter in zip(nodes, limiters, strict=True):
            if node.state.next_sync(clock.now()) <= clock.now():
                node.sync()
            passed = sum(limiter.acquire() for _ in range(4))
            seconds[int(clock.now() - MINUTE) - 51] += passed
    assert max(seconds) <= 2 * 10 + 4, seconds


def test_the_lag_of_a_period_that_began_without_the_store_is_not_that_of_the_one_before() -> None:
    nodes = Nodes(2, target=600, period=60)
    nodes.run(45, rate=50)
    nodes.store.is_away = True
    nodes.run(25, rate=50)
    assert abs(nodes.limiters[0].lag) < 0.5


def test_a_limiter_is_over_when_its_end_has_come() -> None:
    nodes = Nodes(1, target=10, begin=MINUTE, end=MINUTE + 10)
    assert not nodes.limiters[0].is_over
    nodes.clock.advance(10.0)
    assert nodes.limiters[0].is_over

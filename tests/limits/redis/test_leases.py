"""Permits in lots: the table of leases on a clock in the hand, then against a real Redis."""

import bisect
import math
import multiprocessing
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate import Keyed, Limit, ManualClock, RedisKeyed
from sluicegate.limits.redis._counters import DecisionCounters
from sluicegate.limits.redis._leases import LEASE_SECONDS, Leases
from tests.harness.lateness import Lateness
from tests.harness.servers import RedisServer
from tests.harness.waits import PATIENCE

PATIENT = 20.0  # seconds for Redis, also on a machine that pauses


class Node:
    """A process with leases, and a bucket in place of Redis."""

    def __init__(self, bucket: Keyed, lot: float | None, clock: ManualClock) -> None:
        limit = bucket.limits[0]
        self.bucket = bucket
        self.asked = 0
        self.counters = DecisionCounters()
        self.leases = Leases(
            limit.rate, limit.rate, limit.burst or limit.amount, lot, self.counters, clock
        )

    def allow(self, key: str, cost: float = 1.0) -> bool:
        known = self.leases.spend(key, cost)
        if known is not None:
            return known
        need, want, owns = self.leases.begin_request(key, cost)
        assert owns
        self.asked += 1
        look = self.bucket.check(key, 0)
        if look.remaining < need:
            missing = (need - look.remaining) / self.bucket.limits[0].rate
            self.leases.deny(key, cost, 0, missing, owns)
            return False
        granted = need + max(math.floor(min(want, look.remaining) - need), 0)
        assert self.bucket.allow(key, granted)
        used = self.bucket.limits[0]
        in_use = (used.burst or used.amount) - self.bucket.check(key, 0).remaining
        self.leases.grant(key, cost, want, granted, in_use)
        return True


def test_a_lot_is_spent_here_and_the_next_one_asked_for(clock: ManualClock) -> None:
    node = Node(Keyed("1000/second", clock=clock), 10, clock)
    assert all(node.allow("a") for _ in range(30))
    assert node.asked == 3
    assert (node.counters.allowed, node.counters.decided_locally) == (27, 27)


def test_the_lot_follows_the_rate_of_the_key(clock: ManualClock) -> None:
    node = Node(Keyed("10000/second", clock=clock), None, clock)
    for _ in range(3000):
        assert node.allow("busy")
        clock.advance(0.001)
    before = node.asked
    for _ in range(1000):
        assert node.allow("busy")
        clock.advance(0.001)
    assert 2 <= node.asked - before <= 12  # a few times a second, at 1000 calls a second
    node.asked = 0
    for _ in range(10):
        assert node.allow("slow")
        clock.advance(2.0)
    assert node.asked == 10
    assert node.leases.left("slow") == 0.0  # a slow key holds nothing


def test_the_lot_is_at_most_half_of_the_burst_among_the_nodes(clock: ManualClock) -> None:
    leases = Leases(100.0, 100.0, 100.0, None, DecisionCounters(), clock)
    assert leases.max_lot == 50.0
    leases.set_node_count(10)
    assert leases.max_lot == 5.0
    leases.set_node_count(1000)
    assert leases.max_lot == 1.0


def test_what_is_not_spent_lapses(clock: ManualClock) -> None:
    node = Node(Keyed("1000/second", clock=clock), 10, clock)
    node.allow("a")
    assert (node.leases.left("a"), len(node.leases)) == (9.0, 1)
    clock.advance(LEASE_SECONDS - 0.01)
    assert node.allow("a")
    clock.advance(0.01)
    assert (node.leases.left("a"), len(node.leases)) == (0.0, 0)
    node.allow("a")
    assert node.asked == 2


def test_a_denial_is_remembered_until_its_time(clock: ManualClock) -> None:
    node = Node(Keyed("10/second", clock=clock), 1, clock)
    assert sum(node.allow("a") for _ in range(1000)) == 10
    assert node.asked == 11
    index, retry_after = node.leases.denial("a")
    assert (index, retry_after) == (0, pytest.approx(0.1))
    clock.advance(retry_after)
    assert node.allow("a")
    assert not node.allow("a")
    node.leases.clear_denial("a")
    asked = node.asked
    node.allow("a")
    assert node.asked == asked + 1


def test_two_callers_at_once_hold_one_lot(clock: ManualClock) -> None:
    leases = Leases(1000.0, 1000.0, 1000.0, 10, DecisionCounters(), clock)
    assert leases.spend("a", 1) is None
    assert leases.begin_request("a", 1) == (1, 10, True)
    assert leases.begin_request("a", 1) == (1, 1, False)
    leases.grant("a", 1, 10, 10, 1.0)
    assert leases.left("a") == 9
    assert leases.begin_request("a", 1) == (1, 1, False)  # it has just come


def test_what_was_left_counts_toward_a_larger_cost_and_comes_back_when_there_is_no_answer(
    clock: ManualClock,
) -> None:
    leases = Leases(1000.0, 1000.0, 1000.0, 10, DecisionCounters(), clock)
    leases.begin_request("a", 1)
    leases.grant("a", 1, 10, 4, 1.0)
    assert leases.spend("a", 5) is None
    assert leases.begin_request("a", 5) == (2, 10, True)
    assert leases.left("a") == 0
    leases.abort("a")
    assert leases.left("a") == 3
    leases.begin_request("a", 5)
    leases.grant("a", 5, 10, 2, 1.0)
    assert leases.left("a") == 0


def test_what_the_bucket_has_refilled_is_not_given_back(clock: ManualClock) -> None:
    bucket = Keyed("10/second", clock=clock)
    node = Node(bucket, 10, clock)
    node.allow("a")
    clock.advance(0.5)
    ((key, amount),) = node.leases.drain()
    assert (key, amount) == ("a", pytest.approx(5.0))
    assert node.leases.drain() == []


def test_idle_keys_take_no_memory(clock: ManualClock) -> None:
    node = Node(Keyed("10/second", clock=clock), 5, clock)
    for number in range(1000):
        node.allow(f"key {number}")
    assert len(node.leases) == 1000
    clock.advance(LEASE_SECONDS)
    node.allow("x")
    clock.advance(LEASE_SECONDS)
    node.allow("x")
    assert len(node.leases.drain()) == 1


@given(
    story=st.lists(
        st.tuples(
            st.integers(0, 3), st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.5]), st.integers(1, 5)
        ),
        max_size=200,
    ),
    lot=st.sampled_from([1, 4, 10, None]),
)
def test_never_more_than_the_limit_the_burst_and_a_lot_per_node(
    story: list[tuple[int, float, int]], lot: float | None
) -> None:
    clock = ManualClock()
    bucket = Keyed("10/second burst 20", clock=clock)
    nodes = [Node(bucket, lot, clock) for _ in range(4)]
    for node in nodes:
        node.leases.set_node_count(4)
    held = 4 * nodes[0].leases.max_lot
    passed: list[tuple[float, int]] = []
    for number, step, cost in story:
        clock.advance(step)
        if nodes[number].allow("a", cost):
            passed.append((clock.now(), cost))
            for since, _ in passed:
                inside = sum(cost for when, cost in passed if when >= since)
                assert inside <= 10 * (clock.now() - since) + 20 + held + 1e-6


# --- against a real Redis


# On a manual clock no lease lapses, however long the machine pauses. Redis has its own clock.


def test_leased_calls_seldom_ask_and_what_is_left_is_given_back_at_close(
    redis_server: RedisServer, clock: ManualClock
) -> None:
    options: dict[str, Any] = {"timeout": PATIENT, "clock": clock}
    with RedisKeyed(redis_server.url, "1000/week", **options) as exact:
        with RedisKeyed(redis_server.url, "1000/week", mode="leased", lot=100, **options) as leased:
            assert all(leased.allow("a") for _ in range(110))
            assert leased.check("a").remaining == 89.0
            metrics = leased.metrics
            assert (metrics.allowed, metrics.leases, metrics.lot) == (111, 1, 100)
            assert metrics.decided_locally == 109
            assert leased.check("a", 0).remaining == pytest.approx(800, abs=1)
            assert exact.check("a", 0).remaining == pytest.approx(800, abs=1)
            with redis_server.client as client:
                client.script_flush()
        assert exact.check("a", 0).remaining == pytest.approx(889, abs=1)


def test_a_close_waits_no_longer_than_it_may_for_a_redis_that_hangs(
    redis_server: RedisServer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluicegate.limits.redis.keyed.CLOSE_SECONDS", 0.2)
    leased = RedisKeyed(
        redis_server.url, "1000/week", mode="leased", lot=100, timeout=PATIENT, clock=clock
    )
    assert leased.allow("a")
    redis_server.stop()
    with Lateness() as lateness:
        start = time.monotonic()
        leased.close()
        end = time.monotonic()
        # A connection keeps a time-out that is within 2 ms of what is left: it may end as early.
        assert 0.198 <= end - start < 0.7 + lateness.between(start, end)


def test_a_denied_key_does_not_hammer_redis(redis_server: RedisServer, clock: ManualClock) -> None:
    options: dict[str, Any] = {"mode": "leased", "timeout": PATIENT, "clock": clock}
    with (
        RedisKeyed(redis_server.url, "5/hour", **options) as keyed,
        redis_server.client as client,
    ):
        assert sum(keyed.allow("a") for _ in range(5)) == 5
        assert not keyed.allow("a")
        calls = client.info("commandstats")["cmdstat_evalsha"]["calls"]
        denied = [keyed.check("a") for _ in range(500)]
        assert client.info("commandstats")["cmdstat_evalsha"]["calls"] == calls
        assert denied[-1].limit == Limit(5, 3600)
        assert 600 < denied[-1].retry_after <= 720
        keyed.refund("a", 1)
        assert keyed.allow("a")
        keyed.reset("a")
        assert keyed.allow("a", 5)


Passed = list[tuple[float, float]]  # for each permit, a time before and one after it was given


def spend(url: str, lot: float | None, enough: int, total: Any, start: Any, results: Any) -> None:
    """One of eight processes that take all they can get, until all together have enough."""
    with RedisKeyed(url, "500/second burst 100", mode="leased", lot=lot, timeout=PATIENT) as keyed:
        keyed.check("warm", 0)
        start.wait(PATIENCE)
        passed: Passed = []
        while total.value < enough:
            before = time.monotonic()
            if keyed.allow("a"):
                passed.append((before, time.monotonic()))
                with total.get_lock():
                    total.value += 1
            else:
                time.sleep(0.001)
        results.put((passed, keyed.metrics.lot, keyed.metrics.errors))


@pytest.mark.parametrize("lot", [20, None])
def test_eight_processes_stay_within_the_limit_the_burst_and_a_lot_each(
    redis_server: RedisServer, lot: float | None
) -> None:
    # Real time on purpose: eight processes for two seconds.
    fork = multiprocessing.get_context("fork")
    total, start, results = fork.Value("l", 0), fork.Barrier(8), fork.Queue()
    nodes = [
        fork.Process(target=spend, args=(redis_server.url, lot, 1000, total, start, results))
        for _ in range(8)
    ]
    for node in nodes:
        node.start()
    told = [results.get(timeout=90) for _ in nodes]
    for node in nodes:
        node.join(PATIENCE)
    assert [errors for _, _, errors in told] == [0] * 8
    passed = sorted(times for some, _, _ in told for times in some)
    # Until each has learned of the seven others, a lot may be half of the burst.
    most = max(max(lot for _, lot, _ in told), 50.0 if lot is None else lot)
    for seconds in (0.5, 1.0, math.inf):
        assert_within(passed, seconds, 500, 100 + 8 * most)


def assert_within(passed: Passed, seconds: float, rate: float, at_once: float) -> None:
    """What was surely given within some seconds, wherever they begin, is within the limit."""
    ended: list[float] = []
    for began, end in reversed(passed):
        bisect.insort(ended, end)
        inside = bisect.bisect_right(ended, began + seconds)
        assert inside <= rate * min(seconds, ended[-1] - began) + at_once


@pytest.mark.parametrize("lot", [20, None])
def test_eight_nodes_get_most_of_what_the_limit_allows(
    clock: ManualClock, lot: float | None
) -> None:
    bucket = Keyed("500/second burst 100", clock=clock)
    nodes = [Node(bucket, lot, clock) for _ in range(8)]
    for node in nodes:
        node.leases.set_node_count(8)
    passed = 0
    for _ in range(2000):
        passed += sum(node.allow("a") for node in nodes)
        clock.advance(0.001)
    assert 0.95 * (500 * 2 + 100) <= passed <= 500 * 2 + 100


def test_of_several_limits_each_gets_back_what_was_left(
    redis_server: RedisServer, clock: ManualClock
) -> None:
    limits = "100/second; 5000/week"
    options: dict[str, Any] = {"nodes": 1, "timeout": PATIENT, "clock": clock}
    with RedisKeyed(redis_server.url, "5000/week", **options) as week:
        with RedisKeyed(redis_server.url, limits, mode="leased", lot=50, **options) as leased:
            assert leased.allow("a")
            assert week.check("a", 0).remaining == pytest.approx(4_950, abs=0.5)
            clock.advance(0.1)
        # All but the one that was spent, less what the bucket of a second has refilled meanwhile.
        assert week.check("a", 0).remaining == pytest.approx(4_990, abs=0.5)

"""When to ask Redis again: a timeline of outcomes, and no Redis."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate import Limit, ManualClock
from sluicegate.limits.redis.circuit_breaker import (
    MAX_BACKOFF,
    MIN_BACKOFF,
    PROBE_SECONDS,
    CircuitBreaker,
)
from sluicegate.limits.redis.local_fallback import LocalFallback
from sluicegate.limits.redis.node_count import ANNOUNCE_INTERVAL, NodeCount

DOWN = RuntimeError("down")


def test_the_back_off_doubles_to_thirty_seconds_and_starts_anew_after_an_answer() -> None:
    breaker, now = CircuitBreaker(), 0.0
    waits = []
    for _ in range(9):
        ticket = breaker.request_ticket(now)
        assert ticket
        breaker.failed(ticket, now, DOWN)
        waits.append(breaker.backoff_left(now))
        now += breaker.backoff_left(now)
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    breaker.succeeded(breaker.request_ticket(now))
    assert (breaker.state, breaker.backoff_left(now)) == ("redis", 0.0)
    breaker.failed(breaker.request_ticket(now), now, DOWN)
    assert breaker.backoff_left(now) == MIN_BACKOFF
    assert (breaker.errors, breaker.last_error) == (10, "down")


def test_a_hundred_calls_that_fail_together_are_one_failure() -> None:
    breaker = CircuitBreaker()
    tickets = [breaker.request_ticket(0.0) for _ in range(100)]
    for ticket in tickets:
        breaker.failed(ticket, 0.1, DOWN)
    assert (breaker.state, breaker.backoff_left(0.1), breaker.errors) == ("local", MIN_BACKOFF, 100)


def test_exactly_one_caller_probes_and_the_others_go_on_locally() -> None:
    breaker = CircuitBreaker()
    breaker.failed(breaker.request_ticket(0.0), 0.0, DOWN)
    assert [breaker.request_ticket(0.49) for _ in range(3)] == [0, 0, 0]
    tickets = [breaker.request_ticket(0.5) for _ in range(10)]
    assert sum(ticket > 0 for ticket in tickets) == 1
    assert breaker.state == "probing"
    breaker.succeeded(tickets[0])
    assert all(breaker.request_ticket(0.5) for _ in range(3))


def test_an_answer_that_comes_late_from_before_the_outage_changes_nothing() -> None:
    breaker = CircuitBreaker()
    early, late = breaker.request_ticket(0.0), breaker.request_ticket(0.0)
    breaker.failed(early, 0.1, DOWN)
    breaker.succeeded(late)
    assert breaker.state == "local"
    prober = breaker.request_ticket(1.0)
    breaker.failed(late, 1.0, DOWN)
    assert breaker.state == "probing"
    breaker.succeeded(prober)
    assert breaker.state == "redis"


def test_a_prober_who_is_cancelled_or_lost_is_replaced() -> None:
    breaker = CircuitBreaker()
    breaker.failed(breaker.request_ticket(0.0), 0.0, DOWN)
    cancelled = breaker.request_ticket(1.0)
    breaker.cancelled(cancelled, 1.0)
    lost = breaker.request_ticket(1.0)
    assert lost
    assert not breaker.request_ticket(1.0 + PROBE_SECONDS - 0.1)
    assert breaker.request_ticket(1.0 + PROBE_SECONDS)


@given(
    st.lists(st.tuples(st.floats(0, 40), st.sampled_from(["ok", "fail", "abandon"])), max_size=60)
)
def test_it_always_comes_to_ask_again(story: list[tuple[float, str]]) -> None:
    breaker, now = CircuitBreaker(), 0.0
    for step, outcome in story:
        now += step
        ticket = breaker.request_ticket(now)
        assert 0.0 <= breaker.backoff_left(now) <= MAX_BACKOFF
        if not ticket:
            assert breaker.backoff_left(now) > 0.0
        elif outcome == "ok":
            breaker.succeeded(ticket)
        elif outcome == "fail":
            breaker.failed(ticket, now, DOWN)
        else:
            breaker.cancelled(ticket, now)
    assert breaker.request_ticket(now + MAX_BACKOFF + PROBE_SECONDS)


def test_a_node_announces_itself_every_few_seconds_unless_the_number_is_given() -> None:
    node_count = NodeCount(None)
    assert (node_count.nodes, node_count.is_due(0.0), node_count.is_due(1.0)) == (1, True, False)
    assert node_count.is_due(ANNOUNCE_INTERVAL)
    node_count.update(8)
    assert node_count.nodes == 8
    name = node_count.name
    node_count.rename()
    assert node_count.name != name
    assert node_count.is_due(ANNOUNCE_INTERVAL)
    assert not NodeCount(8).is_due(0.0)
    with pytest.raises(ValueError, match="nodes must be from 1"):
        NodeCount(0)


# --- each node's share while Redis is away


def test_the_shares_of_all_nodes_are_the_limit(clock: ManualClock) -> None:
    limit = Limit(100, 1)
    nodes = [LocalFallback([limit], [100.0], clock) for _ in range(8)]
    for node in nodes:
        node.set_node_count(8)
    passed = 0
    for _ in range(10_000):
        passed += sum(node.check("a", 1).allowed for node in nodes)
        clock.advance(0.001)
    assert passed == pytest.approx(100 * 10 + 100, abs=len(nodes))


def test_a_limit_of_one_per_minute_on_64_nodes_lives(clock: ManualClock) -> None:
    nodes = [LocalFallback([Limit(1, 60)], [1.0], clock) for _ in range(64)]
    for node in nodes:
        node.set_node_count(64)
        assert node.check("a", 1).allowed  # the burst of a bucket is at least 1 on each
    passed = 0
    for _ in range(64 * 10 * 6):
        clock.advance(10)
        passed += sum(node.check("a", 1).allowed for node in nodes)
    assert passed == pytest.approx(64 * 10, abs=64)


def test_a_cost_above_the_share_passes_and_is_paid_off(clock: ManualClock) -> None:
    share = LocalFallback([Limit(10, 1)], [10.0], clock)
    share.set_node_count(8)
    assert share.check("a", 10).allowed
    denied = share.check("a", 10)
    assert (denied.allowed, denied.limit) == (False, Limit(10, 1))
    clock.advance(denied.retry_after - 0.01)
    assert not share.check("a", 10).allowed
    clock.advance(0.01)
    assert share.check("a", 10).allowed
    assert clock.now() == pytest.approx(8.0)
    share.reset("a")
    share.refund("a", 1)
    assert share.check("a", 1).allowed

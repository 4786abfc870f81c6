"""When to ask Redis again: a timeline of outcomes, and no Redis."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate import Limit, ManualClock
from sluicegate.limits.redis.circuit_breaker import (
    LONGEST_BACKOFF,
    PROBE_SECONDS,
    SHORTEST_BACKOFF,
    Outage,
)
from sluicegate.limits.redis.local_fallback import LocalShare
from sluicegate.limits.redis.node_count import ANNOUNCE_EVERY, Census

DOWN = RuntimeError("down")


def test_the_back_off_doubles_to_thirty_seconds_and_starts_anew_after_an_answer() -> None:
    outage, now = Outage(), 0.0
    waits = []
    for _ in range(9):
        ticket = outage.ask(now)
        assert ticket
        outage.failed(ticket, now, DOWN)
        waits.append(outage.left(now))
        now += outage.left(now)
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    outage.succeeded(outage.ask(now))
    assert (outage.state, outage.left(now)) == ("redis", 0.0)
    outage.failed(outage.ask(now), now, DOWN)
    assert outage.left(now) == SHORTEST_BACKOFF
    assert (outage.errors, outage.last_error) == (10, "down")


def test_a_hundred_calls_that_fail_together_are_one_failure() -> None:
    outage = Outage()
    tickets = [outage.ask(0.0) for _ in range(100)]
    for ticket in tickets:
        outage.failed(ticket, 0.1, DOWN)
    assert (outage.state, outage.left(0.1), outage.errors) == ("local", SHORTEST_BACKOFF, 100)


def test_exactly_one_caller_probes_and_the_others_go_on_locally() -> None:
    outage = Outage()
    outage.failed(outage.ask(0.0), 0.0, DOWN)
    assert [outage.ask(0.49) for _ in range(3)] == [0, 0, 0]
    tickets = [outage.ask(0.5) for _ in range(10)]
    assert sum(ticket > 0 for ticket in tickets) == 1
    assert outage.state == "probing"
    outage.succeeded(tickets[0])
    assert all(outage.ask(0.5) for _ in range(3))


def test_an_answer_that_comes_late_from_before_the_outage_changes_nothing() -> None:
    outage = Outage()
    early, late = outage.ask(0.0), outage.ask(0.0)
    outage.failed(early, 0.1, DOWN)
    outage.succeeded(late)
    assert outage.state == "local"
    prober = outage.ask(1.0)
    outage.failed(late, 1.0, DOWN)
    assert outage.state == "probing"
    outage.succeeded(prober)
    assert outage.state == "redis"


def test_a_prober_who_is_cancelled_or_lost_is_replaced() -> None:
    outage = Outage()
    outage.failed(outage.ask(0.0), 0.0, DOWN)
    cancelled = outage.ask(1.0)
    outage.abandoned(cancelled, 1.0)
    lost = outage.ask(1.0)
    assert lost
    assert not outage.ask(1.0 + PROBE_SECONDS - 0.1)
    assert outage.ask(1.0 + PROBE_SECONDS)


@given(
    st.lists(st.tuples(st.floats(0, 40), st.sampled_from(["ok", "fail", "abandon"])), max_size=60)
)
def test_it_always_comes_to_ask_again(story: list[tuple[float, str]]) -> None:
    outage, now = Outage(), 0.0
    for step, outcome in story:
        now += step
        ticket = outage.ask(now)
        assert 0.0 <= outage.left(now) <= LONGEST_BACKOFF
        if not ticket:
            assert outage.left(now) > 0.0
        elif outcome == "ok":
            outage.succeeded(ticket)
        elif outcome == "fail":
            outage.failed(ticket, now, DOWN)
        else:
            outage.abandoned(ticket, now)
    assert outage.ask(now + LONGEST_BACKOFF + PROBE_SECONDS)


def test_a_node_announces_itself_every_few_seconds_unless_the_number_is_given() -> None:
    census = Census(None)
    assert (census.nodes, census.is_due(0.0), census.is_due(1.0)) == (1, True, False)
    assert census.is_due(ANNOUNCE_EVERY)
    census.learn(8)
    assert census.nodes == 8
    name = census.name
    census.rename()
    assert census.name != name
    assert census.is_due(ANNOUNCE_EVERY)
    assert not Census(8).is_due(0.0)
    with pytest.raises(ValueError, match="nodes must be from 1"):
        Census(0)


# --- each node's share while Redis is away


def test_the_shares_of_all_nodes_are_the_limit(clock: ManualClock) -> None:
    limit = Limit(100, 1)
    nodes = [LocalShare([limit], [100.0], clock) for _ in range(8)]
    for node in nodes:
        node.divide(8)
    passed = 0
    for _ in range(10_000):
        passed += sum(node.check("a", 1).allowed for node in nodes)
        clock.advance(0.001)
    assert passed == pytest.approx(100 * 10 + 100, abs=len(nodes))


def test_a_limit_of_one_per_minute_on_64_nodes_lives(clock: ManualClock) -> None:
    nodes = [LocalShare([Limit(1, 60)], [1.0], clock) for _ in range(64)]
    for node in nodes:
        node.divide(64)
        assert node.check("a", 1).allowed  # the burst of a bucket is at least 1 on each
    passed = 0
    for _ in range(64 * 10 * 6):
        clock.advance(10)
        passed += sum(node.check("a", 1).allowed for node in nodes)
    assert passed == pytest.approx(64 * 10, abs=64)


def test_a_cost_above_the_share_passes_and_is_paid_off(clock: ManualClock) -> None:
    share = LocalShare([Limit(10, 1)], [10.0], clock)
    share.divide(8)
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

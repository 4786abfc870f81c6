"""Fleets of so many nodes that they may not ask every 50 ms: fewer and larger answers."""

import math

import pytest

from tests.harness.telling_nodes import T0, Cluster, cluster

INTERVAL = 200 / 1500


def large_fleet(burst_seconds: float = 10.0) -> Cluster:
    """Two hundred nodes, of which "a" has used up the bucket."""
    names = ("a", "b", "c", *(f"n{number}" for number in range(197)))
    fleet = cluster(rate=200.0, burst_seconds=burst_seconds, names=names)
    assert fleet.ledger.interval == pytest.approx(INTERVAL)
    fleet.drain("a")
    return fleet


def ask_all(fleet: Cluster, requests: int, *, waits: bool = False) -> None:
    """A hundred nodes ask, one after the other, within 10 ms."""
    for number in range(100):
        fleet.ask(T0 + 0.0001 * number, f"n{number}", requests, waits=waits)


def serve_until(fleet: Cluster, until: float) -> list[tuple[float, str, float]]:
    """(seconds from the start, node, amount) of what nodes are told by the timers."""
    told = []
    while (time := fleet.ledger.serve_due()) < until:
        told += [(time - T0, name, amount) for name, amount in fleet.serve(time).items()]
    return told


def test_a_grant_is_told_with_the_answer_to_the_next_ask() -> None:
    fleet = large_fleet()
    fleet.ask(T0 + 0.01, "b", 1)
    granted = fleet.ledger.serve_due()
    assert fleet.serve(granted) == {}
    assert fleet.available(granted) == pytest.approx((granted - T0) * 200.0 - 1.0)
    assert fleet.ask(granted + 0.01, "b") == 1.0
    assert fleet.ledger.serve_due() == math.inf


def test_a_grant_is_told_after_half_an_interval_if_the_node_does_not_ask() -> None:
    fleet = large_fleet()
    fleet.ask(T0 + 0.01, "b", 1)
    granted = fleet.ledger.serve_due()
    fleet.serve(granted)
    told = fleet.ledger.serve_due()
    assert told == pytest.approx(granted + 0.5 * INTERVAL)
    assert fleet.serve(told) == {"b": 1.0}
    assert fleet.ledger.serve_due() == math.inf


def test_a_grant_is_told_at_once_if_a_request_waits_for_it() -> None:
    fleet = large_fleet()
    fleet.ask(T0 + 0.01, "b", 1, waits=True)
    assert fleet.serve(fleet.ledger.serve_due()) == {"b": 1.0}


def test_a_node_that_has_restarted_is_not_told_of_its_old_grants() -> None:
    fleet = large_fleet()
    fleet.ask(T0 + 0.01, "b", 1)
    fleet.serve(fleet.ledger.serve_due())
    node = fleet.nodes["b"]
    node.boot = 2
    node.sequence = 0
    fleet.ledger.book(int(T0), node.report(int(T0) - 1))
    assert fleet.ledger.serve_due() == math.inf


def test_nodes_get_several_requests_in_turn() -> None:
    fleet = large_fleet()
    ask_all(fleet, 20)
    told = serve_until(fleet, T0 + 1.2)
    assert {amount for _, _, amount in told} <= {2.0, 3.0}  # interval / 50 ms, and what remains
    assert [name for _, name, _ in told] == [f"n{number}" for number in range(len(told))]
    assert sum(amount for _, _, amount in told) == pytest.approx(200.0, abs=30.0)


def test_a_node_that_wants_less_does_not_hold_up_the_others() -> None:
    fleet = large_fleet()
    ask_all(fleet, 1)
    told = serve_until(fleet, T0 + 0.6)
    assert len(told) == 100  # as soon as the refill has come


def test_a_small_bucket_is_not_filled_with_large_grants() -> None:
    fleet = large_fleet(burst_seconds=0.5)
    ask_all(fleet, 20)
    told = serve_until(fleet, T0 + 0.5)
    assert {amount for _, _, amount in told} == {1.0}


def test_a_hint_counts_what_those_before_it_get_in_turn() -> None:
    fleet = large_fleet()
    ask_all(fleet, 20)
    assert fleet.nodes["n99"].hint.wait == pytest.approx(99 * 2 / 200, abs=0.02)


def test_a_node_keeps_its_place_until_it_may_ask_again() -> None:
    fleet = large_fleet()
    ask_all(fleet, 2, waits=True)
    told = serve_until(fleet, T0 + 2.0)
    last = 0.2 + 4 * (INTERVAL - 0.05)  # then nodes that have not asked again are not served
    assert max(time for time, _, _ in told) == pytest.approx(last, abs=0.1)
    assert 0.4 * 200 * last < sum(amount for _, _, amount in told) <= 200 * last


def test_a_node_that_could_not_tell_of_its_traffic_yet_keeps_its_credit() -> None:
    fleet = large_fleet()
    fleet.ask(T0 + 0.01, "b", 5)
    serve_until(fleet, T0 + 0.3)
    fleet.nodes["b"].used["r"] = 1.0
    fleet.ask(T0 + 0.5, "b")
    fleet.nodes["c"].costs = {"r": 2000.0}
    recalls = []
    for time in (0.51, 0.63, 0.75):
        fleet.ask(T0 + time, "c", 1, waits=True)
        recalls += fleet.recalls(T0 + time + 0.11)
    of_b = [time for time, name in recalls if name == "b"]
    assert of_b == pytest.approx([0.5 + 0.1 + INTERVAL - 0.05], abs=0.06)
    assert of_b[0] > 0.68

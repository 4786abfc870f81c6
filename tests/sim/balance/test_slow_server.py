"""One of 10 servers is slow: the tail of policies that look at calls in flight."""

from dataclasses import replace
from functools import cache

import pytest

from sluicegate.sim.balance import BalanceScenario, Measures, ServerEvent, run

SLOW = BalanceScenario(slow=1, seconds=40.0, warm_up=20.0)


@cache
def measured(policy: str, clients: int, load: float) -> Measures:
    return run(replace(SLOW, clients=clients, load=load), policy, seed=1)


def p99(policy: str, clients: int, load: float = 0.6) -> float:
    figure = measured(policy, clients, load).p99
    assert figure is not None
    return figure


@pytest.mark.parametrize("load", [0.5, 0.7])
@pytest.mark.parametrize("clients", [1, 10, 100])
@pytest.mark.parametrize("policy", ["least_active", "peak_ewma"])
def test_calls_in_flight_keep_the_tail_below_a_third_of_that_of_taking_turns(
    policy: str, clients: int, load: float
) -> None:
    assert p99(policy, clients, load) <= 0.3 * p99("round_robin", clients, load)


def test_many_clients_that_count_their_own_calls_alone_have_a_longer_tail() -> None:
    one, ten, hundred = (p99("least_active", clients) for clients in (1, 10, 100))
    assert one < 0.8  # of work whose own p99 is 0.46 s
    assert ten < 2.0 * one
    # Each client has to find out about the slow server by a call of its own.
    assert 5.0 * one < hundred


def test_many_clients_that_remember_times_do_not() -> None:
    assert p99("peak_ewma", 100) < 2.0 * p99("peak_ewma", 1)
    assert measured("peak_ewma", 100, 0.6).shares[-1] < 0.02


def test_a_slow_server_that_nobody_waits_for_is_seen_by_its_times_alone() -> None:
    # At a load of 5 % nearly all servers are idle, whether or not they are slow.
    quiet = replace(SLOW, clients=10, load=0.05, seconds=120.0)
    shares = {
        policy: run(quiet, policy, seed=1).shares[-1]
        for policy in ("round_robin", "least_active", "peak_ewma")
    }
    assert shares["round_robin"] == pytest.approx(0.1, abs=0.01)
    assert shares["least_active"] > 0.05
    assert shares["peak_ewma"] < 0.03


@pytest.mark.parametrize("policy", ["least_active", "peak_ewma"])
def test_a_server_that_is_quick_again_gets_its_share_again(policy: str) -> None:
    events = (ServerEvent(0.0, 9, "slow", 10.0), ServerEvent(20.0, 9, "return"))
    scenario = BalanceScenario(clients=10, seconds=80.0, events=events)
    whole = run(scenario, policy, seed=1).whole_after
    assert whole is not None
    assert whole <= 40

"""Loads that servers report: how much they shorten the tail, and that clients do not herd."""

from dataclasses import replace
from functools import cache

import pytest

from sluicegate.sim.balance import BalanceScenario, Measures, ServerEvent, run

SLOW = BalanceScenario(slow=1, clients=100, seconds=40.0, warm_up=20.0)
BUSY = BalanceScenario(clients=100, load=0.9, seconds=25.0, warm_up=10.0)


@cache
def measured(policy: str, scenario: BalanceScenario) -> Measures:
    return run(scenario, policy, seed=1)


def p99(policy: str, scenario: BalanceScenario) -> float:
    figure = measured(policy, scenario).p99
    assert figure is not None
    return figure


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_loads_that_come_with_responses_cut_the_tail_of_many_clients_to_a_quarter(
    seed: int,
) -> None:
    alone, told = (
        run(replace(SLOW, reports_load=reports_load), "least_active", seed=seed).p99
        for reports_load in (False, True)
    )
    assert alone is not None
    assert told is not None
    assert told < 0.25 * alone


def test_loads_that_come_with_responses_do_no_harm_where_all_servers_are_equal() -> None:
    for policy in ("least_active", "peak_ewma"):
        told = p99(policy, replace(BUSY, reports_load=True))
        assert told < 1.15 * p99(policy, BUSY)


def test_reported_loads_do_not_hurt_what_remembers_times() -> None:
    assert p99("peak_ewma", replace(SLOW, reports_load=True)) < 1.5 * p99("peak_ewma", SLOW)


def test_a_server_that_becomes_slow_is_not_idle_because_its_reports_are_rare() -> None:
    scenario = replace(SLOW, slow=0, events=(ServerEvent(20.0, 9, "slow", 10.0),))
    told = measured("least_active", replace(scenario, reports_load=True))
    assert told.shares[9] < 0.03
    assert told.peak < 150


def test_loads_that_all_clients_hear_at_once_do_not_make_them_run_to_one_server() -> None:
    # The best of all would be the same one for all clients until the next report.
    told = measured("least_active", replace(BUSY, report_interval=1.0))
    assert told.p99 is not None
    assert told.p99 < 2.0  # the best of all: 8 s


def test_a_server_whose_calls_take_longer_than_what_is_remembered_is_not_forgotten() -> None:
    # Calls of 10 s at the slow server, and times that count by a third after 10 s: while a call
    # has not ended, it has taken that long already.
    scenario = replace(SLOW, clients=10, service_seconds=1.0, seconds=200.0, warm_up=100.0)
    assert p99("peak_ewma", scenario) < 20.0

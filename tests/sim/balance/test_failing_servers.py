"""Servers that fail: what ejection, slow start and panic do to the requests."""

from dataclasses import replace
from itertools import pairwise

import pytest

from sluicegate.balance import Health
from sluicegate.sim.balance import BalanceScenario, Measures, ServerEvent, run

NEVER_EJECT = Health(max_failures=0)
# A sink: from second 10 to second 30 it answers at once, with errors.
SINK = BalanceScenario(
    seconds=90.0,
    warm_up=9.0,
    load=0.4,
    capacity=4,
    events=(ServerEvent(10.0, 9, "fail fast"), ServerEvent(30.0, 9, "return")),
)


def failed(policy: str, scenario: BalanceScenario) -> float:
    """The part that failed of the requests that came while the server did."""
    measures = run(scenario, policy, seed=3)
    return measures.failures * measures.requests / (20.0 * scenario.rate)


def test_without_ejection_a_sink_draws_the_requests_of_policies_that_look_for_idle_ones() -> None:
    sink = replace(SINK, health=NEVER_EJECT)
    assert failed("round_robin", sink) == pytest.approx(0.1, abs=0.01)
    assert failed("least_active", sink) > 0.4
    assert failed("peak_ewma", sink) > 0.15


@pytest.mark.parametrize(
    "policy", ["round_robin", "weighted_random", "consistent_hash", "least_active", "peak_ewma"]
)
def test_a_sink_is_ejected_within_a_second(policy: str) -> None:
    measures = run(SINK, policy, seed=3)
    assert measures.left_out_after in (0, 1)
    assert failed(policy, SINK) < 0.005


def test_of_many_clients_each_has_to_eject_a_sink_itself() -> None:
    # 5 failures for each client, and one more after each ejection: of 100 clients some do not have
    # as many in the 20 seconds.
    for clients, least in ((1, 5), (10, 50), (100, 200)):
        measures = run(replace(SINK, clients=clients), "least_active", seed=3)
        failures = round(measures.failures * measures.requests)
        assert least <= failures <= 8 * clients


def test_a_sink_that_has_recovered_gets_a_share_that_grows() -> None:
    # Ejected at 10 for 10 s and at 20 for 20 s; from 40 on its weight grows, for 10 s.
    measures = run(SINK, "round_robin", seed=3)
    shares = [second[9] / sum(second) for second in measures.by_second]
    assert max(shares[22:40]) == 0.0
    assert 0.0 < sum(shares[40:43]) / 3 < 0.04
    assert sum(shares[43:47]) / 4 < sum(shares[52:62]) / 10
    assert sum(shares[52:62]) / 10 == pytest.approx(0.1, abs=0.01)
    assert measures.whole_after in range(15, 24)


def test_a_server_that_does_not_recover_is_tried_ever_more_rarely() -> None:
    dies = replace(SINK, seconds=400.0, load=0.1, events=(ServerEvent(10.0, 9, "die"),))
    measures = run(dies, "least_active", seed=3)
    tried = [second for second, counts in enumerate(measures.by_second) if counts[9]]
    pauses = [after - before for before, after in pairwise(tried)]
    assert [pause for pause in pauses if pause > 5] == [
        pytest.approx(seconds, abs=2) for seconds in (10, 20, 40, 80, 160)
    ]


def checked(panic: float, what: str, policy: str, load: float = 0.6) -> Measures:
    """6 of 10 servers fail their health checks, from second 10 on; nothing else ejects any."""
    scenario = BalanceScenario(
        clients=4,
        capacity=4,
        load=load,
        seconds=50.0,
        warm_up=25.0,
        timeout=2.0,
        check_interval=2.0,
        health=Health(max_failures=0, panic=panic),
        events=tuple(ServerEvent(10.0, server, what) for server in range(6)),
    )
    return run(scenario, policy, seed=3)


@pytest.mark.parametrize("policy", ["round_robin", "least_active", "peak_ewma"])
def test_panic_saves_the_requests_when_it_is_the_checks_that_are_wrong(policy: str) -> None:
    with_panic, without = checked(0.5, "fail checks", policy), checked(1.0, "fail checks", policy)
    assert with_panic.failures == 0.0
    assert without.goodput < 0.5 * with_panic.goodput  # 4 servers cannot do it all
    assert without.shares[:6] == (0.0,) * 6


def test_panic_costs_requests_when_the_servers_do_fail_and_the_others_could_do_it_all() -> None:
    with_panic, without = (checked(panic, "fail fast", "round_robin", 0.3) for panic in (0.5, 1.0))
    assert with_panic.failures == pytest.approx(0.6, abs=0.02)
    assert without.failures == 0.0


def test_in_panic_servers_that_fail_at_once_draw_requests_as_without_ejection() -> None:
    turns, times = (checked(0.5, "fail fast", policy) for policy in ("round_robin", "peak_ewma"))
    assert turns.failures == pytest.approx(0.6, abs=0.02)
    assert times.failures > 0.7

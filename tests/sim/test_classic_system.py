"""What the older system did, kept so that it can be compared with."""

import pytest

from sluicegate.sim.runner import run
from sluicegate.sim.scenario import load
from tests.harness.shipped_scenarios import RunShipped


def test_overload_makes_the_classic_rule_swing_between_nothing_and_too_much(
    run_shipped: RunShipped,
) -> None:
    overload = run_shipped("overload-3x", "classic")
    assert overload.measures.nothing == pytest.approx(0.45, abs=0.05)
    assert 1.7 <= overload.measures.over_1 <= 2.3  # type: ignore[operator]
    assert 0.08 <= overload.measures.over_10 <= 0.2  # type: ignore[operator]


@pytest.mark.parametrize("name", ["one-per-second", "one-per-minute"])
def test_small_limits_starve_under_the_classic_rule(name: str) -> None:
    assert run(load(name).lasting(120), system="classic").measures.under == 1.0


def test_a_new_classic_leader_knows_nothing_and_lets_everything_through(
    run_shipped: RunShipped,
) -> None:
    result = run_shipped("failover", "classic")
    assert result.measures.over_10 > 0.2  # type: ignore[operator]
    assert result.measures.unrecorded > 10_000  # type: ignore[operator]


def test_reports_that_are_lost_or_doubled_spoil_the_classic_books(run_shipped: RunShipped) -> None:
    assert run_shipped("lossy", "classic").measures.unrecorded != 0

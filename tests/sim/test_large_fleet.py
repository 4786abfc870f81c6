"""A fleet of so many nodes that grants are told later: in virtual time, with the auditor."""

import pytest

from sluicegate.sim.runner import run
from sluicegate.sim.scenario import read

# Whole clusters in virtual time: what runs there is measured by tests/sim, at a third of the time.
pytestmark = pytest.mark.no_cover

# requests per second of the limit, load, burst_seconds, whether requests wait; the most shortfall
CASES = [
    (300, 3.0, 10, False, 0.01),
    (300, 0.9, 1, True, 0.05),
    (30, 1.3, 5, False, 0.02),
    (30, 0.8, 5, True, 0.08),
]


@pytest.mark.parametrize(("limit", "load", "burst", "wait", "shortfall"), CASES)
def test_a_large_fleet_gets_its_limit_and_no_more(
    limit: int, load: float, burst: int, wait: bool, shortfall: float
) -> None:
    scenario = read(
        f"""
        title = "A large fleet"
        about = "150 nodes share a limit."
        seconds = 20
        warm_up = 8
        nodes = 150
        centrals = 1
        exact_arrivals = true
        wait = {str(wait).lower()}
        [[limit]]
        user = "alice"
        requests = {limit}
        burst_seconds = {burst}
        [[traffic]]
        user = "alice"
        rate = {limit * load}
        """
    )
    measures = run(scenario, system="fair", seed=1).measures
    assert measures.shortfall <= shortfall
    assert measures.excess == 0.0
    assert measures.unrecorded == 0.0

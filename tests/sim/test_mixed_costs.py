"""A user whose requests differ in cost: small ones pass while the bucket has room for them."""

import dataclasses

import pytest

from sluicegate.sim.mixed_costs import draw_mixed
from sluicegate.sim.random_clusters import draw
from sluicegate.sim.runner import run
from sluicegate.sim.scenario import read
from tests.harness.shipped_scenarios import SOAK

# Whole clusters in virtual time: what runs there is measured by the other tests of tests/sim.
pytestmark = pytest.mark.no_cover

SCENARIO = """
title = "A few large requests"
about = "they ask for more than is there, and must not keep the small ones from passing"
seconds = 70
warm_up = 10
nodes = 3
centrals = 1
exact_arrivals = true
wait = {wait}
network = {{ delay = 0.002, jitter = 0.001 }}

[[limit]]
user = "ann"
burst_seconds = 10
tokens = 100

[[traffic]]
user = "ann"
rate = 13
cost = {{ tokens = 1 }}

[[traffic]]
user = "ann"
rate = 0.5
cost = {{ tokens = 600 }}
"""


@pytest.mark.parametrize("wait", [True, False])
def test_small_requests_pass_beside_large_ones_that_must_wait(wait: bool) -> None:
    text = SCENARIO.format(wait=str(wait).lower())
    result = run(read(text, file="mixed", name="mixed"), seed=0)
    assert result.measures.cheap_shortfall is not None
    assert result.measures.cheap_shortfall <= (0.02 if wait else 0.05)


# Requests may wait, and less is asked for than the limit: one perfect bucket refuses no small one.
CLUSTERS = [
    seed
    for seed in range(150 if SOAK else 100)
    if (facts := draw_mixed(seed).facts).wait and facts.load < 0.8 and not facts.duration
]


@pytest.mark.parametrize("seed", CLUSTERS)
def test_small_requests_pass_in_any_cluster_where_requests_may_wait(seed: int) -> None:
    cheap_shortfall = run(draw_mixed(seed).scenario, seed=seed).measures.cheap_shortfall
    assert cheap_shortfall is None or cheap_shortfall <= 0.02


def test_mixed_clusters_have_the_load_of_the_ones_they_are_made_of() -> None:
    for seed in range(40):
        plain, mixed = draw(seed), draw_mixed(seed)
        before, classes = plain.scenario.traffic[0], mixed.scenario.traffic
        assert 2 <= len(classes) <= 3
        assert len({each.cost["requests"].mean for each in classes}) == len(classes) or (
            plain.facts.limit * plain.facts.burst < 3.0
        )
        for resource, cost in before.cost.items():
            units = sum(each.rate.points[0][1] * each.cost[resource].mean for each in classes)
            assert units == pytest.approx(before.rate.points[0][1] * cost.mean)
        assert dataclasses.replace(mixed.scenario, traffic=plain.scenario.traffic) == plain.scenario

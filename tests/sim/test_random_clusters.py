"""Clusters drawn at random: the whole space is covered, and a seed is always the same cluster.

What comes of them is in test_random_space.py.
"""

import functools
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from sluicegate.sim.random_clusters import REGIMES, Facts, draw
from sluicegate.sim.random_runs import Row, run_many, run_one, summaries, table
from sluicegate.sim.scenario import load
from sluicegate.sim.space_picture import picture

# Whole clusters in virtual time: what runs there is measured by tests/sim, at a third of the time.
pytestmark = pytest.mark.no_cover


DIMENSIONS = {
    "nodes": (1, 50),
    "limit": (0.1, 5000),
    "load": (0.3, 10),
    "burst": (0.5, 60),
    "resources": (1, 4),
    "duration": (0, 10),
    "round_trip": (0, 0.2),
}


@functools.cache
def draws() -> list[Facts]:
    """Not made when the file is imported, which each process of a test run does."""
    return [draw(seed).facts for seed in range(1500)]


@pytest.mark.parametrize("name", DIMENSIONS)
def test_draws_reach_both_ends_of_each_dimension_and_go_no_further(name: str) -> None:
    least, most = DIMENSIONS[name]
    values = [getattr(facts, name) for facts in draws()]
    assert least <= min(values) <= max(1.1 * least, 0.0)
    assert 0.9 * most <= max(values) <= most


@pytest.mark.parametrize("name", ["nodes", "limit", "load", "burst"])
def test_draws_are_spread_over_the_orders_of_magnitude(name: str) -> None:
    least, most = DIMENSIONS[name]
    parts = Counter(
        min(3, int(4 * math.log(getattr(facts, name) / least) / math.log(most / least)))
        for facts in draws()
    )
    # Requests that are simulated one by one have lower limits.
    assert all(
        parts[part] >= len(draws()) * (0.08 if name == "limit" else 0.15) for part in range(4)
    )


def test_draws_have_every_regime_spread_and_kind_of_cost() -> None:
    assert {facts.regime for facts in draws()} == set(REGIMES)
    assert min(Counter(facts.regime for facts in draws()).values()) >= 30
    spreads = {"all", "one", "weighted", "hopping", "on and off", "moving"}
    assert {facts.spread for facts in draws()} == spreads
    assert {facts.scarcest for facts in draws() if facts.resources == 4} == {
        "requests",
        "tokens",
        "reads",
        "bytes",
    }
    assert 0.2 < sum(facts.tail is not None for facts in draws()) / len(draws()) < 0.3
    assert 0.4 < sum(facts.wait for facts in draws()) / len(draws()) < 0.6
    assert any(facts.together > 10 for facts in draws())


def is_thin(facts: Facts) -> bool:
    return facts.per_node_slot < 2.0


BELONGS = {
    "rare, no wait": lambda f: is_thin(f) and not f.wait and f.per_node_slot * f.load < 0.05,
    "thin, no wait, small burst": lambda f: is_thin(f) and not f.wait and f.burst < 5.0,
    "thin, no wait": lambda f: is_thin(f) and not f.wait,
    "small bucket": lambda f: f.limit * f.burst < 3.0,
    "long requests": lambda f: f.duration >= 3.0,
    "moving": lambda f: f.spread == "moving",
    "hopping, on and off": lambda f: f.spread in ("hopping", "on and off"),
    "several resources": lambda f: f.resources > 1,
    "thin, wait": is_thin,
    "dense": lambda f: f.round_trip <= 0.02,
    "dense, far": lambda f: True,
}


def test_a_cluster_belongs_to_the_first_regime_that_it_fits() -> None:
    assert list(BELONGS) == list(REGIMES)
    for facts in draws():
        first = next(regime for regime, fits in BELONGS.items() if fits(facts))
        assert facts.regime == first, facts


def test_what_is_drawn_is_what_the_scenario_has() -> None:
    for seed in range(100):
        cluster = draw(seed)
        scenario, facts = cluster.scenario, cluster.facts
        assert scenario.wait == facts.wait
        assert scenario.exact_arrivals
        (entry,), (traffic,) = scenario.limits, scenario.traffic
        assert len(scenario.nodes) == facts.nodes
        assert len(entry.rates) == facts.resources
        cycle = traffic.rate.cycle
        active = cycle[0] / sum(cycle) if cycle else 1.0
        in_requests = {name: rate / traffic.cost[name].mean for name, rate in entry.rates.items()}
        assert min(in_requests, key=lambda name: in_requests[name]) == facts.scarcest
        assert min(in_requests.values()) == pytest.approx(facts.limit, rel=1e-4)
        offered = traffic.rate.at(0.0) * active
        assert offered == pytest.approx(facts.load * facts.limit, rel=0.01)
        network = scenario.network
        assert 2 * (network.delay + network.jitter) == pytest.approx(facts.round_trip, rel=0.02)


def test_a_run_has_enough_requests_and_not_too_many() -> None:
    for seed in range(300):
        cluster = draw(seed)
        facts, scenario = cluster.facts, cluster.scenario
        measured = scenario.seconds - scenario.warm_up
        admitted = facts.limit * min(1.0, facts.load) * measured
        assert admitted >= 24
        packets = facts.limit * facts.load * scenario.seconds / facts.together
        assert packets <= max(6000, 9 * facts.busy_nodes * scenario.seconds), seed


def test_the_same_seed_gives_the_same_cluster_and_the_same_figures() -> None:
    assert draw(3) == draw(3)
    assert draw(3).text != draw(4).text
    once = [run_one(seed) for seed in (3, 9, 18)]
    assert run_many([3, 9, 18]) == once
    assert run_many([3, 9, 18], jobs=2) == once


def test_a_saved_cluster_is_the_same_scenario(tmp_path: Path) -> None:
    path = tmp_path / "saved.toml"
    cluster = draw(9)
    path.write_text(cluster.text)
    assert replace(load(str(path)), name="random", file="random") == cluster.scenario


def test_the_summary_has_the_distribution_of_each_regime_and_its_worst_seed() -> None:
    facts = draw(0).facts
    rows = [
        Row(replace(facts, seed=seed, regime="dense"), seed / 100, 3.0 if seed == 7 else 0.0)
        for seed in range(1, 101)
    ]
    rows.append(Row(replace(facts, seed=500, regime="moving"), broken="it broke"))
    dense, moving = sorted(summaries(rows), key=lambda each: each.regime)
    assert (dense.count, dense.median, dense.percentile_95, dense.percentile_99) == (
        100,
        0.5,
        0.95,
        0.99,
    )
    assert (dense.worst, dense.worst_seed) == (1.0, 100)
    assert (dense.with_excess, dense.worst_excess, dense.worst_excess_seed) == (1, 3.0, 7)
    assert moving.broken == (500,)
    text = table(rows)
    assert "sluicegate simulate random --seed 100\n" in text
    assert "sluicegate simulate random --seed 7 (excess)\n" in text
    assert "BROKEN: it broke" in text


def test_the_picture_has_a_mark_for_each_cluster_and_hides_no_bad_one() -> None:
    facts = draw(0).facts
    places = [(0.01, 0.3), (2.0, 1.0), (900.0, 10.0), (5.0, 2.0)]
    rows = [
        Row(replace(facts, seed=seed, per_node_slot=density, load=load), shortfall, 0.0)
        for seed, ((density, load), shortfall) in enumerate(
            zip(places, (0.9, -0.2, 0.02, None), strict=True)
        )
    ]
    drawn = picture([row.as_dict() for row in rows], "before & after")
    root = ElementTree.fromstring(drawn)
    names = "{http://www.w3.org/2000/svg}"
    titles = [title.text or "" for title in root.iter(f"{names}title")]
    assert [title.split(":")[0] for title in titles] == [
        "before & after",
        "seed 1",
        "seed 2",
        "seed 0",
        "seed 3",
    ]
    marks = [mark for mark in root.iter(f"{names}circle") if mark.get("r") == "4"]
    assert len(marks) == 3
    assert all(70 <= float(mark.get("cx", "")) <= 840 for mark in marks)
    assert all(64 <= float(mark.get("cy", "")) <= 464 for mark in marks)
    assert "up to 1 % (1)" in drawn
    assert "more (1)" in drawn

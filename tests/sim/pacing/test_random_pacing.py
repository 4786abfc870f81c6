"""Pacing over the whole space: random clusters, each regime within its bounds.

`make test` runs the first eight clusters of each regime, as far as there are so many. Where eight
are too few for a bound that all clusters of the regime keep, it runs all of them. The soak runs the
first two hundred whatever their regime, and draws 10,000 others.
"""

import functools
import math
import os
from collections import Counter
from pathlib import Path

import pytest

from sluicegate.sim.pacing import load
from sluicegate.sim.pacing.random_clusters import REGIMES, Facts, draw
from sluicegate.sim.pacing.random_runs import Row, run_many, run_one, summaries, table

# Whole clusters in virtual time, which take three times as long when they are traced.
pytestmark = pytest.mark.no_cover

CLUSTERS = 200
SOAK = os.environ.get("HYPOTHESIS_PROFILE") == "soak"
MOST = CLUSTERS if SOAK else 8  # of a regime
WHOLE = {"store away", "thin"}  # their first eight exceed a bound that all of them keep


@functools.cache
def draws() -> list[Facts]:
    """Not made when the file is imported, which each process of a test run does."""
    return [draw(seed).facts for seed in range(600)]


@functools.cache
def seeds() -> dict[str, list[int]]:
    """By regime. To draw a cluster takes next to nothing."""
    found: dict[str, list[int]] = {regime: [] for regime in REGIMES}
    for seed in range(CLUSTERS):
        found[draws()[seed].regime].append(seed)
    return {
        regime: of_regime if regime in WHOLE else of_regime[:MOST]
        for regime, of_regime in found.items()
    }


@functools.cache
def rows_of(regime: str) -> list[Row]:
    return run_many(seeds()[regime])


def rows() -> list[Row]:
    return [row for regime in REGIMES for row in rows_of(regime)]


@pytest.mark.parametrize("regime", REGIMES)
def test_the_store_has_all_that_nodes_counted(regime: str) -> None:
    assert [row.facts.seed for row in rows_of(regime) if "unrecorded" in row.missed] == []


@pytest.mark.parametrize("regime", REGIMES)
def test_a_regime_is_within_its_bounds(regime: str) -> None:
    (summary,) = summaries(rows_of(regime))
    assert summary.above == [], table(rows_of(regime))


def test_no_cluster_is_worse_than_the_worst_that_its_regime_may_have() -> None:
    assert [row.facts.seed for row in rows() if row.missed] == [], table(rows())


def test_no_more_than_the_target_passes_while_the_store_answers() -> None:
    certain = [
        row
        for row in rows()
        if row.facts.conversion == 1.0
        and not (row.facts.reward_delay or row.facts.outage or row.facts.events)
    ]
    assert len(certain) > (100 if SOAK else 50)
    assert [row.facts.seed for row in certain if row.over] == []


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("nodes", 1, 50),
        ("target", 1, 1_000_000),
        ("period", 10, 86_400),
        ("load", 0.3, 20),
        ("sync_interval", 0.5, 10),
    ],
)
def test_draws_reach_both_ends_of_each_dimension_and_go_no_further(
    name: str, least: float, most: float
) -> None:
    values = [getattr(facts, name) for facts in draws()]
    assert least <= min(values) <= 1.1 * least
    assert 0.85 * most <= max(values) <= most
    parts = Counter(
        min(2, int(3 * math.log(value / least) / math.log(most / least))) for value in values
    )
    assert min(parts[part] for part in range(3)) >= 0.1 * len(draws())


def test_draws_have_every_regime_and_kind_of_trouble() -> None:
    assert {facts.regime for facts in draws()} == set(REGIMES)
    assert {facts.shape for facts in draws()} == {"even", "skewed", "moving", "bursty"}
    for name in ("outage", "events", "loss", "skew", "reward_delay", "start"):
        assert 0.05 < sum(getattr(facts, name) > 0 for facts in draws()) / len(draws()) < 0.8


def test_the_same_seed_gives_the_same_cluster_and_the_same_figures() -> None:
    assert draw(3) == draw(3)
    assert draw(3).text != draw(4).text
    assert run_one(3) == run_one(3)
    assert run_many([3, 4, 5], jobs=2) == run_many([3, 4, 5])


def test_a_saved_cluster_is_the_same_scenario(tmp_path: Path) -> None:
    path = tmp_path / "saved.toml"
    cluster = draw(9)
    path.write_text(cluster.text)
    saved = load(str(path))
    assert (saved.target, saved.shape, saved.link) == (
        cluster.scenario.target,
        cluster.scenario.shape,
        cluster.scenario.link,
    )


def test_the_summary_names_the_command_that_shows_the_worst_again() -> None:
    assert "sluicegate simulate pacing-random --seed" in table(rows()[:40])

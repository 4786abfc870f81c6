"""Random clusters with faults: no invariant breaks, and each kind of fault costs what it may."""

import functools

import pytest

from sluicegate.sim.random_faults import KINDS, Row, bound_of, draw, run_many, table
from tests.harness.shipped_scenarios import SOAK

# Whole clusters in virtual time: what runs there is measured by tests/sim, at a third of the time.
pytestmark = pytest.mark.no_cover

RUNS = 30 if SOAK else 20  # in which the same kinds of faults come
PART = 10  # that one test runs: a slow machine must not take too long for it


@functools.cache
def part(first: int) -> list[Row]:
    return run_many(range(first, first + PART))


@pytest.mark.parametrize("first", range(0, RUNS, PART))
def test_no_invariant_breaks_and_nothing_is_lost_but_with_the_books(first: int) -> None:
    rows = part(first)
    assert [row.broken for row in rows if row.broken is not None] == []
    lost = [row.seed for row in rows if row.unrecorded and "central loses books" not in row.kinds]
    assert lost == []


@pytest.mark.parametrize("first", range(0, RUNS, PART))
def test_a_fault_costs_no_more_than_its_kind_may(first: int) -> None:
    for row in part(first):
        missed, excess = bound_of(row)
        assert row.missed is not None
        assert row.excess is not None
        assert row.missed <= missed, (row.seed, row.kinds, row.missed)
        assert row.excess <= excess, (row.seed, row.kinds, row.excess)


def test_a_number_is_a_cluster_and_its_faults() -> None:
    once, again = draw(3), draw(3)
    assert once.text == again.text
    assert once.scenario.faults
    assert once.scenario.warm_up < once.scenario.faults[0].at
    assert {kind for seed in range(60) for kind in draw(seed).kinds} == set(KINDS)


def test_the_table_names_what_broke_and_what_is_out_of_bounds() -> None:
    facts = draw(0).facts
    rows = [
        Row(0, ("join",), 1.0, facts, missed=0.5, excess=0.0),
        Row(1, ("join",), 1.0, facts, missed=100.0, excess=0.0, unrecorded=3.0),
        Row(2, ("partition",), 1.0, facts, broken="a thing"),
    ]
    text = table(rows)
    assert "out of bounds: seed 1 (join): missed 100.00 s" in text
    assert "BROKEN: seed 2: a thing" in text
    assert "unrecorded is not 0: seed 1" in text
    assert "seed 0" not in text.splitlines()[-1]

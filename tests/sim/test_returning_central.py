"""A central that is back with a state that is older than its nodes, or with none."""

import pytest

from sluicegate.sim.runner import run
from sluicegate.sim.scenario import read

SCENARIO = """
title = "t"
about = "a"
seconds = 60
warm_up = 25
nodes = 3
centrals = 1
election_seconds = 0.1
snapshot_seconds = 10
exact_arrivals = true
wait = true
limit = [{{ user = "zoe", requests = 20, burst_seconds = 1 }}]
traffic = [{{ user = "zoe", rate = 45 }}]

[[fault]]
at = 19.2  # before the state is written
what = "leave"
machine = ["node-1..3"]

[[fault]]
at = 20.5  # after that
what = "join"
nodes = 3

[[fault]]
at = 29.0
what = "crash"
machine = "leader"
seconds = {away}
"""


@pytest.mark.parametrize("away", [4, 10])
def test_what_new_nodes_spent_while_the_central_was_away_is_no_debt(away: int) -> None:
    """The refill of that time has overflowed the bucket. As a debt it would take as long to pay."""
    measures = run(read(SCENARIO.format(away=away)), seed=1).measures
    assert measures.shortfall is not None
    assert measures.shortfall < 0.06
    assert measures.excess == 0.0


EMPTY_BOOKS = """
title = "t"
about = "a"
seconds = 60
warm_up = 25
nodes = 3
centrals = 1
election_seconds = 0.1
exact_arrivals = true
wait = true
limit = [{{ user = "zoe", {limits}, burst_seconds = 1 }}]
traffic = [{{ user = "zoe", rate = {rate}, duration = 10, cost = {cost} }}]

[[fault]]
at = 30.3
what = "crash"
machine = "leader"
seconds = {away}
disk = false
"""
TWO_RESOURCES = "requests = 50, tokens = 410", "{ requests = 1, tokens = 8 }"


@pytest.mark.parametrize(
    ("limits", "cost", "rate", "away"),
    [
        ("requests = 50", "1", "40", 0.5),
        ("requests = 50", "1", "40", 2),
        ("requests = 50", "1", "100", 6),
        (*TWO_RESOURCES, "40", 2),
        ("requests = 50", "1", "[[0, 0], [29.5, 200]]", 2),  # all of it has just begun
    ],
)
def test_requests_that_ran_before_a_central_lost_its_books_are_no_debt(
    limits: str, cost: str, rate: str, away: float
) -> None:
    """They have reserved ten seconds' worth, which the refill of an earlier time has paid."""
    text = EMPTY_BOOKS.format(limits=limits, cost=cost, rate=rate, away=away)
    measures = run(read(text), seed=1).measures
    assert measures.shortfall is not None
    assert measures.excess is not None
    assert measures.shortfall < 0.01
    assert measures.excess < 0.25 * 50  # a quarter of a second's refill

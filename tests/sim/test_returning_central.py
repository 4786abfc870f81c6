"""A central that is back with a state that is older than its nodes, or with none."""

import pytest

from sluicegate.sim.runner import run
from sluicegate.sim.scenario import read

# Whole clusters in virtual time: what runs there is measured by tests/sim, at a third of the time.
pytestmark = pytest.mark.no_cover

SCENARIO = """
title = "t"
about = "a"
seconds = 60
warm_up = 25
nodes = 3
centrals = 1
election_seconds = 0.1
snapshot_seconds = 10
snapshot_least = 10  # a large ledger
exact_arrivals = true
wait = true
limit = [{{ user = "zoe", requests = 20, burst_seconds = 1 }}]
traffic = [{{ user = "zoe", rate = 45 }}]

[[fault]]
at = 19.7  # before the state is written
what = "leave"
machine = ["node-1..3"]

[[fault]]
at = 21.0  # after that
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


REPLACED = """
title = "t"
about = "a"
seconds = 60
warm_up = 15
nodes = 3
centrals = 1
election_seconds = 0.1
snapshot_least = 10  # a large ledger
exact_arrivals = true
limit = [{{ user = "zoe", requests = 50, burst_seconds = 1 }}]
traffic = [{{ user = "zoe", rate = 100 }}]

[[fault]]
at = 25  # the state was written at 20.5
what = "join"
nodes = 3

[[fault]]
at = 25.3
what = "{what}"
machine = {gone}

[[fault]]
at = 29.0
what = "crash"
machine = "leader"
seconds = {away}
"""


@pytest.mark.parametrize("away", [4, 10])
@pytest.mark.parametrize("what", ["leave", "crash"])
@pytest.mark.parametrize("gone", ['["node-1..3"]', '["node-1"]'])
def test_the_shares_of_nodes_that_were_replaced_are_not_held(
    what: str, gone: str, away: int
) -> None:
    """The new nodes live on the whole limit: nothing of it is left for those of the old state."""
    scenario = read(REPLACED.format(what=what, gone=gone, away=away))
    measures = run(scenario, seed=1).measures
    assert measures.shortfall is not None
    assert measures.shortfall < 0.02
    # It follows the nodes' clock to some milliseconds, which are less than a request.
    assert measures.excess < 1.0


JOINED = """
title = "t"
about = "a"
seconds = 45
warm_up = 15
nodes = 1
centrals = 1
election_seconds = 0.1
exact_arrivals = true
limit = [{{ user = "zoe", requests = 50, burst_seconds = 1 }}]
traffic = [{{ user = "zoe", rate = 100 }}]

[[fault]]
at = {at}
what = "join"
nodes = 9

[[fault]]
at = 29.0
what = "crash"
machine = "leader"
seconds = 4
"""


@pytest.mark.parametrize("at", [19.9, 20.4, 20.45, 27.4])
def test_the_state_is_written_again_when_nodes_have_joined(at: float) -> None:
    """With that of 20.5 s alone, nine of ten nodes would have no share in the ledger yet."""
    measures = run(read(JOINED.format(at=at)), seed=1).measures
    assert measures.sliding_1 is not None
    assert measures.shortfall is not None
    assert measures.sliding_1 < 0.3
    assert measures.shortfall < 0.02
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

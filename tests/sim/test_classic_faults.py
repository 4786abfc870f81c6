"""What was wrong with the classic system, one fault at a time: it shows there, and not with us."""

from collections.abc import Callable

import pytest

from sluicegate.quota.ledger.ledger import Ledger
from sluicegate.quota.ledger.limit_entry import read_entries
from sluicegate.quota.messages import Report
from sluicegate.sim.measures import Measures
from sluicegate.sim.runner import run
from sluicegate.sim.scenario import Scenario, read
from tests.harness.shipped_scenarios import SOAK, RunShipped

# Whole clusters in virtual time: what runs there is measured by tests/sim, at a third of the time.
pytestmark = pytest.mark.no_cover


def both(scenario: Scenario) -> tuple[Measures, Measures]:
    return run(scenario).measures, run(scenario, system="classic").measures


BothShipped = Callable[[str], tuple[Measures, Measures]]


@pytest.fixture
def both_shipped(run_shipped: RunShipped) -> BothShipped:
    return lambda name: (run_shipped(name).measures, run_shipped(name, "classic").measures)


def over_10(measures: Measures) -> float:
    assert measures.over_10 is not None
    return measures.over_10


def test_the_bucket_is_given_out_once_and_not_to_each_of_three_slots(
    both_shipped: BothShipped,
) -> None:
    fair, classic = both_shipped("overload-3x")
    assert classic.over_1 is not None
    assert classic.over_1 > 1.5
    assert classic.nothing is not None
    assert classic.nothing > 0.3
    assert fair.over_1 is not None
    assert fair.over_1 <= 0.03
    assert fair.nothing == 0.0


@pytest.mark.parametrize("name", ["join", "failover"])
def test_a_node_without_a_quota_is_not_unlimited(name: str, both_shipped: BothShipped) -> None:
    fair, classic = both_shipped(name)
    assert over_10(classic) > 0.2
    assert over_10(fair) <= 0.05


def test_a_user_nobody_has_seen_before_is_not_unlimited() -> None:
    fair, classic = both(
        read(
            """
            title = "A new user"
            about = "He comes at once with twenty times his limit."
            seconds = 30
            warm_up = 5
            nodes = 10
            centrals = 1
            [[limit]]
            user = "*"
            requests = 100
            burst_seconds = 1
            [[traffic]]
            user = "new"
            rate = [[0, 0], [12, 2000]]
            [goals]
            over_1 = 4
            """,
            name="new-user",
        )
    )
    assert classic.over_1 is not None
    assert classic.over_1 > 10
    assert fair.over_1 is not None
    assert fair.over_1 <= 2  # what was saved, and the newcomer's share, once
    assert over_10(fair) <= 0.4


def test_a_share_below_one_does_not_starve(both_shipped: BothShipped) -> None:
    fair, classic = both_shipped("one-per-second")
    assert classic.under == 1.0
    assert fair.under is not None
    assert fair.under <= 0.05


def test_what_was_booked_outlives_the_central_that_booked_it(both_shipped: BothShipped) -> None:
    fair, classic = both_shipped("failover")
    assert classic.unrecorded
    assert fair.unrecorded == 0.0


def test_reports_are_neither_lost_nor_counted_twice(both_shipped: BothShipped) -> None:
    fair, classic = both_shipped("lossy")
    assert classic.unrecorded
    assert fair.unrecorded == 0.0


def many_users(count: int) -> Scenario:
    traffic = "\n".join(f'[[traffic]]\nuser = "user-{i}"\nrate = 2' for i in range(count))
    return read(
        f"""
        title = "Many users on one node"
        about = "More counters in a slot than the older node collected."
        seconds = {12 if SOAK else 6}
        exact_arrivals = true
        warm_up = 2
        nodes = 1
        centrals = 1
        [[limit]]
        user = "*"
        requests = 10
        {traffic}
        [goals]
        unrecorded = 0
        """,
        name="many-users",
    )


def test_there_is_no_ceiling_on_the_users_of_a_slot() -> None:
    fair, classic = both(many_users(1500))
    assert classic.unrecorded
    assert fair.unrecorded == 0.0


def test_requests_that_are_running_count() -> None:
    fair, classic = both(
        read(
            """
            title = "Long requests"
            about = "Each takes four seconds, and only then is it known what it cost."
            seconds = 90
            warm_up = 30
            nodes = 5
            centrals = 1
            [[limit]]
            user = "alice"
            requests = 100
            burst_seconds = 1
            [[traffic]]
            user = "alice"
            rate = 1000
            duration = 4
            [goals]
            over_60 = 0.1
            """,
            name="long-requests",
        )
    )
    assert over_10(classic) > 0.5
    assert over_10(fair) <= 0.1
    assert fair.under is not None
    assert fair.under <= 0.05


LIMITS = """
[[limit]]
service = "front"
user = "good"
requests = 100

[[limit]]
service = "front"
user = "bad"
requests = -5
"""


def test_one_bad_limit_stops_no_other() -> None:
    entries, complaints = read_entries(LIMITS)
    assert [entry.user for entry in entries] == ["good"]
    assert len(complaints) == 1
    assert "-5" in complaints[0]
    ledger = Ledger(entries)
    ledger.book(1000, Report("n", 1, 1, 1, 0, 999, 0.0, {}))
    ledger.assign(1000)
    assert ledger.quota(1000, "n")["front"].newcomers == {"requests": 100 / 16}


@pytest.mark.parametrize("name", ["a/b", "/", "a//b"])
def test_a_name_with_a_slash_is_one_name(name: str) -> None:
    fair, classic = both(
        read(
            f"""
            title = "A name with a slash"
            about = "It is one user."
            seconds = 20
            warm_up = 5
            nodes = 2
            centrals = 1
            [[limit]]
            user = "{name}"
            requests = 100
            [[traffic]]
            user = "{name}"
            rate = 300
            [goals]
            unrecorded = 0
            """,
            name="slash",
        )
    )
    assert classic.unrecorded
    assert fair.unrecorded == 0.0

"""Classic nodes and our own share one user's bucket, in virtual time."""

import os
import random

import pytest

from sluicegate.quota.ledger.limit_entry import Entry
from tests.harness.mixed_cluster import MixedCluster

# Whole clusters in virtual time, call by call.
pytestmark = pytest.mark.no_cover

SEEDS = range(20 if os.environ.get("HYPOTHESIS_PROFILE") == "soak" else 3)
RATE = 100.0


def cluster(
    burst_seconds: float, own: list[float], classic: list[float], *, seed: int = 0
) -> MixedCluster:
    entry = Entry("front", "ann", burst_seconds=burst_seconds, rates={"requests": RATE})
    return MixedCluster(
        entry,
        {f"own-{number}": rate for number, rate in enumerate(own)},
        {f"classic-{number}": rate for number, rate in enumerate(classic)},
        seed=seed,
    )


def passed_per_second(mixed: MixedCluster, kind: str, begin: float, end: float) -> float:
    names = dict.fromkeys(name for name in mixed.rates if name.startswith(kind))
    return mixed.passed_between(begin, end, names) / (end - begin)


def test_a_classic_node_is_told_the_amount_of_a_slot_and_not_a_total() -> None:
    mixed = cluster(10.0, own=[], classic=[150.0, 150.0])
    mixed.run(40.0)
    # Half of the refill, slot after slot; a total would grow by as much in each.
    assert mixed.amounts[-20:] == pytest.approx([50.0] * 20)
    assert passed_per_second(mixed, "classic", 20.0, 40.0) == pytest.approx(RATE, rel=0.02)


@pytest.mark.parametrize(
    ("own", "classic", "own_part"),
    [
        ([75.0, 75.0], [75.0, 75.0], 50.0),
        ([75.0, 75.0, 75.0], [75.0], 75.0),
        ([75.0], [75.0, 75.0, 75.0], 25.0),
        ([20.0, 20.0], [150.0, 150.0], 40.0),  # the modest get what they want
        ([150.0, 150.0], [20.0, 20.0], 62.0),
    ],
)
def test_both_kinds_get_their_fair_part_under_overload(
    own: list[float], classic: list[float], own_part: float
) -> None:
    mixed = cluster(10.0, own, classic)
    mixed.run(60.0)
    by_own = passed_per_second(mixed, "own", 20.0, 60.0)
    by_classic = passed_per_second(mixed, "classic", 20.0, 60.0)
    assert by_own + by_classic == pytest.approx(RATE, rel=0.02)
    assert by_own == pytest.approx(own_part, abs=5.0)
    assert mixed.most_beyond(RATE, since=15.0) <= 10.0 * RATE


def test_both_kinds_get_a_part_of_a_bucket_that_holds_one_slot() -> None:
    """The promises of two slots may be spent at one moment: at most half of it is promised."""
    for own, classic in (([75.0], [75.0, 75.0, 75.0]), ([75.0, 75.0], [75.0, 75.0])):
        mixed = cluster(1.0, own, classic)
        mixed.run(60.0)
        by_own = passed_per_second(mixed, "own", 20.0, 60.0)
        by_classic = passed_per_second(mixed, "classic", 20.0, 60.0)
        assert by_own + by_classic == pytest.approx(RATE, rel=0.03)
        assert by_classic == pytest.approx(45.0, abs=5.0)


@pytest.mark.parametrize(("burst_seconds", "most_refused"), [(10.0, 0.005), (2.0, 0.02)])
def test_nobody_within_the_limit_is_refused(burst_seconds: float, most_refused: float) -> None:
    mixed = cluster(burst_seconds, own=[20.0, 20.0], classic=[20.0, 20.0])
    mixed.run(15.0)
    refused = sum(mixed.refused.values())
    passed = len(mixed.passed)
    mixed.run(60.0)
    refused, passed = sum(mixed.refused.values()) - refused, len(mixed.passed) - passed
    assert refused <= most_refused * (refused + passed)


@pytest.mark.parametrize("burst_seconds", [1.0, 3.0, 10.0])
def test_no_window_holds_more_than_the_limit_and_the_burst(burst_seconds: float) -> None:
    """Traffic comes and goes on both, and comes all at once where one slot ends and one begins."""
    most = 0.0
    for seed in SEEDS:
        chance = random.Random(seed)
        mixed = cluster(burst_seconds, own=[30.0, 30.0], classic=[30.0, 30.0], seed=seed)
        mixed.run(15.0)  # a classic node without a quota refuses nothing
        for _ in range(20):
            for name in mixed.rates:
                mixed.rates[name] = chance.choice((5.0, 20.0, 60.0, 200.0))
            mixed.run(chance.choice((1.0, 3.0)) + 0.9)
            for name in mixed.rates:
                mixed.rates[name] = 2000.0
            mixed.run(0.2)
            for name in mixed.rates:
                mixed.rates[name] = 5.0
            mixed.run(0.9)
        most = max(most, mixed.most_beyond(RATE, since=15.0))
    assert most <= max(burst_seconds, 1.0) * RATE + 1.0
    assert most >= 0.3 * burst_seconds * RATE  # and what was saved can be had

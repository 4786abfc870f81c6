"""One perfect bucket, and the two figures that compare a cluster with it."""

import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.quota.ledger.limit_entry import Entry
from sluicegate.sim.ideal import Comparison, IdealBucket
from sluicegate.sim.runner import run
from sluicegate.sim.scenario import read


def entry(burst_seconds: float = 2.0, **rates: float) -> Entry:
    return Entry("front", "ann", burst_seconds=burst_seconds, rates=rates)


def comparison(*limits: tuple[float, Entry | None], warm_up: float = 0.0) -> Comparison:
    return Comparison(limits, slot_seconds=1.0, warm_up=warm_up)


@pytest.mark.parametrize(
    ("burst_seconds", "timeline"),
    [
        # It begins with one slot's refill, 10, and holds 20. (time, cost, count, admitted)
        (2.0, [(0.0, 1, 30, 10), (0.05, 1, 1, 0), (0.1, 1, 2, 1), (5.0, 1, 30, 20)]),
        # It holds less than a slot's refill: it begins full.
        (0.5, [(0.0, 1, 30, 5), (9.0, 1, 30, 5)]),
        # A request that costs more than it holds passes when it is full; the rest is a debt.
        (0.5, [(0.0, 25, 9, 1), (2.4, 25, 1, 0), (2.4, 1, 1, 1), (2.5, 25, 1, 0), (9.0, 25, 1, 1)]),
        # No burst at all: one after the other, at the rate.
        (0.0, [(0.0, 1, 2, 1), (0.09, 1, 1, 0), (0.1, 1, 1, 1), (0.1, 1, 1, 0)]),
        # What costs nothing passes.
        (2.0, [(0.0, 10, 1, 1), (0.0, 0, 5, 5), (0.0, 1, 1, 0)]),
    ],
)
def test_the_ideal_answers_as_one_exact_bucket(
    burst_seconds: float, timeline: list[tuple[float, float, int, int]]
) -> None:
    ideal = comparison((0.0, entry(burst_seconds, requests=10.0)))
    answers = [ideal.offered(time, {"requests": cost}, count) for time, cost, count, _ in timeline]
    assert answers == [admitted for *_, admitted in timeline]


def test_a_request_takes_all_of_its_resources_or_none() -> None:
    ideal = comparison((0.0, entry(1.0, requests=10.0, tokens=24.0)))
    both = {"requests": 1.0, "tokens": 8.0}
    assert ideal.offered(0.0, both, 5) == 3
    assert ideal.offered(0.0, {"requests": 1.0}, 9) == 7  # the two refused took none
    assert ideal.offered(0.0, {"unlimited": 1.0}, 9) == 9


def test_the_ideal_decides_by_the_expected_cost_and_charges_the_real_one() -> None:
    ideal = comparison((0.0, entry(1.0, requests=10.0)))
    expected = {"requests": 5.0}
    timeline = [  # (time, real cost, admitted)
        (0.0, 100.0, 1),  # nobody could foresee it: a debt of 90
        (9.4, 1.0, 0),  # cheap, but nobody knows: 4 are there
        (9.5, 1.0, 1),
        (9.6, 1.0, 1),  # 4 were left, and 1 has come in
        (9.6, 1.0, 0),
    ]
    for time, cost, admitted in timeline:
        assert ideal.offered(time, {"requests": cost}, 1, expected) == admitted, time
    assert ideal.offered(20.0, {"requests": 1.0}, 1, {"requests": 50.0}) == 1  # it is full
    assert ideal.offered(20.0, {"requests": 1.0}, 1, {"requests": 50.0}) == 0


def test_a_limit_of_nothing_admits_nothing() -> None:
    assert comparison((0.0, entry(1.0, requests=0.0))).offered(5.0, {"requests": 1.0}) == 0


def test_a_change_of_the_limit_keeps_the_proportion_of_what_is_saved() -> None:
    limits = (0.0, entry(4.0, requests=10.0)), (2.0, entry(4.0, requests=100.0))
    assert comparison(*limits).offered(2.0, {"requests": 1.0}, 1000) == 300  # 30 of 40 before


def test_without_a_limit_everything_passes_and_a_new_one_begins_with_one_refill() -> None:
    ideal = comparison((0.0, entry(2.0, requests=10.0)), (5.0, None), (9.0, entry(requests=30.0)))
    asked = {"requests": 1.0}
    answers = [ideal.offered(time, asked, 100) for time in (4.0, 6.0, 9.0)]
    assert answers == [20, 100, 30]


TENTHS = st.integers(0, 40).map(lambda tenths: tenths / 8.0)  # floats that are exact


@given(
    rate=st.integers(1, 20),
    capacity=st.integers(0, 30),
    requests=st.lists(st.tuples(TENTHS, st.integers(1, 40), st.integers(1, 6)), max_size=30),
)
def test_the_ideal_is_the_same_as_a_bucket_that_is_asked_one_by_one(
    rate: int, capacity: int, requests: list[tuple[float, int, int]]
) -> None:
    bucket = IdealBucket(rate, capacity, rate)
    level, now = Fraction(min(rate, capacity)), Fraction(0)
    time = 0.0
    for gap, cost, count in requests:
        time += gap
        level = min(Fraction(capacity), level + rate * (Fraction(time) - now))
        now = Fraction(time)
        admitted = 0
        for _ in range(count):
            if level >= min(cost, capacity):
                level -= cost
                admitted += 1
        bucket.refill(time)
        assert bucket.allows(cost, count) == admitted
        bucket.take(cost * admitted)
        assert bucket.level == level


def most_over(passed: list[tuple[float, float]], rate: float, burst: float) -> float:
    """The worst of all windows from one admission to another."""
    worst = 0.0
    for first, (begin, _) in enumerate(passed):
        amount = 0.0
        for time, cost in passed[first:]:
            amount += cost
            worst = max(worst, amount - rate * (time - begin) - burst)
    return worst


@given(
    rate=st.integers(1, 20),
    burst=st.integers(0, 4),
    warm_up=st.sampled_from([0.0, 3.0]),
    admissions=st.lists(st.tuples(TENTHS, st.integers(1, 40)), min_size=1, max_size=30),
)
def test_the_excess_is_that_of_the_worst_of_all_windows(
    rate: int, burst: int, warm_up: float, admissions: list[tuple[float, int]]
) -> None:
    beside = comparison((0.0, entry(burst, requests=rate)), warm_up=warm_up)
    time, counted = 0.0, []
    for gap, cost in admissions:
        time += gap
        beside.offered(time, {"requests": cost})
        beside.admitted(time, time, {"requests": cost})
        if time >= warm_up:
            counted.append((time, float(cost)))
    if not counted:
        assert beside.excess() is None
        return
    largest = max(cost for _, cost in counted)
    expected = most_over(counted, rate, max(burst * rate, largest)) / largest
    assert beside.excess() == pytest.approx(expected)


@given(
    burst=st.integers(0, 4),
    requests=st.lists(st.tuples(TENTHS, st.integers(1, 40)), min_size=1, max_size=30),
)
def test_the_ideal_itself_has_no_excess_and_no_shortfall(
    burst: int, requests: list[tuple[float, int]]
) -> None:
    beside = comparison((0.0, entry(burst, requests=10.0)))
    time = 0.0
    for gap, cost in requests:
        time += gap
        if beside.offered(time, {"requests": cost}):
            beside.admitted(time, time, {"requests": cost})
    assert beside.excess() in (0.0, None)
    assert beside.shortfall(time + 1.0) in (0.0, None)


def test_the_shortfall_is_of_the_scarcest_resource_and_leaves_out_the_warm_up() -> None:
    beside = comparison((0.0, entry(1.0, requests=10.0, tokens=40.0)), warm_up=5.0)
    costs = {"requests": 1.0, "tokens": 8.0}
    for time in range(10):
        assert beside.offered(float(time), costs, 20) == 5
        beside.admitted(float(time), float(time), costs, 4 if time >= 5 else 1)
    assert beside.scarcest(10.0) == "tokens"
    assert beside.shortfall(10.0) == pytest.approx(0.2)


def test_the_shortfall_is_negative_where_more_passed() -> None:
    beside = comparison((0.0, entry(1.0, requests=10.0)))
    assert beside.shortfall(1.0) is None
    assert beside.offered(0.0, {"requests": 1.0}, 20) == 10
    beside.admitted(0.0, 0.0, {"requests": 1.0}, 13)
    assert beside.shortfall(1.0) == pytest.approx(-0.3)
    assert beside.excess() == pytest.approx(3.0)


def test_late_costs_count_as_far_as_the_refill_has_paid_for_them() -> None:
    """Who meets the one expensive request is chance; both sides have spent all of the refill."""
    timeline = [  # (time, cost, admitted by the ideal, by the cluster), of 10 per second
        (0.0, 30.0, 1, 1),  # before the warm-up: a debt of 20, which is paid after it
        (2.1, 1.0, 1, 1),
        (9.0, 200.0, 1, 0),  # the ideal owes 180 at the end
        (9.0, 10.0, 0, 1),
    ]
    beside = comparison((0.0, entry(1.0, requests=10.0)), warm_up=0.5)
    for time, cost, ideally, really in timeline:
        assert beside.offered(time, {"requests": cost}, 1, {"requests": 1.0}) == ideally
        beside.admitted(time, time, {"requests": cost}, really)
    # The ideal paid 15 + 1 and the 20 that were there; the cluster 15 + 1 + 10.
    assert beside.shortfall(10.0) == pytest.approx(1.0 - 26.0 / 36.0)


def test_a_late_admission_counts_by_its_arrival_and_is_in_the_window_of_its_admission() -> None:
    beside = comparison((0.0, entry(1.0, requests=1.0)))
    asked = {"requests": 1.0}
    for arrival in (0.0, 1.0, 2.0):
        assert beside.offered(arrival, asked) == 1
    for arrival in (0.0, 1.0, 2.0):
        beside.admitted(2.0, arrival, asked)
    assert beside.shortfall(3.0) == 0.0
    assert beside.excess() == pytest.approx(2.0)


ONE_NODE = """
title = "t"
about = "a"
seconds = 40
nodes = {nodes}
centrals = 1
exact_arrivals = true
limit = [{{ user = "*", requests = {limit}, burst_seconds = 5 }}]
[[traffic]]
user = "ann"
rate = {rate}
{more}
"""


@pytest.mark.no_cover
def test_a_run_beside_the_ideal_has_both_figures() -> None:
    quiet = run(read(ONE_NODE.format(nodes=1, limit=100, rate=50, more="")))
    assert quiet.measures.shortfall == 0.0
    assert quiet.measures.excess == 0.0
    flooded = run(read(ONE_NODE.format(nodes=1, limit=100, rate=500, more="")))
    assert flooded.measures.shortfall is not None
    assert abs(flooded.measures.shortfall) < 0.02


@pytest.mark.no_cover
@pytest.mark.parametrize(
    "more",
    [
        "cost = { requests = { mean = 5, tail = 2 } }",
        "duration = 0.5",
        'nodes = "hopping"',
        "cycle = [2, 3]",
        'nodes = { "node-1" = 1, "node-2" = 5 }',
        'nodes = ["node-1"]\nmove = [{ at = 20, nodes = ["node-2"] }]',
        'arrival = "even"',
        "together = 7",
    ],
)
def test_exact_arrivals_take_all_that_traffic_can_be(more: str) -> None:
    scenario = read(ONE_NODE.format(nodes=3, limit=100, rate=60, more=more))
    result, again = run(scenario, seed=4), run(scenario, seed=4)
    assert result.as_dict() == again.as_dict()
    assert result.measures.unrecorded == 0.0
    (cell,) = result.cells
    assert cell.offered == pytest.approx(60 * 30 * (0.4 if "cycle" in more else 1.0), rel=0.15)
    assert result.measures.shortfall is not None


def test_exact_arrivals_find_a_node_that_is_up() -> None:
    text = ONE_NODE.format(nodes=2, limit=100, rate=50, more="")
    text += '[[fault]]\nat = 20\nwhat = "crash"\nmachine = "node-1"\n'
    (cell,) = run(read(text)).cells
    assert sum(cell.demand[200:]) == pytest.approx(1000, rel=0.15)


def test_nobody_is_asked_while_no_node_is_up() -> None:
    text = ONE_NODE.format(nodes=2, limit=100, rate=50, more='nodes = ["node-1"]')
    text += '[[fault]]\nat = 20\nwhat = "crash"\nmachine = "node-1"\n'
    (cell,) = run(read(text)).cells
    assert sum(cell.demand[200:]) == 0.0


def test_random_costs_do_not_break_the_order_of_time() -> None:
    rng = random.Random(1)
    bucket = IdealBucket(5.0, 10.0, 5.0)
    for _ in range(100):
        bucket.refill(bucket.time + rng.random())
        assert bucket.level <= bucket.capacity
    assert repr(bucket) == "IdealBucket(rate=5/s, capacity=10, level=10)"

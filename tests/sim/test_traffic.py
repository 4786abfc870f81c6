import random
from collections import Counter
from itertools import pairwise
from statistics import fmean, pvariance

import pytest

from sluicegate.sim.traffic import Cost, Poisson, Rate, Spread, Stream, Traffic

NODES = ["n1", "n2", "n3", "n4"]


def stream(**changes: object) -> Stream:
    given = {"service": "front", "user": "alice", "rate": Rate(((0.0, 100.0),)), **changes}
    return Stream(Traffic(**given), random.Random(1))  # type: ignore[arg-type]


def poured(stream: Stream, seconds: float, step: float = 0.1) -> Counter[str]:
    total: Counter[str] = Counter()
    for number in range(round(seconds / step)):
        for node, count in stream.counts((number + 0.5) * step, step, NODES):
            total[node] += count
    return total


@pytest.mark.parametrize("mean", [0.01, 0.5, 3.0, 30.0, 63.0, 65.0, 1000.0])
def test_draws_have_the_mean_and_the_variance_of_poisson(mean: float) -> None:
    drawn = Poisson(random.Random(1)).draw_many(mean, 20_000)
    assert min(drawn) >= 0
    assert fmean(drawn) == pytest.approx(mean, rel=0.08 if mean < 0.1 else 0.02)
    assert pvariance(drawn) == pytest.approx(mean, rel=0.1 if mean < 0.1 else 0.05)


def test_no_mean_draws_nothing() -> None:
    assert Poisson(random.Random(1)).draw_many(0.0, 3) == [0, 0, 0]


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (Rate(((0.0, 5.0),)), {0: 5, 99: 5}),
        (Rate(((0.0, 5.0), (10.0, 7.0))), {0: 5, 9.9: 5, 10: 7, 99: 7}),
        (Rate(((10.0, 7.0),)), {0: 0, 9.9: 0, 10: 7}),
        (Rate(((0.0, 0.0), (10.0, 100.0)), ramp=True), {0: 0, 5: 50, 9: 90, 10: 100, 50: 100}),
        (Rate(((0.0, 8.0),), cycle=(2.0, 3.0)), {0: 8, 1.9: 8, 2: 0, 4.9: 0, 5: 8, 7.1: 0}),
    ],
)
def test_rates_over_time(rate: Rate, expected: dict[float, float]) -> None:
    assert {time: rate.at(time) for time in expected} == expected


def test_the_changes_of_a_rate_are_its_jumps() -> None:
    assert Rate(((0.0, 5.0), (10.0, 7.0))).changes() == [10.0]
    assert Rate(((0.0, 5.0), (10.0, 7.0)), ramp=True).changes() == []


def test_traffic_is_spread_evenly_over_the_nodes_that_are_up() -> None:
    counts = poured(stream(), 200.0)
    assert sum(counts.values()) == pytest.approx(20_000, rel=0.03)
    assert set(counts) == set(NODES)
    assert min(counts.values()) == pytest.approx(5000, rel=0.06)


def test_weights_are_kept_and_a_node_that_is_down_gets_nothing() -> None:
    weights = Spread((("n1", 3.0), ("n2", 1.0), ("gone", 5.0)))
    counts = poured(stream(spread=weights), 200.0)
    assert counts["n1"] / counts["n2"] == pytest.approx(3.0, rel=0.08)
    assert counts["n1"] + counts["n2"] == pytest.approx(20_000, rel=0.03)
    assert not counts["gone"]


def test_even_arrivals_are_exact_and_do_not_come_all_at_once() -> None:
    even = stream(poisson=False, rate=Rate(((0.0, 1.0),)))
    per_second = [poured_at(even, second) for second in range(40)]
    assert sum(per_second) == 40
    assert max(per_second) <= 2


def poured_at(stream: Stream, second: int) -> int:
    return sum(
        count
        for tenth in range(10)
        for _, count in stream.counts(second + (tenth + 0.5) / 10, 0.1, NODES)
    )


def test_a_hopping_user_is_on_one_node_at_a_time_for_one_to_three_seconds() -> None:
    hopping = stream(spread=Spread(stay=(1.0, 3.0)))
    places = []
    for number in range(6000):
        ((node, _),) = hopping.counts((number + 0.5) * 0.1, 0.1, NODES)
        places.append(node)
    stays, length = [], 1
    for before, after in pairwise(places):
        if before == after:
            length += 1
        else:
            stays.append(length / 10)
            length = 1
    assert min(stays) >= 1.0
    assert max(stays) <= 3.11
    assert set(places) == set(NODES)


def test_traffic_moves_at_its_time() -> None:
    there, here = Spread((("n1", 1.0),)), Spread((("n2", 1.0),))
    moving = stream(spread=there, moves=((5.0, here),))
    assert {node for node, _ in moving.counts(4.95, 0.1, NODES)} == {"n1"}
    assert {node for node, _ in moving.counts(5.05, 0.1, NODES)} == {"n2"}
    assert moving.traffic.changes() == [5.0]


def test_drawn_costs_are_whole_and_have_their_mean_and_a_tail() -> None:
    rng = random.Random(1)
    costs = [Cost(1000.0, tail=2.5).draw(rng) for _ in range(50_000)]
    assert all(cost == int(cost) and cost >= 1 for cost in costs)
    assert fmean(costs) == pytest.approx(1000.0, rel=0.05)
    assert max(costs) > 10_000
    assert Cost(7.0).draw(rng) == 7.0


@pytest.mark.parametrize("tail", [1.1, 1.5, 3.0])
def test_no_drawn_cost_is_above_twenty_means(tail: float) -> None:
    rng = random.Random(2)
    costs = [Cost(100.0, tail=tail).draw(rng) for _ in range(50_000)]
    assert max(costs) == 2000.0
    assert fmean(costs) <= 103.0  # the tail that is cut makes it less


def test_the_expected_cost_of_a_request_is_its_mean() -> None:
    costs = {"bytes": Cost(9.0, tail=2.0), "requests": Cost(1.0)}
    assert stream(cost=costs).expected_cost == {"bytes": 9.0, "requests": 1.0}


def test_requests_that_cost_the_same_and_end_at_once_are_offered_together() -> None:
    assert stream().constant_cost == {"requests": 1.0}
    assert stream(cost={"bytes": Cost(9.0, tail=2.0)}).constant_cost is None
    assert stream(duration=1.0).constant_cost is None


def test_exact_arrivals_are_as_many_as_the_rate_and_in_order() -> None:
    times = list(stream(rate=Rate(((0.0, 100.0), (50.0, 20.0)))).arrivals(100.0, 0.1))
    assert times == sorted(times)
    assert sum(time < 50.0 for time in times) == pytest.approx(5000, rel=0.05)
    assert sum(time >= 50.0 for time in times) == pytest.approx(1000, rel=0.1)
    gaps = [after - before for before, after in pairwise(time for time in times if time < 50.0)]
    assert pvariance(gaps) == pytest.approx(0.01**2, rel=0.15)  # of a Poisson process


def test_even_arrivals_have_the_same_distance_also_across_steps() -> None:
    times = list(stream(rate=Rate(((0.0, 3.0),)), poisson=False).arrivals(10.0, 0.1))
    assert len(times) == 30
    assert all(after - before == pytest.approx(1 / 3) for before, after in pairwise(times))


def test_requests_that_come_together_are_as_many_in_all() -> None:
    times = list(stream(together=10).arrivals(100.0, 0.1))
    assert 10 * len(times) == pytest.approx(10_000, rel=0.1)


def test_nothing_arrives_in_the_quiet_part_of_a_cycle() -> None:
    rate = Rate(((0.0, 100.0),), cycle=(1.0, 3.0))
    times = list(stream(rate=rate).arrivals(40.0, 0.1))
    assert len(times) == pytest.approx(1000, rel=0.1)
    assert all(time % 4.0 < 1.0 for time in times)


@pytest.mark.parametrize("poisson", [True, False])
def test_places_follow_the_weights_and_the_moves(poisson: bool) -> None:
    weights = Spread((("n1", 1.0), ("n2", 3.0)))
    going = stream(spread=weights, moves=((10.0, Spread((("n3", 1.0),))),), poisson=poisson)
    places = Counter(going.place(1.0, NODES) for _ in range(4000))
    assert places["n2"] == pytest.approx(3000, rel=0.05)
    assert places["n1"] + places["n2"] == 4000
    assert going.place(10.0, NODES) == "n3"
    assert going.place(11.0, ["n1"]) is None
    assert going.place(12.0, []) is None

"""`RoundRobin`: exact shares, evenly spread, in nginx's order where that is."""

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.balance import RoundRobin, Server


def servers(weights: list[int]) -> list[Server]:
    return [Server(f"s{number}", weight) for number, weight in enumerate(weights)]


def order(balancer: RoundRobin, picks: int) -> str:
    return "".join(balancer.pick().address for _ in range(picks))


def test_the_order_of_5_1_1_is_that_of_nginx() -> None:
    balancer = RoundRobin([Server("a", 5), Server("b", 1), Server("c", 1)])
    assert order(balancer, 14) == "aabacaaaabacaa"


def test_equal_servers_take_turns() -> None:
    assert order(RoundRobin(["a", "b", "c"]), 7) == "abcabca"


def nginx_order(weights: list[int]) -> list[int]:
    """As nginx does it: raise all, take the highest, lower it by the sum."""
    current = [0] * len(weights)
    picked = []
    for _ in range(sum(weights)):
        current = [value + weight for value, weight in zip(current, weights, strict=True)]
        best = current.index(max(current))
        current[best] -= sum(weights)
        picked.append(best)
    return picked


def deviations(weights: list[int], picked: list[int]) -> list[Fraction]:
    """How far each server is from its exact share after each pick, in requests."""
    total, counts, found = sum(weights), Counter[int](), []
    for step, number in enumerate(picked, 1):
        counts[number] += 1
        found += [
            abs(Fraction(step * weight, total) - counts[one]) for one, weight in enumerate(weights)
        ]
    return found


@given(
    st.lists(st.integers(1, 6) | st.integers(1, 60), min_size=1, max_size=16),
)
def test_up_to_16_servers_have_the_order_of_nginx_where_that_is_even(weights: list[int]) -> None:
    balancer = RoundRobin(servers(weights))
    picked = [int(balancer.pick().address[1:]) for _ in range(sum(weights))]
    expected = nginx_order(weights)
    assert picked == expected or max(deviations(weights, expected)) >= 1


WEIGHTS = st.lists(st.integers(1, 5) | st.integers(1, 60), min_size=1, max_size=40)


@given(WEIGHTS, st.integers(1, 3))
def test_shares_are_exact_over_each_cycle_and_within_one_request_at_any_time(
    weights: list[int], cycles: int
) -> None:
    balancer = RoundRobin(servers(weights))
    for _ in range(cycles):
        picked = [int(balancer.pick().address[1:]) for _ in range(sum(weights))]
        assert Counter(picked) == dict(enumerate(weights))
        assert max(deviations(weights, picked)) < 1


@pytest.mark.parametrize(
    "weights",
    [
        [1, 3, 3, 3, 36, 5, 1, 1, 2, 49],  # nginx is 1.15 requests off
        [1_000_000, 1],  # an order too long to be kept
        [7] * 1000,
        [1, 1_000_000, 999_999] * 8,
    ],
    ids=["uneven in nginx", "long", "many", "many and long"],
)
def test_orders_that_are_given_out_by_deadlines_are_even_too(weights: list[int]) -> None:
    balancer = RoundRobin(servers(weights))
    picked = [int(balancer.pick().address[1:]) for _ in range(3000)]
    total, counts = sum(weights), Counter[int]()
    for step, number in enumerate(picked, 1):
        counts[number] += 1
        assert -1 < Fraction(step * weights[number], total) - counts[number] < 1
    for number, weight in enumerate(weights):
        assert abs(Fraction(len(picked) * weight, total) - counts[number]) < 1


def test_a_change_goes_on_behind_the_last_server() -> None:
    balancer = RoundRobin(["a", "b", "c"])
    assert order(balancer, 2) == "ab"
    balancer.add("d")
    assert order(balancer, 5) == "cdabc"
    balancer.mark_down("d")
    assert order(balancer, 4) == "abca"
    balancer.remove("b")
    balancer.mark_up("d")
    assert order(balancer, 4) == "cdac"


def test_many_servers_go_on_behind_the_last_one_too() -> None:
    balancer = RoundRobin([f"{number:02}" for number in range(20)])
    assert order(balancer, 3) == "000102"
    balancer.mark_down("05")
    assert order(balancer, 4) == "03040607"


@pytest.mark.parametrize("count", [5, 50])
def test_balancers_may_begin_at_random_places(count: int) -> None:
    names = [str(number) for number in range(count)]
    firsts = {RoundRobin(names, random_start=True, seed=seed).pick().address for seed in range(40)}
    assert len(firsts) > 3
    balancer = RoundRobin(names, random_start=True)
    assert Counter(balancer.pick().address for _ in range(3 * count)) == dict.fromkeys(names, 3)


@pytest.mark.parametrize("weights", [[10, 1, 1, 1], [1, 2, 3] * 7, [1, 1_000_000, 999_999]])
@pytest.mark.parametrize("every", [1, 2, 5, 10])
def test_shares_hold_while_another_server_comes_and_goes(weights: list[int], every: int) -> None:
    """A change each few picks must not begin the order anew: light servers would get nothing."""
    balancer = RoundRobin([*servers(weights), "other"], seed=1)
    counts = Counter[str]()
    for step in range(4000):
        if step % every == 0:
            (balancer.mark_down if step // every % 2 else balancer.mark_up)("other")
        counts[balancer.pick().address] += 1
    del counts["other"]
    for number, weight in enumerate(weights):
        expected = weight / sum(weights) * counts.total()
        assert counts[f"s{number}"] == pytest.approx(expected, rel=0.15, abs=25)


def test_a_changed_weight_counts_at_once() -> None:
    balancer = RoundRobin(["a", "b"])
    balancer.set_weight("a", 3)
    assert Counter(order(balancer, 400)) == {"a": 300, "b": 100}
    assert balancer.servers == [Server("a", 3), Server("b", 1)]

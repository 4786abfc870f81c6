"""`WeightedRandom`: the alias method gives each server its probability."""

import itertools
from collections import Counter

import pytest

from sluicegate.balance import Server, WeightedRandom

# The value of chi-square that 1 in 1,000,000 fair draws exceeds, by degrees of freedom.
CRITICAL = {1: 23.9, 2: 27.6, 9: 45.1, 99: 182.0}


@pytest.mark.parametrize(
    "weights",
    [[1, 1], [5, 1, 1], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [1 + number % 7 for number in range(100)]],
    ids=["two", "three", "ten", "hundred"],
)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_picks_have_the_distribution_of_the_weights(weights: list[int], seed: int) -> None:
    balancer = WeightedRandom(
        [Server(str(number), weight) for number, weight in enumerate(weights)], seed=seed
    )
    picks = 100_000
    counts = Counter(balancer.pick().address for _ in range(picks))
    chi_square = 0.0
    for number, weight in enumerate(weights):
        expected = picks * weight / sum(weights)
        chi_square += (counts[str(number)] - expected) ** 2 / expected
    assert chi_square < CRITICAL[len(weights) - 1]


def test_picks_do_not_depend_on_the_pick_before() -> None:
    balancer = WeightedRandom([Server("a", 3), Server("b", 1)], seed=7)
    picked = [balancer.pick().address for _ in range(100_000)]
    after_b = Counter(second for first, second in itertools.pairwise(picked) if first == "b")
    assert after_b["a"] / after_b.total() == pytest.approx(0.75, abs=0.02)


def test_the_largest_and_the_smallest_weight_go_together() -> None:
    balancer = WeightedRandom([Server("large", 1_000_000), Server("small", 1)], seed=1)
    counts = Counter(balancer.pick().address for _ in range(100_000))
    assert counts["small"] <= 5


def test_a_seed_repeats_the_picks_and_without_one_they_differ() -> None:
    def picks(**options: int) -> list[str]:
        balancer = WeightedRandom(["a", "b", "c"], **options)  # type: ignore[arg-type]
        return [balancer.pick().address for _ in range(50)]

    assert picks(seed=5) == picks(seed=5)
    assert picks() != picks()


def test_a_server_that_is_down_is_not_picked() -> None:
    balancer = WeightedRandom([Server("a", 100), Server("b", 1), Server("c", 1)], seed=3)
    balancer.mark_down("a")
    counts = Counter(balancer.pick().address for _ in range(10_000))
    assert set(counts) == {"b", "c"}
    assert counts["b"] == pytest.approx(5_000, abs=400)

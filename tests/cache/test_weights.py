"""Entries that weigh more than one: what fits, what has to go, what is turned away."""

import random
from typing import Any

import pytest

from sluicegate.cache import POLICIES, Fifo, TinyLfu


@pytest.fixture(params=POLICIES.values(), ids=POLICIES.keys())
def policy(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_the_total_weight_never_exceeds_the_capacity(policy: Any) -> None:
    rng = random.Random(5)
    gone: list[Any] = []
    cache = policy(100, weigh=lambda key, value: value, on_evict=lambda *item: gone.append(item))
    put = 0
    for _ in range(3000):
        key, weight = rng.randrange(60), rng.choice([1, 2, 5, 30, 101])
        if cache.get(key) is None:
            cache[key] = weight
            put += 1
        assert cache.weight == sum(cache.values()) <= 100
    assert len(gone) == cache.evictions
    assert put == len(cache) + len(gone)  # nothing is lost without a word


def test_what_is_heavier_than_the_capacity_is_not_stored(policy: Any) -> None:
    gone: list[Any] = []
    cache = policy(10, on_evict=lambda *item: gone.append(item))
    cache.update(a=1, b=2)
    cache.set("c", 3, weight=11)
    assert cache == {"a": 1, "b": 2}
    cache.set("a", 4, weight=11)  # the old value of the key is not what the caller wants any more
    assert cache == {"b": 2}
    assert gone == [("c", 3), ("a", 4)]
    assert cache.evictions == 2


def test_a_replacement_changes_the_weight(policy: Any) -> None:
    cache = policy(10)
    cache.set("a", 1, weight=3)
    cache.set("a", 2, weight=7)
    assert (cache["a"], cache.weight) == (2, 7)
    cache["a"] = 3
    assert (cache["a"], cache.weight) == (3, 1)


def test_an_entry_that_grows_makes_others_go_and_not_itself() -> None:
    gone: list[Any] = []
    cache: Fifo[str, int] = Fifo(10, on_evict=lambda key, value: gone.append(key))
    cache.set("oldest", 1, weight=2)
    cache.set("b", 2, weight=4)
    cache.set("c", 3, weight=4)
    cache.set("oldest", 4, weight=6)
    assert gone == ["b"]
    assert cache == {"c": 3, "oldest": 4}
    assert list(cache) == ["c", "oldest"]  # it came in anew


def test_weigh_is_asked_for_each_value_unless_a_weight_is_given() -> None:
    asked: list[Any] = []

    def weigh(key: str, value: int) -> int:
        asked.append((key, value))
        return value

    cache: Fifo[str, int] = Fifo(100, weigh=weigh)
    cache["a"] = 2
    cache.setdefault("a", 3)
    cache.setdefault("b", 4)
    cache.set("c", 5, weight=1)
    assert asked == [("a", 2), ("b", 4)]
    assert cache.weight == 7


def test_a_weigh_that_fails_changes_nothing(policy: Any) -> None:
    cache = policy(10, weigh=lambda key, value: 1 // value)
    cache["a"] = 1
    with pytest.raises(ZeroDivisionError):
        cache["a"] = 0
    with pytest.raises(TypeError, match="weigh.* must be an int, got '1'"):
        policy(10, weigh=lambda key, value: "1")["a"] = 1
    assert cache == {"a": 1}


def test_tiny_lfu_turns_away_a_heavy_entry_that_is_used_less_than_what_it_would_force_out() -> None:
    # Keys are ints: their hashes, and so their counters in the sketch, are always the same.
    gone: list[int] = []
    cache: TinyLfu[int, int] = TinyLfu(100, on_evict=lambda key, value: gone.append(key))
    for popular in range(50):
        cache.set(popular, 0, weight=2)
        cache.get(popular)
    rare = 1_000
    cache.set(rare, 0, weight=50)
    assert gone == [rare]
    for _ in range(3):
        cache.set(rare, 0, weight=50)
    assert rare in cache
    assert cache.weight == 100

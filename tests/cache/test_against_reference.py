"""Each policy against plain Python, operation by operation: answers, contents, order, evictions."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate import ManualClock
from sluicegate.cache import POLICIES
from tests.cache.reference import REFERENCES

TICK = 1e-3  # between operations, so that no two entries expire at the same time

Operation = tuple[Any, ...]

keys = st.integers(0, 11)
operations = st.one_of(
    st.tuples(st.sampled_from(["get", "get", "set", "set", "setdefault", "del"]), keys),
    st.tuples(st.sampled_from(["pop", "peek", "in"]), keys),
    st.tuples(st.sampled_from(["popitem", "expire", "len", "clear"])),
    st.tuples(st.just("set with ttl"), keys, st.sampled_from([0.5, 2.0, 7.0])),
    st.tuples(st.just("set with weight"), keys, st.integers(1, 7)),
    st.tuples(st.just("advance"), st.sampled_from([0.3, 1.1, 6.0])),
)


class Pair:
    """A cache and its reference, to which the same is done."""

    def __init__(
        self, name: str, capacity: int, ttl: float | None = None, is_weighed: bool = False
    ) -> None:
        self.clock = ManualClock()
        weigh = (lambda key, value: 1 + key % 3) if is_weighed else None
        self.evicted: list[tuple[Any, Any]] = []
        self.cache = POLICIES[name](
            capacity,
            ttl=ttl,
            weigh=weigh,
            clock=self.clock,
            on_evict=lambda key, value: self.evicted.append((key, value)),
        )
        self.reference = REFERENCES[name](capacity, self.clock, ttl, weigh)
        self.values = 0

    def do(self, operation: Operation) -> None:
        self.clock.advance(TICK)
        self.values += 1
        name, *arguments = operation
        ours, theirs = ACTS[name](self, *arguments)
        assert ours == theirs, operation

    def compare(self) -> None:
        assert self.evicted == self.reference.evicted
        ours, theirs = self.cache.stats(), self.reference
        theirs.expire()
        assert (ours.hits, ours.misses) == (theirs.hits, theirs.misses)
        assert (ours.evictions, ours.expirations) == (theirs.evictions, theirs.expirations)
        assert (ours.size, ours.weight) == (len(theirs.entries), theirs.weight)
        assert ours.weight <= ours.capacity
        assert list(self.cache) == theirs.order()
        assert dict(self.cache.items()) == {k: e.value for k, e in theirs.entries.items()}
        assert self.evicted == self.reference.evicted


def popitem(pair: Pair) -> tuple[Any, Any]:
    try:
        return pair.cache.popitem(), pair.reference.popitem()
    except KeyError:
        return None, pair.reference.popitem()


def delete(pair: Pair, key: int) -> tuple[Any, Any]:
    try:
        del pair.cache[key]
    except KeyError:
        return None, pair.reference.pop(key)
    return True, pair.reference.pop(key) is not None


ACTS: dict[str, Callable[..., tuple[Any, Any]]] = {
    "get": lambda pair, key: (pair.cache.get(key), pair.reference.get(key)),
    "set": lambda pair, key: (
        pair.cache.set(key, pair.values),
        pair.reference.set(key, pair.values),
    ),
    "set with ttl": lambda pair, key, ttl: (
        pair.cache.set(key, pair.values, ttl=ttl),
        pair.reference.set(key, pair.values, ttl=ttl),
    ),
    "set with weight": lambda pair, key, weight: (
        pair.cache.set(key, pair.values, weight=weight),
        pair.reference.set(key, pair.values, weight=weight),
    ),
    "setdefault": lambda pair, key: (
        pair.cache.setdefault(key, pair.values),
        pair.reference.setdefault(key, pair.values),
    ),
    "del": delete,
    "pop": lambda pair, key: (pair.cache.pop(key, None), pair.reference.pop(key)),
    "popitem": popitem,
    "peek": lambda pair, key: (pair.cache.peek(key), pair.reference.peek(key)),
    "in": lambda pair, key: (key in pair.cache, pair.reference.is_live(key)),
    "expire": lambda pair: (pair.cache.expire(), pair.reference.expire()),
    "len": lambda pair: (
        len(pair.cache),
        pair.reference.expire() * 0 + len(pair.reference.entries),
    ),
    "advance": lambda pair, seconds: (pair.clock.advance(seconds), None),
    "clear": lambda pair: (pair.cache.clear(), pair.reference.clear()),
}


@pytest.mark.parametrize("name", POLICIES)
@given(
    capacity=st.integers(1, 6),
    ttl=st.sampled_from([None, None, 3.0]),
    is_weighed=st.booleans(),
    steps=st.lists(operations, min_size=10, max_size=60),
)
def test_each_operation_does_what_the_reference_does(
    name: str, capacity: int, ttl: float | None, is_weighed: bool, steps: list[Operation]
) -> None:
    pair = Pair(name, capacity, ttl, is_weighed)
    for step in steps:
        pair.do(step)
        pair.compare()


@pytest.mark.parametrize("name", POLICIES)
@given(capacity=st.integers(1, 12), trace=st.lists(st.integers(0, 25), max_size=200))
def test_a_trace_has_the_same_hits_and_victims(name: str, capacity: int, trace: list[int]) -> None:
    pair = Pair(name, capacity)
    for key in trace:
        pair.do(("setdefault", key))
    pair.compare()


@pytest.mark.parametrize("is_weighed", [False, True], ids=["counted", "weighed"])
@pytest.mark.parametrize("name", POLICIES)
def test_a_long_random_run_stays_equal(name: str, is_weighed: bool) -> None:
    rng = random.Random(f"{name} {is_weighed}")
    pair = Pair(name, 150, None, is_weighed)  # more than TinyLfu's sketch begins with
    acts = rng.choices(
        ["setdefault", "set", "del", "get", "set with ttl"], [60, 20, 5, 20, 8], k=5000
    )
    for number, act in enumerate(acts):
        key = int(700 * rng.random() ** 3)  # small ones are popular
        pair.do((act, key, rng.uniform(0.02, 0.2)) if act == "set with ttl" else (act, key))
        if number % 100 == 0:
            pair.compare()
    assert pair.reference.evictions > 500
    assert pair.reference.expirations > 30
    pair.do(("clear",))
    for _ in range(1000):
        pair.do(("setdefault", int(300 * rng.random() ** 2)))
    pair.compare()


def test_the_window_of_tiny_lfu_climbs_as_that_of_the_reference() -> None:
    # 500 requests are a step. What is used soon again takes turns with what is used often.
    rng = random.Random(3)
    pair = Pair("tinylfu", 50)
    limits = set()
    for number in range(20_000):
        is_recent = number // 5_000 % 2
        key = 1_000 + number // 3 - int(rng.expovariate(0.05)) if is_recent else rng.randrange(90)
        pair.do(("setdefault", key))
        if number % 100 == 0:
            pair.compare()
            limits.add(pair.reference.window_limit)
    assert len(limits) > 5

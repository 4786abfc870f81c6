"""What all policies are: a mutable mapping with counters, whatever happens while it works."""

import copy
import gc
import pickle
import random
import sys
import weakref
from collections.abc import Callable, MutableMapping
from typing import Any

import pytest

from sluicegate.cache import POLICIES, Cache, CacheStats, Fifo, Lfu, Lru, make


@pytest.fixture(params=POLICIES.values(), ids=POLICIES.keys())
def policy(request: pytest.FixtureRequest) -> Any:
    return request.param


# --- a mapping


def test_a_cache_is_a_mutable_mapping(policy: Any) -> None:
    cache = policy(10)
    assert isinstance(cache, MutableMapping)
    cache["a"] = 1
    cache.update({"b": 2}, c=3)
    cache.update([("d", 4)])
    assert len(cache) == 4
    assert cache == {"a": 1, "b": 2, "c": 3, "d": 4}
    assert cache != {"a": 1}
    assert cache != [("a", 1)]
    assert "a" in cache
    assert "z" not in cache
    assert cache.setdefault("a", 9) == 1
    assert cache.setdefault("e", 5) == 5
    assert cache.pop("e") == 5
    assert cache.pop("e", None) is None
    del cache["d"]
    assert sorted(cache) == sorted(cache.keys()) == ["a", "b", "c"]
    assert sorted(cache.values()) == [1, 2, 3]
    assert sorted(cache.items()) == [("a", 1), ("b", 2), ("c", 3)]
    assert cache.keys() & {"a", "z"} == {"a"}
    assert ("a", 1) in cache.items()
    assert ("a", 2) not in cache.items()
    assert 3 in cache.values()
    assert len(cache.items()) == 3
    cache.clear()
    assert len(cache) == 0
    assert list(cache) == []


def test_what_is_missing_raises_a_key_error(policy: Any) -> None:
    cache = policy(2)
    for missing in (lambda: cache["a"], lambda: cache.pop("a"), lambda: cache.__delitem__("a")):
        with pytest.raises(KeyError, match="a"):
            missing()
    with pytest.raises(KeyError, match="the cache is empty"):
        cache.popitem()


def test_one_key_may_have_many_forms(policy: Any) -> None:
    cache = policy(10)
    cache[1] = "one"
    assert (cache[1.0], cache[True]) == ("one", "one")
    cache[(1, "a")] = "tuple"
    assert cache[(True, "a")] == "tuple"
    cache[None] = "none"
    cache[b"a"] = "bytes"
    cache["a"] = "str"
    assert len(cache) == 5


def test_unhashable_keys_and_the_hash_of_a_cache_raise_type_errors(policy: Any) -> None:
    cache = policy(2)
    for act in (
        lambda: cache[[]],
        lambda: cache.set([], 1),
        lambda: [] in cache,
        lambda: hash(cache),
    ):
        with pytest.raises(TypeError, match="unhashable type"):
            act()


def test_the_capacity_is_never_exceeded(policy: Any) -> None:
    cache = policy(10)
    for key in range(1000):
        cache[key % 37] = key
        assert len(cache) == min(key + 1, 10)
    for capacity in (1, 2, 3):
        small = policy(capacity)
        for key in range(50):
            small[key % 7] = key
        assert len(small) == capacity


def test_popitem_removes_what_would_be_evicted_next(policy: Any) -> None:
    cache, evicted = policy(10), []
    twin = policy(10, on_evict=lambda key, value: evicted.append((key, value)))
    for key in [*range(10), 3, 4, 3, 12, 15, 3]:
        for one in (cache, twin):
            if one.get(key) is None:
                one[key] = key
    evicted.clear()
    twin["new"] = 0
    assert cache.popitem() == evicted[0]
    while cache:
        cache.popitem()
    assert cache.weight == 0


def test_iterating_shows_the_keys_of_one_moment(policy: Any) -> None:
    cache = policy(100)
    for key in range(50):
        cache[key] = key
    seen = []
    for key in cache:
        seen.append(key)
        cache.pop(key)
        cache[1000 + key] = key
    assert sorted(seen) == list(range(50))


def test_a_cache_looks_into_generic_types_and_subclasses() -> None:
    class Named(Lru[str, int]):
        name = "mine"

    cache = Named(2)
    cache["a"] = 1
    assert (cache.name, cache["a"]) == ("mine", 1)
    assert repr(cache) == "Named(capacity=2, size=1, hits=1, misses=0)"
    assert weakref.ref(cache)() is cache


def test_a_cache_is_neither_copied_nor_pickled(policy: Any) -> None:
    for act in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            act(policy(2))


# --- counters


def test_get_and_item_count_and_the_rest_does_not() -> None:
    cache: Lru[str, int] = Lru(2)
    cache["a"] = 1
    for read in (
        lambda: cache["a"],
        lambda: cache.get("a"),
        lambda: cache.get("b", 0),
        lambda: cache.setdefault("a", 2),
        lambda: cache.peek("a"),
        lambda: cache.peek("b"),
        lambda: "b" in cache,
        lambda: [*cache.items(), *cache.values(), *cache.keys()],
        lambda: cache.pop("b", None),
    ):
        read()
    assert cache.stats() == CacheStats(3, 1, 0, 0, size=1, weight=1, capacity=2)
    assert cache.stats().hit_ratio == 0.75
    cache.update(b=2, c=3)
    assert (cache.hits, cache.misses, cache.evictions, cache.expirations) == (3, 1, 1, 0)
    cache.reset_stats()
    assert cache.stats() == CacheStats(0, 0, 0, 0, 2, 2, 2)
    assert cache.stats().hit_ratio == 0.0


def test_peek_and_in_do_not_tell_the_policy() -> None:
    cache: Lru[str, int] = Lru(2)
    cache.update(a=1, b=2)
    assert cache.peek("a") == 1
    assert "a" in cache
    cache["c"] = 3
    assert sorted(cache) == ["b", "c"]


# --- names and arguments


def test_a_policy_is_made_by_any_spelling_of_its_name() -> None:
    assert type(make("S3-FIFO", 10)) is POLICIES["s3fifo"]
    assert type(make("tiny_lfu", 10, ttl=5)) is POLICIES["tinylfu"]
    assert make("LRU", 10).capacity == 10
    assert list(POLICIES) == ["fifo", "lru", "lfu", "clock", "arc", "sieve", "s3fifo", "tinylfu"]
    with pytest.raises(ValueError, match="name must be one of fifo, lru, .*, tinylfu, got 'mru'"):
        make("mru", 10)


WRONG: dict[str, tuple[Callable[[Any], object], type[Exception], str]] = {
    "capacity 0": (lambda p: p(0), ValueError, "capacity must be from 1 to 2.53, got 0"),
    "capacity float": (lambda p: p(1.5), TypeError, "capacity must be an int, got 1.5"),
    "ttl 0": (lambda p: p(1, ttl=0), ValueError, "ttl must be a finite number above 0, got 0"),
    "ttl inf": (lambda p: p(1, ttl=float("inf")), ValueError, "ttl must be a finite number"),
    "on_evict": (lambda p: p(1, on_evict=3), TypeError, "on_evict must be a function .*, got 3"),
    "weigh": (lambda p: p(1, weigh="x"), TypeError, "weigh must be a function .*, got 'x'"),
    "clock": (lambda p: p(1, clock=3), TypeError, "clock must have a method now.., got 3"),
    "set ttl": (lambda p: p(1).set("a", 1, ttl=-1), ValueError, "ttl must be .*, got -1"),
    "set weight": (lambda p: p(1).set("a", 1, weight=0), ValueError, "weight must be from 1"),
    "weighed 0": (
        lambda p: p(1, weigh=lambda key, value: 0).set("a", 1),
        ValueError,
        "weigh.key, value. must be from 1 to 2.53, got 0",
    ),
    "twice": (lambda p: p(1).__init__(2), RuntimeError, "is set up already"),
}


@pytest.mark.parametrize(("act", "error", "message"), WRONG.values(), ids=WRONG.keys())
def test_wrong_arguments_raise_at_once(
    policy: Any, act: Callable[[Any], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        act(policy)


def test_a_cache_without_a_policy_or_without_init_does_no_harm(policy: Any) -> None:
    with pytest.raises(TypeError, match="Cache has no policy"):
        Cache(10)
    empty = policy.__new__(policy)
    empty["a"] = 1
    assert (len(empty), list(empty), empty.get("a")) == (0, [], None)
    empty.clear()


# --- objects are released, and code in keys, values and callbacks does no harm


def test_keys_and_values_are_released(policy: Any) -> None:
    class Thing:
        pass

    def fill(cache: Any) -> None:
        for thing in things:
            cache[thing] = thing
            cache[thing] = thing
            cache.get(thing)

    things = [Thing() for _ in range(300)]
    before = [sys.getrefcount(thing) for thing in things]
    cache = policy(20)
    fill(cache)
    cache.pop(next(iter(cache)))
    cache.popitem()
    cache.clear()
    assert [sys.getrefcount(thing) for thing in things] == before
    fill(cache)
    del cache
    assert [sys.getrefcount(thing) for thing in things] == before


def test_the_garbage_collector_finds_a_cycle_through_a_value_and_a_key(policy: Any) -> None:
    class Owner:
        pass

    marker = object()  # a weak reference would be dead even if nothing was freed
    before = sys.getrefcount(marker)
    for make_cycle in (
        lambda owner: owner.cache.set("me", owner),
        lambda owner: owner.cache.set(owner, "me"),
        lambda owner: owner.cache.set("cache", owner.cache),
        lambda owner: [owner.cache.set((owner, i), i) for i in range(40)],  # ghosts, too
    ):
        owner = Owner()
        owner.cache = policy(10, on_evict=lambda key, value, owner=owner: None)
        make_cycle(owner)
        owner.cache.set("marker", marker)
    del owner
    gc.collect()
    assert sys.getrefcount(marker) == before


def test_the_garbage_collector_may_run_code_that_changes_the_cache(policy: Any) -> None:
    class Meddler:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            for number in range(rng.randrange(4)):
                cache[rng.randrange(100)] = number
                cache.pop(rng.randrange(100), None)

    rng = random.Random(1)
    cache = policy(50)
    kept: list[Any] = []  # so that each list has to be allocated, which may start a collection
    threshold = gc.get_threshold()
    try:
        for number in range(600):
            Meddler()
            gc.set_threshold(1 + number % 6)
            kept.append(cache._snapshot())
            gc.set_threshold(0)
            assert None not in kept[-1][1]
            cache[rng.randrange(100)] = [rng.random()]
    finally:
        gc.set_threshold(*threshold)
    for keys, values in kept:
        assert len(set(keys)) == len(keys) == len(values)


class Grumpy:
    """A key that calls a function when it is compared; all have the same hash."""

    def __init__(self, name: str, on_compare: Callable[[], object]) -> None:
        self.name = name
        self.on_compare = on_compare

    def __hash__(self) -> int:
        return 7

    def __eq__(self, other: object) -> bool:
        self.on_compare()
        return isinstance(other, Grumpy) and self.name == other.name


def test_a_comparison_that_raises_leaves_the_cache_as_it_was(policy: Any) -> None:
    def fail() -> None:
        if is_failing:
            raise ValueError("cannot compare")

    is_failing = False
    cache = policy(3)
    for name in "abc":
        cache[Grumpy(name, fail)] = name
    for act in (
        lambda key: cache[key],
        lambda key: cache.set(key, 1),
        lambda key: cache.pop(key),
        lambda key: key in cache,
        lambda key: cache.setdefault(key, 1),
    ):
        is_failing = True
        with pytest.raises(ValueError, match="cannot compare"):
            act(Grumpy("c", fail))
        is_failing = False
        assert sorted(cache.values()) == ["a", "b", "c"]
    cache[Grumpy("d", fail)] = "d"
    assert len(cache) == 3


def test_a_comparison_may_change_the_cache(policy: Any) -> None:
    cache = policy(5)
    left: list[str] = []

    def meddle() -> None:
        if not left:
            return
        act = left.pop()
        if act == "clear":
            cache.clear()
        elif act == "set":
            cache.update({number: number for number in range(20)})
        elif act == "pop":
            cache.pop(next(iter(cache)), None)
        elif cache:
            cache.popitem()

    for act in (lambda key: cache.set(key, 1), cache.get, lambda key: cache.pop(key, None)):
        for name in "abcab":
            cache.update({Grumpy(other, meddle): other for other in "abc"})
            left.extend(["clear", "set", "pop", "set", "popitem"])
            act(Grumpy(name, meddle))
            left.clear()
            assert len(cache) == len(list(cache)) <= 5
            for key in cache:
                assert key in cache


def test_a_comparison_that_always_changes_the_cache_raises(policy: Any) -> None:
    cache = policy(100_000)
    numbers = iter(range(10**9))
    cache[Grumpy("a", lambda: cache.set(next(numbers), 0))] = 1
    with pytest.raises(RuntimeError, match="the cache changed in each of 10000 comparisons with"):
        cache.get(Grumpy("b", lambda: None))


def test_the_destructor_of_a_dropped_value_may_use_the_cache(policy: Any) -> None:
    cache = policy(5)
    ended = []

    class Talkative:
        def __init__(self, name: int) -> None:
            self.name = name

        def __del__(self) -> None:
            ended.append(self.name)
            if self.name < 100:
                cache[self.name] = Talkative(self.name + 100)
                cache.get(self.name)

    for name in range(60):
        cache[name % 7] = Talkative(name)
        assert len(cache) <= 5
    cache.clear()
    gc.collect()
    assert sorted(set(ended)) >= list(range(60))


def test_on_evict_may_use_the_cache_and_sees_the_change_complete(policy: Any) -> None:
    kept: dict[int, int] = {}

    def keep(key: int, value: int) -> None:
        assert key not in cache
        assert len(cache) <= 4
        kept[key] = value
        if value < 3:
            cache[key + 100] = 3  # evicts in its turn
            cache.get(key)

    cache = policy(4, on_evict=keep)
    for key in range(20):
        cache[key] = key % 5
    assert len(kept) == cache.evictions
    assert len(cache) == 4


def test_errors_of_on_evict_are_raised_after_all_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    later: list[BaseException] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: later.append(report.exc_value))
    called = []

    def fail(key: str, value: int) -> None:
        called.append(key)
        raise ValueError(f"cannot store {key}")

    cache: Fifo[str, int] = Fifo(3, on_evict=fail)
    cache.update(a=1, b=2, c=3)
    with pytest.raises(ValueError, match="cannot store a"):
        cache.set("heavy", 4, weight=3)
    assert called == ["a", "b", "c"]
    assert [str(error) for error in later] == ["cannot store b", "cannot store c"]
    assert cache == {"heavy": 4}


def test_on_evict_is_not_called_for_what_the_user_removes(policy: Any) -> None:
    cache = policy(3, on_evict=lambda key, value: pytest.fail("called"))
    cache.update(a=1, b=2, c=3)
    cache["a"] = 4
    del cache["a"]
    cache.popitem()
    cache.clear()


# --- what the policies do, in small


@pytest.mark.parametrize(
    ("name", "survivors"),
    [
        ("fifo", "cde"),  # a and b came first
        ("lru", "ade"),  # a was used last before d came
        ("clock", "ade"),
        ("sieve", "ade"),
        ("lfu", "ace"),  # a was used twice; c later than b; d is as new as e: see below
    ],
)
def test_a_short_story(name: str, survivors: str) -> None:
    cache = make(name, 3)
    cache.update(a=1, b=2, c=3)
    cache.get("a")
    if name == "lfu":
        cache.get("c")
    cache["d"] = 4
    cache["e"] = 5
    assert "".join(sorted(cache)) == survivors


def test_sieve_walks_from_the_oldest_and_leaves_survivors_in_place() -> None:
    # The example of the paper's blog: hits on A, B and G; then H to J come.
    cache = make("sieve", 7)
    for key in "GFEDCBA":
        cache[key] = key
    for key in "ABG":
        cache.get(key)
    cache["H"] = "H"  # the hand passes G, which was visited, and evicts F
    assert "".join(cache) == "GEDCBAH"
    cache.get("A")
    cache.get("D")
    cache["I"] = "I"
    cache["J"] = "J"  # E goes, then C: the hand passed D
    assert "".join(cache) == "GDBAHIJ"


def test_lfu_evicts_the_least_recent_of_the_least_frequent() -> None:
    cache: Lfu[str, int] = Lfu(4)
    cache.update(a=1, b=2, c=3, d=4)
    for key in "aabbcd":
        cache.get(key)
    assert [cache.popitem()[0] for _ in range(4)] == ["c", "d", "a", "b"]


def test_a_key_whose_comparison_lets_others_write_is_found(policy: Any) -> None:
    """A search begins anew after a change, but not when it has found its key."""

    class Key:
        def __init__(self, number: int) -> None:
            self.number = number

        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            cache[f"written {len(written)}"] = written.append(None)
            return isinstance(other, Key) and other.number == self.number

    written: list[None] = []
    cache = policy(1000)
    cache[Key(1)] = "value"
    assert cache.get(Key(1)) == "value"
    assert len(written) < 10

"""Entries that expire: when, who notices, and what it costs the others."""

import math
from typing import Any

import pytest

from sluicegate import ManualClock
from sluicegate.cache import POLICIES, Lru
from sluicegate.clock import SystemClock


@pytest.fixture(params=POLICIES.values(), ids=POLICIES.keys())
def policy(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_an_entry_expires_when_its_time_is_over(policy: Any, clock: ManualClock) -> None:
    cache = policy(10, ttl=5, clock=clock)
    assert cache.ttl == 5
    cache["default"] = 1
    cache.set("short", 2, ttl=1)
    cache.set("long", 3, ttl=60)
    timeline = [
        (0.999, {"default", "short", "long"}),
        (1.0, {"default", "long"}),
        (4.999, {"default", "long"}),
        (5.0, {"long"}),
        (60.0, set()),
    ]
    for now, alive in timeline:
        clock.advance(now - clock.now())
        assert {key for key in ("default", "short", "long") if key in cache} == alive
        assert {key for key in ("default", "short", "long") if cache.peek(key)} == alive
        assert {key for key in ("default", "short", "long") if cache.get(key)} == alive
        assert len(cache) == len(alive)
        assert set(cache) == set(cache.keys()) == alive
    assert cache.stats()[3:6] == (3, 0, 0)


def test_what_is_read_after_its_time_is_a_miss_and_gone(policy: Any, clock: ManualClock) -> None:
    expired: list[Any] = []
    cache = policy(10, ttl=5, clock=clock, on_evict=lambda *item: expired.append(item))
    cache.update(a=1, b=2, c=3)
    clock.advance(5)
    assert cache.get("a") is None
    with pytest.raises(KeyError, match="b"):
        cache["b"]
    assert cache.pop("c", "none") == "none"
    assert expired == [("a", 1), ("b", 2), ("c", 3)]
    assert (cache.hits, cache.misses, cache.expirations, cache.evictions) == (0, 2, 3, 0)


def test_to_replace_an_entry_sets_its_time_anew(policy: Any, clock: ManualClock) -> None:
    cache = policy(10, clock=clock)
    cache.set("a", 1, ttl=5)
    clock.advance(4)
    cache.set("a", 2, ttl=5)
    clock.advance(4)
    assert cache.get("a") == 2
    cache["a"] = 3  # no time to live any more
    clock.advance(1e9)
    assert cache.get("a") == 3
    cache.set("a", 4, ttl=1)
    clock.advance(1)
    cache["a"] = 5  # the old one has expired: not a replacement
    assert (cache.get("a"), cache.expirations) == (5, 1)


def test_a_read_does_not_prolong_a_life(policy: Any, clock: ManualClock) -> None:
    cache = policy(10, ttl=5, clock=clock)
    cache["a"] = 1
    for _ in range(4):
        clock.advance(1)
        assert cache.get("a") == 1
        assert cache.setdefault("a", 2) == 1
    clock.advance(1)
    assert cache.setdefault("a", 2) == 2


def test_expired_entries_make_room_before_live_ones(policy: Any, clock: ManualClock) -> None:
    evicted: list[Any] = []
    cache = policy(20, clock=clock, on_evict=lambda key, value: evicted.append(key))
    for key in range(20):
        cache.set(key, key, ttl=10 + key / 100 if key >= 10 else 100)
        cache.get(key)
    clock.advance(11)
    cache["new"] = 0
    assert evicted == list(range(10, 18))  # eight of them with each put
    cache["newer"] = 0
    assert evicted == list(range(10, 20))
    assert (cache.evictions, cache.expirations, len(cache)) == (0, 10, 12)


def test_a_put_that_needs_room_drops_as_many_expired_entries_as_it_takes(
    clock: ManualClock,
) -> None:
    cache: Lru[Any, int] = Lru(30, clock=clock)
    cache["live"] = 0
    for key in range(29):
        cache.set(key, key, ttl=1 + key / 100)
    clock.advance(10)
    cache.set("heavy", 0, weight=25)
    assert (cache.expirations, cache.evictions) == (25, 0)
    assert "live" in cache


def test_expire_drops_all_that_is_due(policy: Any, clock: ManualClock) -> None:
    expired: list[Any] = []
    cache = policy(1000, clock=clock, on_evict=lambda key, value: expired.append(key))
    for key in range(500):
        cache.set(key, key, ttl=1 + (key * 7919) % 500)
    for key in range(0, 500, 7):
        del cache[key]
    clock.advance(250.5)
    due = sorted((key for key in range(500) if key % 7), key=lambda key: (key * 7919) % 500)
    due = [key for key in due if 1 + (key * 7919) % 500 <= 250]
    assert cache.expire() == len(due)
    assert expired == due
    assert cache.expire() == 0
    assert len(cache) == cache.weight == 500 - 72 - len(due)


def test_the_clock_is_not_read_while_nothing_can_expire(policy: Any) -> None:
    class CountingClock:
        reads = 0

        def now(self) -> float:
            self.reads += 1
            return 0.0

    clock = CountingClock()
    cache = policy(2, clock=clock)
    cache.update(a=1, b=2, c=3)
    cache.get("a")
    assert (len(cache), cache.expire(), clock.reads) == (2, 0, 0)
    cache.set("d", 4, ttl=1)
    cache.get("d")
    assert clock.reads == 2
    cache.clear()
    cache.get("d")
    assert clock.reads == 2


def test_a_clock_that_fails_changes_nothing(policy: Any) -> None:
    class BadClock:
        time = 0.0

        def now(self) -> float:
            if self.time < 0:
                raise OSError("no time")
            return self.time

    clock = BadClock()
    cache = policy(2, ttl=1, clock=clock)
    cache["a"] = 1
    for time, error in ((-1.0, OSError), (math.nan, ValueError), (math.inf, ValueError)):
        clock.time = time
        for act in (lambda: cache.get("a"), lambda: cache.set("b", 1), lambda: len(cache)):
            with pytest.raises(error):
                act()
    clock.time = 0.5
    assert dict(cache.items()) == {"a": 1}


def test_a_clock_that_goes_back_brings_nothing_back(policy: Any, clock: ManualClock) -> None:
    cache = policy(2, ttl=1, clock=clock)
    cache["a"] = 1
    clock.advance(1)
    assert cache.get("a") is None
    clock.advance(-1)
    assert cache.get("a") is None


def test_on_evict_may_put_an_expired_entry_back(policy: Any, clock: ManualClock) -> None:
    def again(key: int, value: int) -> None:
        cache.set(key, value + 1, ttl=5)

    cache = policy(10, clock=clock, on_evict=again)
    cache.set("a", 1, ttl=1)
    for expected in (2, 3, 4):
        clock.advance(5)
        cache.expire()
        assert cache.peek("a") == expected
    clock.advance(5)
    with pytest.raises(KeyError):
        cache["a"]
    assert cache["a"] == 5


def test_the_system_clock_is_read_without_a_python_call() -> None:
    for clock in (None, SystemClock()):
        cache: Lru[str, int] = Lru(2, ttl=3600, clock=clock)
        cache["a"] = 1
        assert cache["a"] == 1
        cache.set("a", 2, ttl=1e-9)
        assert cache.get("a") is None

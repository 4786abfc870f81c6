"""Many threads on one cache, with code of the user's wherever a cache runs any."""

import os
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from sluicegate import ManualClock
from sluicegate.cache import POLICIES
from tests.harness.threads import run_in_threads
from tests.harness.waits import PATIENCE

THREADS = 6
ROUNDS = 400


class PythonKey:
    """Equal by its number; its comparison and its hash run Python code, where threads switch."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        return self.number % 7  # many collisions

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PythonKey) and self.number == other.number


@pytest.fixture(params=POLICIES.values(), ids=POLICIES.keys())
def policy(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_a_cache_stays_whole_under_many_threads(policy: Any) -> None:
    clock = ManualClock()
    left: list[int] = []

    def on_evict(key: PythonKey, value: int) -> None:
        left.append(value)
        cache.get(key)
        cache.pop(PythonKey(key.number + 1), None)

    def weigh(key: PythonKey, value: int) -> int:
        return 1 + key.number % 3

    def work(seed: int) -> Callable[[], None]:
        def run() -> None:
            rng = random.Random(seed)
            for number in range(ROUNDS):
                key = PythonKey(rng.randrange(40))
                act = rng.randrange(8)
                if act < 3:
                    cache[key] = number
                elif act < 6:
                    cache.get(key)
                elif act == 6:
                    cache.set(key, number, ttl=rng.choice([0.5, 2.0]))
                    clock.advance(0.01)
                elif number % 3:
                    cache.pop(key, None)
                else:
                    assert len(list(cache)) <= 25
                    cache.expire()

        return run

    cache = policy(25, on_evict=on_evict, weigh=weigh, clock=clock)
    run_in_threads([work(seed) for seed in range(THREADS)])
    check_whole(cache)
    assert len(left) == cache.evictions + cache.expirations
    cache.expire()
    for key in list(cache):
        assert cache.pop(key) is not None
    assert (len(cache), cache.weight) == (0, 0)


def check_whole(cache: Any) -> None:
    keys = list(cache)
    assert len(keys) == len(cache) == len({key.number for key in keys})
    assert cache.weight == sum(1 + key.number % 3 for key in keys) <= cache.capacity
    for key in keys:
        assert key in cache
        assert PythonKey(key.number) in cache


def test_two_threads_never_both_insert_a_key(policy: Any) -> None:
    for _ in range(30):
        cache = policy(100)
        barrier = threading.Barrier(THREADS, timeout=PATIENCE)
        won: list[Any] = []

        def work(
            cache: Any = cache, barrier: threading.Barrier = barrier, won: list[Any] = won
        ) -> None:
            barrier.wait()
            mine = object()
            won.append(all(cache.setdefault(PythonKey(n), mine) is mine for n in range(8)))
            won.append(cache.setdefault(PythonKey(99), mine) is mine)

        run_in_threads([work] * THREADS)
        assert len(cache) == 9
        assert won.count(True) in (1, 2)  # of key 99; maybe of all eight


def test_setdefault_returns_what_another_thread_stored_meanwhile(policy: Any) -> None:
    class LateKey(PythonKey):
        hashed = 0

        def __hash__(self) -> int:
            self.hashed += 1
            if self.hashed == 2:  # after it was not found
                cache[PythonKey(self.number)] = "theirs"
            return super().__hash__()

    cache = policy(10)
    assert cache.setdefault(LateKey(1), "mine") == "theirs"
    assert list(cache.values()) == ["theirs"]


def test_each_value_is_popped_by_one_thread_only(policy: Any) -> None:
    cache = policy(1000)
    for number in range(500):
        cache[PythonKey(number % 100 + 1000 * number)] = number
    popped: list[int] = []

    def work() -> None:
        for key in list(cache):
            value = cache.pop(key, None)
            if value is not None:
                popped.append(value)

    run_in_threads([work] * THREADS)
    assert sorted(popped) == list(range(500))


def test_a_child_uses_a_cache_that_a_thread_was_comparing_keys_in(policy: Any) -> None:
    is_comparing, may_go_on = threading.Event(), threading.Event()

    class SlowKey(PythonKey):
        __hash__ = PythonKey.__hash__

        def __eq__(self, other: object) -> bool:
            if threading.current_thread() is not threading.main_thread():
                is_comparing.set()
                may_go_on.wait(PATIENCE)
            return super().__eq__(other)

    cache = policy(10)
    cache[SlowKey(1)] = "one"
    thread = threading.Thread(target=lambda: cache.set(SlowKey(1), "two"), daemon=True)
    thread.start()
    assert is_comparing.wait(PATIENCE)
    child = os.fork()
    if child == 0:
        cache[SlowKey(2)] = "two"
        os._exit(0 if (cache[SlowKey(1)], cache[SlowKey(2)]) == ("one", "two") else 1)
    assert os.waitpid(child, 0)[1] == 0
    may_go_on.set()
    thread.join(PATIENCE)
    assert cache[SlowKey(1)] == "two"

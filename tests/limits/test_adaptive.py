"""A server in virtual time: `workers` calls at once take `service` seconds, more share them."""

import asyncio
import heapq
import math
import random
from collections.abc import Callable
from statistics import mean

import pytest

from sluicegate import AdaptiveConcurrency, ManualClock, RateLimited
from sluicegate.limits.adaptive import Gradient


class Server:
    """Calls queue for its workers; as many are sent as the gradient allows, all the time."""

    def __init__(self, workers: int, service: float, seed: int = 1) -> None:
        self.workers = workers
        self.service = service
        self.random = random.Random(seed)
        self.now = 0.0
        self.in_service: list[tuple[float, float]] = []  # (ends, was sent)
        self.queue: list[float] = []
        self.done: list[tuple[float, float]] = []  # (when, how long it took)

    def run(self, gradient: Gradient, seconds: float, demand: float = math.inf) -> None:
        end = self.now + seconds
        while self.now < end:
            while len(self.in_service) + len(self.queue) < min(gradient.limit, demand):
                self.queue.append(self.now)
            while self.queue and len(self.in_service) < self.workers:
                takes = self.service * self.random.uniform(0.8, 1.2)
                heapq.heappush(self.in_service, (self.now + takes, self.queue.pop(0)))
            in_use = len(self.in_service) + len(self.queue)
            self.now, sent = heapq.heappop(self.in_service)
            self.done.append((self.now, self.now - sent))
            gradient.finished(self.now, self.now - sent, in_use)

    def measure(self, seconds: float) -> tuple[float, float]:
        """Calls per second and the mean time of a call, lately."""
        recent = [took for when, took in self.done if when > self.now - seconds]
        return len(recent) / seconds, mean(recent)


@pytest.mark.no_cover  # a minute of a server's time, call by call
@pytest.mark.parametrize("workers", [4, 10, 50])
@pytest.mark.parametrize("initial", [1, 20, 500])
def test_it_finds_the_limit_of_a_server(workers: int, initial: int) -> None:
    server = Server(workers, service=0.010)
    gradient = Gradient(initial, least=1, most=1000)
    server.run(gradient, 60)
    rate, took = server.measure(20)
    assert rate >= 0.95 * workers / 0.010
    assert took <= 0.030
    assert workers <= gradient.limit <= 3 * workers


@pytest.mark.no_cover
def test_it_does_not_creep_up_under_lasting_overload() -> None:
    server = Server(10, service=0.010)
    gradient = Gradient(20, least=1, most=1000)
    server.run(gradient, 60)
    early = server.measure(20)[1]
    server.run(gradient, 600)
    assert server.measure(20)[1] <= early * 1.2


@pytest.mark.no_cover
@pytest.mark.parametrize(("before", "after"), [(10, 40), (40, 10)])
def test_it_follows_a_server_that_grows_or_shrinks(before: int, after: int) -> None:
    server = Server(before, service=0.010)
    gradient = Gradient(20, least=1, most=1000)
    server.run(gradient, 60)
    server.workers = after
    server.run(gradient, 60)
    rate, took = server.measure(20)
    assert rate >= 0.95 * after / 0.010
    assert took <= 0.030


def test_it_learns_that_a_server_has_become_slower_for_good() -> None:
    server = Server(10, service=0.010)
    gradient = Gradient(20, least=1, most=1000)
    server.run(gradient, 60)
    server.service = 0.040
    server.run(gradient, 120)
    rate, took = server.measure(20)
    assert rate >= 0.95 * 10 / 0.040
    assert took <= 0.120


def test_an_idle_limit_is_left_alone() -> None:
    server = Server(10, service=0.010)
    gradient = Gradient(100, least=1, most=1000)
    server.run(gradient, 4, demand=5)
    assert gradient.limit == 100


def test_a_refused_or_timed_out_call_lowers_the_limit() -> None:
    limit = AdaptiveConcurrency(100, minimum=95, clock=ManualClock())
    with pytest.raises(TimeoutError), limit:
        raise TimeoutError
    assert limit.limit == 95
    limit = AdaptiveConcurrency(100, clock=ManualClock())

    async def main() -> None:
        with pytest.raises(RateLimited):
            async with limit, AdaptiveConcurrency(1) as inner, inner:
                raise AssertionError("one place cannot be taken twice")
        with pytest.raises(KeyError):
            async with limit:
                raise KeyError

    asyncio.run(main())
    assert limit.limit == 90
    assert limit.in_use == 0


def test_it_learns_from_the_calls_it_surrounds(clock: ManualClock) -> None:
    limit = AdaptiveConcurrency(5, clock=clock)
    for _ in range(200):
        with limit, limit, limit, limit:
            assert limit.in_use == 4
            clock.advance(0.010)
    assert limit.limit > 5
    assert "time_without_load=0.01 s" in repr(limit)
    assert limit.waiting == 0


def test_times_measured_elsewhere_count_too(clock: ManualClock) -> None:
    limit = AdaptiveConcurrency(3, clock=clock)
    with limit, limit:
        for _ in range(100):
            clock.advance(0.01)
            limit.record(0.01)
    assert limit.limit > 3
    for wrong in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="finite number, 0 or more"):
            limit.record(wrong)


WRONG: list[Callable[[], object]] = [
    lambda: AdaptiveConcurrency(0),
    lambda: AdaptiveConcurrency(5, minimum=6),
    lambda: AdaptiveConcurrency(5, maximum=4),
    lambda: AdaptiveConcurrency(5, minimum=10, maximum=8),
    lambda: AdaptiveConcurrency(5.5),  # type: ignore[arg-type]
    lambda: AdaptiveConcurrency(5, queue=-1),
]


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_arguments_raise_and_say_what_was_wrong(wrong: Callable[[], object]) -> None:
    with pytest.raises((ValueError, TypeError), match="got"):
        wrong()


def test_a_call_that_begins_in_one_task_and_ends_in_another_leaks_nothing() -> None:
    limit = AdaptiveConcurrency(5, clock=ManualClock())

    async def main() -> None:
        async def enter() -> None:
            await limit.__aenter__()

        async def leave() -> None:
            await limit.__aexit__(None, None, None)

        for _ in range(20):
            await asyncio.create_task(enter())
            await asyncio.create_task(leave())

    asyncio.run(main())
    assert limit.in_use == 0
    with pytest.raises(RuntimeError, match="no place is taken"):
        limit.__exit__(None, None, None)


def test_a_call_that_is_cancelled_counts_with_the_time_it_had_taken() -> None:
    clock = ManualClock()
    limit = AdaptiveConcurrency(4, queue=100, clock=clock)

    async def call(seconds: float) -> None:
        async with limit:
            await clock.sleep_async(seconds)

    async def main() -> None:
        for _ in range(40):
            await asyncio.gather(*(call(0.01) for _ in range(4)))
        quick = limit.limit
        for _ in range(40):
            calls = [asyncio.create_task(call(100)) for _ in range(limit.limit)]
            await clock.sleep_async(0.5)
            for one in calls:
                one.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        assert limit.limit < quick

    asyncio.run(main())

"""Who waits, in threads and tasks together, on the real clock: storms, races, dead loops.

Real time passes here on purpose: what is shown is that nobody hangs and nothing leaks
when threads and event loops come and go. Each test takes well below a second.
"""

import asyncio
import gc
import math
import random
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from sluicegate import (
    ConcurrencyLimit,
    FixedWindow,
    Keyed,
    LeakyBucket,
    ManualClock,
    RateLimited,
    RateLimiter,
    SlidingCounter,
    SlidingWindow,
    TokenBucket,
)
from sluicegate.limits.waiting import Nap, Schedule, ThreadSleeper
from tests.harness.threads import run_in_threads, start_thread
from tests.harness.waits import wait_for

EVERY: dict[str, Callable[[], Any]] = {
    "TokenBucket": lambda: TokenBucket(2000, 1),
    "LeakyBucket": lambda: LeakyBucket(2000, 100_000),
    "RateLimiter": lambda: RateLimiter(2000, burst_seconds=0),
    "FixedWindow": lambda: FixedWindow(2, 0.001),
    "SlidingWindow": lambda: SlidingWindow(2, 0.001),
    "SlidingCounter": lambda: SlidingCounter(2, 0.001),
    "ConcurrencyLimit": lambda: ConcurrencyLimit(2, queue=100_000),
}


def waiting_on(limiter: Any) -> int:
    return int(limiter.queued if isinstance(limiter, LeakyBucket) else limiter.waiting)


@pytest.mark.parametrize("name", EVERY)
def test_a_storm_of_cancellations_leaves_nothing_behind(name: str) -> None:
    limiter = EVERY[name]()
    numbers = random.Random(1)
    went = [0]

    async def task() -> None:
        await limiter.acquire_async()
        went[0] += 1
        if isinstance(limiter, ConcurrencyLimit):
            asyncio.get_running_loop().call_later(0.0002, limiter.release)

    async def main() -> None:
        tasks = [asyncio.create_task(task()) for _ in range(400)]
        for _ in range(20):
            await asyncio.sleep(0.001)
            for one in numbers.sample(tasks, 15):
                one.cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(answer) for answer in answers} <= {type(None), asyncio.CancelledError}
        assert went[0] == sum(answer is None for answer in answers)

    asyncio.run(main())
    if isinstance(limiter, LeakyBucket):
        time.sleep(0.002)
    assert waiting_on(limiter) == 0


def test_thousands_cancelled_together_cost_no_more_than_one_by_one() -> None:
    async def main(count: int) -> float:
        bucket = TokenBucket(1e-6, 1)
        await bucket.acquire_async()
        tasks = [asyncio.create_task(bucket.acquire_async()) for _ in range(count)]
        await asyncio.sleep(0)
        start = time.thread_time()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert bucket.waiting == 0
        assert bucket.check().retry_after == pytest.approx(1e6, abs=180)  # how long a test may take
        return time.thread_time() - start

    # Of processor time, 0.04 s as a rule. It was 11 s when each woke all behind it.
    assert asyncio.run(main(2000)) < 2.0


@pytest.mark.parametrize("name", EVERY)
def test_threads_and_two_event_loops_share_one_line(name: str) -> None:
    limiter = EVERY[name]()
    went: list[int] = []

    def give_back() -> None:
        if isinstance(limiter, ConcurrencyLimit):
            limiter.release()

    def in_thread() -> None:
        for _ in range(20):
            limiter.acquire()
            went.append(1)
            give_back()

    def in_loop() -> None:
        async def task() -> None:
            await limiter.acquire_async()
            went.append(1)
            give_back()

        async def main() -> None:
            await asyncio.gather(*(task() for _ in range(40)))

        asyncio.run(main())

    run_in_threads([in_thread, in_thread, in_loop, in_loop])
    assert len(went) == 120
    if not isinstance(limiter, LeakyBucket):
        assert waiting_on(limiter) == 0


@pytest.mark.parametrize("name", ["TokenBucket", "SlidingWindow", "ConcurrencyLimit"])
def test_a_loop_that_was_closed_over_its_waiters_harms_nobody_else(name: str) -> None:
    limiter = {
        "TokenBucket": lambda: TokenBucket(100, 1),
        "SlidingWindow": lambda: SlidingWindow(1, 0.01),
        "ConcurrencyLimit": lambda: ConcurrencyLimit(1, queue=5),
    }[name]()
    limiter.acquire()
    loop = asyncio.new_event_loop()
    dead = [loop.create_task(limiter.acquire_async()) for _ in range(3)]
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    if isinstance(limiter, ConcurrencyLimit):
        limiter.release()
    else:
        limiter.reset()
    run_in_threads([limiter.acquire])
    for task in dead:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    del dead, task
    gc.collect()


def test_threads_on_a_clock_of_their_own_take_their_turn_when_it_comes() -> None:
    class Unwakeable(ManualClock):
        """Moved by the test; `sleep` returns when it has reached the end."""

        def sleep(self, seconds: float) -> None:
            end = self.now() + seconds
            wait_for(lambda: self.now() >= end)

    clock = Unwakeable()
    limiter = SlidingWindow(1, 10, clock=clock)
    limiter.acquire()
    # The second has a long time-out; it must not be slept through when the first has gone.
    for place, timeout in enumerate([None, 1000, None]):
        start_thread(partial(limiter.acquire, timeout=timeout))
        wait_for(lambda place=place: limiter.waiting > place)
    for left in (2, 1, 0):
        clock.advance(10)
        wait_for(lambda left=left: limiter.waiting == left, seen=lambda: limiter.waiting)


def test_a_refund_that_races_with_an_arrival_moves_nobody_up_twice(clock: ManualClock) -> None:
    bucket = TokenBucket(1, 5, clock=clock)
    bucket.acquire(5)

    async def main() -> None:
        bucket.refund(4)
        waiter = asyncio.create_task(bucket.acquire_async(5))
        await asyncio.sleep(0)
        assert await waiter == pytest.approx(1.0)

    asyncio.run(main())


def test_too_large_a_refund_gives_waiters_no_more_than_the_burst(clock: ManualClock) -> None:
    bucket = TokenBucket(1, 5, clock=clock)
    bucket.acquire(5)

    async def main() -> None:
        waiter = asyncio.create_task(bucket.acquire_async(5))
        await asyncio.sleep(0)
        bucket.refund(20)
        assert await waiter == 0.0
        assert not bucket.try_acquire()

    asyncio.run(main())


def test_one_who_leaves_after_his_time_has_come_gives_nothing_back(clock: ManualClock) -> None:
    bucket = TokenBucket(1, 1, clock=clock)
    bucket.acquire()

    async def main() -> None:
        waiter = asyncio.create_task(bucket.acquire_async())
        await asyncio.sleep(0)
        clock.advance(5)  # due at 1, but the loop was busy
        assert bucket.try_acquire()
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
        assert not bucket.try_acquire()

    asyncio.run(main())


def test_a_schedule_moves_up_those_behind_whoever_leaves() -> None:
    # Against a list that is gone through each time: what the running sums must amount to.
    numbers = random.Random(4)
    now = [0.0]
    schedule: Schedule[float] = Schedule(lambda: now[0], 0.0)
    end = [0.0]
    plans: list[Any] = []
    expected: list[float] = []

    def reserve_of(cost: float) -> Callable[[], tuple[float, float]]:
        def reserve() -> tuple[float, float]:
            end[0] += cost
            return end[0], cost

        return reserve

    def give_back(cost: float) -> float:
        end[0] -= cost
        return cost

    for _ in range(2000):
        if plans and numbers.random() < 0.4:
            index = numbers.randrange(len(plans))
            plan, cost = plans.pop(index)
            plan.close()
            del expected[index]
            expected[index:] = [time - cost for time in expected[index:]]
        else:
            cost = numbers.choice([1.0, 2.0, 5.0])
            plan = schedule.wait(reserve_of(cost), give_back, ThreadSleeper(None))
            nap = next(plan)
            expected.append(end[0])
            plans.append((plan, cost))
            if len(plans) == 1:
                assert nap == Nap(end[0])
        assert len(schedule) == len(plans)
    for (plan, _), time_of_place in zip(plans, expected, strict=True):
        assert next(plan) == Nap(time_of_place - now[0])
        now[0] = time_of_place
        with pytest.raises(StopIteration):
            next(plan)
    assert len(schedule) == 0


def test_far_from_its_start_a_clock_still_ends_a_wait() -> None:
    for far in (1e8, 1.7e9):
        clock = ManualClock()
        clock.advance(far)
        limiter = SlidingCounter(3, 0.7, clock=clock)
        for _ in range(50):
            limiter.acquire()
        bucket = TokenBucket(3, 1, clock=clock)
        for _ in range(50):
            bucket.acquire()


@pytest.mark.parametrize("name", [*EVERY, "Keyed"])
def test_a_limiter_that_is_dropped_is_freed_at_once(name: str) -> None:
    class Noted:
        """A clock that tells when the limiter has let go of it."""

        def now(self) -> float:
            return time.monotonic()

    if name == "ConcurrencyLimit":
        return
    make: dict[str, Callable[..., Any]] = {
        "TokenBucket": lambda clock: TokenBucket(5, clock=clock),
        "LeakyBucket": lambda clock: LeakyBucket(5, 1, clock=clock),
        "RateLimiter": lambda clock: RateLimiter(5, clock=clock),
        "FixedWindow": lambda clock: FixedWindow(5, 1, clock=clock),
        "SlidingWindow": lambda clock: SlidingWindow(5, 1, clock=clock),
        "SlidingCounter": lambda clock: SlidingCounter(5, 1, clock=clock),
        "Keyed": lambda clock: Keyed("5/second", clock=clock),
    }
    clock = Noted()
    limiter = make[name](clock)
    seen = weakref.ref(clock)
    gc.disable()
    try:
        del clock, limiter
        assert seen() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("python_clock", [False, True])
@pytest.mark.parametrize("name", ["TokenBucket", "FixedWindow", "SlidingWindow", "SlidingCounter"])
def test_eight_threads_on_one_limiter_never_get_one_too_many(name: str, python_clock: bool) -> None:
    class Slow:
        """A clock in Python: every reading of it lets other threads run."""

        def now(self) -> float:
            time.sleep(0)
            return time.monotonic()

    clock: Any = Slow() if python_clock else None
    limiter = {
        "TokenBucket": lambda: TokenBucket(1e-6, 500, clock=clock),
        "FixedWindow": lambda: FixedWindow(500, 1e9, clock=clock),
        "SlidingWindow": lambda: SlidingWindow(500, 1e9, clock=clock),
        "SlidingCounter": lambda: SlidingCounter(500, 1e9, clock=clock),
    }[name]()
    passed: list[int] = []

    def work() -> None:
        passed.append(sum(limiter.try_acquire() for _ in range(200)))

    run_in_threads([work] * 8)
    assert sum(passed) == 500


def test_eight_threads_reserve_eight_different_times() -> None:
    class Stopped:
        def now(self) -> float:
            time.sleep(0)
            return 0.0

    limiters: list[Any] = [
        LeakyBucket(10, 1000, clock=Stopped()),  # type: ignore[arg-type]
        RateLimiter(10, clock=Stopped()),  # type: ignore[arg-type]
    ]
    for limiter in limiters:
        times: list[float] = []

        def work(limiter: Any = limiter, times: list[float] = times) -> None:
            times.extend(limiter.reserve() for _ in range(50))

        run_in_threads([work] * 8)
        assert sorted(times) == pytest.approx([k / 10 for k in range(400)])


@pytest.mark.parametrize("wrong", ["soon", -1.0, math.nan])
def test_a_wrong_timeout_is_refused_also_where_there_is_room(wrong: Any) -> None:
    keyed = Keyed("5/second", clock=ManualClock())
    bucket = TokenBucket(5, 5, clock=ManualClock())
    window = FixedWindow(5, 1, clock=ManualClock())
    leaky = LeakyBucket(5, 5, clock=ManualClock())
    calls: list[Callable[[], object]] = [
        lambda: keyed.acquire("a", timeout=wrong),
        lambda: bucket.acquire(timeout=wrong),
        lambda: window.acquire(timeout=wrong),
        lambda: leaky.acquire(timeout=wrong),
    ]
    for call in calls:
        with pytest.raises((ValueError, TypeError), match="timeout must be"):
            call()
    assert (len(keyed), bucket.available, window.available) == (0, 5, 5)
    assert leaky.try_acquire()


@pytest.mark.parametrize("name", [*EVERY, "Keyed"])
def test_a_call_that_waited_in_vain_leaves_no_memory_behind(name: str) -> None:
    # Closures inside a compiled generator once made cycles that nothing ever freed.
    clock = ManualClock()
    limiter: Any = {
        "TokenBucket": lambda: TokenBucket(1e-3, 1, clock=clock),
        "LeakyBucket": lambda: LeakyBucket(1e-3, 5, clock=clock),
        "RateLimiter": lambda: RateLimiter(1e-3, clock=clock),
        "FixedWindow": lambda: FixedWindow(1, 1000, clock=clock),
        "SlidingWindow": lambda: SlidingWindow(1, 1000, clock=clock),
        "SlidingCounter": lambda: SlidingCounter(1, 1000, clock=clock),
        "ConcurrencyLimit": lambda: ConcurrencyLimit(1, queue=1),
        "Keyed": lambda: Keyed("1/hour", clock=clock),
    }[name]()
    key = ("a",) if name == "Keyed" else ()

    def in_vain() -> None:
        if isinstance(limiter, RateLimiter):
            assert not limiter.try_acquire(timeout=1)
        else:
            with pytest.raises(RateLimited):
                limiter.acquire(*key, timeout=0)

    limiter.acquire(*key)
    in_vain()
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(200):
        in_vain()
    gc.collect()
    assert len(gc.get_objects()) - before < 100


def test_a_finalizer_may_use_the_limit_that_is_in_use() -> None:
    limit = ConcurrencyLimit(1, queue=0)

    class Holder:
        def __init__(self) -> None:
            self.me = self
            self.has_place = limit.acquire() == 0.0

        def __del__(self) -> None:
            if hasattr(self, "has_place"):
                limit.release()

    threshold = gc.get_threshold()
    gc.set_threshold(2)
    try:
        for _ in range(500):
            try:
                Holder()
            except RateLimited:
                continue
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert limit.in_use <= 1

import asyncio
import math
import pickle
import time
from collections.abc import Callable
from functools import partial

import pytest

from sluicegate import Decision, Limit, ManualClock, RateLimited, TokenBucket
from tests.harness.threads import run_in_threads, start_thread
from tests.harness.waits import PATIENCE, wait_for


@pytest.mark.parametrize(
    ("rate", "burst", "timeline"),
    [
        # (seconds to advance, amount, passes)
        (10, 10, [(0, 10, True), (0, 1, False), (0.1, 1, True), (0, 1, False), (0.2, 2, True)]),
        (10, 2, [(0, 1, True), (0, 1, True), (0, 1, False), (5, 2, True), (0, 0.1, False)]),
        (1, 5, [(0, 2.5, True), (0, 2.5, True), (0, 0.5, False), (0.5, 0.5, True)]),
        (1 / 3600, 1, [(0, 1, True), (3599, 1, False), (1, 1, True)]),
        (3, 1, [(0, 1, True), (1 / 3, 1, True), (1 / 3, 1, True), (1 / 3, 1, True)]),
        (1e9, 10, [(0, 10, True), (0, 1, False), (1e-9, 1, True), (0, 1, False)]),
    ],
)
def test_tokens_must_be_there(
    rate: float, burst: float, timeline: list[tuple[float, float, bool]], clock: ManualClock
) -> None:
    bucket = TokenBucket(rate, burst, clock=clock)
    for step, (advance, amount, passes) in enumerate(timeline):
        clock.advance(advance)
        assert bucket.try_acquire(amount) is passes, f"step {step}"


def test_a_unix_time_is_as_good_as_any_other() -> None:
    clock = ManualClock(1_700_000_000.0)
    bucket = TokenBucket(10, 1, clock=clock)
    for _ in range(1000):
        assert bucket.try_acquire()
        assert not bucket.try_acquire()
        clock.advance(0.1)


def test_the_burst_is_a_seconds_worth_by_default_and_at_least_one() -> None:
    assert TokenBucket(50).burst == 50
    assert TokenBucket(0.5).burst == 1
    assert TokenBucket(0.5).try_acquire()


def test_more_than_the_burst_can_never_pass(clock: ManualClock) -> None:
    bucket = TokenBucket(10, 5, clock=clock)
    for call in (bucket.try_acquire, bucket.check, bucket.acquire):
        with pytest.raises(ValueError, match="at most the burst of 5, got 5.5"):
            call(5.5)
    assert bucket.available == 5


def test_check_tells_all_and_charges_only_when_it_allows(clock: ManualClock) -> None:
    bucket = TokenBucket(10, 5, clock=clock)
    limit = Limit(10, 1, 5)
    assert bucket.check(3) == Decision(True, limit, 2.0, 0.0, 0.3)
    assert bucket.check(4) == Decision(False, limit, 2.0, 0.2, 0.3)
    assert bucket.check(4) == Decision(False, limit, 2.0, 0.2, 0.3)
    assert bucket.check(0) == Decision(True, limit, 2.0, 0.0, 0.3)
    clock.advance(0.2)
    assert bucket.check(4).allowed


def test_acquire_waits_and_says_how_long(clock: ManualClock) -> None:
    bucket = TokenBucket(10, 5, clock=clock)
    assert bucket.acquire(5) == 0.0
    assert bucket.acquire(2) == pytest.approx(0.2)
    assert bucket.acquire() == pytest.approx(0.1)
    assert clock.now() == pytest.approx(0.3)


def test_a_timeout_that_cannot_be_met_is_refused_at_once(clock: ManualClock) -> None:
    bucket = TokenBucket(10, 5, clock=clock)
    bucket.acquire(5)
    with pytest.raises(
        RateLimited, match="10/second burst 5: 0 left, try again in 0.5 s"
    ) as caught:
        bucket.acquire(5, timeout=0.4)
    assert clock.now() == 0.0
    assert caught.value.decision.retry_after == caught.value.retry_after == pytest.approx(0.5)
    assert bucket.acquire(5, timeout=0.5) == pytest.approx(0.5)


def test_who_waits_is_not_overtaken(clock: ManualClock) -> None:
    bucket = TokenBucket(10, 5, clock=clock)
    bucket.acquire(5)

    async def main() -> None:
        waiter = asyncio.create_task(bucket.acquire_async(5))
        await asyncio.sleep(0)
        clock.advance(0.4)
        assert bucket.waiting == 1
        assert not bucket.try_acquire()
        assert bucket.available == 0.0
        assert bucket.check().retry_after == pytest.approx(0.2)
        assert await waiter == pytest.approx(0.5)

    asyncio.run(main())


def test_waiters_of_any_size_go_in_their_order(clock: ManualClock) -> None:
    bucket = TokenBucket(10, 5, clock=clock)
    went: list[tuple[int, float]] = []

    async def task(number: int, amount: float) -> None:
        await bucket.acquire_async(amount)
        went.append((number, round(clock.now(), 6)))

    async def main() -> None:
        await asyncio.gather(*(task(n, amount) for n, amount in enumerate([5, 5, 1, 2, 0.5])))

    asyncio.run(main())
    assert went == [(0, 0.0), (1, 0.5), (2, 0.6), (3, 0.8), (4, 0.85)]


def test_a_cancelled_waiter_gives_its_tokens_and_its_place_back(clock: ManualClock) -> None:
    bucket = TokenBucket(10, 5, clock=clock)
    bucket.acquire(5)
    went: list[tuple[str, float]] = []

    async def task(name: str, amount: float) -> None:
        await bucket.acquire_async(amount)
        went.append((name, round(clock.now(), 6)))

    async def main() -> None:
        tasks = [
            asyncio.create_task(task(name, amount))
            for name, amount in [("a", 1), ("cancelled", 5), ("b", 1), ("c", 2)]
        ]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())
    assert went == [("a", 0.1), ("b", 0.2), ("c", 0.4)]
    clock.advance(0.1)
    assert bucket.try_acquire()
    assert not bucket.try_acquire()


def test_a_refund_lets_waiters_go_earlier(clock: ManualClock) -> None:
    bucket = TokenBucket(10, 5, clock=clock)
    bucket.acquire(5)

    async def main() -> None:
        waiter = asyncio.create_task(bucket.acquire_async(5))
        await asyncio.sleep(0)
        bucket.refund(3)
        assert await waiter == pytest.approx(0.2)

    asyncio.run(main())


def test_a_refund_fills_the_bucket_and_no_more(clock: ManualClock) -> None:
    bucket = TokenBucket(10, 5, clock=clock)
    bucket.acquire(4)
    bucket.refund(2)
    assert bucket.available == 3
    bucket.refund(100)
    assert bucket.available == 5


def test_reset_fills_the_bucket_and_serves_those_who_wait_from_it(clock: ManualClock) -> None:
    bucket = TokenBucket(1, 5, clock=clock)
    bucket.acquire(5)

    async def main() -> None:
        first = asyncio.create_task(bucket.acquire_async(4))
        second = asyncio.create_task(bucket.acquire_async(3))
        await asyncio.sleep(0)
        bucket.reset()
        assert await first == 0.0
        assert await second == pytest.approx(2.0)

    asyncio.run(main())
    clock.advance(2)
    bucket.reset()
    assert bucket.available == 5


def test_a_clock_that_steps_back_mints_nothing(clock: ManualClock) -> None:
    bucket = TokenBucket(10, 5, clock=clock)
    assert bucket.try_acquire(5)
    clock.advance(-100)
    assert not bucket.try_acquire()
    clock.advance(100)
    assert not bucket.try_acquire()
    clock.advance(0.1)
    assert bucket.try_acquire()
    assert not bucket.try_acquire()


def test_a_clock_that_is_broken_is_named() -> None:
    class Broken(ManualClock):
        broken = False

        def now(self) -> float:
            return math.nan if self.broken else super().now()

    clock = Broken()
    bucket = TokenBucket(1, clock=clock)
    clock.broken = True
    with pytest.raises(ValueError, match="must return a finite time"):
        bucket.try_acquire()


def test_threads_wait_for_real() -> None:
    # Real time on purpose: this is the one test that shows threads asleep until their time.
    bucket = TokenBucket(100, 1)
    start = time.monotonic()
    assert bucket.try_acquire()
    run_in_threads([bucket.acquire] * 5)
    assert time.monotonic() - start >= 0.05 - 0.001


def test_threads_that_sleep_are_woken_by_refunds_in_their_order() -> None:
    bucket = TokenBucket(0.001, 1)
    assert bucket.try_acquire()
    went: list[int] = []

    def work(number: int) -> None:
        bucket.acquire()
        went.append(number)

    for number in range(5):
        start_thread(partial(work, number))
        wait_for(lambda number=number: bucket.waiting > number, seen=lambda: bucket)
    for number in range(5):
        bucket.refund(1)
        wait_for(lambda number=number: len(went) > number, seen=lambda: went)
        assert bucket.waiting == 4 - number, bucket
    assert went == [0, 1, 2, 3, 4]


def test_a_refund_wakes_a_thread_that_sleeps() -> None:
    bucket = TokenBucket(0.001, 1)
    assert bucket.try_acquire()
    thread = start_thread(bucket.acquire)
    wait_for(lambda: bucket.waiting, seen=lambda: bucket)
    bucket.refund(1)
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_tasks_wait_for_real_and_are_woken_by_a_refund() -> None:
    bucket = TokenBucket(100, 1)

    async def main() -> None:
        start = time.monotonic()
        assert await bucket.acquire_async() == 0.0
        for _ in range(2):
            await bucket.acquire_async()
        assert time.monotonic() - start >= 0.02 - 0.001
        slow = TokenBucket(0.001, 1)
        await slow.acquire_async()
        waiter = asyncio.create_task(slow.acquire_async())
        await asyncio.sleep(0)
        slow.refund(1)
        await asyncio.wait_for(waiter, PATIENCE)

    asyncio.run(main())


def test_an_interrupted_thread_gives_its_tokens_back(clock: ManualClock) -> None:
    class Interrupting(ManualClock):
        def sleep(self, seconds: float) -> None:
            raise KeyboardInterrupt

    bucket = TokenBucket(10, 5, clock=Interrupting())
    bucket.acquire(5)
    with pytest.raises(KeyboardInterrupt):
        bucket.acquire(5)
    assert bucket.waiting == 0
    assert bucket.check(5).retry_after == pytest.approx(0.5)


def test_a_clock_that_fails_to_sleep_says_so_and_nothing_is_charged() -> None:
    class Sleepless(ManualClock):
        async def sleep_async(self, seconds: float) -> None:
            raise OSError("no sleep tonight")

    bucket = TokenBucket(10, 5, clock=Sleepless())
    bucket.acquire(5)
    with pytest.raises(OSError, match="no sleep"):
        asyncio.run(bucket.acquire_async(5))
    assert bucket.check(5).retry_after == pytest.approx(0.5)


def test_it_limits_a_block(clock: ManualClock) -> None:
    bucket = TokenBucket(10, 1, clock=clock)
    with bucket as entered:
        assert entered is bucket
    with bucket:
        assert clock.now() == pytest.approx(0.1)

    async def main() -> None:
        async with bucket:
            assert clock.now() == pytest.approx(0.2)

    asyncio.run(main())


def test_the_repr_shows_the_live_state(clock: ManualClock) -> None:
    bucket = TokenBucket(100, 200, clock=clock)
    bucket.try_acquire(162.8)
    assert repr(bucket) == "TokenBucket(rate=100/s, burst=200, available=37.2)"
    assert bucket.rate == 100


WRONG: dict[str, Callable[[], object]] = {
    "rate 0": lambda: TokenBucket(0),
    "rate below 0": lambda: TokenBucket(-5),
    "rate nan": lambda: TokenBucket(math.nan),
    "rate infinite": lambda: TokenBucket(math.inf),
    "rate a string": lambda: TokenBucket("5"),  # type: ignore[arg-type]
    "rate beyond counting": lambda: TokenBucket(1e300),
    "burst 0": lambda: TokenBucket(5, 0),
    "burst beyond counting": lambda: TokenBucket(5, 1e300),
    "amount 0": lambda: TokenBucket(5).try_acquire(0),
    "amount below 0": lambda: TokenBucket(5).check(-1),
    "amount nan": lambda: TokenBucket(5).acquire(math.nan),
    "amount a string": lambda: TokenBucket(5).try_acquire("1"),  # type: ignore[arg-type]
    "refund 0": lambda: TokenBucket(5).refund(0),
    "refund infinite": lambda: TokenBucket(5).refund(math.inf),
    "clock without now": lambda: TokenBucket(5, clock=3),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_wrong_arguments_raise_at_once(wrong: Callable[[], object]) -> None:
    with pytest.raises((ValueError, TypeError)):
        wrong()


@pytest.mark.parametrize("wrong", [-1.0, math.nan, "soon"])
def test_a_wrong_timeout_charges_nothing(wrong: float, clock: ManualClock) -> None:
    bucket = TokenBucket(10, 5, clock=clock)
    bucket.acquire(5)
    with pytest.raises((ValueError, TypeError), match="timeout must be"):
        bucket.acquire(1, timeout=wrong)
    clock.advance(0.5)
    assert bucket.available == 5


def test_a_decision_is_a_value() -> None:
    decision = Decision(False, Limit(5, 1), 1.5, 0.25, 1.0)
    assert decision == Decision(False, Limit(5, 1), 1.5, 0.25, 1.0)
    assert decision != Decision(True, Limit(5, 1), 1.5, 0.25, 1.0)
    assert decision != "no"
    assert len({decision, pickle.loads(pickle.dumps(decision))}) == 1
    assert not decision
    assert Decision(True)
    assert repr(decision) == (
        "Decision(allowed=False, limit='5/second', remaining=1.5, retry_after=0.25, reset_after=1)"
    )


def test_a_denial_survives_pickling() -> None:
    denial = RateLimited(Decision(False, Limit(5, 1), 0.0, 0.25, 1.0))
    copy = pickle.loads(pickle.dumps(denial))
    assert (str(copy), copy.decision) == (str(denial), denial.decision)

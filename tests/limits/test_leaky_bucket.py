import asyncio
import math
from collections.abc import Callable

import pytest

from sluicegate import LeakyBucket, ManualClock, RateLimited


def test_the_kth_waiter_leaves_k_beats_later(clock: ManualClock) -> None:
    bucket = LeakyBucket(10, 5, clock=clock)
    left: list[tuple[int, float]] = []

    async def task(number: int) -> None:
        await bucket.acquire_async()
        left.append((number, round(clock.now(), 6)))

    async def main() -> None:
        await asyncio.gather(*(task(number) for number in range(6)))

    asyncio.run(main())
    assert left == [(0, 0.0), (1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4), (5, 0.5)]


def test_a_full_queue_refuses_at_once_and_says_when_to_come_again(clock: ManualClock) -> None:
    bucket = LeakyBucket(10, 2, clock=clock)
    assert [round(bucket.reserve(), 6) for _ in range(3)] == [0.0, 0.1, 0.2]
    assert bucket.queued == 2
    for refused in (bucket.reserve, bucket.acquire):
        with pytest.raises(RateLimited) as caught:
            refused()
        assert caught.value.retry_after == pytest.approx(0.1)
    clock.advance(0.1)
    assert bucket.reserve() == pytest.approx(0.2)


def test_a_try_passes_only_on_a_free_beat(clock: ManualClock) -> None:
    bucket = LeakyBucket(10, 100, clock=clock)
    passed = []
    for _ in range(30):
        passed.append(bucket.try_acquire())
        clock.advance(0.05)
    assert passed == [step % 2 == 0 for step in range(30)]


def test_idle_time_stores_nothing(clock: ManualClock) -> None:
    bucket = LeakyBucket(10, 0, clock=clock)
    clock.advance(1000)
    assert bucket.try_acquire()
    assert not bucket.try_acquire()
    with pytest.raises(RateLimited):
        bucket.acquire()


def test_a_cancelled_waiter_frees_its_place(clock: ManualClock) -> None:
    bucket = LeakyBucket(10, 3, clock=clock)
    left: list[tuple[str, float]] = []

    async def task(name: str) -> None:
        await bucket.acquire_async()
        left.append((name, round(clock.now(), 6)))

    async def main() -> None:
        tasks = {name: asyncio.create_task(task(name)) for name in ["a", "b", "c", "d"]}
        await asyncio.sleep(0)
        with pytest.raises(RateLimited):
            await bucket.acquire_async()
        tasks["b"].cancel()
        await asyncio.sleep(0)
        tasks["e"] = asyncio.create_task(task("e"))
        await asyncio.gather(*tasks.values(), return_exceptions=True)

    asyncio.run(main())
    assert left == [("a", 0.0), ("c", 0.1), ("d", 0.2), ("e", 0.3)]


def test_a_timeout_is_decided_at_once(clock: ManualClock) -> None:
    bucket = LeakyBucket(10, 10, clock=clock)
    assert bucket.acquire(timeout=0) == 0.0
    assert bucket.acquire() == pytest.approx(0.1)
    bucket.reserve()
    with pytest.raises(RateLimited):
        bucket.acquire(timeout=0.15)
    assert bucket.acquire(timeout=0.2) == pytest.approx(0.2)


def test_it_shapes_a_block(clock: ManualClock) -> None:
    bucket = LeakyBucket(10, 5, clock=clock)
    with bucket, bucket:
        assert clock.now() == pytest.approx(0.1)

    async def main() -> None:
        async with bucket:
            assert clock.now() == pytest.approx(0.2)

    asyncio.run(main())
    assert repr(bucket) == "LeakyBucket(rate=10/s, capacity=5, queued=0)"
    assert (bucket.rate, bucket.capacity) == (10, 5)


WRONG: list[Callable[[], object]] = [
    lambda: LeakyBucket(0, 1),
    lambda: LeakyBucket(math.nan, 1),
    lambda: LeakyBucket(1, -1),
    lambda: LeakyBucket(1, 1.5),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_arguments_raise_and_say_what_was_wrong(wrong: Callable[[], object]) -> None:
    with pytest.raises((ValueError, TypeError), match="got"):
        wrong()

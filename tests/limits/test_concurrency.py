import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from sluicegate import ConcurrencyLimit, RateLimited
from tests.harness.threads import run_in_threads
from tests.harness.waits import PATIENCE


def test_so_many_at_once_and_no_more() -> None:
    limit = ConcurrencyLimit(2)
    with limit, limit:
        assert limit.in_use == 2
        assert not limit.try_acquire()
        with pytest.raises(RateLimited, match="rate limited by the limit: 0 left"):
            limit.acquire()
    assert limit.in_use == 0
    assert repr(limit) == "ConcurrencyLimit(limit=2, in_use=0, waiting=0 of 0)"


def test_those_who_wait_are_served_in_their_order_and_nobody_slips_in() -> None:
    limit = ConcurrencyLimit(1, queue=3)
    order: list[int] = []

    async def task(number: int) -> None:
        async with limit:
            assert not limit.try_acquire()
            order.append(number)
            await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(*(task(number) for number in range(4)))

    asyncio.run(main())
    assert order == [0, 1, 2, 3]


def test_a_full_queue_refuses_at_once() -> None:
    limit = ConcurrencyLimit(1, queue=1)

    async def main() -> None:
        await limit.acquire_async()
        waiter = asyncio.create_task(limit.acquire_async())
        await asyncio.sleep(0)
        assert (limit.waiting, limit.queue) == (1, 1)
        with pytest.raises(RateLimited):
            await limit.acquire_async()
        limit.release()
        await waiter

    asyncio.run(main())
    assert limit.in_use == 1


def test_a_cancelled_waiter_leaves_the_queue() -> None:
    limit = ConcurrencyLimit(1, queue=2)

    async def main() -> None:
        await limit.acquire_async()
        first = asyncio.create_task(limit.acquire_async())
        second = asyncio.create_task(limit.acquire_async())
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert limit.waiting == 1
        limit.release()
        await second

    asyncio.run(main())
    assert (limit.in_use, limit.waiting) == (1, 0)


def test_a_waiter_cancelled_with_the_place_in_hand_passes_it_on() -> None:
    limit = ConcurrencyLimit(1, queue=2)

    async def main() -> None:
        await limit.acquire_async()
        first = asyncio.create_task(limit.acquire_async())
        second = asyncio.create_task(limit.acquire_async())
        await asyncio.sleep(0)
        limit.release()  # the place is the first one's now; before he runs, he is cancelled
        first.cancel()
        await second
        assert first.cancelled()

    asyncio.run(main())
    assert (limit.in_use, limit.waiting) == (1, 0)


def test_a_timeout_ends_the_wait() -> None:
    limit = ConcurrencyLimit(1, queue=1)
    limit.acquire()
    for timeout in (0, 0.001):
        with pytest.raises(RateLimited):
            limit.acquire(timeout=timeout)
        with pytest.raises(RateLimited):
            asyncio.run(limit.acquire_async(timeout=timeout))
    assert limit.waiting == 0


def test_threads_hand_their_places_on() -> None:
    limit = ConcurrencyLimit(3, queue=100)
    most = [0]
    lock = threading.Lock()
    running = [0]
    three = threading.Barrier(3)  # each thread's first turn ends when three are inside

    def work() -> None:
        for turn in range(50):
            with limit:
                with lock:
                    running[0] += 1
                    most[0] = max(most[0], running[0])
                if turn == 0:
                    three.wait(PATIENCE)
                time.sleep(0)
                with lock:
                    running[0] -= 1

    run_in_threads([work] * 9)
    assert most[0] == 3
    assert (limit.in_use, limit.waiting) == (0, 0)


def test_the_limit_may_be_changed_under_way() -> None:
    limit = ConcurrencyLimit(1, queue=2)

    async def main() -> None:
        await limit.acquire_async()
        waiters = [asyncio.create_task(limit.acquire_async()) for _ in range(2)]
        await asyncio.sleep(0)
        limit.limit = 3
        await asyncio.gather(*waiters)

    asyncio.run(main())
    assert limit.in_use == 3
    limit.limit = 1
    limit.release()
    assert not limit.try_acquire()
    limit.release()
    limit.release()
    assert limit.try_acquire()


def test_what_was_not_taken_cannot_be_given_back() -> None:
    with pytest.raises(RuntimeError, match="no place is taken"):
        ConcurrencyLimit(1).release()


WRONG: list[Callable[[], object]] = [
    lambda: ConcurrencyLimit(0),
    lambda: ConcurrencyLimit(1.5),  # type: ignore[arg-type]
    lambda: ConcurrencyLimit(True),
    lambda: ConcurrencyLimit(1, queue=-1),
    lambda: ConcurrencyLimit(1).acquire(timeout=-1),
]


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_arguments_raise_and_say_what_was_wrong(wrong: Callable[[], object]) -> None:
    with pytest.raises((ValueError, TypeError), match="got"):
        wrong()

"""Requests and responses as large as they may be, and many of them at once."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

from sluicegate import Dispatcher, Worker
from sluicegate.dispatch.read_count import ReadCount
from sluicegate.dispatch.wire import Response, encode_response
from tests.harness.servers import RedisServer
from tests.harness.waits import PATIENCE, wait_until

LARGE = b"x" * 1_048_000  # nearly the largest payload


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 2 * PATIENCE))


def lengths(items: list[bytes]) -> list[int]:
    return [len(item) for item in items]


def test_a_read_that_was_too_large_asks_for_less_and_then_for_more_again() -> None:
    count = ReadCount(100)
    assert count.within(1000) == 100
    assert count.within(8) == 8
    assert count.shrink(8)
    assert count.within(8) == 2
    assert count.shrink(2)
    assert count.within(8) == 1
    assert not count.shrink(1)
    asked = []
    for _ in range(9):
        count.grow()
        asked.append(count.within(1000))
    assert asked == [2, 4, 8, 16, 32, 64, 100, 100, 100]


def test_a_client_that_was_held_up_reads_all_its_large_responses(
    redis_server: RedisServer,
) -> None:
    async def scenario() -> None:
        async with (
            Worker(redis_server.url, "large", lengths),
            Dispatcher(redis_server.url, "large") as client,
        ):
            response = encode_response("msgpack", Response("of an earlier call", 0, LARGE))
            with redis_server.client as redis:  # before the client has read anything
                replies = f"sluicegate:{{large}}:replies:{client.name}"
                for _ in range(20):
                    redis.xadd(replies, {"response": response})
            assert await client.call(b"abc", timeout=PATIENCE) == 3

    run(scenario())


def test_a_worker_answers_many_requests_as_large_as_they_may_be(redis_server: RedisServer) -> None:
    """Forty wait at once, in three priorities: no reply that delivers them may be too large."""

    async def scenario() -> None:
        may_end = threading.Event()

        def handler(items: list[bytes]) -> list[int]:
            assert may_end.wait(PATIENCE)
            return lengths(items)

        async with (
            # Far too long a lease for the reaper to help.
            Worker(redis_server.url, "large", handler, max_batch=20, lease=10 * PATIENCE),
            Dispatcher(redis_server.url, "large", timeout=PATIENCE) as client,
        ):
            calls = [client.submit(b"abc", timeout=PATIENCE)]
            with redis_server.client as redis:
                await wait_until(lambda: redis.xlen("sluicegate:{large}:tasks:0") == 1)
                for number in range(40):
                    priority = number % 3 - 1
                    calls.append(client.submit(LARGE, timeout=PATIENCE, priority=priority))
                keys = [f"sluicegate:{{large}}:tasks:{priority}" for priority in (-1, 0, 1)]
                await wait_until(lambda: sum(redis.xlen(key) for key in keys) == 41)
            may_end.set()
            assert await asyncio.gather(*calls) == [3] + [len(LARGE)] * 40

    run(scenario())

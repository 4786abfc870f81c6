"""Calls from end to end: a real Redis, a worker and a client in one process."""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

import pytest

from sluicegate import (
    Dispatcher,
    NoWorkers,
    Worker,
)
from tests.harness.servers import RedisServer
from tests.harness.waits import PATIENCE

QUEUE = "translate"


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 2 * PATIENCE))


def double(items: list[Any]) -> list[Any]:
    return [2 * item for item in items]


async def wait_until(condition: Any, seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"did not happen within {seconds:g} s"
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("content_type", ["msgpack", "json"])
def test_a_call_returns_the_result_of_the_handler(
    redis_server: RedisServer, content_type: str
) -> None:
    async def scenario() -> None:
        client = Dispatcher(redis_server.url, QUEUE, content_type=content_type)
        async with Worker(redis_server.url, QUEUE, double), client:
            assert await client.call(21, timeout=PATIENCE) == 42
            assert await client.call("ab", timeout=PATIENCE, priority=1) == "abab"
            assert await client.call([1, None, {"a": 1.5}], timeout=PATIENCE, priority=-1) == [
                *(1, None, {"a": 1.5}),
                *(1, None, {"a": 1.5}),
            ]
            many = await client.call_many(range(100), timeout=PATIENCE)
            assert many == [2 * item for item in range(100)]

    run(scenario())


def test_a_call_without_a_worker_fails_at_once(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        async with Dispatcher(redis_server.url, QUEUE) as client:
            with pytest.raises(NoWorkers, match="translate"):
                await client.call(1, timeout=PATIENCE)
            async with Worker(redis_server.url, QUEUE, double):
                assert await client.call(1, timeout=PATIENCE) == 2
            with pytest.raises(NoWorkers):
                await client.call(1, timeout=PATIENCE)

    run(scenario())

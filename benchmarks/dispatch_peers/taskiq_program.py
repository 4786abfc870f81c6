"""The no-op task in taskiq, with taskiq-redis."""

import asyncio
import sys

from measuring import flood, serve_lines
from taskiq.api import run_receiver_task
from taskiq_redis import ListQueueBroker, RedisAsyncResultBackend

ROLE, URL = sys.argv[1:3]
broker = ListQueueBroker(URL).with_result_backend(RedisAsyncResultBackend(URL))


@broker.task
async def same(number: int) -> int:
    return number


async def call(number: int) -> int:
    task = await same.kiq(number)
    result = await task.wait_result(timeout=60)
    return result.return_value


async def work() -> None:
    broker.is_worker_process = True
    await run_receiver_task(broker, run_startup=True)


if ROLE == "worker":
    asyncio.run(work())
else:
    with asyncio.Runner() as runner:
        runner.run(broker.startup())
        serve_lines(lambda count, in_flight: runner.run(flood(call, count, in_flight)))

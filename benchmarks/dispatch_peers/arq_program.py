"""The no-op task in arq."""

import asyncio
import sys
from typing import Any

from arq import create_pool, run_worker
from arq.connections import RedisSettings
from measuring import flood, serve_lines

ROLE, URL = sys.argv[1:3]


async def same(_: Any, number: int) -> int:
    return number


REDIS = RedisSettings.from_dsn(URL)

if ROLE == "worker":
    asyncio.set_event_loop(asyncio.new_event_loop())
    run_worker({"functions": [same], "redis_settings": REDIS, "max_jobs": 64})
else:
    with asyncio.Runner() as runner:
        pool = runner.run(create_pool(REDIS))

        async def call(number: int) -> int:
            job = await pool.enqueue_job("same", number)
            assert job is not None
            result: int = await job.result(timeout=60)
            return result

        serve_lines(lambda count, in_flight: runner.run(flood(call, count, in_flight)))

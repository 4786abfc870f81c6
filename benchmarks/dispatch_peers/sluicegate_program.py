"""The no-op task in Sluicegate: with `sync` a plain function, with `uvloop` on that event loop."""

import asyncio
import sys

from measuring import flood, serve_lines

from sluicegate import Dispatcher, Worker

ROLE, URL = sys.argv[1:3]

if "uvloop" in sys.argv:
    import uvloop

    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())


def same(items: list[int]) -> list[int]:
    return items


async def same_async(items: list[int]) -> list[int]:
    return items


if ROLE == "worker":
    Worker(URL, "bench", same if "sync" in sys.argv else same_async).run()
else:
    with asyncio.Runner() as runner:
        client = Dispatcher(URL, "bench")
        serve_lines(
            lambda count, in_flight: runner.run(
                flood(lambda number: client.call(number, timeout=60), count, in_flight)
            )
        )
        runner.run(client.close())

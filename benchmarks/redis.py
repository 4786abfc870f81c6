"""A limit across hosts: one decision through Redis, beside the limiters people use today.

A Redis of its own is started on the loopback, and it and this process are
put on one processor: so the time of a call is the work of both, and not the time that
two processors take to wake each other. Everything is allowed, on one key.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

import limits as limits_peer
import pyrate_limiter
import redis
import throttled
from limits.aio.storage import RedisStorage as AsyncRedisStorage
from limits.aio.strategies import FixedWindowRateLimiter as AsyncFixedWindow
from limits.storage import RedisStorage
from limits.strategies import FixedWindowRateLimiter

from benchmarks.harness import ROUNDS, Row, Subject, Times, compare
from benchmarks.redis_server import on_one_processor, server
from sluicegate import AsyncRedisKeyed, RedisKeyed

NOTES = (
    "Calls per second of wall time, the best of "
    f"{ROUNDS} rounds in turns; client and Redis on one processor, over TCP."
)
HUGE = 10**9
KEY = "user:1234"
IN_FLIGHT = 100
TURNS = 20  # calls of each task in one round


def rows() -> list[Row]:
    with server() as url, on_one_processor():
        return [*one_after_another(url), *many_in_flight(url)]


def one_after_another(url: str) -> list[Row]:
    client = redis.Redis.from_url(url)
    with (
        RedisKeyed(url, f"{HUGE}/second") as exact,
        RedisKeyed(url, f"{HUGE}/second", prefix="leased:", mode="leased") as leased,
        contextlib.closing(client),
    ):
        warm_up(leased)
        times = compare(
            exact=call("keyed.allow(key)", keyed=exact),
            leased=call("keyed.allow(key)", keyed=leased),
            limits=call(
                "limiter.hit(item, key)",
                limiter=FixedWindowRateLimiter(RedisStorage(url)),
                item=limits_peer.parse(f"{HUGE}/second"),
            ),
            throttled=call("limiter.limit(key)", limiter=throttled_peer(url)),
            pyrate=call("limiter.try_acquire(key, blocking=False)", limiter=pyrate_peer(client)),
            redis_py=call(
                "script(keys=(key,))", script=client.register_script("return redis.call('TIME')[1]")
            ),
        )
    what = "RedisKeyed.allow(key), exact, token bucket"
    return [
        faster(what, times["exact"], times["limits"], 2.5, "limits, fixed window"),
        faster(what, times["exact"], times["throttled"], 2.5, "throttled-py, token bucket"),
        faster(what, times["exact"], times["pyrate"], None, "pyrate-limiter, sliding log"),
        faster(what, times["exact"], times["redis_py"], None, "redis-py, the emptiest script"),
        faster("RedisKeyed.allow(key), leased", times["leased"], times["exact"], 50, "exact"),
    ]


def many_in_flight(url: str) -> list[Row]:
    async def turns() -> dict[str, Times]:
        storage = AsyncRedisStorage(f"async+{url}", implementation="redispy")
        peer = AsyncFixedWindow(storage)
        item = limits_peer.parse(f"{HUGE}/second")
        async with AsyncRedisKeyed(url, f"{HUGE}/second", prefix="async:", timeout=5) as ours:
            best = {"ours": math.inf, "limits": math.inf}
            for _ in range(ROUNDS):
                for name, ask in (
                    ("ours", lambda: ours.allow(KEY)),
                    ("limits", lambda: peer.hit(item, KEY)),
                ):
                    best[name] = min(best[name], await spend(ask))
        await storage.bridge.get_connection().aclose()
        return {name: Times(took, took) for name, took in best.items()}

    times = asyncio.run(turns())
    what = f"AsyncRedisKeyed.allow(key), exact, {IN_FLIGHT} in flight"
    return [faster(what, times["ours"], times["limits"], None, "limits.aio, fixed window")]


async def spend(ask: Callable[[], Awaitable[object]]) -> float:
    async def task() -> None:
        for _ in range(TURNS):
            await ask()

    start = time.perf_counter_ns()
    await asyncio.gather(*(task() for _ in range(IN_FLIGHT)))
    return (time.perf_counter_ns() - start) / (IN_FLIGHT * TURNS)


def warm_up(leased: RedisKeyed) -> None:
    """Until the lot has grown to the rate of this key, as it does in its first seconds."""
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        leased.allow(KEY)


def throttled_peer(url: str) -> Any:
    return throttled.Throttled(
        using=throttled.RateLimiterType.TOKEN_BUCKET.value,
        quota=throttled.per_sec(HUGE, burst=HUGE),
        store=throttled.RedisStore(server=url),
    )


def pyrate_peer(client: Any) -> Any:
    # Its log keeps each call: a second of them, or it would grow for the whole run.
    rate = pyrate_limiter.Rate(HUGE, pyrate_limiter.Duration.SECOND)
    return pyrate_limiter.Limiter(pyrate_limiter.RedisBucket.init([rate], client, "pyrate"))


def call(statement: str, **names: Any) -> Subject:
    return Subject(statement, {"key": KEY, **names})


def faster(what: str, ours: Times, theirs: Times, least: float | None, name: str) -> Row:
    ratio = theirs.wall / ours.wall
    return Row(
        what,
        f"{1e9 / ours.wall:,.0f}/s",
        f"{1e9 / theirs.wall:,.0f}/s ({name})",
        ratio,
        f"{ratio:.1f} x faster",
        "" if least is None else f">= {least:g} x faster",
        None if least is None else ratio >= least,
    )

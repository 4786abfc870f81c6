"""The speed and memory of a local decision, beside the limiters people use today.

Everything is allowed: limits are so high that no call is refused, for that is the path
that every good request takes. Peers are given their fastest algorithm and store.
"""

import asyncio
import random
import time
from typing import Any

import aiolimiter
import limits as limits_peer
import pyrate_limiter
import throttled
import token_bucket
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter
from snowflake import SnowflakeGenerator

from benchmarks.harness import ROUNDS, Row, Times, compare, in_fresh_process
from benchmarks.rows import call, empty, faster, slower
from sluicegate import FixedWindow, Keyed, SlidingCounter, SlidingWindow, Snowflake, TokenBucket

NOTES = (
    "Times are of the thread, per call, the best of "
    f"{ROUNDS} rounds in turns, with the loop around them (as in timeit)."
)
HUGE = 10**9


def rows() -> list[Row]:
    return [*singles(), *keyed(), *random_keys(), *memory(), *waiting(), *windows(), *ids()]


def singles() -> list[Row]:
    subjects = {
        "TokenBucket.try_acquire()": TokenBucket(HUGE, HUGE),
        "FixedWindow.try_acquire()": FixedWindow(HUGE, 1),
        "SlidingCounter.try_acquire()": SlidingCounter(HUGE, 1),
    }
    rows = []
    for name, limiter in subjects.items():
        times = compare(ours=call("limiter.try_acquire()", limiter=limiter), empty=empty())
        rows.append(slower(name, times, "empty", 1.5, "empty method"))
    return rows


def keyed() -> list[Row]:
    keyed = Keyed(f"{HUGE}/second")
    times = compare(
        ours=call("keyed.allow(key)", keyed=keyed),
        check=call("keyed.check(key)", keyed=keyed),
        two=call("keyed.allow(key)", keyed=Keyed(f"{HUGE}/second; {HUGE * 1000}/hour")),
        empty=empty(),
        token_bucket=call(
            "limiter.consume(key)",
            limiter=token_bucket.Limiter(HUGE, HUGE, token_bucket.MemoryStorage()),
        ),
        limits=call(
            "limiter.hit(item, key)",
            limiter=FixedWindowRateLimiter(MemoryStorage()),
            item=limits_peer.parse(f"{HUGE}/second"),
        ),
        throttled=call("limiter.limit(key)", limiter=throttled_peer()),
        pyrate=call("limiter.try_acquire(key, blocking=False)", limiter=pyrate_peer()),
    )
    hot = "Keyed.allow(key), hot key"
    check = {**times, "ours": times["check"]}
    two = {**times, "ours": times["two"]}
    return [
        slower(hot, times, "empty", 2.0, "empty method"),
        faster(hot, times, "token_bucket", 10, "token-bucket"),
        faster(hot, times, "limits", 50, "limits, fixed window"),
        faster(hot, times, "throttled", None, "throttled-py, token bucket"),
        faster(hot, times, "pyrate", None, "pyrate-limiter, GCRA"),
        slower("Keyed.check(key), a full Decision", check, "empty", 5.0, "empty method"),
        slower("Keyed.allow(key), two limits", two, "empty", None, "empty method"),
    ]


def random_keys() -> list[Row]:
    numbers = random.Random(5)
    keys = [f"user:{number}" for number in range(100_000)]
    ours = Keyed(f"{HUGE}/second")
    peer = token_bucket.Limiter(HUGE, HUGE, token_bucket.MemoryStorage())
    # Strings of their own, as a server builds them from each request: equal, not identical.
    asked = [f"user:{numbers.randrange(100_000)}" for _ in range(200_000)]
    for key in keys:
        ours.allow(key)
        peer.consume(key)
    best: dict[str, Times] = {}
    for _ in range(5):
        for name, ask in (("ours", ours.allow), ("token_bucket", peer.consume)):
            wall, thread = time.perf_counter_ns(), time.thread_time_ns()
            for key in asked:
                ask(key)
            took = Times(
                (time.thread_time_ns() - thread) / len(asked),
                (time.perf_counter_ns() - wall) / len(asked),
            )
            best[name] = min(best.get(name, took), took, key=lambda times: times.thread)
    what = "Keyed.allow, 100,000 keys in random order"
    return [faster(what, best, "token_bucket", 5, "token-bucket")]


MEMORY = """
import gc, json, resource, time
{imports}
def memory():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()
keys = [f"user:{{number}}" for number in range(1_000_000)]
{make}
gc.collect()
before = memory()
for key in keys:
    {ask}
print(json.dumps((memory() - before) / len(keys)))
"""
PAUSE = """
import json, time
from sluicegate import Keyed, ManualClock
clock = ManualClock()
keyed = Keyed("10/second", clock=clock)
longest = 0
now = time.thread_time_ns
for part in range(3):
    for number in range(part * 700_000, (part + 1) * 700_000):
        start = now()
        keyed.allow(number)
        longest = max(longest, now() - start)
    clock.advance(2)
print(json.dumps(longest))
"""


def memory() -> list[Row]:
    ours = in_fresh_process(
        MEMORY.format(
            imports="from sluicegate import Keyed",
            make="keyed = Keyed('1/hour')",
            ask="keyed.allow(key)",
        )
    )
    peer = in_fresh_process(
        MEMORY.format(
            imports="import token_bucket",
            make="peer = token_bucket.Limiter(1, 1, token_bucket.MemoryStorage())",
            ask="peer.consume(key)",
        )
    )
    longest = min(in_fresh_process(PAUSE) for _ in range(3))
    pause = "Keyed, longest call while 700,000 come and 700,000 expire"
    return [
        Row(
            "Keyed, 1,000,000 keys: bytes per key beyond the key",
            f"{ours:.0f} B",
            f"{peer:.0f} B (token-bucket)",
            ours / peer,
            f"{ours / peer:.2f} x",
            "<= 120 B",
            ours <= 120,
        ),
        Row(pause, f"{longest / 1e6:.2f} ms", "", None, "", "<= 5 ms", longest <= 5e6),
    ]


def waiting() -> list[Row]:
    async def spend(limiter: Any, method: str) -> Times:
        acquire = getattr(limiter, method)
        count = 20_000
        wall, thread = time.perf_counter_ns(), time.thread_time_ns()
        for _ in range(count):
            await acquire()
        return Times(
            (time.thread_time_ns() - thread) / count, (time.perf_counter_ns() - wall) / count
        )

    async def turns() -> dict[str, Times]:
        ours = TokenBucket(HUGE, HUGE)
        peer = aiolimiter.AsyncLimiter(HUGE, 1)
        best: dict[str, Times] = {}
        for _ in range(ROUNDS):
            for name, took in (
                ("ours", await spend(ours, "acquire_async")),
                ("aiolimiter", await spend(peer, "acquire")),
            ):
                best[name] = min(best.get(name, took), took, key=lambda times: times.thread)
        return best

    times = asyncio.run(turns())
    what = "await TokenBucket.acquire_async(), permits there"
    return [slower(what, times, "aiolimiter", 0.5, "aiolimiter")]


def windows() -> list[Row]:
    full = SlidingWindow(HUGE, 3600)
    for _ in range(1_000_000):
        full.try_acquire()
    times = compare(
        ours=call("window.try_acquire()", window=full),
        few=call("window.try_acquire()", window=SlidingWindow(HUGE, 1e-6)),
        limits=call(
            "limiter.hit(item, key)",
            limiter=limits_peer.strategies.MovingWindowRateLimiter(MemoryStorage()),
            item=limits_peer.parse(f"{HUGE}/hour"),
        ),
    )
    what = "SlidingWindow (exact log), a million calls in the window"
    return [
        slower(what, times, "few", 1.5, "itself, some ten in the window"),
        faster(what, times, "limits", None, "limits, moving window"),
    ]


def ids() -> list[Row]:
    snowflake = Snowflake()
    times = compare(peer=call("next(peer)", peer=SnowflakeGenerator(1)))
    # Rounds long enough that the one millisecond a round may find unused does not count.
    peer = 1e3 / times["peer"].wall
    one = 0.0
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(500_000):
            snowflake.next()
        one = max(one, 0.5 / (time.perf_counter() - start))
    many = 0.0
    for _ in range(ROUNDS):
        start = time.perf_counter()
        made = snowflake.next_many(500_000)
        many = max(many, len(made) / (time.perf_counter() - start) / 1e6)
    return [
        Row(
            "Snowflake.next(), wall time",
            f"{one:.2f} M/s",
            f"{peer:.2f} M/s (snowflake-id)",
            one / peer,
            f"{one / peer:.1f} x faster",
            ">= 2.5 M/s",
            one >= 2.5,
        ),
        Row(
            "Snowflake.next_many(), wall time",
            f"{many:.3f} M/s",
            "4.096 M/s (the format's ceiling)",
            many / 4.096,
            f"{many / 4.096:.3f} x",
            ">= 0.99 x",
            many >= 4.096 * 0.99,
        ),
    ]


def throttled_peer() -> Any:
    return throttled.Throttled(
        using=throttled.RateLimiterType.TOKEN_BUCKET.value,
        quota=throttled.per_sec(HUGE, burst=HUGE),
        store=throttled.MemoryStore(),
    )


def pyrate_peer() -> Any:
    rate = pyrate_limiter.Rate(HUGE, pyrate_limiter.Duration.SECOND)
    return pyrate_limiter.Limiter(pyrate_limiter.StateBucket([rate]))

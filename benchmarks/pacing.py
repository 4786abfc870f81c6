"""The speed of a paced decision, and what a sync costs.

The original program is written in Go. It was built and run once on another machine: 82 ns for its
counter, 630 ns for its limiter and 595 ns for its scored limiter. Its times cannot be taken here,
so the goals speak of an empty Python method instead.
"""

import time

from benchmarks.harness import ROUNDS, Row, compare
from benchmarks.redis_server import on_one_processor, server
from benchmarks.rows import call, empty, slower
from sluicegate.pacing import Cluster
from sluicegate.stores import MemoryStore, RedisStore
from sluicegate.stores.store import Store

NOTES = (
    "Times are of the thread, per call, the best of "
    f"{ROUNDS} rounds in turns; every request passes. A sync is the processor time of the node and "
    "of Redis, on one processor, the best of ten."
)
HUGE = 10.0**15
COUNTERS = 1_000


def rows() -> list[Row]:
    return [*decisions(), *syncs()]


def decisions() -> list[Row]:
    cluster = Cluster(MemoryStore())
    counter = cluster.counter("hits", period=3600)
    limiter = cluster.limiter("ads", target=HUGE, period=3600)
    scored = cluster.limiter("best", target=HUGE, period=3600, scored=True)
    cluster.sync()
    rows = []
    for what, statement, most in [
        ("ClusterCounter.add(1)", "counter.add(1.0)", 1.2),
        ("ClusterLimiter.acquire(1)", "limiter.acquire(1.0)", 2.5),
        ("ClusterLimiter.take(1, score)", "scored.take(1.0, 0.5)", 3.0),
    ]:
        times = compare(
            ours=call(statement, counter=counter, limiter=limiter, scored=scored), empty=empty()
        )
        rows.append(slower(what, times, "empty", most, "empty method"))
    return rows


def syncs() -> list[Row]:
    with server() as url, on_one_processor():
        store = RedisStore(url, timeout=10.0)
        seconds = _sync_seconds(store)
        store.close()
    most = 0.010
    return [
        Row(
            f"one sync of {COUNTERS:,} counters: one round trip",
            f"{seconds * 1e3:.1f} ms",
            "",
            seconds / most,
            "",
            f"<= {most * 1e3:g} ms",
            seconds <= most,
        )
    ]


def _sync_seconds(store: Store) -> float:
    """Of the wall: node and Redis take turns on one processor."""
    cluster = Cluster(store)
    counters = [cluster.counter(f"hits-{number}", period=3600) for number in range(COUNTERS)]
    best = float("inf")
    for _ in range(10):
        for counter in counters:
            counter.add()
        begin = time.perf_counter()
        cluster.sync()
        best = min(best, time.perf_counter() - begin)
    return best

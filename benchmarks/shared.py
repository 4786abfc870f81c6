"""One limit for all processes of a host: a decision in shared memory.

pyrate-limiter's bucket for several processes asks a manager process over a socket, so its
time is taken on the wall; so is ours beside it.
"""

import os
from typing import Any

import pyrate_limiter

from benchmarks.harness import ROUNDS, Row, compare
from benchmarks.rows import call, empty, slower, two_processes
from sluicegate import SharedKeyed, SharedTable

NOTES = (
    f"Times are per call, the best of {ROUNDS} rounds in turns, with the loop around them "
    "(as in timeit): of the thread beside an empty method, of the wall beside pyrate-limiter."
)
HUGE = 10**9
LIMIT = f"{HUGE}/second"

LOOP = """
import os, sys, time
from sluicegate import SharedKeyed
os.sched_setaffinity(0, {int(sys.argv[3])})
keyed, key = SharedKeyed(sys.argv[1], "1000000000/second"), sys.argv[2]
for _ in range(100_000):
    keyed.allow(key)
print("ready", flush=True)
sys.stdin.readline()
start = time.perf_counter()
for _ in range(2_000_000):
    keyed.allow(key)
print(2_000_000 / (time.perf_counter() - start))
"""


def rows() -> list[Row]:
    name = f"bench-{os.getpid()}"
    try:
        together = two_processes("SharedKeyed", LOOP, name, 1.7)
        return [*decisions(name), *together]
    finally:
        SharedKeyed.unlink(name)
        SharedTable.unlink(f"{name}-table")


def decisions(name: str) -> list[Row]:
    keyed = SharedKeyed(name, LIMIT)
    table = SharedTable(f"{name}-table")
    times = compare(
        ours=call("keyed.allow(key)", keyed=keyed),
        check=call("keyed.check(key)", keyed=keyed),
        incr=call("table.incr(key)", table=table),
        empty=empty(),
        pyrate=call("limiter.try_acquire(key, blocking=False)", limiter=pyrate_peer()),
    )
    ours, theirs = times["ours"].wall, times["pyrate"].wall
    beside_pyrate = Row(
        "SharedKeyed.allow(key), wall time",
        f"{ours:.0f} ns",
        f"{theirs:.0f} ns (pyrate-limiter, MultiprocessBucket)",
        theirs / ours,
        f"{theirs / ours:.0f} x faster",
        ">= 200 x faster",
        theirs >= 200 * ours,
    )
    check = {**times, "ours": times["check"]}
    incr = {**times, "ours": times["incr"]}
    return [
        slower("SharedKeyed.allow(key), hot key", times, "empty", 5.0, "empty method"),
        beside_pyrate,
        slower("SharedKeyed.check(key), a full Decision", check, "empty", None, "empty method"),
        slower("SharedTable.incr(key)", incr, "empty", None, "empty method"),
    ]


def pyrate_peer() -> Any:
    rate = pyrate_limiter.Rate(HUGE, pyrate_limiter.Duration.SECOND)
    return pyrate_limiter.Limiter(pyrate_limiter.MultiprocessBucket.init([rate]))

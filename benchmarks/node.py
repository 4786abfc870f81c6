"""The end node's hot path: what a request pays for its quota.

A user with a share, as in every slot of a node that hears its central; the amounts are
a dict that is built for each request, as an application does.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.harness import ROUNDS, Row, compare
from benchmarks.rows import call, empty, slower, two_processes
from sluicegate.quota.messages import Quota, ServiceQuota, Share
from sluicegate.quota.node.core._user_table import UserTable
from sluicegate.quota.node.core.reporter import Reporter

NOTES = (
    f"Times are of the thread, per request, the best of {ROUNDS} rounds in turns, with the loop "
    "around them (as in timeit)."
)
HUGE = 1e15
RESOURCES = ("requests", "traffic_up", "traffic_down")

LOOP = """
import os, sys, time
from sluicegate.quota.node.core._user_table import UserTable
os.sched_setaffinity(0, {int(sys.argv[3])})
table, user = UserTable("bench", ["front"], shared=sys.argv[1]), sys.argv[2]
allows, consume = table.allows, table.consume
def requests(count):
    for _ in range(count):
        allows("front", user)
        consume("front", user, {"requests": 1})
requests(50_000)
print("ready", flush=True)
sys.stdin.readline()
start = time.perf_counter()
requests(1_000_000)
print(1_000_000 / (time.perf_counter() - start))
"""


def rows() -> list[Row]:
    with with_quotas(RESOURCES[:1]) as one, with_quotas(RESOURCES) as three:
        times = compare(
            one=call(
                'table.allows("front", key); table.consume("front", key, {"requests": 1})',
                table=one,
            ),
            three=call(
                'table.allows("front", key); table.consume("front", key, '
                '{"requests": 1, "traffic_up": 300, "traffic_down": 4000})',
                table=three,
            ),
            free=call('table.allows("front", "free")', table=one),
            allows=call('table.allows("front", key)', table=one),
            empty=empty(),
        )
        path = str(one.path)
        together = two_processes("allows + consume", LOOP, path, 1.6)
    rows = [
        ("allows + consume, one resource", "one", 10.0),
        ("allows + consume, three resources", "three", None),
        ("allows alone", "allows", None),
        ("allows alone, a user without a limit", "free", None),
    ]
    return [
        *(
            slower(what, {**times, "ours": times[which]}, "empty", goal, "empty method")
            for what, which, goal in rows
        ),
        *together,
    ]


@contextmanager
def with_quotas(resources: tuple[str, ...]) -> Iterator[UserTable]:
    """A user table that has been given its quotas."""
    name = f"bench-{os.getpid()}-{len(resources)}"
    table = UserTable("bench", ["front"], shared=name)
    try:
        reporter = Reporter(table, ["central"])
        shares = dict.fromkeys(resources, Share(HUGE, HUGE))
        users = dict.fromkeys(("user:1234", "user:0", "user:1"), shares) | {"free": {}}
        for user in users:
            table.consume("front", user, dict.fromkeys(resources, 1.0))  # what requests cost
        now, wall = table.now(), time.time()
        services = {"front": ServiceQuota(users, dict.fromkeys(resources, 1.0))}
        quota = Quota("central", 1, 1, int(wall), wall, 1, False, 0.05, services)
        reporter.receive(now, "central", quota)
        states = [table.state(table.now(), "front", user) for user in users]
        if states[0] not in ("fresh", "reused") or states[-1] != "free":
            raise RuntimeError(f"the users have no quota to be measured with: {states}")
        yield table
    finally:
        table.close()
        UserTable.unlink(name)

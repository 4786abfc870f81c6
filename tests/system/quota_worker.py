"""One worker process of an end node under test, and what it writes down.

    python -m tests.system.quota_worker '{"centrals": [...], "node": ..., ...}'

It makes a `Node`, says "ready", reads the second of the wall clock at which the story begins, and
then asks for its users by the clock: so many requests per second, whatever the answers are. Each
request that is allowed is consumed at once. At the end of the story it closes the node.

Every decision is counted in a `Tally`: a file that is mapped into memory, so that what was counted
until a SIGKILL is there, and nobody has to be asked for it. Beside it are files of lines: when the
machine held up the worker, and when the state of the node's quota changed, as the reporting worker
saw it.
"""

import json
import logging
import mmap
import os
import sys
import time
from pathlib import Path

from sluicegate.demo.pauses import PauseMeter
from sluicegate.errors import Unavailable
from sluicegate.quota import Node
from tests.system.pauses import PauseLog

BIN_SECONDS = 0.05
STORY_SECONDS = 120.0
BINS = round(STORY_SECONDS / BIN_SECONDS)
TICK = 0.01
LOOK_EVERY = 0.1
PATIENCE = 0.5  # a request that could not be made for so long (a frozen process) has gone away


class Tally:
    """What one worker admitted and refused, by user and bin."""

    def __init__(self, path: Path, users: list[str]) -> None:
        self.users = users
        size = len(users) * 2 * BINS * 4
        with open(path, "r+b" if path.exists() else "w+b") as file:
            file.truncate(size)
            self._memory = mmap.mmap(file.fileno(), size)
        self._counts = memoryview(self._memory).cast("I")

    def count(self, user: int, is_admitted: bool, seconds: float) -> None:
        """One decision for the user with this number, so long after the story began."""
        place = int(seconds / BIN_SECONDS)
        self._counts[(2 * user + (not is_admitted)) * BINS + place] += 1

    def bins(self, user: str, *, admitted: bool) -> list[int]:
        """How many were admitted, or refused, in each bin."""
        begin = (2 * self.users.index(user) + (not admitted)) * BINS
        return self._counts[begin : begin + BINS].tolist()

    def close(self) -> None:
        self._counts.release()
        self._memory.close()


class States:
    """Writes down `[seconds, state, epoch]` of the node's quota whenever it is another."""

    def __init__(self, path: Path, node: Node, origin: float) -> None:
        self._path = path
        self._node = node
        self._origin = origin
        self._last: tuple[str, int] | None = None
        self._look_at = 0.0

    def look(self) -> None:
        now = time.time() - self._origin
        if now < self._look_at:
            return
        self._look_at = now + LOOK_EVERY
        try:
            status = self._node.status()
        except Unavailable:
            return  # its thread is busy, and asked again soon
        if not status.is_reporting or status.quota is None:
            return
        seen = (status.quota.state, status.epoch)
        if seen != self._last:
            self._last = seen
            with open(self._path, "a") as file:
                file.write(json.dumps([now, *seen]) + "\n")


def ask(node: Node, plan: dict, tally: Tally, states: States, origin: float) -> None:
    """Make the requests of the plan when they are due, until its end."""
    traffic = plan["traffic"]
    due = [max(0.0, time.time() - origin)] * len(traffic)  # when the next request of each is
    while (now := time.time() - origin) < plan["seconds"]:
        for number, one in enumerate(traffic):
            step = 1.0 / one["rate"]
            due[number] = max(due[number], now - PATIENCE)
            while due[number] <= now:
                if any(begin <= due[number] < end for begin, end in one["spans"]):
                    is_admitted = node.allows(one["service"], one["user"])
                    if is_admitted:
                        node.consume(one["service"], one["user"], {"requests": one["cost"]})
                    tally.count(number, is_admitted, max(0.0, time.time() - origin))
                due[number] += step
        states.look()
        time.sleep(TICK)


def main() -> None:
    plan = json.loads(sys.argv[1])
    logging.basicConfig(
        format=f"%(asctime)s {plan['node']} {os.getpid()} %(message)s", level="INFO"
    )
    tally = Tally(Path(plan["tally"]), [one["user"] for one in plan["traffic"]])
    services = sorted({one["service"] for one in plan["traffic"]})
    with (
        PauseMeter(PauseLog(Path(plan["pauses"])).note),
        Node(
            plan["centrals"], node_id=plan["node"], services=services, shared=plan["shared"]
        ) as node,
    ):
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        origin = float(sys.stdin.readline())
        time.sleep(max(0.0, origin - time.time()))
        states = States(Path(plan["states"]), node, origin)
        ask(node, plan, tally, states, origin)


if __name__ == "__main__":
    main()

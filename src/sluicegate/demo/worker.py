"""A worker of an end node: `python -m sluicegate.demo.worker`, started by `fleet.py`.

It makes its share of the calls of all users at its node, by the clock and not by what becomes of
them, and counts in its `Tally` what passed. A call that passed is over at once: what is shown is
the limits, not the work. After a pause (it was stopped, or the machine is busy) it makes up for
`_MOST_BEHIND` seconds of calls; nobody waits longer than that. Pauses are in the tally, too: what
the machine made late says nothing about the limits.

The traffic begins at the time in the file `begin`, which appears when all workers are there.
Times are seconds of the monotonic clock, which all processes of a host share.
"""

import argparse
import contextlib
import os
import signal
import time
from pathlib import Path

from sluicegate.demo import die_with_parent
from sluicegate.demo.pauses import PauseMeter
from sluicegate.demo.quota_users import NODES, RESOURCE, SERVICE, USERS, WORKERS
from sluicegate.demo.shared_counts import Standing, Tally
from sluicegate.errors import Unavailable
from sluicegate.quota import Node

__all__ = ["BEGIN", "Caller", "main", "node_name", "tally_path"]

BEGIN = "begin"
_TICK = 0.005
_MOST_BEHIND = 0.25
_TELL_EVERY = 0.25
_ONE = {RESOURCE: 1.0}


def node_name(node: int) -> str:
    return f"node-{node + 1}"


def tally_path(folder: Path, node: int, worker: int) -> Path:
    return folder / f"{node_name(node)}.{worker}.tally"


class Caller:
    """Makes the calls that are due: one worker's part of the traffic at a node."""

    def __init__(self, node: Node, tally: Tally, *, place: int, worker: int, begin: float) -> None:
        self._node = node
        self._tally = tally
        self._place = place
        self._begin = begin
        # Each has another beginning, so that calls of a steady rate come evenly over all.
        self._owed = [(place * WORKERS + worker) / (NODES * WORKERS)] * len(USERS)
        self._done = 0.0

    def call(self, now: float) -> None:
        """Make all calls that are due at `now`."""
        t = now - self._begin
        since = min(t - self._done, _MOST_BEHIND)
        self._done = max(t, 0.0)
        if since <= 0:
            return
        for index, user in enumerate(USERS):
            owed = self._owed[index] + user.rate(self._place, t) / WORKERS * since
            while owed >= 1.0:
                owed -= 1.0
                # A call counts in the second in which it is made, also when it is late.
                second = int(time.monotonic() - self._begin)
                passes = self._node.allows(SERVICE, user.name, _ONE)
                if passes:
                    self._node.consume(SERVICE, user.name, _ONE)
                self._tally.count(second, index, is_admitted=passes)
            self._owed[index] = owed

    def paused(self, begin: float, end: float) -> None:
        """The machine did not let the worker run between two moments."""
        if end > self._begin:
            self._tally.pause(begin - self._begin, end - self._begin)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--central", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--node", type=int, required=True)
    parser.add_argument("--worker", type=int, required=True)
    arguments = parser.parse_args(argv)
    die_with_parent.set_up(arguments.parent)
    stops: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stops.append(number))
    folder, place, worker = arguments.folder, arguments.node, arguments.worker
    name = node_name(place)
    caller: Caller | None = None

    def note_pause(begin: float, end: float) -> None:
        if caller is not None:
            caller.paused(begin, end)

    with (
        Tally(tally_path(folder, place, worker)) as tally,
        PauseMeter(note_pause),
        Node(
            arguments.central, node_id=name, services=[SERVICE], shared=str(folder / f"{name}.shm")
        ) as node,
    ):
        tell_at = 0.0
        while not stops:
            now = time.monotonic()
            if now >= tell_at:
                tell_at = now + _TELL_EVERY
                _tell(node, tally)
            if caller is not None:
                caller.call(now)
            elif (begin := _begin(folder)) is not None:
                caller = Caller(node, tally, place=place, worker=worker, begin=begin)
            time.sleep(_TICK)


def _begin(folder: Path) -> float | None:
    try:
        return float((folder / BEGIN).read_text())
    except FileNotFoundError:
        return None


def _tell(node: Node, tally: Tally) -> None:
    with contextlib.suppress(Unavailable):  # its thread is busy; it is asked again soon
        status = node.status()
        state = "none" if status.quota is None else status.quota.state
        slot = -1 if status.slot is None else status.slot
        tally.stand(Standing(os.getpid(), status.is_reporting, state, status.epoch, slot))


if __name__ == "__main__":
    main()

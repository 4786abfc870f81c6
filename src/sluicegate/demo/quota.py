"""`sluicegate demo`: a fleet held to its limits, as real processes, in real time.

`QuotaDemo` ties the parts together: it keeps the fleet running, takes the counts of each second
from the workers once it is over, and writes them into the `Record` with the limit that was in
force. `report` returns the result as data; `quota_screen.py` draws it. Both a person and a
program may change the limits of the fleet's central meanwhile (`sluicegate limits set ...`): the
record follows.

SIGINT, SIGTERM and SIGHUP end it. They only set a flag, which is looked at wherever the demo
waits: whatever they interrupt is finished, so nothing is left behind.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Self

from sluicegate.demo.fleet import Fleet
from sluicegate.demo.process import NodeProcesses
from sluicegate.demo.quota_users import USERS, User
from sluicegate.demo.shared_counts import BINS, BINS_PER_SECOND
from sluicegate.demo.status_poller import CentralStatus, StatusPoller
from sluicegate.demo.verdict import RECOVERY, WARM_UP, Record, Second

__all__ = ["MIN_SECONDS", "NodeView", "QuotaDemo", "StopFlag", "report", "stop_flag"]

MIN_SECONDS = 10  # enough is left after the warm-up for a verdict
_STEP = 0.2
_LATE = 0.6  # seconds after which a worker has counted its calls, and its pauses of half a second


class StopFlag:
    """The signal that ends the demo, once one was received."""

    def __init__(self) -> None:
        self.number: int | None = None

    def set(self, number: int, frame: FrameType | None = None) -> None:
        self.number = number

    def is_set(self) -> bool:
        return self.number is not None


@contextmanager
def stop_flag() -> Iterator[StopFlag]:
    """The signals that end a demo set a flag, from `with` to its end."""
    flag = StopFlag()
    before = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        found = signal.getsignal(number)
        if found != signal.SIG_IGN:  # as nohup has it: it is meant so
            before[number] = found
            signal.signal(number, flag.set)
    try:
        yield flag
    finally:
        for number, found in before.items():
            signal.signal(number, found)


@dataclass(frozen=True, slots=True)
class NodeView:
    """An end node at this moment. `reporter` is the worker that talks to the central."""

    name: str
    state: str
    workers: tuple[int, ...]  # process ids
    reporter: int | None
    restarts: int


class QuotaDemo:
    """A fleet, from `with` to its end, and the record of what it did."""

    def __init__(self, flag: StopFlag) -> None:
        self.record = Record(USERS)
        self.recorded = 0  # seconds
        self._flag = flag
        self._fleet = Fleet(flag.is_set)
        self._poller: StatusPoller | None = None

    def __enter__(self) -> Self:
        """Start the fleet; raises StartCancelled if the flag is set meanwhile."""
        try:
            self._fleet.open()
            self._poller = StatusPoller(self.url)
            self._poller.__enter__()
        except BaseException:
            self._fleet.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self._poller is not None:
                self._poller.__exit__(kind, error, traceback)
        finally:
            self._fleet.close()

    @property
    def url(self) -> str:
        return self._fleet.central.url

    @property
    def central_pid(self) -> int | None:
        return self._fleet.central.pid

    @property
    def has_lost_its_port(self) -> bool:
        """The central cannot be started again, because another program listens there now."""
        central = self._fleet.central
        is_dead = central.pid is None and central.restarts > 0
        return is_dead and "already in use" in central.last_output().rpartition("\n")[2]

    @property
    def central_restarts(self) -> int:
        return self._fleet.central.restarts

    @property
    def central(self) -> CentralStatus:
        return CentralStatus() if self._poller is None else self._poller.status

    def nodes(self) -> list[NodeView]:
        return [_view(node) for node in self._fleet.nodes]

    def run(self, seconds: float | None, show: Callable[[], object] = lambda: None) -> None:
        """Run for `seconds`, or until the flag is set; `show` is called five times a second."""
        while not self._flag.is_set() and (seconds is None or self.recorded < seconds):
            self.step(time.monotonic())
            show()
            time.sleep(_STEP)

    def step(self, now: float) -> None:
        """Record the seconds that are over."""
        self._fleet.restart_dead(now)
        for second in self._fleet.read_pauses():
            self.record.set_pause(second, self._fleet.longest_pause(second))
        over = int(now - self._fleet.begin - _LATE) if now > self._fleet.begin + _LATE else 0
        while self.recorded < over:
            is_known = self.recorded > over - BINS // BINS_PER_SECOND + 2 + RECOVERY
            counts = self._fleet.counts(self.recorded)
            pause = self._fleet.longest_pause(self.recorded)
            resumed = self._fleet.resumed(self.recorded)
            for user, (admitted, refused), again in zip(USERS, counts, resumed, strict=True):
                in_force = self.central.limit_of(user.name)
                self.record.add(
                    user,
                    Second(
                        self.recorded,
                        user.requests_within(in_force.limits) if is_known else None,
                        in_force.burst_seconds,
                        admitted + refused,
                        admitted,
                        pause,
                        again,
                    ),
                )
            self.recorded += 1


def _view(node: NodeProcesses) -> NodeView:
    reporter = next((status for status in node.statuses() if status.is_reporting), None)
    return NodeView(
        node.name,
        "none" if reporter is None else reporter.state,
        tuple(pid for worker in node.workers if (pid := worker.pid) is not None),
        None if reporter is None else reporter.pid,
        sum(worker.restarts for worker in node.workers),
    )


def report(demo: QuotaDemo, ended_by: int | None = None) -> dict[str, object]:
    """The closing table, as data."""
    central = demo.central
    users = [_of_user(demo.record, user) for user in USERS]
    return {
        "demo": "quota",
        "seconds": demo.recorded,
        "warm_up": WARM_UP,
        "busy_seconds": demo.record.busy_seconds(),
        "held": all(user["held"] for user in users),
        "ended_by": None if ended_by is None else signal.Signals(ended_by).name,
        "central": {
            "url": demo.url,
            "name": central.name,
            "role": central.role,
            "epoch": central.epoch,
            "slot": central.slot,
            "restarts": demo.central_restarts,
        },
        "nodes": [
            {"node": node.name, "state": node.state, "restarts": node.restarts}
            for node in demo.nodes()
        ],
        "users": users,
    }


def _of_user(record: Record, user: User) -> dict[str, object]:
    seconds = record.seconds[user.name]
    return {
        "user": user.name,
        "about": user.about,
        "limit_per_second": seconds[-1].limit if seconds else None,
        "asked": sum(second.asked for second in seconds),
        "admitted": sum(second.admitted for second in seconds),
        "refused": sum(second.refused for second in seconds),
        "held": record.is_held(user),
        "checks": [
            {
                "check": check.name,
                "measured": round(check.measured, 4),
                "goal": check.goal,
                "met": check.is_met,
            }
            for check in record.checks(user)
        ],
        "per_second": {
            "limit": [second.limit for second in seconds],
            "asked": [second.asked for second in seconds],
            "admitted": [second.admitted for second in seconds],
            "pause": [second.pause for second in seconds],
            "resumed": [second.resumed for second in seconds],
        },
    }

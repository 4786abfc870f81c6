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
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Self

from sluicegate.demo.failover_log import Failover, FailoverLog, LeaderSeen
from sluicegate.demo.fleet import Fleet
from sluicegate.demo.process import Central, NodeProcesses
from sluicegate.demo.quota_users import USERS, User
from sluicegate.demo.shared_counts import BINS, BINS_PER_SECOND
from sluicegate.demo.status_poller import CentralStatus, StatusPoller
from sluicegate.demo.verdict import RECOVERY, WARM_UP, Record, Second

__all__ = [
    "MIN_SECONDS",
    "CentralView",
    "NodeView",
    "QuotaDemo",
    "StopFlag",
    "report",
    "stop_flag",
]

MIN_SECONDS = 10  # enough is left after the warm-up for a verdict
_STEP = 0.2
_POLL_MEMBERS_EVERY = 0.1  # seconds: the resolution of a failover's duration
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
    """An end node at this moment. `reporter` is the worker that talks to the central.

    `kind` is python or nginx. Of nginx the workers are its own, and `master` is their parent.
    """

    name: str
    kind: str
    state: str
    workers: tuple[int, ...]  # process ids
    reporter: int | None
    master: int | None
    restarts: int


@dataclass(frozen=True, slots=True)
class CentralView:
    """A central at this moment. `role` is active, standby, or down: it is dead or does not answer.

    `epoch`: as it said last; -1 if it never did.
    """

    name: str
    url: str
    role: str
    epoch: int
    pid: int | None
    restarts: int
    has_lost_its_port: bool  # another program listens there now, and it cannot be started again


class QuotaDemo:
    """A fleet, from `with` to its end, and the record of what it did."""

    def __init__(self, flag: StopFlag, centrals: int = 1) -> None:
        self.record = Record(USERS)
        self.recorded = 0  # seconds
        self.now = 0.0  # monotonic time of the last step
        self._flag = flag
        self._fleet = Fleet(flag.is_set, centrals)
        self._pollers: list[StatusPoller] = []
        self._failover_log = FailoverLog()
        self._open = ExitStack()

    def __enter__(self) -> Self:
        """Start the fleet; raises StartCancelled if the flag is set meanwhile."""
        with ExitStack() as opened:
            opened.callback(self._fleet.close)
            self._fleet.open()
            for central in self._fleet.centrals:
                self._pollers.append(opened.enter_context(self._poller_of(central)))
            if self.has_several_centrals:
                self._fleet.wait_for_leader(lambda: self.leader is not None)
            self._fleet.begin_traffic()
            self._open = opened.pop_all()
        return self

    def _poller_of(self, central: Central) -> StatusPoller:
        if not self.has_several_centrals:
            return StatusPoller(central.url)
        return StatusPoller(central.url, every=_POLL_MEMBERS_EVERY, saw_status=self._saw_status)

    def _saw_status(self, status: CentralStatus, asked: float, answered: float) -> None:
        if status.role == "active":
            self._failover_log.saw_leader(status.name, status.epoch, asked, answered)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open.__exit__(kind, error, traceback)

    @property
    def has_several_centrals(self) -> bool:
        return len(self._fleet.centrals) > 1

    def centrals(self) -> list[CentralView]:
        pairs = zip(self._fleet.centrals, self._pollers, strict=True)
        return [_view_central(central, poller.status) for central, poller in pairs]

    @property
    def leader(self) -> CentralView | None:
        """The central that leads, as far as is known; None while there is none."""
        active = [central for central in self.centrals() if central.role == "active"]
        return max(active, key=lambda central: central.epoch, default=None)

    @property
    def last_leader(self) -> LeaderSeen | None:
        """Of several centrals, the one that leads or led last."""
        return self._failover_log.leader

    @property
    def failovers(self) -> tuple[Failover, ...]:
        return self._failover_log.failovers

    @property
    def central_view(self) -> CentralView:
        """The only central; of several the one that leads or led last."""
        return self.centrals()[self._leading()]

    @property
    def central(self) -> CentralStatus:
        """The last answer of that one."""
        return self._pollers[self._leading()].status

    @property
    def url(self) -> str:
        return self.central_view.url

    def _leading(self) -> int:
        last = self.last_leader
        names = [central.name for central in self._fleet.centrals]
        return 0 if last is None else names.index(last.name)

    def nodes(self) -> list[NodeView]:
        return [_view(node) for node in self._fleet.nodes]

    @property
    def nginx_address(self) -> str | None:
        """HOST:PORT of the node that is an nginx; None: no nginx with Lua was found."""
        return next((node.nginx.address for node in self._fleet.nodes if node.nginx), None)

    def second_of(self, moment: float) -> float:
        """A moment of the monotonic clock, in seconds since the traffic began."""
        return moment - self._fleet.begin

    def run(self, seconds: float | None, show: Callable[[], object] = lambda: None) -> None:
        """Run for `seconds`, or until the flag is set; `show` is called five times a second."""
        while not self._flag.is_set() and (seconds is None or self.recorded < seconds):
            self.step(time.monotonic())
            show()
            time.sleep(_STEP)

    def step(self, now: float) -> None:
        """Record the seconds that are over."""
        self.now = now
        self._fleet.restart_dead(now)
        for second in self._fleet.read_pauses():
            self.record.set_pause(second, self._fleet.longest_pause(second))
        self.record.leaderless = self._failover_log.leaderless_seconds(self._fleet.begin, now)
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


def _view_central(central: Central, status: CentralStatus) -> CentralView:
    pid = central.pid
    is_down = pid is None or not status.is_answering
    has_failed = pid is None and central.restarts > 0
    return CentralView(
        central.name,
        central.url,
        "down" if is_down else status.role,
        status.epoch,
        pid,
        central.restarts,
        has_failed and "already in use" in central.last_output().rpartition("\n")[2],
    )


def _view(node: NodeProcesses) -> NodeView:
    statuses = node.statuses()
    reporter = next((status for status in statuses if status.is_reporting), None)
    own = [worker.pid for worker in node.workers]
    pids = own if node.nginx is None else [status.pid for status in statuses]
    return NodeView(
        node.name,
        "python" if node.nginx is None else "nginx",
        "none" if reporter is None else reporter.state,
        tuple(pid for pid in pids if pid is not None),
        None if reporter is None else reporter.pid,
        None if node.nginx is None else node.nginx.pid,
        sum(process.restarts for process in node.processes),
    )


def report(demo: QuotaDemo, ended_by: int | None = None) -> dict[str, object]:
    """The closing table, as data."""
    central, leader = demo.central, demo.leader
    users = [_of_user(demo.record, user) for user in USERS]
    return {
        "demo": "quota",
        "seconds": demo.recorded,
        "warm_up": WARM_UP,
        "busy_seconds": demo.record.busy_seconds(),
        "leaderless_seconds": demo.record.leaderless_seconds(),
        "held": all(user["held"] for user in users),
        "ended_by": None if ended_by is None else signal.Signals(ended_by).name,
        "central": {
            "url": demo.url,
            "name": central.name,
            "role": central.role,
            "epoch": central.epoch,
            "slot": central.slot,
            "restarts": demo.central_view.restarts,
        },
        "centrals": [
            {
                "central": each.name,
                "url": each.url,
                "role": each.role,
                "epoch": each.epoch,
                "restarts": each.restarts,
            }
            for each in demo.centrals()
        ],
        "leader": None if leader is None else leader.name,
        "failovers": [
            {
                "from": failover.old,
                "to": failover.new,
                "epoch": failover.epoch,
                "second": round(demo.second_of(failover.begin), 2),
                "seconds": round(failover.seconds, 2),
            }
            for failover in demo.failovers
        ],
        "nodes": [
            {
                "node": node.name,
                "kind": node.kind,
                "state": node.state,
                "restarts": node.restarts,
            }
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

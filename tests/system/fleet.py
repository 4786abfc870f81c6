"""A fleet of real processes under test: a central, end nodes of several workers, and their faults.

    with Fleet(limits, traffic, seconds=24) as fleet:
        begin_together(fleet)             the clock of the fleet is at 0
        fleet.wait(10)
        fleet.nodes[0].kill()
        fleet.end()                       all traffic is over, all living workers have reported

The processes are those of `sluicegate demo`. Times are seconds of the monotonic clock since the
traffic began, which was with a slot. What was admitted is what the workers counted, in bins of
50 ms, not what was reported; for how long the machine held up a worker or a central is what these
processes logged.
"""

import json
import math
import shutil
import signal
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sluicegate.demo.pauses import PauseLog, Span
from sluicegate.demo.process import (
    Central,
    NodeProcesses,
    Process,
    Worker,
    make_folder,
    random_loopback,
    stop,
)
from sluicegate.demo.shared_counts import BINS
from sluicegate.demo.traffic import RESOURCE, SERVICE, Traffic, next_second, write_begin
from tests.harness.servers import freeze, thaw
from tests.harness.waits import PATIENCE, wait_for
from tests.system.course import Course
from tests.system.network import Network


class State(NamedTuple):
    """The quota of a node, from a second of the fleet's clock on."""

    second: float
    state: str
    epoch: int


class Freezes:
    """Stops processes and lets them go on; knows when, so that it is not taken for a pause."""

    def __init__(self) -> None:
        self._spans: list[Span] = []

    def freeze(self, processes: Iterable[Process]) -> None:
        self._spans.append((time.monotonic(), math.inf))
        freeze(*(process.popen for process in processes if process.pid is not None))

    def thaw(self, processes: Iterable[Process]) -> None:
        if self._spans and self._spans[-1][1] == math.inf:
            self._spans[-1] = (self._spans[-1][0], time.monotonic())
        thaw(*(process.popen for process in processes if process.pid is not None))

    def pauses(self, processes: Iterable[Process]) -> list[Span]:
        """The logged pauses of processes, without the time for which they were frozen here."""
        pauses = [one for each in processes for one in PauseLog(each.pause_path).read()]
        return without(pauses, self._spans)


def without(pauses: Iterable[Span], stopped: Iterable[Span]) -> list[Span]:
    """What is left of pauses outside of the spans for which a test stopped the process."""
    left = list(pauses)
    for stop_at, go_on in stopped:
        left = [
            part
            for begin, end in left
            for part in ((begin, min(end, stop_at)), (max(begin, go_on), end))
            if part[0] < part[1]
        ]
    return left


class CentralUnderTest(Central):
    """A central with limits in a TOML file."""

    def __init__(
        self, folder: Path, limits: str, *, port: int = 0, has_state: bool = False
    ) -> None:
        folder.mkdir(exist_ok=True)
        self._limits = folder / "limits.toml"
        self._state = folder / "central.state"
        super().__init__(
            folder,
            f"{random_loopback()}:{port}",
            self._limits,
            state=self._state if has_state else None,
        )
        self._freezes = Freezes()
        self.write_limits(limits)

    def write_limits(self, text: str) -> None:
        """As an editor does it: a new file replaces the old one."""
        new = self._limits.with_suffix(".new")
        new.write_text(text)
        new.rename(self._limits)

    def freeze(self) -> None:
        self._freezes.freeze([self])

    def thaw(self) -> None:
        self._freezes.thaw([self])

    def pauses(self) -> list[Span]:
        return self._freezes.pauses([self])

    def has_saved_within(self, seconds: float) -> bool:
        """Whether its state was written in the last `seconds`."""
        return self._state.exists() and self._state.stat().st_mtime > time.time() - seconds

    def get(self, path: str, **query: str) -> dict:
        url = f"{self.url}{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            return json.load(answer)

    def heard(self) -> int:
        """How many nodes have reported in this slot or the one before."""
        nodes = self.get("/api/nodes")["nodes"]
        return sum((one["last_slot"] or 0) >= math.floor(time.time()) - 1 for one in nodes)

    def last_slot(self, node: str) -> int:
        """The slot that the newest report of a node was of."""
        nodes = self.get("/api/nodes")["nodes"]
        return next(one["last_slot"] for one in nodes if one["name"] == node)

    def recorded(self, user: str, resource: str = RESOURCE) -> float:
        """What was ever booked of a resource that the user has consumed."""
        rows = self.get("/api/usage", service=SERVICE, user=user)["users"]
        return rows[0]["resources"][resource]["recorded"] if rows else 0.0


class NodeUnderTest(NodeProcesses):
    """One end node, and its faults."""

    def __init__(self, folder: Path, *arguments, **options) -> None:
        super().__init__(folder, *arguments, **options)
        self._states = folder / f"{self.name}.states"
        self._lock = folder / f"{self.name}.shm.lock"
        self._freezes = Freezes()

    def wait_until_ready(self) -> None:
        wait_for(self.is_ready, seen=lambda: [one.last_output() for one in self.workers])

    def states(self) -> list[State]:
        """When its quota became fresh, reused or safe, and of which epoch, in order."""
        return [State(*json.loads(line)) for line in self._states.read_text().splitlines()]

    def reporter(self) -> Worker | None:
        """The worker that talks to the central, if it lives."""
        pid = self._lock.read_text().strip()  # empty while another worker takes over
        return next((worker for worker in self.workers if str(worker.pid) == pid), None)

    def has_reported_for(self) -> float:
        """Seconds since the reporter became that, as the kernel noted it in the lock file."""
        return time.time() - self._lock.stat().st_mtime

    def kill_reporter(self) -> None:
        reporter = self.reporter()
        assert reporter is not None
        reporter.kill()

    def kill(self) -> None:
        """All workers, at once."""
        for worker in self.workers:
            worker.signal(signal.SIGKILL)
        for worker in self.workers:
            worker.kill()

    def restart(self) -> None:
        self.start()
        self.wait_until_ready()

    def freeze(self) -> None:
        self._freezes.freeze(self.workers)

    def thaw(self) -> None:
        self._freezes.thaw(self.workers)

    def pauses(self) -> list[Span]:
        return self._freezes.pauses(self.workers)


class Fleet:
    """A central and nodes, in a folder of their own. `traffic[i]` is what comes to node i.

    `has_next`: the nodes know of a second central as well, which is not started yet.
    """

    def __init__(
        self,
        limits: str,
        traffic: Sequence[Sequence[Traffic]],
        *,
        seconds: float,
        workers: int = 2,
        has_state: bool = False,
        has_network: bool = False,
        has_next: bool = False,
    ) -> None:
        self.folder = make_folder("sluicegate-fleet-")
        self.seconds = seconds
        self.central = CentralUnderTest(self.folder, limits, has_state=has_state)
        self.next = CentralUnderTest(
            self.folder / "next", limits, port=7411
        )  # the nodes know it now
        self.centrals = [self.central, self.next]
        self.network: Network | None = None
        self.nodes: list[NodeUnderTest] = []
        self._begin = math.inf
        self._traffic = traffic
        self._workers = workers
        self._has_network = has_network
        self._has_next = has_next
        try:
            self.central.start()
        except BaseException:
            self.close()
            raise

    def start_nodes(self) -> None:
        """Start the workers, once the central listens."""
        wait_for(self.central.is_listening, seen=self.central.last_output)
        if self._has_network:
            self.network = Network(self.folder / "network.pauses")
        for place, coming in enumerate(self._traffic):
            name = f"web-{place + 1}"
            node = NodeUnderTest(
                self.folder,
                name,
                self.urls(name),
                coming,
                workers=self._workers,
                place=place,
                of=len(self._traffic),
            )
            self.nodes.append(node)
            node.start()

    def urls(self, node: str) -> list[str]:
        """The centrals that a node knows."""
        first = self.path(node, "central", self.central.url)
        return [first, self.next.url] if self._has_next else [first]

    def path(self, source: str, target: str, url: str) -> str:
        """The URL at which one process reaches another, over the network if there is one."""
        return url if self.network is None else self.network.connect(source, target, url)

    def begin(self, begin: float) -> None:
        """Let the traffic begin at a moment of the monotonic clock."""
        self._begin = begin
        write_begin(self.folder, begin)

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def take_over(self) -> None:
        """Start the second central; from now on it is the fleet's."""
        self.next.start()
        self.central, self.next = self.next, self.central

    @property
    def now(self) -> float:
        return time.monotonic() - self._begin

    def wait(self, until: float) -> None:
        """Until a second of the fleet's clock."""
        while (left := until - self.now) > 0:
            time.sleep(min(left, 0.2))

    def end(self) -> None:
        """Until all workers have closed their nodes: the last one of each waits for its ack."""
        self.wait(self.seconds)
        living = [worker for worker in self._all_workers() if worker.pid is not None]
        stop(living, PATIENCE)
        for worker in living:
            assert worker.popen.returncode == 0, worker.last_output()

    def close(self) -> None:
        for worker in self._all_workers():
            worker.kill()
            worker.counts.close()
        stop(self.centrals, PATIENCE)
        if self.network is not None:
            self.network.close()
        shutil.rmtree(self.folder)

    def _all_workers(self) -> list[Worker]:
        return [worker for node in self.nodes for worker in node.workers]

    # What came of it

    def course(self, user: str, *names: str) -> Course:
        """All that was admitted and refused to a user, on all nodes or on those of these names."""
        admitted, refused = [0] * BINS, [0] * BINS
        for node, coming in zip(self.nodes, self._traffic, strict=True):
            if names and node.name not in names:
                continue
            index = [traffic.user for traffic in coming].index(user)
            for worker in node.workers:
                for number, counts in enumerate(worker.counts.bins(0, BINS)):
                    admitted[number] += counts[index][0]
                    refused[number] += counts[index][1]
        parts = [*self.centrals, *self.nodes, *([self.network] if self.network else [])]
        pauses = [
            (begin - self._begin, end - self._begin)
            for part in parts
            for begin, end in part.pauses()
        ]
        return Course(user, admitted, refused, pauses)


def toml(*limits: tuple[str, float | Mapping[str, float], float]) -> str:
    """A limits file: users, their requests or resources per second, and their burst in seconds."""
    tables = []
    for user, rates, burst_seconds in limits:
        rows = rates if isinstance(rates, Mapping) else {RESOURCE: rates}
        tables.append(
            f'[[limit]]\nservice = "{SERVICE}"\nuser = "{user}"\n'
            f"burst_seconds = {burst_seconds}\n"
            + "".join(f"{resource} = {rate}\n" for resource, rate in rows.items())
        )
    return "\n".join(tables)


def begin_together(*fleets: Fleet) -> None:
    """When all workers of all fleets are there, begin with the next slot but one, on one clock."""
    for fleet in fleets:
        fleet.start_nodes()
    for fleet in fleets:
        for node in fleet.nodes:
            node.wait_until_ready()
    for fleet in fleets:
        wait_for(
            lambda fleet=fleet: len(fleet.central.get("/api/nodes")["nodes"]) == len(fleet.nodes),
            seen=lambda fleet=fleet: fleet.central.get("/api/nodes")["nodes"],
        )
    begin = next_second(after=1.0)
    for fleet in fleets:
        fleet.begin(begin)


@dataclass(frozen=True)
class Action:
    """What is done to a fleet, and when. After the last one it has a central again."""

    second: float
    fleet: Fleet
    do: Callable[[], object]
    is_ready: Callable[[], bool]


@dataclass
class Times:
    """When things really happened to a fleet, in seconds of the fleet's clock."""

    gone: float  # the first action was begun
    back: float = math.inf  # the last one was done, and the central listens
    heard: float = math.inf  # its central had heard all nodes since


def perform(actions: Sequence[Action]) -> dict[Fleet, Times]:
    """Do it all, each action when it is time for it and it is ready, and wait until all is well.

    No action waits for anything: others would be late.
    """
    left = sorted(actions, key=lambda action: action.second)
    times: dict[Fleet, Times] = {}
    end = time.monotonic() + max(action.second for action in actions) + PATIENCE
    while left or any(one.heard == math.inf for one in times.values()):
        assert time.monotonic() < end, f"not done: {left}; {times}"
        for action in list(left):
            if action.fleet.now < action.second or not action.is_ready():
                continue
            left.remove(action)
            times.setdefault(action.fleet, Times(action.fleet.now))
            action.do()
        for fleet, one in times.items():
            if any(action.fleet is fleet for action in left) or not fleet.central.is_listening():
                continue
            one.back = min(one.back, fleet.now)
            if one.heard == math.inf and fleet.central.heard() == len(fleet.nodes):
                one.heard = fleet.now
        time.sleep(0.05)
    return times

"""A fleet of real processes for a story: a central, end nodes of several workers, and their faults.

    with Fleet(limits, traffic, seconds=24) as fleet:
        begin_together(fleet)             the story's clock is at 0
        fleet.wait(10)
        fleet.nodes[0].kill()
        fleet.end()                       all traffic is over, all that lives has reported

Times are seconds since the story began, on the wall clock; it begins with a slot. What was
admitted is what the workers wrote down, in bins of 50 ms, not what anyone reported; for how long
the machine held up a worker or a central is what these wrote down, too. Processes end with the one
that started them, whatever ends that.
"""

import asyncio
import contextlib
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from sluicegate.demo import die_with_parent
from sluicegate.demo.pauses import PauseMeter
from tests.harness.servers import freeze
from tests.harness.waits import PATIENCE, Output, wait_for
from tests.system.course import Course
from tests.system.pauses import PauseLog, Span, read_pauses
from tests.system.quota_worker import Tally

ROOT = Path(__file__).parent.parent.parent
MEMORY = Path("/dev/shm")
ALWAYS = ((0.0, math.inf),)
FRONT = "front"

Spans = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Traffic:
    """What comes to one node: requests per second of a user, in some spans of the story."""

    user: str
    rate: float
    spans: Spans = ALWAYS
    cost: float = 1.0


class State(NamedTuple):
    """The quota of a node, from a second of the story on."""

    second: float
    state: str
    epoch: int


class Stops:
    """When a process was stopped by the story, and for how long."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def begin(self) -> None:
        self.spans.append((time.time(), math.inf))

    def end(self) -> None:
        if self.spans and self.spans[-1][1] == math.inf:
            self.spans[-1] = (self.spans[-1][0], time.time())


def tied_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of Python, for as long as this process lives."""
    dying = [sys.executable, "-SI", die_with_parent.__file__, str(os.getpid())]
    return [*dying, sys.executable, "-m", module, *arguments]


class CentralProcess:
    """`sluicegate central` with limits in a TOML file; started again, it has the same port."""

    def __init__(
        self, folder: Path, limits: str, *, has_state: bool = False, listen: str = "127.0.0.1:0"
    ) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._limits = folder / "limits.toml"
        self._state = ["--state", str(folder / "central.state")] if has_state else []
        self._pauses = folder / "central.pauses"
        self._stops = Stops()
        self._listen = listen
        self.url = f"http://{listen}"
        self.write_limits(limits)

    def write_limits(self, text: str) -> None:
        """As an editor does it: another file in its place."""
        new = self._folder / "limits.new"
        new.write_text(text)
        new.rename(self._limits)

    def launch(self) -> None:
        """Start it, and do not wait until it listens."""
        command = ["central", "--listen", self._listen, "--limits", str(self._limits), *self._state]
        with open(self._folder / "central.log", "ab") as log:
            self.process = subprocess.Popen(
                tied_command("tests.system.metered_central", str(self._pauses), *command),
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        self._output = Output(self.process.stdout)

    def wait_until_it_listens(self) -> None:
        self.url = self._output.wait_for("listens on").split()[-1]
        self._listen = self.url.removeprefix("http://")

    @property
    def listens(self) -> bool:
        return any("listens on" in line for line in self._output.lines())

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def signal(self, number: signal.Signals) -> None:
        """It need not have ended when this returns."""
        self.process.send_signal(number)

    def freeze(self) -> None:
        self._stops.begin()
        freeze(self.process)

    def thaw(self) -> None:
        self._stops.end()
        self.process.send_signal(signal.SIGCONT)

    def pauses(self) -> list[Span]:
        return read_pauses(self._pauses, self._stops.spans)

    def has_saved_since(self, wall: float) -> bool:
        """Whether its state was written after a moment of the wall clock."""
        path = self._folder / "central.state"
        return path.exists() and path.stat().st_mtime > wall

    def close(self) -> None:
        """Stop it if it runs, frozen or not."""
        if hasattr(self, "process") and not self.has_ended:
            self.thaw()
            self.signal(signal.SIGTERM)
            self.process.wait(PATIENCE)

    def get(self, path: str, **query: str) -> dict:
        url = f"{self.url}{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            return json.load(answer)

    def heard(self) -> int:
        """How many nodes have reported in this slot or the one before."""
        nodes = self.get("/api/nodes")["nodes"]
        return sum((one["last_slot"] or 0) >= math.floor(time.time()) - 1 for one in nodes)

    def recorded(self, user: str) -> float:
        """What was ever booked of the user's requests."""
        rows = self.get("/api/usage", service=FRONT, user=user)["users"]
        return rows[0]["resources"]["requests"]["recorded"] if rows else 0.0


class NodeProcesses:
    """One end node: worker processes that share a memory."""

    def __init__(self, name: str, folder: Path, plan: dict, workers: int) -> None:
        self.name = name
        self._folder = folder
        self._plan = plan
        self._workers = workers
        self._started = 0
        self._shared = folder / name
        self._stops = Stops()
        self._pauses: list[Path] = []
        self._outputs: dict[int, Output] = {}  # of processes that wait for the beginning
        self.tallies: list[Tally] = []
        self.processes: list[subprocess.Popen[str]] = []

    def start(self) -> None:
        """Start the workers; they wait for the story to begin."""
        users = [one["user"] for one in self._plan["traffic"]]
        for _ in range(self._workers):
            self._started += 1
            path = self._folder / f"{self.name}-{self._started}.tally"
            self._pauses.append(path.with_suffix(".pauses"))
            plan = self._plan | {
                "node": self.name,
                "shared": str(self._shared),
                "tally": str(path),
                "pauses": str(self._pauses[-1]),
                "states": str(self._folder / f"{self.name}.states"),
            }
            with open(self._folder / f"{self.name}.log", "ab") as log:
                process = subprocess.Popen(
                    tied_command("tests.system.quota_worker", json.dumps(plan)),
                    cwd=ROOT,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )
            assert process.stdout is not None
            self.processes.append(process)
            self._outputs[process.pid] = Output(process.stdout)
            self.tallies.append(Tally(path, users))

    def wait_until_ready(self) -> None:
        for output in self._outputs.values():
            output.wait_for("ready")

    def begin(self, origin: float) -> None:
        """Tell the workers when the story began, once they are there."""
        self.wait_until_ready()
        for process in self.processes:
            if self._outputs.pop(process.pid, None) is not None:
                assert process.stdin is not None
                process.stdin.write(f"{origin!r}\n")
                process.stdin.close()

    def states(self) -> list[State]:
        """When its quota became fresh, reused or safe, and of which epoch, in order."""
        lines = (self._folder / f"{self.name}.states").read_text().splitlines()
        return [State(*json.loads(line)) for line in lines]

    def reporter(self) -> int:
        """The process that talks to the central."""
        return int(Path(f"{self._shared}.lock").read_text())

    def has_reporter(self) -> bool:
        """Whether one of the workers that live talks to the central."""
        pid = Path(f"{self._shared}.lock").read_text().strip()
        return pid in {str(process.pid) for process in self.processes}

    def kill_reporter(self) -> None:
        pid = self.reporter()
        (process,) = (one for one in self.processes if one.pid == pid)
        process.kill()
        process.wait(PATIENCE)
        self.processes.remove(process)

    def kill(self) -> None:
        """All workers, at once."""
        self._signal(signal.SIGKILL)
        self.wait()
        self.processes.clear()

    def freeze(self) -> None:
        self._stops.begin()
        freeze(*self.processes)

    def thaw(self) -> None:
        self._stops.end()
        self._signal(signal.SIGCONT)

    def pauses(self) -> list[Span]:
        return [one for path in self._pauses for one in read_pauses(path, self._stops.spans)]

    def _signal(self, how: signal.Signals) -> None:
        for process in self.processes:
            process.send_signal(how)

    def wait(self) -> None:
        for process in self.processes:
            process.wait(PATIENCE)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait(PATIENCE)
            assert process.stdin is not None
            process.stdin.close()
        for tally in self.tallies:
            tally.close()


class Cable:
    """A TCP proxy before a central. Cut, it forwards nothing and closes nothing.

    It runs in this process, in a thread, and is as late as that.
    """

    def __init__(self, central: str, pauses: Path) -> None:
        self._pauses = pauses
        self._meter = PauseMeter(PauseLog(pauses).note)
        self._meter.__enter__()
        self._host, _, self._port = central.removeprefix("http://").partition(":")
        self._loop = asyncio.new_event_loop()
        self._flows = asyncio.Event()
        self._flows.set()
        self._stopped = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))
        self._thread.start()
        assert self._ready.wait(PATIENCE)

    def cut(self) -> None:
        self._loop.call_soon_threadsafe(self._flows.clear)

    def mend(self) -> None:
        self._loop.call_soon_threadsafe(self._flows.set)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(PATIENCE)
        self._loop.close()
        self._meter.__exit__(None, None, None)

    def pauses(self) -> list[Span]:
        return read_pauses(self._pauses)

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as connections:

            async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                connections.create_task(self._connection(reader, writer))

            server = await asyncio.start_server(connected, "127.0.0.1", 0)
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            self._ready.set()
            await self._stopped.wait()
            server.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            try:
                await self._flows.wait()
                far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
            except OSError:
                return
            with contextlib.closing(far_writer):
                ways = [
                    asyncio.create_task(self._forward(reader, far_writer)),
                    asyncio.create_task(self._forward(far_reader, writer)),
                    asyncio.create_task(self._stopped.wait()),
                ]
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()


class Fleet:
    """A central and nodes, in a folder of their own. `traffic[i]` is what comes to node i.

    `has_next`: the nodes know of a second central as well, which nobody has started yet.
    """

    def __init__(
        self,
        limits: str,
        traffic: Sequence[Sequence[Traffic]],
        *,
        seconds: float,
        workers: int = 2,
        has_state: bool = False,
        has_cable: bool = False,
        has_next: bool = False,
    ) -> None:
        parent = MEMORY if MEMORY.is_dir() else None
        self.folder = Path(tempfile.mkdtemp(prefix="sluicegate-fleet-", dir=parent))
        self.seconds = seconds
        self.central = CentralProcess(self.folder, limits, has_state=has_state)
        self.cable: Cable | None = None
        # Nobody else listens at such an address, so it is still free when it is wanted.
        host = "127." + ".".join(str(random.randint(1, 254)) for _ in range(3))
        self.next = CentralProcess(self.folder / "next", limits, listen=f"{host}:7411")
        self.nodes: list[NodeProcesses] = []
        self.origin = 0.0
        self._traffic = traffic
        self._workers = workers
        self._has_cable = has_cable
        self._has_next = has_next
        try:
            self.central.launch()
        except BaseException:
            self.close()
            raise

    def start_nodes(self) -> None:
        """Start the workers, once the central listens."""
        self.central.wait_until_it_listens()
        if self._has_cable:
            self.cable = Cable(self.central.url, self.folder / "cable.pauses")
        centrals = [self.cable.url if self.cable else self.central.url]
        centrals += [self.next.url] if self._has_next else []
        for number, coming in enumerate(self._traffic, 1):
            plan = {
                "centrals": centrals,
                "seconds": self.seconds,
                "traffic": [_of_one_worker(one, self._workers) for one in coming],
            }
            node = NodeProcesses(f"web-{number}", self.folder, plan, self._workers)
            self.nodes.append(node)
            node.start()

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def take_over(self) -> None:
        """Start the second central; from now on it is the fleet's."""
        self.next.launch()
        self.central, self.next = self.next, self.central

    def restart(self, node: NodeProcesses) -> None:
        node.start()
        node.begin(self.origin)

    @property
    def now(self) -> float:
        return time.time() - self.origin

    def wait(self, until: float) -> None:
        """Until a second of the story."""
        while (left := until - self.now) > 0:
            time.sleep(min(left, 0.2))

    def end(self) -> None:
        """Until all workers have closed their nodes: the last one of each waits for its ack."""
        self.wait(self.seconds)
        for node in self.nodes:
            node.wait()

    def close(self) -> None:
        for node in self.nodes:
            node.close()
        if self.cable is not None:
            self.cable.close()
        self.central.close()
        self.next.close()
        shutil.rmtree(self.folder)

    # What came of it

    def course(self, user: str) -> Course:
        """All that was admitted and refused to a user, on all nodes."""
        tallies = [tally for node in self.nodes for tally in node.tallies]
        admitted, refused = (
            [
                sum(bins)
                for bins in zip(*(one.bins(user, admitted=kind) for one in tallies), strict=True)
            ]
            for kind in (True, False)
        )
        processes = [self.central, self.next, *self.nodes, *([self.cable] if self.cable else [])]
        pauses = [
            (begin - self.origin, end - self.origin)
            for process in processes
            for begin, end in process.pauses()
        ]
        return Course(user, admitted, refused, pauses)


def _of_one_worker(traffic: Traffic, workers: int) -> dict:
    one = asdict(traffic)
    spans = [(begin, min(end, 1e6)) for begin, end in traffic.spans]  # JSON knows no infinity
    return one | {"service": FRONT, "rate": traffic.rate / workers, "spans": spans}


def toml(*limits: tuple[str, float, float]) -> str:
    """A limits file: users, their requests per second, and their burst in seconds."""
    return "\n".join(
        f'[[limit]]\nservice = "{FRONT}"\nuser = "{user}"\n'
        f"burst_seconds = {burst_seconds}\nrequests = {rate}\n"
        for user, rate, burst_seconds in limits
    )


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
    origin = math.ceil(time.time()) + 1.0
    for fleet in fleets:
        fleet.origin = origin
        for node in fleet.nodes:
            node.begin(origin)


@dataclass(frozen=True)
class Act:
    """What is done to a fleet, and when. After the last one it has a central again."""

    second: float
    fleet: Fleet
    do: Callable[[], object]
    is_ready: Callable[[], bool]


@dataclass
class Times:
    """When things really happened to a fleet, in seconds of the story."""

    gone: float  # the first act was begun
    back: float = math.inf  # the last one was done, and the central listens
    heard: float = math.inf  # its central had heard all nodes since


def play(acts: Sequence[Act]) -> dict[Fleet, Times]:
    """Do it all, each act when it is time for it and it is ready, and wait until all is well.

    No act waits for anything: others would be late.
    """
    left = sorted(acts, key=lambda act: act.second)
    times: dict[Fleet, Times] = {}
    end = time.monotonic() + max(act.second for act in acts) + PATIENCE
    while left or any(one.heard == math.inf for one in times.values()):
        assert time.monotonic() < end, f"not done: {left}; {times}"
        for act in list(left):
            if act.fleet.now < act.second or not act.is_ready():
                continue
            left.remove(act)
            times.setdefault(act.fleet, Times(act.fleet.now))
            act.do()
        for fleet, one in times.items():
            if any(act.fleet is fleet for act in left) or not fleet.central.listens:
                continue
            one.back = min(one.back, fleet.now)
            if one.heard == math.inf and fleet.central.heard() == len(fleet.nodes):
                one.heard = fleet.now
        time.sleep(0.05)
    return times

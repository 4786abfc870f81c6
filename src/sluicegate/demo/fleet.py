"""`Fleet`: the processes of `sluicegate demo`, and the folder with all their files.

One central (the real command, with its limits in an SQLite file, so that `sluicegate limits` can
change them), or several that share the file and elect a leader among themselves, and the workers of
the end nodes. The last node is an nginx where one with Lua is installed: its workers are nginx's,
and those of the fleet are its clients. A process that dies is started again after RESTART_AFTER
seconds, as a supervisor would; a central, or nginx, at the same address, with the state it had.
That address is a random one of this machine (`random_loopback`).

The demo ends its processes in order; if it is killed before it can, they die with it. `open` can be
cancelled at any point: `close` ends whatever was started until then.
"""

import math
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterable

from sluicegate.demo.nginx import Nginx, find_nginx
from sluicegate.demo.process import (
    Central,
    NodeProcesses,
    Process,
    Worker,
    make_folder,
    random_loopback,
    stop,
)
from sluicegate.demo.quota_users import NODES, USERS, WORKERS
from sluicegate.demo.shared_counts import BINS_PER_SECOND
from sluicegate.demo.traffic import SERVICE, next_second, write_begin
from sluicegate.demo.verdict import RECOVERY
from sluicegate.errors import SluicegateError, Unavailable
from sluicegate.quota import Entry
from sluicegate.quota.central.limit_sources.sqlite_file import SqliteFile

__all__ = ["RESTART_AFTER", "Fleet", "StartCancelled"]

_USUAL_PORT = 7411
_NGINX_PORT = 8080
RESTART_AFTER = 3.0  # seconds
_START_TIMEOUT = 60.0
_STOP_TIMEOUT = 5.0
_LOOK_EVERY = 0.02


class StartCancelled(SluicegateError):
    """The demo received a signal to stop while the fleet was starting."""


class Fleet:
    """All processes of a demo. `is_stopping` is called while it waits for them to start."""

    def __init__(self, is_stopping: Callable[[], bool], centrals: int = 1) -> None:
        self._is_stopping = is_stopping
        self.folder = make_folder(f"sluicegate-demo-{os.getpid()}-")
        self.begin = 0.0  # monotonic time of the first request
        names = ["central"] if centrals == 1 else [f"central-{n + 1}" for n in range(centrals)]
        self.centrals = [
            Central(
                self.folder,
                f"{random_loopback()}:{_USUAL_PORT}",
                self.folder / "limits.db",
                state=self.folder / f"{name}.state",
                name=name,
            )
            for name in names
        ]
        self.nodes: list[NodeProcesses] = []
        self._died_at: dict[Process, float] = {}
        self._longest_pauses: dict[int, float] = {}  # of each second that had one

    def open(self) -> None:
        """Start all processes and wait until they are ready; raises StartCancelled."""
        limits = SqliteFile(self.folder / "limits.db")
        limits.replace(
            Entry(SERVICE, user.name, user.burst_seconds, dict(user.limits)) for user in USERS
        )
        limits.close()
        if len(self.centrals) == 1:
            self._open_central()
        else:
            self._open_members()
        nginx = self._make_nginx()
        for place in range(NODES):
            node = NodeProcesses(
                self.folder,
                _name(place),
                [central.url for central in self.centrals],
                [user.traffic[place] for user in USERS],
                workers=WORKERS,
                place=place,
                of=NODES,
                nginx=nginx if place == NODES - 1 else None,
            )
            self.nodes.append(node)
            node.start()
        self._wait(self._node_processes(), lambda: all(node.is_ready() for node in self.nodes))

    def wait_for_leader(self, is_led: Callable[[], bool]) -> None:
        """Until the centrals have elected a leader; raises StartCancelled."""
        self._wait(self.centrals, is_led)

    def begin_traffic(self) -> None:
        """The traffic begins with the next whole second."""
        self.begin = next_second()
        write_begin(self.folder, self.begin)

    def restart_dead(self, now: float) -> None:
        """Start the processes again that died RESTART_AFTER seconds ago."""
        for process in self._processes():
            if process.pid is not None:
                self._died_at.pop(process, None)
            elif now >= self._died_at.setdefault(process, now) + RESTART_AFTER:
                del self._died_at[process]
                process.restarts += 1
                process.start()
        for nginx in self._nginx():
            nginx.count_restarts()

    def counts(self, second: int) -> list[tuple[int, int]]:
        """Admitted and refused requests of each user in a second, on all nodes."""
        of_workers = [_counts(worker, second) for worker in self._workers()]
        return [
            (sum(admitted for admitted, _ in of_user), sum(refused for _, refused in of_user))
            for of_user in zip(*of_workers, strict=True)
        ]

    def resumed(self, second: int) -> list[int]:
        """Requests of each user, by workers that sent nothing in a second shortly before."""
        before = range(max(second - RECOVERY, 0), second)
        of_workers = [
            _counts(worker, second)
            for worker in self._workers()
            if not all(any(map(any, _counts(worker, each))) for each in before)
        ]
        return [
            sum(counted[user][0] + counted[user][1] for counted in of_workers)
            for user in range(len(USERS))
        ]

    def longest_pause(self, second: int) -> float:
        """The longest pause of a process that reaches into a second, as known."""
        return self._longest_pauses.get(second, 0.0)

    def read_pauses(self) -> set[int]:
        """Read the logs of pauses; the seconds that new ones reach into.

        A pause is logged when it is over, and may be of seconds that were over long before.
        """
        longest, changed = self._longest_pauses, set()
        for process in self._processes():
            for begin, end in process.pause_log.read():
                first, last = max(begin - self.begin, 0.0), end - self.begin
                for each in range(int(first), math.ceil(last)):
                    longest[each] = max(longest.get(each, 0.0), end - begin)
                    changed.add(each)
        return changed

    def close(self) -> None:
        """End all of it: the workers first, which send the centrals a leave message."""
        try:
            stop(self._workers(), _STOP_TIMEOUT)
            stop(self._nginx(), _STOP_TIMEOUT)
            stop(self.centrals, _STOP_TIMEOUT)
        finally:
            for process in self._processes():
                process.kill()
            for worker in self._workers():
                worker.counts.close()
            shutil.rmtree(self.folder)

    def _workers(self) -> list[Worker]:
        return [worker for node in self.nodes for worker in node.workers]

    def _nginx(self) -> list[Nginx]:
        """The only one, if there is one."""
        return [node.nginx for node in self.nodes if node.nginx is not None]

    def _node_processes(self) -> list[Process]:
        return [process for node in self.nodes for process in node.processes]

    def _processes(self) -> list[Process]:
        return [*self.centrals, *self._node_processes()]

    def _make_nginx(self) -> Nginx | None:
        """The last node, as an nginx; None if there is no nginx that can be one."""
        program = find_nginx()
        if program is None:
            return None
        nginx = Nginx(
            self.folder,
            program,
            address=_free_address(_NGINX_PORT),
            node=_name(NODES - 1),
            centrals=[central.url for central in self.centrals],
            workers=WORKERS,
        )
        return nginx if nginx.can_run() else None

    def _open_central(self) -> None:
        """At the usual port, or at a free one if that is in use on all addresses."""
        (central,) = self.centrals
        try:
            self._start_centrals()
        except Unavailable:
            stop([central], _STOP_TIMEOUT)
            central.set_address(f"{random_loopback()}:0")
            self._start_centrals()

    def _open_members(self) -> None:
        """Centrals that know each other's addresses, which must be free before they start."""
        for central in self.centrals:
            central.set_address(_free_address(_USUAL_PORT))
        for central in self.centrals:
            central.join({member.name: member.url for member in self.centrals})
        self._start_centrals()

    def _start_centrals(self) -> None:
        for central in self.centrals:
            central.start()
        self._wait(self.centrals, lambda: all(one.is_listening() for one in self.centrals))

    def _wait(self, processes: Iterable[Process], is_ready: Callable[[], bool]) -> None:
        """Until they are ready; Unavailable if one of them ends, or if it takes too long."""
        deadline = time.monotonic() + _START_TIMEOUT
        while not is_ready():
            if self._is_stopping():
                raise StartCancelled("stopped while the fleet was starting")
            for process in processes:
                if process.pid is None:
                    raise Unavailable(
                        f"{process.name} did not start; its log ends with:\n{process.last_output()}"
                    )
            if time.monotonic() > deadline:
                raise Unavailable(f"the fleet did not start within {_START_TIMEOUT:g} s")
            time.sleep(_LOOK_EVERY)


def _name(place: int) -> str:
    """The name of a node."""
    return f"node-{place + 1}"


def _free_address(usual_port: int) -> str:
    """A random address with the usual port, or a free one if that is in use on all addresses."""
    host = random_loopback()
    for port in (usual_port, 0):
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return f"{host}:{probe.getsockname()[1]}"
    raise Unavailable(f"no port is free at {host}")


def _counts(worker: Worker, second: int) -> list[tuple[int, int]]:
    """Admitted and refused requests of each user in a second, of one worker."""
    first = second * BINS_PER_SECOND
    bins = worker.counts.bins(first, first + BINS_PER_SECOND)
    return [
        (sum(admitted for admitted, _ in of_user), sum(refused for _, refused in of_user))
        for of_user in zip(*bins, strict=True)
    ]

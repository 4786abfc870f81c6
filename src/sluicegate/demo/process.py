"""The processes of a fleet: centrals, and end nodes of several workers.

The workers of an end node are its own processes, or the clients of an nginx that is the node.

Each process can be started again with the same command, has a log file, and logs its pauses. It
has a process group of its own, so that Ctrl-C reaches only the one who started it, and dies with
that one. The files of a fleet are in one folder, in memory if there is room.

`sluicegate demo` and the system tests run the same processes; they differ in what they do to them.
"""

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from sluicegate.demo import die_with_parent
from sluicegate.demo.pauses import PauseLog
from sluicegate.demo.shared_counts import WorkerStatus
from sluicegate.demo.traffic import Traffic
from sluicegate.demo.worker import WorkerPlan

if TYPE_CHECKING:
    from sluicegate.demo.nginx import Nginx

__all__ = [
    "Central",
    "NodeProcesses",
    "Process",
    "Worker",
    "make_folder",
    "python_module",
    "random_loopback",
    "stop",
]

_MEMORY = Path("/dev/shm")
_MEMORY_NEEDED = 64 << 20  # bytes
_LISTENS = re.compile(r"^sluicegate central .* on (http\S+)$", re.MULTILINE)
_LAST_LINES = 10


def python_module(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of Python as a program."""
    return [sys.executable, "-m", module, *arguments]


class Process:
    """A process that is started with the same command each time."""

    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self, folder: Path, name: str, command: Sequence[str]) -> None:
        self.name = name
        self.restarts = 0  # by a supervisor
        self.popen: subprocess.Popen[bytes] | None = None
        self.pause_path = folder / f"{name}.pauses"
        self.pause_log = PauseLog(self.pause_path)
        self._command = command
        self._log = folder / f"{name}.log"
        self._log_size = 0  # when it was started the last time

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._log_size = log.tell()
            self.popen = subprocess.Popen(
                die_with_parent.wrap(self._command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )

    @property
    def pid(self) -> int | None:
        """None while it does not run."""
        return None if self.popen is None or self.popen.poll() is not None else self.popen.pid

    def output(self) -> str:
        """What it has written since it was started the last time."""
        try:
            return self._log.read_bytes()[self._log_size :].decode(errors="replace")
        except FileNotFoundError:
            return ""

    def last_output(self) -> str:
        """The end of it, for the message when it fails."""
        return "\n".join(self.output().splitlines()[-_LAST_LINES:])

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it runs, and do not wait for what that does."""
        if self.popen is not None:
            self.popen.send_signal(number)

    def end(self) -> None:
        """Have it end in order, also if it, or a process that it has started, is stopped."""
        pid = self.pid
        if pid is not None:
            self.signal(self.stop_signal)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGCONT)  # a stopped one would not receive the first one

    def kill(self) -> None:
        if self.popen is not None:
            self.popen.kill()
            self.popen.wait()


def stop(processes: Iterable[Process], timeout: float) -> None:
    """Let processes end, stopped ones too; kill those that have not after `timeout` seconds."""
    running = [process for process in processes if process.popen is not None]
    for process in running:
        process.end()
    deadline = time.monotonic() + timeout
    for process in running:
        assert process.popen is not None
        try:
            process.popen.wait(max(deadline - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            process.kill()


class Central(Process):
    """`sluicegate central`. After the first start it keeps its address."""

    def __init__(
        self,
        folder: Path,
        listen: str,
        limits: Path,
        *,
        state: Path | None = None,
        name: str = "central",
    ) -> None:
        self._options = ["--limits", str(limits)]
        self._options += [] if state is None else ["--state", str(state)]
        super().__init__(folder, name, [])
        self.set_address(listen)

    def join(self, members: Mapping[str, str], election: str = "paxos") -> None:
        """Elect a leader among the members, of which this is one; `members` are URLs by name."""
        peers = ",".join(f"{name}={url}" for name, url in members.items())
        self._options += ["--name", self.name, "--peers", peers, "--election", election]
        self.set_address(self.url.removeprefix("http://"))

    def set_address(self, listen: str) -> None:
        """Where it will listen; port 0 is any free one."""
        self.url = f"http://{listen}"
        self._command = python_module(
            *("sluicegate.demo.metered", str(self.pause_path)),
            *("central", "--listen", listen, *self._options),
        )

    def is_listening(self) -> bool:
        """Whether it has been listening since the last start. Its address is fixed from then on."""
        found = _LISTENS.search(self.output())
        if found is not None:
            self.set_address(found[1].removeprefix("http://"))
        return found is not None


class Worker(Process):
    """A worker of an end node."""

    def __init__(self, plan: WorkerPlan) -> None:
        command = python_module("sluicegate.demo.worker", plan.encode())
        super().__init__(plan.folder, plan.name, command)
        self.counts = plan.open_counts()

    def status(self) -> WorkerStatus | None:
        """What it publishes about itself; None while it does not run, or is still starting."""
        status = self.counts.status()
        return status if status.pid == self.pid else None


class NodeProcesses:
    """The workers of one end node. `traffic` is that of the node, which they share evenly.

    `place`: the number of the node among `of` nodes. `nginx`: the node itself, if it is one; the
    workers are its clients then.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        centrals: Sequence[str],
        traffic: Sequence[Traffic],
        *,
        workers: int,
        place: int,
        of: int,
        nginx: "Nginx | None" = None,
    ) -> None:
        self.name = name
        self.nginx = nginx
        parts = [replace(one, rate=one.rate / workers) for one in traffic]
        self.workers = [
            Worker(
                WorkerPlan(
                    folder,
                    name,
                    number,
                    centrals,
                    parts,
                    phase=(place * workers + number) / (of * workers),
                    nginx=None if nginx is None else nginx.address,
                )
            )
            for number in range(workers)
        ]

    @property
    def processes(self) -> list[Process]:
        return [*self.workers] if self.nginx is None else [self.nginx, *self.workers]

    def start(self) -> None:
        """Start the processes that do not run."""
        for process in self.processes:
            if process.pid is None:
                process.start()

    def statuses(self) -> list[WorkerStatus]:
        """Of the workers that run; of nginx, its own."""
        if self.nginx is not None:
            return self.nginx.statuses()
        return [status for worker in self.workers if (status := worker.status()) is not None]

    def is_ready(self) -> bool:
        """Whether all workers wait for the begin of the traffic, or take part in it."""
        is_nginx_ready = self.nginx is None or self.nginx.is_ready()
        return is_nginx_ready and all(worker.status() is not None for worker in self.workers)


def make_folder(prefix: str) -> Path:
    """A new folder for the files of a fleet: in memory, because counters are in them."""
    is_writable = os.access(_MEMORY, os.W_OK | os.X_OK)
    room = os.statvfs(_MEMORY) if is_writable else None
    has_room = room is not None and room.f_bavail * room.f_frsize >= _MEMORY_NEEDED
    return Path(tempfile.mkdtemp(prefix=prefix, dir=_MEMORY if has_room else None))


def random_loopback() -> str:
    """One of the many addresses of this machine (127.0.0.0/8), where nobody else listens.

    While a central is dead, its nodes try to connect to its address. At 127.0.0.1 another central
    might have started meanwhile, and they would join that one.
    """
    return "127." + ".".join(str(random.randint(1, 254)) for _ in range(3))

"""`Fleet`: the processes of `sluicegate demo`, and the folder that all their files are in.

One central (the real command, with its limits in an SQLite file, so that `sluicegate limits` can
change them) and the workers of the end nodes. Each has a process group of its own: Ctrl-C is for
the demo alone, which then ends them in order, and each dies with the demo (`die_with_parent.py`),
in case that is killed before it can. Which one dies meanwhile is started again after RESTART_AFTER
seconds, as a supervisor would; the central at the same address, with the state it had.

That address is one of the many of this machine (127.0.0.0/8), taken by chance. While the central
of a demo is dead, its nodes knock where it was: at 127.0.0.1 another central might have come up
meanwhile, somebody's own or that of another demo, and they would join it.

The folder is in /dev/shm where there is one, because the nodes' counters are in it, and goes with
the fleet. `open` may be told to stop at any point: what is there until then is ended by `close`.
"""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from sluicegate.demo import die_with_parent
from sluicegate.demo.quota_users import NODES, RESOURCE, SERVICE, USERS, WORKERS
from sluicegate.demo.shared_counts import Standing, Tally
from sluicegate.demo.worker import BEGIN, tally_path
from sluicegate.errors import SluicegateError, Unavailable
from sluicegate.quota import Entry
from sluicegate.quota.central.sources.sqlite_file import SqliteFile

__all__ = ["RESTART_AFTER", "Ended", "Fleet", "Worker"]

_USUAL_PORT = 7411
RESTART_AFTER = 3.0  # seconds
_START_TIMEOUT = 60.0
_STOP_TIMEOUT = 5.0
_LOOK_EVERY = 0.02
_MEMORY = Path("/dev/shm")
_MEMORY_NEEDED = 64 << 20  # bytes
_LISTENS = re.compile(r"^sluicegate central .* listens on (\S+)\n", re.MULTILINE)


class Ended(SluicegateError):
    """The fleet was told to stop while it was starting."""


@dataclass(slots=True)
class _Process:
    """One place in the fleet, and who has it now."""

    name: str
    command: list[str]
    running: subprocess.Popen[bytes] | None = None
    died_at: float | None = None
    restarts: int = 0

    @property
    def pid(self) -> int | None:
        """None while nobody is there."""
        return None if self.running is None or self.running.poll() is not None else self.running.pid


class Worker(_Process):
    """A worker of an end node."""

    tally: Tally


class Fleet:
    """All processes of a demo. `is_ending` is asked while it waits for them to start."""

    def __init__(self, is_ending: Callable[[], bool]) -> None:
        self._is_ending = is_ending
        prefix = f"sluicegate-demo-{os.getpid()}-"
        self.folder = Path(tempfile.mkdtemp(prefix=prefix, dir=_place()))
        self.url = ""
        self.begin = 0.0  # monotonic time of the first call
        self.central = _Process("central", [])
        self._central_pauses = self.folder / "central.pauses"
        self.workers: dict[tuple[int, int], Worker] = {}

    def open(self) -> None:
        """Start all of it, and the traffic with the next whole second; raises Ended."""
        limits = SqliteFile(self.folder / "limits.db")
        limits.replace(
            Entry(SERVICE, user.name, user.burst_seconds, {RESOURCE: user.limit}) for user in USERS
        )
        limits.close()
        host = "127." + ".".join(str(random.randint(1, 254)) for _ in range(3))
        if not self._open_central(f"{host}:{_USUAL_PORT}") and not self._open_central(f"{host}:0"):
            raise Unavailable(f"the central did not start:\n{self.said_by(self.central)}")
        self.central.command = self._central_command(self.url.removeprefix("http://"))
        for node in range(NODES):
            for worker in range(WORKERS):
                self._open_worker(node, worker)
        workers = self.workers.values()
        self._wait(workers, lambda: all(each.tally.standing().pid for each in workers))
        wall = time.time()
        self.begin = time.monotonic() + 1.0 - wall % 1.0
        unseen = self.folder / f"{BEGIN}.new"
        unseen.write_text(repr(self.begin))
        unseen.rename(self.folder / BEGIN)

    def tend(self, now: float) -> None:
        """Start those again who died a while ago."""
        for process in self._processes():
            if process.pid is not None:
                process.died_at = None
            elif process.died_at is None:
                process.died_at = now
            elif now >= process.died_at + RESTART_AFTER:
                process.died_at = None
                process.restarts += 1
                self._start(process)

    def counts(self, second: int) -> list[tuple[int, int]]:
        """Admitted and refused of each user in a second, on all nodes."""
        counted = [worker.tally.counts(second) for worker in self.workers.values()]
        return [
            (sum(admitted for admitted, _ in of_user), sum(refused for _, refused in of_user))
            for of_user in zip(*counted, strict=True)
        ]

    def longest_pause(self, second: int) -> float:
        """For how long the machine held up the central or one of the workers in a second."""
        pauses = [worker.tally.longest_pause(second) for worker in self.workers.values()]
        return max([self._longest_pause_of_central(second), *pauses])

    def _longest_pause_of_central(self, second: int) -> float:
        since = self.begin + second
        log = self._central_pauses
        lines = log.read_text().splitlines() if log.exists() else []
        spans = [tuple(map(float, line.split())) for line in lines]
        lengths = [end - begin for begin, end in spans if begin < since + 1.0 and end > since]
        return max(lengths, default=0.0)

    def standing(self, node: int) -> list[Standing]:
        """The workers of a node that are alive, and what each says of itself."""
        alive = [self.workers[node, worker] for worker in range(WORKERS)]
        told = [(each.pid, each.tally.standing()) for each in alive]
        return [standing for pid, standing in told if pid is not None and standing.pid == pid]

    def said_by(self, process: _Process) -> str:
        """The last that a process has said, for when it fails."""
        try:
            said = self._log(process).read_text(errors="replace")
        except FileNotFoundError:
            said = ""
        return "\n".join(said.splitlines()[-10:])

    def close(self) -> None:
        """End all of it: the workers first, who tell the central that they leave."""
        try:
            self._stop(self.workers.values())
            self._stop([self.central])
        finally:
            for process in self._processes():
                if process.running is not None:
                    process.running.kill()
                    process.running.wait()
            for worker in self.workers.values():
                worker.tally.close()
            shutil.rmtree(self.folder)

    def _processes(self) -> list[_Process]:
        return [self.central, *self.workers.values()]

    def _log(self, process: _Process) -> Path:
        return self.folder / f"{process.name}.log"

    def _open_central(self, listen: str) -> bool:
        """False if it could not be started at this address."""
        self.central.command = self._central_command(listen)
        self._start(self.central)
        log = self._log(self.central)
        try:
            self._wait([self.central], lambda: _LISTENS.search(log.read_text()) is not None)
        except Unavailable:
            self._stop([self.central])
            return False
        listens = _LISTENS.search(log.read_text())
        assert listens is not None
        self.url = listens[1]
        return True

    def _central_command(self, listen: str) -> list[str]:
        options = {
            "--listen": listen,
            "--limits": str(self.folder / "limits.db"),
            "--state": str(self.folder / "central.state"),
        }
        own = [sys.executable, "-m", "sluicegate.demo.metered", str(self._central_pauses)]
        own.append("central")
        own += [word for option in options.items() for word in option]
        return [sys.executable, die_with_parent.__file__, str(os.getpid()), *own]

    def _open_worker(self, node: int, worker: int) -> None:
        path = tally_path(self.folder, node, worker)
        options = {
            "--parent": os.getpid(),
            "--central": self.url,
            "--folder": self.folder,
            "--node": node,
            "--worker": worker,
        }
        command = [sys.executable, "-m", "sluicegate.demo.worker"]
        command += [str(word) for option in options.items() for word in option]
        process = Worker(path.stem, command)
        process.tally = Tally(path)
        self.workers[node, worker] = process
        self._start(process)

    def _start(self, process: _Process) -> None:
        with self._log(process).open("ab") as log:
            process.running = subprocess.Popen(
                process.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
            )

    def _wait(self, processes: Iterable[_Process], are_ready: Callable[[], bool]) -> None:
        """Until they are ready; Unavailable if one of them ends, or if it takes too long."""
        deadline = time.monotonic() + _START_TIMEOUT
        while not are_ready():
            if self._is_ending():
                raise Ended("told to stop while it was starting")
            for process in processes:
                if process.pid is None:
                    raise Unavailable(f"{process.name} has ended:\n{self.said_by(process)}")
            if time.monotonic() > deadline:
                raise Unavailable(f"the fleet did not start within {_START_TIMEOUT:g} s")
            time.sleep(_LOOK_EVERY)

    def _stop(self, processes: Iterable[_Process]) -> None:
        running = [each.running for each in processes if each.running is not None]
        for process in running:
            process.terminate()
            process.send_signal(signal.SIGCONT)  # one that is stopped would not hear of it
        deadline = time.monotonic() + _STOP_TIMEOUT
        for process in running:
            try:
                process.wait(max(deadline - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _place() -> Path | None:
    """Memory, if there is enough of it; else where temporary files go."""
    if not os.access(_MEMORY, os.W_OK | os.X_OK):
        return None
    room = os.statvfs(_MEMORY)
    return _MEMORY if room.f_bavail * room.f_frsize >= _MEMORY_NEEDED else None

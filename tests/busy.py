"""Runs a command on a machine that is made busy: `python -m tests.busy [options] COMMAND...`

    make test-busy                         the tests that depend on real time, under this load
    python -m tests.busy --seed 7 pytest tests/system

What the command meets:
- Every core is kept busy by a process that never sleeps, and one more process writes to
  the disk and waits for it (fsync), in a folder for temporary files.
- Every few seconds (an exponential distribution, `--every`) the command and all its descendants
  are stopped for half a second (`--pause`), as a virtual machine is when its host has other work.
  In every other pause it is only one of them, chosen at random. A process that a test has frozen
  (tests/harness/servers.py) stays so afterwards.
- SIGINT is ignored at the start, as in the background of a shell and in some CI systems.

Exit code: that of the command. `--seed` repeats the moments and choices, as far as the command
itself behaves in the same way. Linux only: processes are found in /proc.
"""

import argparse
import contextlib
import ctypes
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from sluicegate.demo import die_with_parent

_PR_SET_CHILD_SUBREAPER = 36
MARKERS = "SLUICEGATE_TEST_FROZEN"  # the variable that names the folder of markers
_BURN = "while True: pass"
_WRITE = """
import os, sys, time
while True:
    with open(sys.argv[1], "wb") as file:
        file.write(os.urandom(4 << 20))
        os.fsync(file.fileno())
    time.sleep(0.05)
"""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="run a command on a busy machine")
    parser.add_argument("--every", type=float, default=4.0, help="mean seconds between two pauses")
    parser.add_argument("--pause", type=float, default=0.5, help="seconds for which it is stopped")
    parser.add_argument("--seed", type=int, default=None, help="random seed (default: any)")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(argv)
    if not options.command:
        parser.error("expected a command to run")
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    sys.stderr.write(f"busy: seed {seed}\n")
    # Orphans of the command become children of this process, so that they are found, too.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with (
        tempfile.TemporaryDirectory(prefix="sluicegate-busy-") as folder,
        load(Path(folder)) as ours,
    ):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.environ[MARKERS] = folder
        command = subprocess.Popen(options.command)
        chance = random.Random(seed)
        pauses = 0
        while (code := ended(command.pid, chance.expovariate(1 / options.every))) is None:
            pause(chance, options.pause, ours)
            pauses += 1
        command.returncode = code
    sys.stderr.write(f"busy: {pauses} pauses of {options.pause:g} s, seed {seed}\n")
    return code


def cores() -> set[int]:
    """Those that this process may use."""
    return os.sched_getaffinity(0)


@contextlib.contextmanager
def load(folder: Path) -> Iterator[set[int]]:
    """Burn all cores and write to the disk; yields the processes that do."""
    python = [sys.executable, "-SI", "-c"]
    commands = [[*python, _BURN]] * len(cores())
    commands.append([*python, _WRITE, str(folder / "written")])
    running = [subprocess.Popen(die_with_parent.wrap(command)) for command in commands]
    try:
        yield {process.pid for process in running}
    finally:
        for process in running:
            process.kill()
            process.wait()


def ended(command: int, within: float) -> int | None:
    """Reap children, orphans of the command among them; its exit code once it has ended."""
    end = time.monotonic() + within
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == command:
            return os.waitstatus_to_exitcode(status)
        if not pid:
            if time.monotonic() > end:
                return None
            time.sleep(0.02)


def pause(chance: random.Random, seconds: float, ours: set[int]) -> None:
    """Stop all processes of the command for a while, or in every other case one of them."""
    is_one = chance.random() < 0.5
    running = find_running(ours)
    stopped = stop([chance.choice(running)]) if is_one and running else stop_all(ours)
    time.sleep(seconds)
    for pid in stopped:
        # What has ended meanwhile need not go on; what a test has stopped meanwhile must not.
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            is_frozen = marker(pid)
            if is_frozen is None or not is_frozen.exists():
                os.kill(pid, signal.SIGCONT)


def marker(pid: int) -> Path | None:
    """The file that says that a test has frozen this process; None: nobody is kept busy.

    A process id may be used again, so the time at which the process started is part of the name.
    """
    folder = os.environ.get(MARKERS)
    return None if folder is None else Path(folder) / f"{pid}-{stat(pid)[19]}"


def stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def find_running(ours: set[int]) -> list[int]:
    """All descendants that run: not the load itself (`ours`), nor what a test has stopped."""
    return [pid for pid, state in descendants(os.getpid(), ours) if state not in "TtZX"]


def stop_all(ours: set[int]) -> list[int]:
    """Stop every descendant that runs, including those that are started meanwhile."""
    stopped: list[int] = []
    while found := [pid for pid in find_running(ours) if pid not in stopped]:
        stopped += stop(found)
    return stopped


def stop(pids: list[int]) -> list[int]:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    return pids


def descendants(root: int, without: set[int]) -> list[tuple[int, str]]:
    """All processes below `root`, with their states as in /proc/PID/stat."""
    children: dict[int, list[tuple[int, str]]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            children.setdefault(int(parent), []).append((int(path.parent.name), state))
    found: list[tuple[int, str]] = []
    left = [root]
    while left:
        for pid, state in children.get(left.pop(), []):
            if pid not in without:
                found.append((pid, state))
                left.append(pid)
    return found


if __name__ == "__main__":
    sys.exit(main())

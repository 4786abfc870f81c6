"""`sluicegate demo` as a process of its own, and what a demo must not leave behind."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sluicegate.demo.nginx import find_nginx
from sluicegate.demo.quota_users import NODES, WORKERS
from tests.harness.servers import default_signals
from tests.harness.waits import PATIENCE, Output

__all__ = ["DEMO", "Running", "expected_processes", "folders_of", "processes_of", "running"]

DEMO = [sys.executable, "-m", "sluicegate", "demo"]
PLACES = [Path("/dev/shm"), Path("/tmp")]


def folders_of(demo: int) -> list[Path]:
    return [folder for place in PLACES for folder in place.glob(f"sluicegate-demo-{demo}-*")]


def processes_of(demo: int) -> list[str]:
    """The command lines of all that works in the folder of a demo.

    The workers of nginx do not name it in theirs, but their log is there.
    """
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            line = (path / "cmdline").read_bytes().decode().replace("\0", " ")
            log = str((path / "fd" / "2").readlink())
            if any(f"/sluicegate-demo-{demo}-" in text for text in (line, log)):
                found.append(line)
    return found


def expected_processes(centrals: int) -> int:
    """How many processes work in the folder of a demo that runs."""
    nginx = 0 if find_nginx() is None else 1 + WORKERS
    return centrals + NODES * WORKERS + nginx


@dataclass
class Running:
    process: subprocess.Popen[str]
    out: Output
    err: Output


@contextlib.contextmanager
def running(*arguments: str, **environment: str) -> Iterator[Running]:
    demo = subprocess.Popen(
        [*DEMO, *arguments],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | environment,
        preexec_fn=default_signals,
    )
    try:
        assert demo.stdout is not None
        assert demo.stderr is not None
        yield Running(demo, Output(demo.stdout), Output(demo.stderr))
    finally:
        demo.kill()
        demo.wait(PATIENCE)

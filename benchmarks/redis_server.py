"""A Redis for a benchmark, and one processor for all that takes part in it."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["on_one_processor", "server"]


@contextlib.contextmanager
def server() -> Iterator[str]:
    beside_python = Path(sys.executable).parent / "redis-server"
    program = shutil.which("redis-server") or str(beside_python)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as directory:
        options = ["--port", str(port), "--save", "", "--dir", directory]
        process = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL)
        try:
            wait_for(port)
            if hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(process.pid, {max(os.sched_getaffinity(0))})
            yield f"redis://127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()


def wait_for(port: int) -> None:
    end = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


@contextlib.contextmanager
def on_one_processor() -> Iterator[None]:
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)

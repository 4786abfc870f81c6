"""Real servers with four worker processes, under load: the limit is one limit.

In real time, for only real processes can show it. The load is many connections that ask
again as soon as they are answered. A bucket that hardly refills lets through what it
holds, however long that takes on a busy machine.
"""

import asyncio
import os
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterator

import pytest

from sluicegate import SharedKeyed
from tests.harness.servers import RedisServer, serving

WORKERS = 4
CONNECTIONS_EACH = 4  # to each worker
BURST = 1_000
REQUESTS = 2_000

Answer = tuple[int, str | None]
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


SERVERS = {
    "uvicorn": (
        *("uvicorn", "tests.system.apps:asgi_app", "--factory", "--port", "PORT"),
        *("--workers", str(WORKERS), "--no-access-log", "--timeout-keep-alive", "120"),
    ),
    "gunicorn": (
        *("gunicorn", "tests.system.apps:wsgi_app()", "--bind", "127.0.0.1:PORT"),
        *("--workers", str(WORKERS), "--threads", "8", "--keep-alive", "120"),
    ),
}


@pytest.fixture(
    scope="module",
    params=SERVERS,
)
def port(request: pytest.FixtureRequest, redis_process: RedisServer) -> Iterator[int]:
    """A server of four workers."""
    name = f"test-workers-{os.getpid()}"
    where = {"TEST_MEMORY": name, "TEST_REDIS": redis_process.url}
    try:
        with serving(*SERVERS[request.param], TEST_LIMIT=f"10/hour burst {BURST}", **where) as port:
            yield port
    finally:
        SharedKeyed.unlink(name)


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> Answer:
    """One request on an open connection: the status, and which worker answered, if one says."""
    writer.write(f"GET {path} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
    # Uvicorn sends the body once the head is acknowledged, which the system puts off for 40 ms.
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
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


async def load(port: int, path: str) -> Counter[int]:
    """Ask all workers from many connections at once; the answers by status."""
    answers: Counter[int] = Counter()

    async def ask_again_and_again(connection: Connection) -> None:
        for _ in range(REQUESTS // (WORKERS * CONNECTIONS_EACH)):
            status, _ = await ask(*connection, path)
            answers[status] += 1
        connection[1].close()
        await connection[1].wait_closed()

    async with asyncio.timeout(120):
        connections = [one async for one in connections_to_all_workers(port)]
        await asyncio.gather(*map(ask_again_and_again, connections))
    return answers


@pytest.mark.parametrize("store", ["shared", "redis"])
@pytest.mark.usefixtures("redis_server")
def test_four_workers_let_through_what_one_limit_says(port: int, store: str) -> None:
    answers = asyncio.run(load(port, f"/{store}"))
    assert answers == {200: BURST, 429: REQUESTS - BURST}


def test_without_a_shared_limit_each_worker_has_its_own(port: int) -> None:
    """So that the test above is known to be able to fail."""
    answers = asyncio.run(load(port, "/own"))
    assert answers == {200: REQUESTS}

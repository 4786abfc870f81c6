"""A failover: a real primary is killed under load, and a sentinel makes its replica the primary."""

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from sluicegate import Dispatcher, NoWorkers, TimedOut, Unavailable, Worker
from tests.harness.lateness import Lateness
from tests.harness.servers import RedisServer
from tests.harness.waits import PATIENCE, wait_for, wait_until

QUEUE = "translate"
TASKS = "sluicegate:{translate}:tasks:0"
WORKERS = "sluicegate:{translate}:workers"
TIMEOUT = 1.5  # seconds of a call: shorter than the failover, so that some end in the midst of it


class Service:
    """A primary and its replica, and a sentinel that watches over them."""

    def __init__(self, directory: Path) -> None:
        self.servers: list[RedisServer] = []
        try:
            primary = self._start(directory / "primary")
            of = ("--replicaof", "127.0.0.1", str(primary.port))
            replica = self._start(directory / "replica", *of)
            with replica.client as redis:
                wait_for(lambda: redis.info("replication")["master_link_status"] == "up")
            # Now, for a sentinel looks for replicas when it begins, and then every ten seconds.
            config = directory / "sentinel.conf"
            config.write_text(
                f"sentinel monitor main 127.0.0.1 {primary.port} 1\n"
                "sentinel down-after-milliseconds main 1000\n"
                "sentinel failover-timeout main 5000\n"
            )
            self.sentinel = self._start(directory / "sentinel", str(config), "--sentinel")
            wait_for(lambda: self._ask("MASTER", "main")["num-slaves"] == 1)
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.sentinel.port}/main"

    def primary(self) -> RedisServer:
        """The primary, as the sentinel sees it."""
        _, port = self._ask("GET-MASTER-ADDR-BY-NAME", "main")
        return next(server for server in self.servers if server.port == int(port))

    def close(self) -> None:
        for server in self.servers:
            server.close()

    def _start(self, directory: Path, *options: str) -> RedisServer:
        directory.mkdir()
        server = RedisServer(directory, *options)
        self.servers.append(server)
        return server

    def _ask(self, *words: str) -> Any:
        with self.sentinel.client as redis:
            return redis.execute_command(f"SENTINEL {words[0]}", *words[1:])


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path)
    yield service
    service.close()


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 2 * PATIENCE))


class Load:
    """Calls one after the other, with what became of each and how late it ended."""

    def __init__(self, client: Dispatcher) -> None:
        self._client = client
        self.pending: set[asyncio.Future[Any]] = set()
        self.answered = 0
        self.errors: list[BaseException] = []
        self.ends: list[tuple[float, float]] = []  # deadline, and when it ended

    async def run(self) -> None:
        number = 0
        while True:
            number += 1
            deadline = time.monotonic() + TIMEOUT
            call = self._client.submit(number, timeout=TIMEOUT)
            self.pending.add(call)
            call.add_done_callback(
                lambda done, sent=number, deadline=deadline: self._end(done, sent, deadline)
            )
            await asyncio.sleep(0.005)

    def _end(self, call: asyncio.Future[Any], sent: int, deadline: float) -> None:
        self.pending.discard(call)
        self.ends.append((deadline, time.monotonic()))
        if (error := call.exception()) is not None:
            self.errors.append(error)
            return
        self.answered += 1
        assert call.result() == sent


class Gate:
    """A handler that waits, in its thread, until it may go on."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.opened.set()

    def __call__(self, items: list[Any]) -> list[Any]:
        assert self.opened.wait(PATIENCE)
        return items


def wait_for_replica(server: RedisServer) -> None:
    """Wait until the replica has all that was written to its primary."""
    with server.client as redis:
        redis.set("marker", 1)  # WAIT is for the writes of its own connection, and those before
        assert redis.wait(1, int(PATIENCE * 1000)) == 1


def test_calls_are_answered_after_a_failover_and_end_by_their_deadlines_within_it(
    service: Service,
) -> None:
    """Whatever the replica had got of its primary is answered: workers come back by themselves."""

    async def scenario(lateness: Lateness) -> None:
        gate = Gate()
        workers = [Worker(service.url, QUEUE, gate, lease=2.0) for _ in range(2)]
        client = Dispatcher(service.url, QUEUE, max_waiting=100_000)
        async with workers[0], workers[1], client:
            load = Load(client)
            loading = asyncio.create_task(load.run())
            await wait_until(lambda: load.answered > 100)
            gate.opened.clear()
            patient = [client.submit(item, timeout=PATIENCE) for item in range(200)]
            old = await asyncio.to_thread(service.primary)
            with old.client as redis:
                await wait_until(lambda: redis.xlen(TASKS) >= 200)
            await asyncio.to_thread(wait_for_replica, old)
            await asyncio.to_thread(old.kill)
            await asyncio.to_thread(wait_for, lambda: service.primary() is not old)
            gate.opened.set()
            assert await asyncio.gather(*patient) == list(range(200))
            before = load.answered
            await wait_until(lambda: load.answered > before + 100)
            loading.cancel()
            await wait_until(lambda: not load.pending)
            with service.primary().client as redis:
                names = sorted(worker.name for worker in workers)
                await wait_until(lambda: sorted(redis.zrange(WORKERS, 0, -1)) == names)
                await wait_until(lambda: redis.xlen(TASKS) == 0)
        documented = (TimedOut, Unavailable, NoWorkers)
        assert [error for error in load.errors if not isinstance(error, documented)] == []
        late = [
            end - deadline - lateness.between(deadline, end)
            for deadline, end in load.ends
            if end > deadline
        ]
        assert max(late, default=0.0) < 0.5

    with Lateness() as lateness:
        run(scenario(lateness))

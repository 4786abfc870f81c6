"""Real processes that are killed and frozen under load.

Every request is answered once or fails by its deadline: none twice, none never. What is asserted
holds however late each process runs; deadlines of calls are far away where an answer is due.
"""

import asyncio
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sluicegate import Dispatcher, HandlerFailed, NoWorkers, TimedOut, Unavailable, Worker
from sluicegate.dispatch.queue_admin import QueueAdmin
from sluicegate.dispatch.wire import encode_request
from tests.harness.counting_core import CountingCore
from tests.harness.servers import ROOT, RedisServer, default_signals, freeze, thaw
from tests.harness.waits import PATIENCE, wait_for, wait_until

QUEUE = "translate"
TASKS = "sluicegate:{translate}:tasks:0"
WORKERS = "sluicegate:{translate}:workers"


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 2 * PATIENCE))


class Ledger:
    """The items that worker processes have begun, as often as they have."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def items(self) -> list[str]:
        return self.path.read_text().splitlines()


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger")


@contextmanager
def worker_processes(
    server: RedisServer, ledger: Ledger, count: int, *, lease: float = 1.0, seconds: float = 0.01
) -> Iterator[list[subprocess.Popen[bytes]]]:
    module = "tests.dispatch.counting_worker"
    command = [sys.executable, "-m", module, server.url, QUEUE, str(lease), str(seconds)]
    command.append(str(ledger.path))
    processes = [
        subprocess.Popen(command, cwd=ROOT, preexec_fn=default_signals) for _ in range(count)
    ]
    try:
        with server.client as redis:
            wait_for(lambda: redis.zcard(WORKERS) == count)
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait(PATIENCE)


def client_of(server: RedisServer, **options: Any) -> tuple[Dispatcher, CountingCore]:
    client = Dispatcher(server.url, QUEUE, max_waiting=100_000, **options)
    client._open()
    core = CountingCore(QUEUE)
    client._core = core
    return client, core


async def outcomes(calls: list[Any]) -> Counter[str]:
    results = await asyncio.gather(*calls, return_exceptions=True)
    return Counter(
        "ok" if not isinstance(one, Exception) else type(one).__name__ for one in results
    )


def test_every_request_is_answered_once_when_a_worker_is_killed(
    redis_server: RedisServer, ledger: Ledger
) -> None:
    async def scenario() -> None:
        with (
            worker_processes(redis_server, ledger, 3, lease=2.0) as processes,
            redis_server.client as redis,
        ):
            client, core = client_of(redis_server)
            calls = [client.submit(item, timeout=PATIENCE) for item in range(2000)]
            for process in processes[:2]:
                before = len(ledger.items())
                await wait_until(lambda before=before: len(ledger.items()) >= before + 300)
                process.kill()
            assert await asyncio.gather(*calls) == list(range(2000))
            assert set(core.responses.values()) == {1}
            ran = Counter(ledger.items())
            assert len(ran) == 2000
            # Only what a killed worker held is run again: two batches, one running and one next.
            assert sum(ran.values()) - 2000 <= 2 * 2 * 16
            await wait_until(lambda: redis.xlen(TASKS) == 0)
            await wait_until(lambda: redis.zcard(WORKERS) == 1)
            await wait_until(lambda: len(redis.xinfo_consumers(TASKS, "workers")) == 1)
            await client.close()

    run(scenario())


def test_a_worker_frozen_past_its_lease_does_not_answer_again(
    redis_server: RedisServer, ledger: Ledger
) -> None:
    async def scenario() -> None:
        with (
            worker_processes(redis_server, ledger, 2, lease=1.0) as processes,
            redis_server.client as redis,
        ):
            client, core = client_of(redis_server)
            calls = [client.submit(item, timeout=PATIENCE) for item in range(1000)]
            await wait_until(lambda: len(ledger.items()) >= 200)
            freeze(processes[0])
            assert await asyncio.gather(*calls) == list(range(1000))
            thaw(processes[0])
            # It answers what it held, or tries to; then it serves again.
            await wait_until(lambda: redis.zcard(WORKERS) == 2)
            assert await client.call("more", timeout=PATIENCE) == "more"
            assert set(core.responses.values()) == {1}
            assert redis.xlen(TASKS) == 0
            await client.close()

    run(scenario())


async def submit(client: Dispatcher, core: CountingCore, item: Any) -> "asyncio.Future[Any]":
    """The call of a request that was accepted.

    Where the lease is short, a worker that is held up counts as dead for a moment.
    """
    end = time.monotonic() + PATIENCE
    while True:
        call = client.submit(item, timeout=2 * PATIENCE)
        await wait_until(
            lambda call=call: call.done() or all(one.id for one in core._calls.values())
        )
        if not call.done():
            return call
        assert isinstance(call.exception(), NoWorkers)
        assert time.monotonic() < end


def test_a_request_that_kills_its_workers_ends_on_the_dead_list(
    redis_server: RedisServer, ledger: Ledger
) -> None:
    async def scenario() -> None:
        client, core = client_of(redis_server)
        with redis_server.client as redis:
            for attempt in range(3):
                with worker_processes(redis_server, ledger, 1, lease=0.3, seconds=100) as (
                    process,
                ):
                    if not attempt:
                        call = await submit(client, core, "poison")
                    await wait_until(lambda attempt=attempt: len(ledger.items()) == attempt + 1)
                    process.kill()
                    process.wait(PATIENCE)
                await wait_until(lambda: not alive(redis))
            async with Worker(redis_server.url, QUEUE, lambda items: items, lease=0.3):
                with pytest.raises(HandlerFailed, match="3 workers took this request"):
                    await call
            assert len(ledger.items()) == 3
            admin = QueueAdmin(redis_server.url, QUEUE)
            (dead,) = await admin.dead()
            assert dead.reason.startswith("3 workers took this request")
            await admin.close()
            await client.close()

    run(scenario())


def alive(redis: Any) -> list[str]:
    seconds, micros = redis.time()
    return redis.zrangebyscore(WORKERS, seconds * 1000 + micros // 1000, "+inf")


def test_a_killed_client_leaves_nothing_behind(redis_server: RedisServer, ledger: Ledger) -> None:
    program = (
        "import asyncio, sys\n"
        "from sluicegate import Dispatcher\n"
        "async def main():\n"
        f"    client = Dispatcher({redis_server.url!r}, {QUEUE!r}, max_waiting=100000)\n"
        "    calls = [client.submit(item, timeout=1.0) for item in range(3000)]\n"
        "    await asyncio.wait(calls, return_when='FIRST_COMPLETED')\n"
        "    print('answered', flush=True)\n"
        "    await asyncio.sleep(1000)\n"
        "asyncio.run(main())\n"
    )

    async def scenario() -> None:
        with worker_processes(redis_server, ledger, 1), redis_server.client as redis:
            process = await asyncio.to_thread(
                lambda: subprocess.Popen(
                    [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE
                )
            )
            assert process.stdout is not None
            await asyncio.to_thread(process.stdout.readline)
            process.send_signal(signal.SIGKILL)
            process.wait(PATIENCE)
            process.stdout.close()
            # Its requests are run or dropped at their deadlines; its reply stream expires.
            await wait_until(lambda: redis.xlen(TASKS) == 0)
            replies = list(redis.scan_iter("*replies*"))
            assert all(0 < redis.ttl(key) <= 60 for key in replies)

    run(scenario())


def test_requests_survive_a_redis_that_is_killed_with_an_append_only_file(
    tmp_path: Path, ledger: Ledger
) -> None:
    options = ("--appendonly", "yes", "--appendfsync", "always")
    server = RedisServer(tmp_path, *options)

    async def scenario() -> None:
        with worker_processes(server, ledger, 2, lease=1.0):
            client, core = client_of(server)
            calls = [client.submit(item, timeout=PATIENCE) for item in range(1000)]
            await wait_until(lambda: len(ledger.items()) >= 200)
            await wait_until(lambda: all(call.id for call in core._calls.values()))
            server.kill()
            server.start()
            seen = await outcomes(calls)
            assert seen == {"ok": 1000}
            assert set(core.responses.values()) == {1}
            await client.close()

    try:
        run(scenario())
    finally:
        server.close()


def test_calls_end_by_their_deadlines_while_everything_fails(
    redis_server: RedisServer, ledger: Ledger
) -> None:
    async def scenario() -> None:
        with worker_processes(redis_server, ledger, 2, lease=0.5, seconds=0.02) as processes:
            client, core = client_of(redis_server)
            calls: list[Any] = []
            for step in range(12):
                calls += [client.submit(item, timeout=1.5) for item in range(100)]
                await asyncio.sleep(0.1)
                if step == 3:
                    freeze(processes[0])
                elif step == 6:
                    redis_server.restart()  # it forgets everything
                elif step == 9:
                    thaw(processes[0])
            done, pending = await asyncio.wait(calls, timeout=PATIENCE)
            assert not pending
            expected = (TimedOut, Unavailable, NoWorkers)
            errors = [one.exception() for one in done if one.exception() is not None]
            assert [error for error in errors if not isinstance(error, expected)] == []
            assert max(core.responses.values()) == 1
            assert client._core.waiting == 0
            await client.close()

    run(scenario())


def test_what_a_worker_gives_back_is_taken_at_once_by_one_with_a_longer_lease(
    redis_server: RedisServer,
) -> None:
    async def scenario() -> None:
        began, may_end = asyncio.Event(), asyncio.Event()

        async def hang(items: list[Any]) -> list[Any]:
            began.set()
            await may_end.wait()
            return items

        async def echo(items: list[Any]) -> list[Any]:
            return items

        leaving = Worker(redis_server.url, QUEUE, hang, lease=1.0)
        async with Dispatcher(redis_server.url, QUEUE) as client:
            await leaving.start()
            call = client.submit("a", timeout=PATIENCE)
            await asyncio.wait_for(began.wait(), PATIENCE)
            # Its lease is beyond the deadline of the call.
            async with Worker(redis_server.url, QUEUE, echo, lease=10 * PATIENCE):
                assert await leaving.stop(0.0) == 1
                assert await call == "a"

    run(scenario())


def test_tasks_of_a_delivery_that_was_lost_do_not_wait_for_their_lease(
    redis_server: RedisServer,
) -> None:
    replies = "sluicegate:{translate}:replies:me"
    requests = [encode_request("json", replies, str(one), 600.0, one) for one in range(9)]

    ran: list[Any] = []

    async def note(items: list[Any]) -> list[Any]:
        ran.extend(items)
        return items

    async def scenario() -> None:
        worker = Worker(redis_server.url, QUEUE, note, max_batch=4, lease=10 * PATIENCE)
        async with worker:
            with redis_server.client as redis:
                await wait_until(lambda: redis.info("clients")["blocked_clients"] == 2)
                # In one transaction, so that the worker's own read does not see them: as if a read
                # had delivered them and its reply were lost with the connection.
                with redis.pipeline(transaction=True) as transaction:
                    for one in requests:
                        transaction.xadd(TASKS, {"request": one})
                    transaction.xreadgroup("workers", worker.name, {TASKS: ">"})
                    transaction.execute()
                redis.client_kill_filter(_type="normal")
                await wait_until(lambda: redis.xlen(TASKS) == 0)
                assert sorted(ran) == list(range(9))
                assert redis.exists(replies)

    run(scenario())

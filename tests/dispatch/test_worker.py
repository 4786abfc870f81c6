"""What a worker survives: handlers, and processes of handlers, that fail in odd ways.

A real Redis, a worker and a client in one process. What is asserted is what happens, not how soon.
"""

import asyncio
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sluicegate import Dispatcher, HandlerFailed, Worker
from tests.harness.servers import RedisServer
from tests.harness.waits import PATIENCE, wait_until

QUEUE = "translate"


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 2 * PATIENCE))


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise UnprintableError


async def await_a_cancelled_task(items: list[Any]) -> list[Any]:
    if "bad" in items:
        inner = asyncio.ensure_future(asyncio.sleep(PATIENCE))
        inner.cancel()
        await inner
    return items


async def await_a_cancelled_task_for_one(item: Any) -> Any:
    return (await await_a_cancelled_task([item]))[0]


async def cancel_itself(items: list[Any]) -> list[Any]:
    if "bad" in items:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
    await asyncio.sleep(0)
    return items


def raise_unprintable(items: list[Any]) -> list[Any]:
    if "bad" in items:
        raise UnprintableError
    return items


async def raise_unprintable_async(items: list[Any]) -> list[Any]:
    return raise_unprintable(items)


@pytest.mark.parametrize(
    ("handler", "options", "error"),
    [
        (await_a_cancelled_task, {}, "CancelledError"),
        (await_a_cancelled_task_for_one, {"per_item": True}, "CancelledError"),
        (cancel_itself, {}, "CancelledError"),
        (raise_unprintable, {}, "UnprintableError: its message raised UnprintableError"),
        (raise_unprintable, {"tracebacks": True}, "UnprintableError"),
        (raise_unprintable_async, {}, "UnprintableError"),
    ],
)
def test_whatever_a_handler_raises_fails_its_request_and_the_worker_goes_on(
    redis_server: RedisServer, handler: Callable[[Any], Any], options: dict[str, Any], error: str
) -> None:
    async def scenario() -> None:
        client = Dispatcher(redis_server.url, QUEUE)
        async with Worker(redis_server.url, QUEUE, handler, **options) as worker, client:
            for _ in range(2):
                with pytest.raises(HandlerFailed, match=error):
                    await client.call("bad", timeout=PATIENCE)
            assert await client.call("good", timeout=PATIENCE) == "good"
            tasks = worker.cores[QUEUE].stats.tasks
            # An answer counts when Redis has confirmed it.
            await wait_until(lambda: (tasks["failed"], tasks["answered"]) == (2, 1))

    run(scenario())


def test_a_cancelled_item_leaves_the_others_of_its_batch_alone(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        client = Dispatcher(redis_server.url, QUEUE)
        handler = await_a_cancelled_task_for_one
        async with Worker(redis_server.url, QUEUE, handler, per_item=True), client:
            results = await client.call_many(
                ["a", "bad", "b"], timeout=PATIENCE, return_errors=True
            )
            assert [results[0], results[2]] == ["a", "b"]
            assert isinstance(results[1], HandlerFailed)

    run(scenario())


def echo(items: list[Any]) -> list[Any]:
    return items


def test_a_worker_goes_on_when_an_idle_handler_process_is_killed(
    redis_server: RedisServer,
) -> None:
    async def scenario() -> None:
        client = Dispatcher(redis_server.url, QUEUE)
        async with Worker(redis_server.url, QUEUE, echo, processes=True) as worker, client:
            assert await client.call(1, timeout=PATIENCE) == 1
            for process in multiprocessing.active_children():
                process.kill()
            # The pool knows of it a moment later; a batch that it takes before fails.
            broken = worker._executor
            await wait_until(lambda: getattr(broken, "_broken", None))
            assert await client.call(2, timeout=PATIENCE) == 2
            assert worker._executor is not broken

    run(scenario())


def hang(paths: list[str]) -> list[str]:
    """Tell that it runs, by the id of its process, and never end."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with open(paths[0], "a") as file:
        file.write(f"{os.getpid()}\n")
    while True:
        time.sleep(PATIENCE)


def find_processes(pids: list[str]) -> list[str]:
    return [pid for pid in pids if Path("/proc", pid).exists()]


def test_processes_that_hang_are_killed_and_their_requests_run_elsewhere(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    begun.touch()

    async def scenario() -> None:
        client = Dispatcher(redis_server.url, QUEUE)
        options: dict[str, Any] = {"processes": True, "concurrency": 2, "max_batch": 1}
        worker = Worker(redis_server.url, QUEUE, hang, lease=PATIENCE, **options)
        await worker.start()
        async with client:
            calls = [client.submit(str(begun), timeout=PATIENCE) for _ in range(2)]
            try:
                await wait_until(lambda: len(begun.read_text().splitlines()) == 2)
            finally:  # processes that hang would hold up the end of the tests
                unfinished = await worker.stop(0.05)
            assert unfinished == 2
            assert find_processes(begun.read_text().split()) == []  # no zombie, either
            assert multiprocessing.active_children() == []
            assert not any(call.done() for call in calls)
            async with Worker(redis_server.url, QUEUE, echo):
                assert await asyncio.gather(*calls) == [str(begun)] * 2

    run(scenario())


def test_a_batch_that_cannot_be_given_to_its_handler_fails(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        client = Dispatcher(redis_server.url, QUEUE)
        async with Worker(redis_server.url, QUEUE, echo) as worker, client:
            threads = worker._executor
            worker._executor = ThreadPoolExecutor()
            worker._executor.shutdown()
            for _ in range(2):
                with pytest.raises(HandlerFailed, match="RuntimeError: cannot schedule"):
                    await client.call(1, timeout=PATIENCE)
            worker._executor = threads
            assert await client.call(2, timeout=PATIENCE) == 2

    run(scenario())


def test_a_worker_that_is_started_again_runs_what_it_had_given_back(
    redis_server: RedisServer,
) -> None:
    async def scenario() -> None:
        opened = threading.Event()
        batches: list[list[Any]] = []

        def handler(items: list[Any]) -> list[Any]:
            batches.append(items)
            assert len(batches) > 1 or opened.wait(PATIENCE)
            return items

        client = Dispatcher(redis_server.url, QUEUE)
        worker = Worker(redis_server.url, QUEUE, handler, lease=1.0)
        await worker.start()
        async with client:
            call = client.submit(1, timeout=PATIENCE)
            await wait_until(lambda: batches)
            assert await worker.stop(0.0) == 1
            assert worker.cores[QUEUE].held == 0
            async with worker:
                assert await call == 1
            assert batches == [[1], [1]]
            opened.set()  # the first thread ends, and its result is discarded

    run(scenario())

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


def test_a_worker_is_started_once_until_it_has_stopped(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        client = Dispatcher(redis_server.url, QUEUE)
        async with client, Worker(redis_server.url, QUEUE, echo) as worker:
            with pytest.raises(RuntimeError, match="was started before"):
                await worker.start()
            assert await client.call(1, timeout=PATIENCE) == 1
        with redis_server.client as redis:
            assert redis.zcard("sluicegate:{translate}:workers") == 0
        async with worker:
            pass

    run(scenario())


def exit_for_bad(items: list[Any]) -> list[Any]:
    if "bad" in items:
        raise SystemExit(3)
    return items


async def exit_for_bad_async(items: list[Any]) -> list[Any]:
    return exit_for_bad(items)


@pytest.mark.parametrize("handler", [exit_for_bad, exit_for_bad_async])
def test_a_handler_that_exits_fails_its_own_item_where_items_are_isolated(
    redis_server: RedisServer, handler: Callable[[list[Any]], Any]
) -> None:
    async def scenario() -> None:
        client = Dispatcher(redis_server.url, QUEUE)
        options: dict[str, Any] = {"isolate": True, "max_batch": 3, "max_wait": PATIENCE}
        async with Worker(redis_server.url, QUEUE, handler, **options), client:
            first, bad, last = await client.call_many(
                [1, "bad", 2], timeout=2 * PATIENCE, return_errors=True
            )
            assert (first, last) == (1, 2)
            assert isinstance(bad, HandlerFailed)
            assert bad.message == "SystemExit: 3"

    run(scenario())


class Unloadable:
    """Can be pickled, and not be loaded again."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


def results_for_processes(items: list[Any]) -> list[Any]:
    bad = {"lambda": lambda: None, "unloadable": Unloadable()}
    return [bad.get(item, item) for item in items]


def test_a_result_that_cannot_leave_its_process_fails_its_own_call(
    redis_server: RedisServer,
) -> None:
    async def scenario() -> None:
        client = Dispatcher(redis_server.url, QUEUE)
        options: dict[str, Any] = {"processes": True, "max_batch": 3, "max_wait": PATIENCE}
        async with Worker(redis_server.url, QUEUE, results_for_processes, **options), client:
            good, *bad = await client.call_many(
                ["good", "lambda", "unloadable"], timeout=2 * PATIENCE, return_errors=True
            )
            assert good == "good"
            assert ["pickled" in one.message for one in bad] == [True, True]

    run(scenario())


@pytest.mark.parametrize("cost", [float("nan"), float("inf"), -1.0, 1e200, True])
def test_a_cost_that_is_no_number_fails_its_own_request_and_spoils_no_estimate(
    redis_server: RedisServer, cost: float
) -> None:
    async def scenario() -> None:
        client = Dispatcher(redis_server.url, QUEUE)
        costs: dict[str, float] = {"bad": cost}
        worker = Worker(redis_server.url, QUEUE, echo, cost=lambda item: costs.get(item, 1.0))
        async with worker, client:
            with pytest.raises(HandlerFailed, match="cost must be"):
                await client.call("bad", timeout=PATIENCE)
            assert await client.call("good", timeout=PATIENCE) == "good"
            assert 0.0 <= worker.cores[QUEUE].time.estimate(1.0) < PATIENCE

    run(scenario())


def test_an_error_with_any_text_reaches_the_caller(redis_server: RedisServer) -> None:
    def fail(items: list[Any]) -> list[Any]:
        raise ValueError(items[0])

    async def scenario() -> None:
        client = Dispatcher(redis_server.url, QUEUE)
        async with Worker(redis_server.url, QUEUE, fail, tracebacks=True), client:
            with pytest.raises(HandlerFailed) as caught:
                await client.call("x" * 900_000, timeout=PATIENCE)
            assert caught.value.message.startswith("ValueError: xxx")
            assert "xxx" in caught.value.traceback

    run(scenario())


def test_a_busy_worker_stops_in_time_while_redis_stands_still(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        began = asyncio.Event()

        async def hang(items: list[Any]) -> list[Any]:
            began.set()
            await asyncio.sleep(4 * PATIENCE)
            return items

        worker = Worker(redis_server.url, QUEUE, hang, lease=0.4, timeout=0.3)
        await worker.start()
        async with Dispatcher(redis_server.url, QUEUE, timeout=PATIENCE) as client:
            call = client.submit(1, timeout=PATIENCE)
            await asyncio.wait_for(began.wait(), PATIENCE)
            redis_server.stop()
            try:
                await asyncio.sleep(0.35)  # until it is about to renew a lease
                assert await asyncio.wait_for(worker.stop(0.0), PATIENCE) == 1
            finally:
                redis_server.cont()
            call.cancel()

    run(scenario())


def test_a_worker_tells_that_redis_did_not_take_its_answers(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        began, may_end = asyncio.Event(), asyncio.Event()

        async def wait(items: list[Any]) -> list[Any]:
            began.set()
            await may_end.wait()
            return items

        worker = Worker(redis_server.url, QUEUE, wait, timeout=0.3)
        await worker.start()
        async with Dispatcher(redis_server.url, QUEUE, timeout=PATIENCE) as client:
            call = client.submit(1, timeout=PATIENCE)
            await asyncio.wait_for(began.wait(), PATIENCE)
            redis_server.stop()
            try:
                may_end.set()
                assert await asyncio.wait_for(worker.stop(PATIENCE), 2 * PATIENCE) == 1
            finally:
                redis_server.cont()
            call.cancel()

    run(scenario())


def die_for_bad(items: list[Any]) -> list[Any]:
    if "bad" in items:
        os._exit(9)
    return items


def test_an_item_that_kills_its_process_fails_alone_where_items_are_isolated(
    redis_server: RedisServer,
) -> None:
    async def scenario() -> None:
        client = Dispatcher(redis_server.url, QUEUE)
        options: dict[str, Any] = {"processes": True, "max_batch": 4, "max_wait": PATIENCE}
        worker = Worker(redis_server.url, QUEUE, die_for_bad, isolate=True, **options)
        async with worker, client:
            *good, bad = await client.call_many(
                [1, 2, 3, "bad"], timeout=2 * PATIENCE, return_errors=True
            )
            assert good == [1, 2, 3]
            assert isinstance(bad, HandlerFailed)
            assert "killed, or exited" in bad.message

    run(scenario())


@pytest.mark.parametrize("result", [object(), "x" * 3000])
def test_a_result_that_cannot_be_sent_counts_as_failed(
    redis_server: RedisServer, result: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        client = Dispatcher(redis_server.url, QUEUE)
        worker = Worker(redis_server.url, QUEUE, lambda items: [result], max_payload=2000)
        async with worker, client:
            with pytest.raises(HandlerFailed):
                await client.call(1, timeout=PATIENCE)
            counts = worker.cores[QUEUE].stats.tasks
            await wait_until(lambda: counts["failed"] == 1)
            assert counts["answered"] == 0
        assert any("the handler failed 1 requests" in text for text in caplog.messages)

    run(scenario())

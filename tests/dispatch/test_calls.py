"""Calls from end to end: a real Redis, a worker and a client in one process."""

import asyncio
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from sluicegate import (
    Busy,
    Dispatcher,
    Duplicate,
    HandlerFailed,
    NoWorkers,
    SyncDispatcher,
    TimedOut,
    Unavailable,
    Worker,
)
from sluicegate.dispatch.queue_admin import QueueAdmin
from tests.harness.children import Children
from tests.harness.servers import RedisServer
from tests.harness.threads import run_in_threads, start_thread
from tests.harness.waits import PATIENCE, wait_until

QUEUE = "translate"


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 2 * PATIENCE))


def double(items: list[Any]) -> list[Any]:
    return [2 * item for item in items]


class Gate:
    """A handler that notes its batches and waits, in its thread, until it may go on."""

    def __init__(self, *, is_open: bool = False) -> None:
        self.batches: list[list[Any]] = []
        self.opened = threading.Event()
        if is_open:
            self.opened.set()

    def __call__(self, items: list[Any]) -> list[Any]:
        self.batches.append(items)
        assert self.opened.wait(PATIENCE)
        return items

    @property
    def items(self) -> list[Any]:
        return [item for batch in self.batches for item in batch]


@pytest.mark.parametrize("content_type", ["msgpack", "json"])
def test_a_call_returns_the_result_of_the_handler(
    redis_server: RedisServer, content_type: str
) -> None:
    async def scenario() -> None:
        client = Dispatcher(redis_server.url, QUEUE, content_type=content_type)
        async with Worker(redis_server.url, QUEUE, double), client:
            assert await client.call(21, timeout=PATIENCE) == 42
            assert await client.call("ab", timeout=PATIENCE, priority=1) == "abab"
            nested = [1, None, {"a": 1.5}]
            assert await client.call(nested, timeout=PATIENCE, priority=-1) == 2 * nested
            many = await client.call_many(range(100), timeout=PATIENCE)
            assert many == [2 * item for item in range(100)]

    run(scenario())


async def double_async(items: list[int]) -> list[int]:
    await asyncio.sleep(0)
    return [2 * item for item in items]


async def double_one_async(item: int) -> int:
    await asyncio.sleep(0)
    return 2 * item


def double_one(item: int) -> int:
    return 2 * item


@pytest.mark.parametrize(
    ("handler", "options"),
    [
        (double_async, {}),
        (double_one_async, {"per_item": True}),
        (double_one, {"per_item": True}),
        (double, {"concurrency": 3}),
        (double, {"processes": True, "concurrency": 2}),
        (double, {"size": abs}),
        (double, {"cost": abs, "max_cost": 50}),
        (double, {"max_wait": 0.01}),
    ],
)
def test_handlers_of_all_kinds(
    redis_server: RedisServer, handler: Callable[[Any], Any], options: dict[str, Any]
) -> None:
    async def scenario() -> None:
        client = Dispatcher(redis_server.url, QUEUE)
        async with Worker(redis_server.url, QUEUE, handler, **options), client:
            many = await client.call_many(range(50), timeout=PATIENCE)
            assert many == [2 * item for item in range(50)]

    run(scenario())


def test_a_call_without_a_worker_fails_at_once(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        async with Dispatcher(redis_server.url, QUEUE) as client:
            with pytest.raises(NoWorkers, match="translate"):
                await client.call(1, timeout=PATIENCE)
            async with Worker(redis_server.url, QUEUE, double):
                assert await client.call(1, timeout=PATIENCE) == 2
            with pytest.raises(NoWorkers):
                await client.call(1, timeout=PATIENCE)

    run(scenario())


def test_requests_that_come_while_a_batch_runs_become_the_next_batch(
    redis_server: RedisServer,
) -> None:
    async def scenario() -> None:
        gate = Gate()
        client = Dispatcher(redis_server.url, QUEUE)
        async with Worker(redis_server.url, QUEUE, gate, max_batch=8), client:
            first = client.submit(0, timeout=PATIENCE)
            await wait_until(lambda: gate.batches)
            others = [client.submit(item, timeout=PATIENCE) for item in range(1, 11)]
            with redis_server.client as redis:
                await wait_until(lambda: redis.xlen("sluicegate:{translate}:tasks:0") == 11)
            gate.opened.set()
            assert await asyncio.gather(first, *others) == list(range(11))
            assert gate.batches == [[0], list(range(1, 9)), [9, 10]]

    run(scenario())


def test_urgent_requests_are_served_before_the_others(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        gate = Gate()
        client = Dispatcher(redis_server.url, QUEUE)
        async with Worker(redis_server.url, QUEUE, gate, max_batch=1), client:
            first = client.submit("first", timeout=PATIENCE)
            await wait_until(lambda: gate.batches)
            calls = [
                client.submit(priority, timeout=PATIENCE, priority=priority)
                for priority in (-1, 0, 1)
            ]
            with redis_server.client as redis:
                await wait_until(lambda: redis.xlen("sluicegate:{translate}:tasks:-1") == 1)
            gate.opened.set()
            await asyncio.gather(first, *calls)
            assert gate.items == ["first", 1, 0, -1]

    run(scenario())


@pytest.mark.parametrize("max_batch", [2, 16])
@pytest.mark.parametrize("is_idle", [False, True])
def test_background_requests_wait_while_there_are_others(
    redis_server: RedisServer, max_batch: int, is_idle: bool
) -> None:
    """A worker that waits for any request takes a few of each priority when all come at once."""

    async def scenario() -> None:
        gate = Gate(is_open=is_idle)
        client = Dispatcher(redis_server.url, QUEUE)
        async with Worker(redis_server.url, QUEUE, gate, max_batch=max_batch), client:
            calls = [client.submit("first", timeout=PATIENCE)]
            await wait_until(lambda: gate.batches)
            if is_idle:
                await asyncio.gather(*calls)
                await asyncio.sleep(0.05)  # the likelier case: it waits in Redis by now
            calls += [
                client.submit(priority, timeout=PATIENCE, priority=priority)
                for priority in (-1, 0, 1)
                for _ in range(40)
            ]
            if not is_idle:
                with redis_server.client as redis:
                    await wait_until(lambda: redis.xlen("sluicegate:{translate}:tasks:1") == 40)
                gate.opened.set()
            await asyncio.gather(*calls)
            ran = gate.items[1:]
            last_urgent = len(ran) - ran[::-1].index(1)
            few = 2 * max(max_batch // 3, 1) if is_idle else 0
            assert ran[:max_batch] == [1] * max_batch
            assert last_urgent <= 40 + few
            if not is_idle:
                assert ran == [1] * 40 + [0] * 40 + [-1] * 40

    run(scenario())


def test_a_full_queue_refuses_with_its_length_and_limit(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        gate = Gate()
        client = Dispatcher(redis_server.url, QUEUE, max_waiting=5)
        async with Worker(redis_server.url, QUEUE, gate), client:
            calls = [client.submit(item, timeout=PATIENCE) for item in range(5)]
            with pytest.raises(Busy) as caught:
                await client.call(5, timeout=PATIENCE)
            assert (caught.value.length, caught.value.limit) == (5, 5)
            gate.opened.set()
            assert await asyncio.gather(*calls) == list(range(5))
            assert await client.call(6, timeout=PATIENCE) == 6

    run(scenario())


def test_a_limit_in_seconds_follows_the_rate_of_the_workers(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        gate = Gate()
        client = Dispatcher(redis_server.url, QUEUE, max_wait_seconds=2.0)
        async with Worker(redis_server.url, QUEUE, gate), client:
            with redis_server.client as redis:
                redis.set("sluicegate:{translate}:rate", "3.5")
            calls = client.call_many(range(10), timeout=PATIENCE, return_errors=True)
            running = asyncio.create_task(calls)
            await wait_until(lambda: gate.batches)
            gate.opened.set()
            results = await running
            assert results[:7] == list(range(7))
            assert [str(error.limit) for error in results[7:]] == ["7"] * 3

    run(scenario())


def test_a_worker_publishes_its_rate(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        client = Dispatcher(redis_server.url, QUEUE)
        # A lease, and so a heartbeat, short enough for the test, and longer than a pause.
        async with Worker(redis_server.url, QUEUE, double, lease=2.0), client:
            await client.call_many(range(50), timeout=PATIENCE)
            with redis_server.client as redis:
                await wait_until(lambda: redis.get("sluicegate:{translate}:rate"))
                assert float(redis.get("sluicegate:{translate}:rate") or 0) > 1.0

    run(scenario())


def test_fifty_racing_clients_never_exceed_the_limit(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        gate = Gate()
        limit = 100
        clients = [Dispatcher(redis_server.url, QUEUE, max_waiting=limit) for _ in range(50)]
        async with Worker(redis_server.url, QUEUE, gate, max_batch=1):
            calls = [
                asyncio.ensure_future(
                    client.call_many(range(10), timeout=PATIENCE, return_errors=True)
                )
                for client in clients
            ]
            longest = 0
            with redis_server.client as redis:
                await wait_until(lambda: gate.batches)
                while not gate.opened.is_set():
                    longest = max(longest, redis.xlen("sluicegate:{translate}:tasks:0"))
                    refused = sum(len(client._core._calls) for client in clients)
                    if refused == limit:  # all others were refused
                        gate.opened.set()
                    await asyncio.sleep(0.001)
            results = [one for call in calls for one in await call]
            assert longest == limit
            errors = [one for one in results if isinstance(one, Busy)]
            assert len(results) - len(errors) == limit == len(gate.items)
            assert {error.limit for error in errors} == {limit}
            for client in clients:
                await client.close()

    run(scenario())


def test_a_repeated_idempotency_key_is_refused(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        client = Dispatcher(redis_server.url, QUEUE)
        async with Worker(redis_server.url, QUEUE, double), client:
            assert await client.call(1, timeout=PATIENCE, idempotency_key="order 7") == 2
            with pytest.raises(Duplicate, match="order 7"):
                await client.call(1, timeout=PATIENCE, idempotency_key="order 7")
            assert await client.call(1, timeout=PATIENCE, idempotency_key="order 8") == 2

    run(scenario())


def fail_on_odd(items: list[int]) -> list[Any]:
    if any(item % 2 for item in items):
        raise ValueError(f"odd: {items}")
    return items


def test_an_error_of_the_handler_reaches_all_callers_of_its_batch(
    redis_server: RedisServer,
) -> None:
    async def scenario() -> None:
        client = Dispatcher(redis_server.url, QUEUE)
        async with Worker(redis_server.url, QUEUE, fail_on_odd), client:
            with pytest.raises(HandlerFailed) as caught:
                await client.call(1, timeout=PATIENCE)
            assert caught.value.message == "ValueError: odd: [1]"
            assert caught.value.traceback == ""

    run(scenario())


def exit_from(items: list[int]) -> list[int]:
    os._exit(3)


def quit_from(items: list[int]) -> list[int]:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("handler", "options", "message", "logged"),
    [
        (fail_on_odd, {}, "ValueError: odd", "in fail_on_odd"),
        (fail_on_odd, {"per_item": True}, "TypeError", "in fail_on_odd"),
        (lambda items: [], {}, "got 0 results for 1 items", "got 0 results for 1 items"),
        (exit_from, {"processes": True}, "killed, or exited", "killed, or exited"),
        (quit_from, {}, "SystemExit: 3", "SystemExit: 3"),
        (double, {"size": len}, "size or cost of the worker failed: TypeError", None),
    ],
)
def test_a_failing_handler_is_logged(
    redis_server: RedisServer,
    caplog: pytest.LogCaptureFixture,
    handler: Callable[[Any], Any],
    options: dict[str, Any],
    message: str,
    logged: str | None,
) -> None:
    """With its traceback, but once in a second, however many requests fail."""

    async def scenario() -> None:
        client = Dispatcher(redis_server.url, QUEUE)
        worker = Worker(redis_server.url, QUEUE, handler, max_batch=1, **options)
        began = time.monotonic()
        async with worker, client:
            for _ in range(3):
                with pytest.raises(HandlerFailed, match=message) as caught:
                    await client.call(1, timeout=PATIENCE)
                assert not caught.value.traceback
        assert worker.cores[QUEUE].stats.tasks["failed"] == 3
        warnings = [text for text in caplog.messages if "the handler failed" in text]
        if logged is not None:
            assert logged in warnings[0]
            assert "queue translate: the handler failed 1 requests" in warnings[0]
            assert len(warnings) <= 1 + (time.monotonic() - began)

    run(scenario())


def test_run_outside_the_main_thread_names_the_alternative() -> None:
    worker = Worker("redis://127.0.0.1:1", QUEUE, double)
    errors: list[str] = []

    def try_to_run() -> None:
        try:
            worker.run()
        except RuntimeError as error:
            errors.append(str(error))

    start_thread(try_to_run).join(PATIENCE)
    assert len(errors) == 1
    assert "use `async with Worker(...)`" in errors[0]


def test_isolate_fails_only_the_bad_items_of_a_batch(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        client = Dispatcher(redis_server.url, QUEUE)
        worker = Worker(
            redis_server.url, QUEUE, fail_on_odd, isolate=True, tracebacks=True, max_wait=0.2
        )
        async with worker, client:
            results = await client.call_many(range(6), timeout=PATIENCE, return_errors=True)
            assert results[::2] == [0, 2, 4]
            assert [error.message for error in results[1::2]] == [
                f"ValueError: odd: [{item}]" for item in (1, 3, 5)
            ]
            assert "fail_on_odd" in results[1].traceback

    run(scenario())


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (lambda items: items[1:], "got 0 results for 1 items"),
        (lambda items: 5, "must return a list of 1 results, got int"),
        (lambda items: [object()], "the result cannot be encoded"),
        (lambda items: ["x" * 3000], "bytes, the limit is 2000"),
        (lambda items: [KeyError("none such")], "KeyError: 'none such'"),
        (lambda items: set(items), "must return a list of 1 results, got set"),
        (lambda items: {1: 2}.keys(), "must return a list of 1 results, got dict_keys"),
    ],
)
def test_results_that_cannot_be_used_fail_with_a_reason(
    redis_server: RedisServer, handler: Callable[[Any], Any], message: str
) -> None:
    async def scenario() -> None:
        client = Dispatcher(redis_server.url, QUEUE)
        async with Worker(redis_server.url, QUEUE, handler, max_payload=2000), client:
            with pytest.raises(HandlerFailed, match=message):
                await client.call(1, timeout=PATIENCE)

    run(scenario())


def test_data_that_cannot_be_sent_fails_at_the_caller(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        async with Dispatcher(redis_server.url, QUEUE) as client:
            with pytest.raises(TypeError, match="object"):
                client.submit(object(), timeout=1)
            with pytest.raises(ValueError, match="the limit is 1048576"):
                client.submit("x" * 1_048_577, timeout=1)
            for timeout in (0, -1, float("nan"), float("inf"), 1.1e9):
                with pytest.raises(ValueError, match="timeout"):
                    client.submit(1, timeout=timeout)
            with pytest.raises(TypeError, match="timeout must be a number, got True"):
                client.submit(1, timeout=True)
            with pytest.raises(ValueError, match="priority must be -1, 0 or 1, got 2"):
                client.submit(1, timeout=1, priority=2)

    run(scenario())


async def time_out(client: Dispatcher, item: Any, timeout: float) -> TimedOut:
    """Call until a call times out in the queue: a Redis that is held up may take none in time."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            await client.call(item, timeout=timeout)
        except TimedOut as error:
            return error
        except Unavailable:
            assert time.monotonic() < end


def test_a_call_times_out_at_its_deadline_and_is_taken_out_of_the_queue(
    redis_server: RedisServer,
) -> None:
    async def scenario() -> None:
        gate = Gate()
        client = Dispatcher(redis_server.url, QUEUE)
        async with Worker(redis_server.url, QUEUE, gate, max_batch=1), client:
            first = client.submit("first", timeout=PATIENCE)
            await wait_until(lambda: gate.batches)
            began = time.monotonic()
            error = await time_out(client, "second", 0.2)
            assert time.monotonic() - began >= 0.2
            assert error.waited + error.ran >= 0.199
            with redis_server.client as redis:
                await wait_until(lambda: redis.xlen("sluicegate:{translate}:tasks:0") == 1)
            gate.opened.set()
            assert await first == "first"
            assert await client.call("third", timeout=PATIENCE) == "third"
            assert gate.items == ["first", "third"]

    run(scenario())


def test_a_cancelled_call_is_not_run(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        gate = Gate()
        client = Dispatcher(redis_server.url, QUEUE)
        worker = Worker(redis_server.url, QUEUE, gate, max_batch=2)
        async with worker, client:
            first = client.submit("first", timeout=PATIENCE)
            await wait_until(lambda: gate.batches)
            calls = [client.submit(item, timeout=PATIENCE) for item in range(4)]
            with redis_server.client as redis:
                await wait_until(lambda: redis.xlen("sluicegate:{translate}:tasks:0") == 5)
                for call in calls[::2]:
                    call.cancel()
                await wait_until(lambda: redis.xlen("sluicegate:{translate}:tasks:0") == 3)
            gate.opened.set()
            await asyncio.gather(first, *calls[1::2])
            assert gate.items == ["first", 1, 3]

    run(scenario())


def test_close_cancels_what_is_in_flight(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        gate = Gate()
        async with Worker(redis_server.url, QUEUE, gate, max_batch=1) as worker:
            client = Dispatcher(redis_server.url, QUEUE, timeout=PATIENCE)
            calls = [client.submit("first", timeout=PATIENCE)]
            await wait_until(lambda: gate.batches)
            calls += [client.submit(item, timeout=PATIENCE) for item in range(5)]
            with redis_server.client as redis:
                await wait_until(lambda: redis.xlen("sluicegate:{translate}:tasks:0") == 6)
                calls += [client.submit(item, timeout=PATIENCE) for item in range(5, 10)]
                await asyncio.sleep(0)  # these are sent, and Redis has not answered yet
                await client.close()
                assert redis.xlen("sluicegate:{translate}:tasks:0") == 0
            errors = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(error) for error in errors} == {Unavailable}
            gate.opened.set()
            await wait_until(lambda: worker.cores[QUEUE].held == 0)
            assert gate.items == ["first"]

    run(scenario())


def test_after_close_a_call_is_refused_until_the_client_is_opened_again(
    redis_server: RedisServer,
) -> None:
    async def scenario() -> None:
        client = Dispatcher(redis_server.url, QUEUE)
        async with Worker(redis_server.url, QUEUE, double):
            for _ in range(2):
                async with client:
                    assert await client.call(1, timeout=PATIENCE) == 2
                with pytest.raises(RuntimeError, match="'translate' is closed; `async with` opens"):
                    await client.call(1, timeout=PATIENCE)

    run(scenario())
    with worker_thread(redis_server):
        client = SyncDispatcher(redis_server.url, QUEUE)
        for _ in range(2):
            with client:
                assert client.call(1, timeout=PATIENCE) == 2
            with pytest.raises(RuntimeError, match="'translate' is closed; `with` opens"):
                client.call(1, timeout=PATIENCE)


def test_a_task_cancelled_in_the_pool_of_a_worker_is_not_run(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        gate = Gate()
        client = Dispatcher(redis_server.url, QUEUE)
        worker = Worker(redis_server.url, QUEUE, gate, max_wait=3600.0)
        async with worker, client:  # max_wait keeps both in the pool
            call = client.submit("cancelled", timeout=PATIENCE)
            core = worker.cores[QUEUE]
            await wait_until(lambda: core.pooled == 1)
            call.cancel()
            await wait_until(lambda: core.pooled == 0)
            assert gate.items == []
            assert core.held == 0

    run(scenario())


def test_what_would_finish_late_is_not_begun(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        gate = Gate(is_open=True)
        client = Dispatcher(redis_server.url, QUEUE)
        worker = Worker(redis_server.url, QUEUE, gate)
        async with worker, client:
            core = worker.cores[QUEUE]
            for _ in range(50):
                core.time.observe(1, 2 * PATIENCE)
            core._last_run = float("inf")
            with pytest.raises(TimedOut) as caught:
                await client.call(1, timeout=PATIENCE)
            assert caught.value.ran == 0.0
            assert 0.0 < caught.value.left <= PATIENCE
            assert gate.items == []
            assert core.stats.tasks["hopeless"] == 1

    run(scenario())


def test_what_was_fetched_with_a_dropped_request_runs(redis_server: RedisServer) -> None:
    """A fetch takes as many of each priority; the others were left when one was dropped."""

    async def scenario() -> None:
        gate = Gate()
        client = Dispatcher(redis_server.url, QUEUE)
        worker = Worker(redis_server.url, QUEUE, gate, max_batch=1)
        async with worker, client:
            first = client.submit("first", timeout=PATIENCE)
            await wait_until(lambda: gate.batches)
            for _ in range(50):
                worker.cores[QUEUE].time.observe(1, 10 * PATIENCE)
            hopeless = client.submit("hopeless", timeout=PATIENCE, priority=1)
            calls = [client.submit(one, timeout=99 * PATIENCE, priority=one) for one in (0, -1)]
            with redis_server.client as redis:
                await wait_until(lambda: redis.xlen("sluicegate:{translate}:tasks:-1") == 1)
            gate.opened.set()
            assert await first == "first"
            assert await asyncio.wait_for(asyncio.gather(*calls), PATIENCE) == [0, -1]
            await asyncio.gather(hopeless, return_exceptions=True)

    run(scenario())


def test_a_stopping_worker_finishes_its_batch_and_gives_back_the_rest(
    redis_server: RedisServer,
) -> None:
    async def scenario() -> None:
        gate = Gate()
        client = Dispatcher(redis_server.url, QUEUE)
        first = Worker(redis_server.url, QUEUE, gate, max_batch=1, lease=PATIENCE)
        await first.start()
        async with client:
            calls = [client.submit(item, timeout=PATIENCE) for item in range(5)]
            await wait_until(lambda: gate.batches)
            with redis_server.client as redis:
                group = ("sluicegate:{translate}:tasks:0", "workers")
                await wait_until(lambda: redis.xpending(*group)["pending"] >= 1)
                stopping = asyncio.create_task(first.stop(PATIENCE))
                async with Worker(redis_server.url, QUEUE, double):
                    await asyncio.sleep(0)
                    gate.opened.set()
                    await stopping
                    assert sorted(await asyncio.gather(*calls)) == [0, 2, 4, 6, 8]
                assert len(gate.items) == 1
                assert redis.xinfo_consumers(*group) in ([], [{**REST, "name": "returned"}])

    run(scenario())


def test_a_batch_that_does_not_end_in_time_is_given_back(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        gate = Gate()
        client = Dispatcher(redis_server.url, QUEUE)
        first = Worker(redis_server.url, QUEUE, gate, lease=PATIENCE)
        await first.start()
        async with client:
            call = client.submit(3, timeout=PATIENCE)
            await wait_until(lambda: gate.batches)
            began = time.monotonic()
            await first.stop(0.05)  # its handler goes on, and nobody waits for it
            assert time.monotonic() - began >= 0.05
            async with Worker(redis_server.url, QUEUE, double):
                assert await call == 6
            gate.opened.set()

    run(scenario())


def test_a_worker_without_redis_fails_to_start_and_leaves_no_thread(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        before = threading.active_count()
        redis_server.kill()
        with pytest.raises(Unavailable):
            await Worker(redis_server.url, QUEUE, double, timeout=0.5).start()
        await wait_until(lambda: threading.active_count() <= before)

    run(scenario())
    assert caplog.messages == []  # nothing was taken that could be given back


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"handler": lambda items: items, "processes": True},
            "needs a handler that can be pickled",
        ),
        ({"handler": double, "lease": 0.01}, "lease must be from 0.1 to 86400, got 0.01"),
    ],
)
def test_a_worker_that_could_not_work_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Worker("redis://127.0.0.1:1", QUEUE, **options)


REST = {"pending": 0, "idle": pytest.approx(0, abs=1e9)}


def test_one_worker_serves_several_queues(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        clients = [Dispatcher(redis_server.url, name) for name in ("a", "b{}")]
        async with Worker(redis_server.url, ["a", "b{}"], double):
            calls = [client.call_many(range(20), timeout=PATIENCE) for client in clients]
            assert await asyncio.gather(*calls) == [[2 * item for item in range(20)]] * 2
            for client in clients:
                await client.close()

    run(scenario())


def test_the_first_of_several_queues_is_served_first(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        gate = Gate()
        url = redis_server.url
        async with (
            Worker(url, ["high", "middle", "low"], gate, max_batch=8),
            Dispatcher(url, "high") as high,
            Dispatcher(url, "middle") as middle,
            Dispatcher(url, "low") as low,
        ):
            calls = [low.submit("first", timeout=PATIENCE)]
            await wait_until(lambda: gate.batches)
            for client, queue in ((low, "low"), (middle, "middle"), (high, "high")):
                calls += [client.submit(queue, timeout=PATIENCE) for _ in range(24)]
            with redis_server.client as redis:
                for queue, count in (("high", 24), ("middle", 24), ("low", 25)):
                    key = f"sluicegate:{{{queue}}}:tasks:0"
                    await wait_until(lambda key=key, count=count: redis.xlen(key) == count)
            gate.opened.set()
            await asyncio.gather(*calls)
            # The worker may have fetched a batch while the first one ran, of what was there then.
            rest = [item for batch in gate.batches[2:] for item in batch]
            assert rest == sorted(rest, key=("high", "middle", "low").index)
            assert Counter(gate.items[1:]) == {"high": 24, "middle": 24, "low": 24}

    run(scenario())


def test_drain_refuses_new_requests_and_finishes_the_old(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        gate = Gate()
        admin = QueueAdmin(redis_server.url, QUEUE)
        client = Dispatcher(redis_server.url, QUEUE)
        async with Worker(redis_server.url, QUEUE, gate) as worker, client:
            call = client.submit(1, timeout=PATIENCE)
            await wait_until(lambda: gate.batches)
            await admin.drain(3600)
            with pytest.raises(Busy, match="is being drained"):
                await client.call(2, timeout=PATIENCE)
            status = await admin.status()
            assert status.is_draining
            assert status.workers == [worker.name]
            assert status.running == {1: 0, 0: 1, -1: 0}
            assert not await admin.wait_until_empty(0.01)
            gate.opened.set()
            assert await call == 1
            assert await admin.wait_until_empty(PATIENCE)
            await admin.resume()
            assert await client.call(2, timeout=PATIENCE) == 2
            assert sum((await admin.status()).waiting.values()) == 0
        await admin.close()

    run(scenario())


def test_a_request_that_another_worker_has_answered_is_not_counted_as_answered(
    redis_server: RedisServer,
) -> None:
    async def scenario() -> None:
        gate = Gate()
        client = Dispatcher(redis_server.url, QUEUE, content_type="json")
        worker = Worker(redis_server.url, QUEUE, gate)
        async with worker, client:
            call = client.submit(1, timeout=PATIENCE)
            await wait_until(lambda: gate.batches)
            with redis_server.client as redis:
                key = "sluicegate:{translate}:tasks:0"
                ((id, _),) = redis.xrange(key)
                assert redis.xack(key, "workers", id) == 1
            gate.opened.set()
            counts = worker.cores[QUEUE].stats.tasks
            await wait_until(lambda: counts["disowned"])
            assert counts["answered"] == 0
            call.cancel()

    run(scenario())


def test_a_malformed_request_goes_to_the_dead_list_with_its_reason(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        admin = QueueAdmin(redis_server.url, QUEUE)
        async with Worker(redis_server.url, QUEUE, double):
            with redis_server.client as redis:
                redis.xadd("sluicegate:{translate}:tasks:0", {"request": '{"timeout": 1}'})
                await wait_until(lambda: redis.xlen("sluicegate:{translate}:dead") == 1)
                assert redis.xlen("sluicegate:{translate}:tasks:0") == 0
            (dead,) = await admin.dead()
            assert "invalid request" in dead.reason
            assert dead.priority == 0
            (text,) = caplog.messages
            assert "goes to the dead list: invalid request" in text
        assert await admin.retry() == 1
        assert (await admin.status()).waiting[0] == 1
        await admin.close()

    run(scenario())


def test_a_request_without_its_field_comes_back_to_the_dead_list_after_a_retry(
    redis_server: RedisServer,
) -> None:
    async def scenario() -> None:
        fields = {"text": "Guten Tag", "id": "mine"}
        dead = "sluicegate:{translate}:dead"
        async with QueueAdmin(redis_server.url, QUEUE) as admin:
            with redis_server.client as redis:
                redis.xadd(dead, {"reason": "made by hand", "stream": "?", "request": "x"})
                async with Worker(redis_server.url, QUEUE, double):
                    redis.xadd("sluicegate:{translate}:tasks:0", fields)
                    await wait_until(lambda: redis.xlen(dead) == 2)
                ((_, before),) = redis.xrange(dead)[1:]
                assert await admin.retry(1) == 1
                assert [entry for _, entry in redis.xrange("sluicegate:{translate}:tasks:0")] == [
                    fields
                ]
                async with Worker(redis_server.url, QUEUE, double):
                    await wait_until(lambda: redis.xlen(dead) == 2)
                ((_, after),) = redis.xrange(dead)[1:]
                assert after["text"] == before["text"] == "Guten Tag"

    run(scenario())


def test_a_program_in_another_language_needs_only_commands_of_redis(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """As docs/dispatch.md shows it with redis-cli."""

    async def scenario() -> None:
        request = {
            "content_type": "json",
            "reply_to": "sluicegate:{translate}:replies:me",
            "correlation_id": "1",
            "timeout": PATIENCE,
            "data": "Guten Tag",
        }
        stranger = {**request, "reply_to": "somebody:else", "correlation_id": "2"}
        async with Worker(redis_server.url, QUEUE, double):
            with redis_server.client as redis:
                for one in (stranger, request):
                    redis.xadd("sluicegate:{translate}:tasks:0", {"request": json.dumps(one)})
                replies = "sluicegate:{translate}:replies:me"
                await wait_until(lambda: redis.exists(replies))
                ((_, entry),) = redis.xrange(replies)
                expected = {"correlation_id": "1", "status": 0, "data": "Guten TagGuten Tag"}
                assert json.loads(entry["response"]) == expected
                await wait_until(lambda: redis.xlen("sluicegate:{translate}:tasks:0") == 0)
                assert not redis.exists("somebody:else")  # only reply streams of the queue
        (text,) = caplog.messages
        assert (
            "reply_to must begin with sluicegate:{translate}:replies:, got 'somebody:else'" in text
        )

    run(scenario())


def test_a_worker_in_another_language_needs_only_commands_of_redis(
    redis_server: RedisServer,
) -> None:
    """As the steps of docs/dispatch.md."""
    stream = "sluicegate:{translate}:tasks:0"

    async def scenario() -> None:
        with redis_server.client as redis:
            redis.xgroup_create(stream, "workers", "0", mkstream=True)
            alive_until = int(redis.time()[0] + 2 * PATIENCE) * 1000
            redis.zadd("sluicegate:{translate}:workers", {"stranger": alive_until})
            async with Dispatcher(redis_server.url, QUEUE, content_type="json") as client:
                call = client.submit("Guten Tag", timeout=PATIENCE)
                await wait_until(lambda: redis.xlen(stream))
                ((_, ((id, fields),)),) = redis.xreadgroup("workers", "stranger", {stream: ">"})
                request = json.loads(fields["request"])
                redis.xclaim(stream, "workers", "stranger", 0, [id], justid=True)
                assert redis.xack(stream, "workers", id) == 1
                redis.xdel(stream, id)
                response = {"correlation_id": request["correlation_id"], "status": 0, "data": "Hi"}
                redis.xadd(request["reply_to"], {"response": json.dumps(response)})
                redis.pexpire(request["reply_to"], 60_000)
                assert await call == "Hi"
            redis.xgroup_delconsumer(stream, "workers", "stranger")
            redis.zrem("sluicegate:{translate}:workers", "stranger")
            async with Worker(redis_server.url, QUEUE, double), client:
                assert await client.call(1, timeout=PATIENCE) == 2

    run(scenario())


@pytest.mark.no_cover  # its 50,000 requests would take twice as long
def test_memory_is_flat_after_many_requests(redis_server: RedisServer) -> None:
    """50,000 requests; a million in the soak."""
    rounds = 100 if os.environ.get("HYPOTHESIS_PROFILE") == "soak" else 5

    async def scenario() -> None:
        client = Dispatcher(redis_server.url, QUEUE, max_waiting=10_000)
        async with Worker(redis_server.url, QUEUE, double, max_batch=512), client:
            sizes = []
            with redis_server.client as redis:
                for _ in range(rounds):
                    for _ in range(5):
                        await client.call_many(["x" * 100] * 2000, timeout=PATIENCE)
                    await client._trim(b"%d-0" % (2**63))  # what the client does each second
                    sizes.append(redis.info("memory")["used_memory"])
                entries = [redis.xlen(key) for key in redis.scan_iter("*tasks*")]
                assert entries == [0, 0, 0]
            assert max(sizes[1:]) < sizes[0] + 1_000_000, sizes  # of 4 MB that go through in each

    asyncio.run(asyncio.wait_for(scenario(), 20 * PATIENCE))


def test_an_outage_is_logged_once_for_all_that_fails_of_it(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with Worker(redis_server.url, QUEUE, double, lease=0.5):
            began = time.monotonic()
            redis_server.kill()
            await asyncio.sleep(2.0)  # long enough for several tries of each loop
        seconds = time.monotonic() - began
        warnings = [text for text in caplog.messages if "trying again" in text]
        assert 1 <= len(warnings) <= 1 + seconds / 5.0

    run(scenario())


def test_the_end_of_an_outage_is_logged(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with Worker(redis_server.url, QUEUE, double, lease=0.5):
            redis_server.kill()
            await wait_until(lambda: any("trying again" in text for text in caplog.messages))
            redis_server.start()
            await wait_until(lambda: any("answers again" in text for text in caplog.messages))

    run(scenario())


def test_nothing_is_left_behind(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        client = Dispatcher(redis_server.url, QUEUE)
        async with Worker(redis_server.url, QUEUE, double), client:
            await client.call_many(range(100), timeout=PATIENCE)
        with redis_server.client as redis:
            kept = {key for key in redis.scan_iter() if redis.ttl(key) == -1}
            assert kept == {f"sluicegate:{{translate}}:tasks:{one}" for one in (1, 0, -1)}
            assert [redis.xlen(key) for key in kept] == [0, 0, 0]

    run(scenario())


def test_calls_fail_in_time_while_redis_is_dead_and_work_again_after(
    redis_server: RedisServer,
) -> None:
    async def scenario() -> None:
        client = Dispatcher(redis_server.url, QUEUE, timeout=PATIENCE)
        worker = Worker(redis_server.url, QUEUE, double, lease=1.0)
        async with worker, client:
            assert await client.call(1, timeout=PATIENCE) == 2
            redis_server.kill()
            with pytest.raises(Unavailable):
                await client.call(1, timeout=0.5)
            redis_server.start()

            end = time.monotonic() + PATIENCE
            while True:
                try:
                    assert await client.call(3, timeout=1.0) == 6
                    break
                except (NoWorkers, Unavailable, TimedOut):  # until the worker has come back
                    assert time.monotonic() < end
                    await asyncio.sleep(0.02)

    run(scenario())


@contextmanager
def worker_thread(redis_server: RedisServer) -> Iterator[None]:
    """A worker on an event loop of its own."""
    started, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        async with Worker(redis_server.url, QUEUE, double):
            started.set()
            await asyncio.to_thread(stop.wait, 2 * PATIENCE)

    thread = start_thread(lambda: asyncio.run(serve()))
    assert started.wait(PATIENCE)
    try:
        yield
    finally:
        stop.set()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_threads_share_a_sync_dispatcher(redis_server: RedisServer) -> None:
    with worker_thread(redis_server), SyncDispatcher(redis_server.url, QUEUE) as client:
        seen: list[Any] = []

        def call() -> None:
            for item in range(20):
                seen.append(client.call(item, timeout=PATIENCE))  # noqa: PERF401

        run_in_threads([call] * 8)
        assert sorted(seen) == sorted([2 * item for item in range(20)] * 8)
        assert client.call_many([1, 2], timeout=PATIENCE) == [2, 4]
        assert client.submit(4, timeout=PATIENCE).result(PATIENCE) == 8
        with pytest.raises(TypeError):
            client.call(object(), timeout=1)


def test_a_sync_dispatcher_works_on_after_a_fork(
    redis_server: RedisServer, children: Children
) -> None:
    with worker_thread(redis_server), SyncDispatcher(redis_server.url, QUEUE) as client:
        assert client.call(1, timeout=PATIENCE) == 2
        parent = os.getpid()

        def child() -> None:
            assert os.getpid() != parent
            assert client.call_many(range(10), timeout=PATIENCE) == [2 * n for n in range(10)]
            client.close()

        for _ in range(2):
            children.start(child)
        assert client.call_many(range(10), timeout=PATIENCE) == [2 * n for n in range(10)]
        children.join()
        assert client.call(5, timeout=PATIENCE) == 10


def test_every_call_of_a_thread_ends_when_another_closes_the_client(
    redis_server: RedisServer,
) -> None:
    async def scenario() -> None:
        async with Worker(redis_server.url, QUEUE, double):
            await asyncio.to_thread(call_and_close)

    def call_and_close() -> None:
        for _ in range(5):
            client = SyncDispatcher(redis_server.url, QUEUE)
            client.call(1, timeout=PATIENCE)
            threads = [threading.Thread(target=call_until_closed, args=(client,)) for _ in range(4)]
            for thread in threads:
                thread.start()
            client.close()
            for thread in threads:
                thread.join(PATIENCE)
            assert not any(thread.is_alive() for thread in threads)

    def call_until_closed(client: SyncDispatcher) -> None:
        with suppress(RuntimeError, Unavailable):
            while True:
                client.call(1, timeout=10 * PATIENCE)

    run(scenario())


@pytest.mark.parametrize("method", ["call", "call_many", "close"])
def test_a_callback_that_would_wait_for_its_own_thread_is_refused(
    redis_server: RedisServer, method: str
) -> None:
    arguments = {"call": ([1], {"timeout": 1}), "call_many": ([[1]], {"timeout": 1})}
    words, options = arguments.get(method, ([], {}))
    errors: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
    with SyncDispatcher(redis_server.url, QUEUE) as client:

        def call_back(_: object) -> None:
            try:
                getattr(client, method)(*words, **options)
            except RuntimeError as error:
                errors.put(error)

        redis_server.stop()  # or the call could end before it has the callback
        client.submit(1, timeout=PATIENCE).add_done_callback(call_back)
        redis_server.cont()
        assert "client's own thread" in str(errors.get(timeout=PATIENCE))


def test_a_call_while_the_interpreter_shuts_down_is_refused(redis_server: RedisServer) -> None:
    program = f"""
from sluicegate import NoWorkers, SyncDispatcher

class Last:
    def __init__(self):
        self.client = SyncDispatcher({redis_server.url!r}, "q")
        try:
            self.client.call(1, timeout=60)
        except NoWorkers:
            pass
    def __del__(self):
        try:
            self.client.call(1, timeout=60)
        except RuntimeError as error:
            print(error)

last = Last()
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE
    )
    assert "shutting down" in ended.stdout, ended


def test_calls_that_are_given_up_together_are_cancelled_together(
    redis_server: RedisServer,
) -> None:
    async def scenario() -> None:
        gate = Gate()
        async with (
            Worker(redis_server.url, QUEUE, gate),
            Dispatcher(redis_server.url, QUEUE, max_waiting=10_000) as client,
        ):
            calls = [client.submit(item, timeout=PATIENCE) for item in range(3000)]
            with redis_server.client as redis:
                await wait_until(lambda: redis.xlen("sluicegate:{translate}:tasks:0") == 3000)
                redis.config_resetstat()
                for call in calls:
                    call.cancel()
                await wait_until(lambda: redis.xlen("sluicegate:{translate}:tasks:0") == 0)
                assert redis.info("commandstats")["cmdstat_evalsha"]["calls"] < 100
            gate.opened.set()
            assert await client.call("next", timeout=PATIENCE) == "next"

    run(scenario())

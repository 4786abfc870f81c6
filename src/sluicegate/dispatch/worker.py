"""`Worker`: takes requests from queues, runs a handler on batches of them, and answers.

The decisions are in `worker_core.py`, what is said to Redis in `consumer.py`; here batches are
given to the handler: in a thread, so that fetching goes on, in a process, or as a coroutine.

A worker that stops finishes the batches that run, answers them, and gives back the rest.
"""

import asyncio
import os
import pickle
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, Self

from sluicegate._validate import check_between, check_positive, check_whole
from sluicegate.dispatch.batcher import Batcher
from sluicegate.dispatch.consumer import Consumer, Slots
from sluicegate.dispatch.handler import Handler, Outcome
from sluicegate.dispatch.handler_threads import HandlerThreads
from sluicegate.dispatch.keys import QueueKeys
from sluicegate.dispatch.metrics import worker_text
from sluicegate.dispatch.queue_admin import read_status
from sluicegate.dispatch.task import Ending, Task
from sluicegate.dispatch.wire import DEFAULT_MAX_PAYLOAD, FAILED, OK, Request, decode_data
from sluicegate.dispatch.worker_core import Batch, WorkerCore
from sluicegate.dispatch.worker_process import (
    begin_handler_process,
    is_importing_main,
    prepare_handler,
    serve,
)
from sluicegate.errors import ConfigError, ProtocolError, SluicegateError, describe
from sluicegate.redis_client import AsyncRedisPool

__all__ = ["Worker"]

_PROCESS_ENDED = "a process of the handler ended in the middle of a batch: killed, or exited"
_GUARD = "if __name__ == '__main__':"
_LEAST_LEASE = 0.1  # seconds: four heartbeats in a lease
_LONGEST_LEASE = 86400.0  # what is given back seems to be idle for longer


class Worker:
    """Serves a queue, or several, the first of them first.

    `handler` takes a list of items and returns a list of results; with `per_item=True` it takes
    one item. `size`, `cost` and `max_cost` are described in `batcher.py`. `concurrency` batches run
    at once, in threads, or with `processes=True` in processes. `isolate=True` runs the items of a
    batch that failed one by one. `lease`: seconds after which another worker takes over the tasks
    of one that is not heard of. `tracebacks=True` sends the traceback of an error to the caller.
    """

    def __init__(
        self,
        url: str,
        queue: str | Sequence[str],
        handler: Callable[[Any], Any],
        *,
        max_batch: int = 16,
        max_wait: float = 0.0,
        size: Callable[[Any], float] | None = None,
        cost: Callable[[Any], float] | None = None,
        max_cost: float | None = None,
        concurrency: int = 1,
        processes: bool = False,
        per_item: bool = False,
        isolate: bool = False,
        tracebacks: bool = False,
        lease: float = 10.0,
        max_deliveries: int = 3,
        max_payload: int = DEFAULT_MAX_PAYLOAD,
        timeout: float = 2.0,
        prefix: str = "sluicegate:",
    ) -> None:
        if not isinstance(queue, str | Sequence):
            raise TypeError(f"queue must be a name or several, got {queue!r}")
        queues = [queue] if isinstance(queue, str) else list(queue)
        if not queues:
            raise ValueError("queue must name at least one queue, got none")
        if len(set(queues)) < len(queues):
            raise ValueError(f"queue must name each queue once, got {queues!r}")
        self._keys = [QueueKeys(name, prefix) for name in queues]
        self._handler = Handler(handler, per_item=per_item, isolate=isolate, tracebacks=tracebacks)
        if processes and self._handler.is_async:
            raise ValueError("processes=True needs a sync handler, got an async one")
        if processes:
            _check_can_be_pickled(self._handler)
        check_between("lease", lease, _LEAST_LEASE, _LONGEST_LEASE)
        check_whole("max_deliveries", max_deliveries, 1)
        self._concurrency = check_whole("concurrency", concurrency, 1)
        self._processes = processes
        self._run: Callable[[list[Any]], Any] = (
            self._handler.run_in_process if processes else self._handler.run
        )
        self._max_payload = check_whole("max_payload", max_payload, 1)
        self._timeout = check_positive("timeout", timeout)
        self._pool = AsyncRedisPool(url, timeout)
        self._cores = [
            WorkerCore(
                Batcher(max_batch, max_wait, size=size, cost=cost, max_cost=max_cost),
                lease=lease,
                max_deliveries=max_deliveries,
            )
            for _ in queues
        ]
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._slots = Slots(self._concurrency)
        self._consumers: list[Consumer] = []
        self._executor: Executor | None = None
        self._running: dict[asyncio.Future[Any], Batch] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_started = False  # until `stop` has ended
        self._is_stopping = False

    @property
    def cores(self) -> dict[str, WorkerCore]:
        """What is known of each queue: counts, and the estimate of a batch's time."""
        return {keys.queue: core for keys, core in zip(self._keys, self._cores, strict=True)}

    async def metrics(self) -> str:
        """The text for Prometheus: what this worker has done, and the state of its queues."""
        cores = self.cores
        try:
            found = [await read_status(self._pool, keys, self._timeout) for keys in self._keys]
            statuses = dict(zip(cores, found, strict=True))
        except SluicegateError:
            statuses = None
        return worker_text(
            {queue: core.stats for queue, core in cores.items()},
            {queue: core.held for queue, core in cores.items()},
            statuses,
        )

    async def start(self) -> None:
        """Begin to serve. Raises `Unavailable` if Redis does not answer."""
        if is_importing_main():
            raise ConfigError(
                "a worker was started while a handler process imports the program's main module: "
                f"start it under {_GUARD}"
            )
        if self._is_started:
            raise RuntimeError(f"{self!r} was started before; stop() must have ended first")
        self._is_started = True
        self._is_stopping = False
        try:
            await self._start()
        except BaseException:
            await self.stop(0.0)
            raise

    async def _start(self) -> None:
        self._executor = self._make_executor()
        for keys, core in zip(self._keys, self._cores, strict=True):
            consumer = Consumer(
                self._pool,
                keys,
                self.name.encode(),
                core,
                self._slots,
                self._begin_batches,
                timeout=self._timeout,
                max_payload=self._max_payload,
                previous=self._consumers[-1] if self._consumers else None,
            )
            self._consumers.append(consumer)
        if isinstance(self._executor, ProcessPoolExecutor):
            await self._prepare_processes(self._executor)
        for consumer in self._consumers:
            await consumer.start()

    async def stop(self, timeout: float = 10.0) -> int:
        """Finish what runs within `timeout` seconds, answer, and give back the rest.

        Returns how many batches had not ended, and how many Redis has not confirmed the answers of.
        Their results are discarded. Handlers in threads cannot be ended; processes are killed.
        """
        self._is_stopping = True
        if self._timer is not None:
            self._timer.cancel()
        for consumer in self._consumers:
            await consumer.stop_fetching()
        if self._running:
            await asyncio.wait(self._running, timeout=timeout)
        unfinished, self._running = self._running, {}
        for running, batch in unfinished.items():
            del self._slots.ends[batch]
            running.cancel()
        if unfinished and isinstance(self._executor, ProcessPoolExecutor):
            await self._kill_processes(self._executor)
        unconfirmed = 0
        for consumer in self._consumers:
            unconfirmed += await consumer.leave(self._timeout)
            consumer.core.forget()
        self._consumers = []
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None
        await self._pool.close()
        self._is_started = False
        return len(unfinished) + unconfirmed

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    def run(self, stop_timeout: float = 10.0, *, metrics: str | None = None) -> int:
        """Serve until SIGTERM or SIGINT, then `stop` within `stop_timeout` seconds.

        A second signal ends the process at once. `metrics` is HOST:PORT of a port for Prometheus.
        """
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(
                "Worker.run() handles signals, and must be called in the main thread: "
                "use `async with Worker(...)` in another"
            )
        return asyncio.run(serve(self, stop_timeout=stop_timeout, metrics=metrics))

    def _make_executor(self) -> Executor | None:
        if self._handler.is_async:
            return None
        if self._processes:
            # Not fork: this process has threads, which a forked child has not.
            context = get_context("spawn")
            return ProcessPoolExecutor(
                self._concurrency,
                mp_context=context,
                initializer=begin_handler_process,
                initargs=(os.getpid(), context.Barrier(self._concurrency)),
            )
        return HandlerThreads(self._concurrency)

    async def _prepare_processes(self, executor: Executor) -> None:
        """Wait until the handler is loaded in each process: the first batches are as the others."""
        loop = asyncio.get_running_loop()
        calls = [
            loop.run_in_executor(executor, prepare_handler, self._handler)
            for _ in range(self._concurrency)
        ]
        try:
            await asyncio.gather(*calls)
        except BrokenProcessPool:
            raise ConfigError(
                "the handler's processes ended while they started: their errors are above; a "
                f"program that uses processes=True starts its worker under {_GUARD}"
            ) from None
        finally:
            await asyncio.gather(*calls, return_exceptions=True)

    async def _kill_processes(self, executor: ProcessPoolExecutor) -> None:
        """End handlers that hang, before other workers are given their requests."""
        for process in list(executor._processes.values()):
            process.kill()
        # It waits for them, so that none is left as a zombie.
        ended = asyncio.get_running_loop().run_in_executor(None, executor.shutdown)
        await asyncio.wait({ended}, timeout=self._timeout)
        self._executor = None

    def _begin_batches(self) -> None:
        """Begin all batches that are due and have a free slot."""
        if self._is_stopping:
            return
        due: float | None = None
        for consumer in self._consumers:
            while self._slots.free and consumer.fetcher.is_turn:
                now = consumer.now()
                batch, endings = consumer.core.take(now)
                consumer.finish(endings)
                if batch is None:
                    due_at = consumer.core.due_at()
                    if due_at is not None:
                        due = due_at - now if due is None else min(due, due_at - now)
                    break
                self._begin(consumer, batch)
            consumer.wake()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(due, 0.0), self._begin_batches)

    def _begin(self, consumer: Consumer, batch: Batch) -> None:
        items: list[Any] = []
        tasks: list[Task] = []
        for task in batch.tasks:
            assert isinstance(task.request, Request)
            try:
                items.append(task.data if task.data is not None else decode_data(task.request))
                tasks.append(task)
            except ProtocolError as error:
                consumer.finish([Ending(task, FAILED, {"error": str(error)}, str(error))])
        batch.tasks = tasks
        if not tasks:
            return
        self._slots.ends[batch] = batch.ends_at
        try:
            running = self._call_handler(items)
        except Exception as error:  # noqa: BLE001  it fails this batch, as one of the handler does
            running = asyncio.get_running_loop().create_future()
            running.set_exception(error)
        executor = self._executor
        self._running[running] = batch
        running.add_done_callback(lambda done: self._end(consumer, batch, done, executor))

    def _call_handler(self, items: list[Any]) -> "asyncio.Future[Any]":
        if self._executor is None:
            return asyncio.ensure_future(self._handler.run_async(items))
        if self._processes and self._handler.isolate and len(items) > 1:
            return asyncio.ensure_future(self._run_isolating(items))
        return self._submit(items)

    def _submit(self, items: list[Any]) -> "asyncio.Future[Any]":
        loop = asyncio.get_running_loop()
        try:
            return loop.run_in_executor(self._executor, self._run, items)
        except BrokenProcessPool:  # a process died while it was idle
            self._replace_executor(self._executor)
            return loop.run_in_executor(self._executor, self._run, items)

    async def _run_isolating(self, items: list[Any]) -> list[bytes]:
        """Run items in a process, and if that dies, each in one that may die of it alone."""
        executor = self._executor
        try:
            outcomes: list[bytes] = await self._submit(items)
            return outcomes
        except BrokenProcessPool:
            self._replace_executor(executor)
        outcomes = []
        for item in items:
            executor = self._executor
            try:
                outcomes += await self._submit([item])
            except BrokenProcessPool:
                self._replace_executor(executor)
                outcomes.append(pickle.dumps((FAILED, {"error": _PROCESS_ENDED})))
        return outcomes

    def _replace_executor(self, broken: Executor | None) -> None:
        """Begin new processes, once for all batches that fail with the `broken` ones."""
        if self._executor is broken and not self._is_stopping:
            self._executor = self._make_executor()

    def _end(
        self,
        consumer: Consumer,
        batch: Batch,
        done: "asyncio.Future[Any]",
        executor: Executor | None,
    ) -> None:
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        if self._running.pop(done, None) is None:
            return  # stopped before it had ended: its tasks were given back
        del self._slots.ends[batch]
        consumer.core.end_batch(consumer.now(), batch)
        outcomes: list[Outcome]
        if error is None:
            outcomes = done.result()
            if self._processes:
                outcomes = [self._handler.load(one) for one in done.result()]
        else:
            if isinstance(error, BrokenProcessPool):
                self._replace_executor(executor)
                reason = _PROCESS_ENDED
            else:
                reason = f"the handler could not be run to its end: {describe(error)}"
            outcomes = [(FAILED, {"error": reason})] * len(batch.tasks)
        failures = [data for status, data in outcomes if status != OK]
        if failures:
            consumer.handler_failed(len(failures), failures[0].get("trace", failures[0]["error"]))
        for data in failures:
            data.pop("trace", None)  # of the log alone
        consumer.finish(
            [
                Ending(task, status, data, by_handler=True)
                for task, (status, data) in zip(batch.tasks, outcomes, strict=True)
            ],
            at_once=True,  # the next pass of the loop is a system call later
        )
        self._begin_batches()

    def __repr__(self) -> str:
        queues = ", ".join(keys.queue for keys in self._keys)
        return f"Worker({queues}, handler={self._handler!r}, address={self._pool.address!r})"


def _check_can_be_pickled(handler: Handler) -> None:
    try:
        pickle.dumps(handler)
    except Exception as error:  # noqa: BLE001  an object may refuse in its own way
        raise TypeError(
            "processes=True needs a handler that can be pickled, such as a function of a module, "
            f"got {handler.function!r}: {error}"
        ) from None

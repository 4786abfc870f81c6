"""`SyncDispatcher`: `Dispatcher` for threads.

A thread of its own runs an event loop with a `Dispatcher`; all threads of the program share them.
They begin with the first call, and anew in a forked child. After `close` only `with` begins anew.
"""

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from typing import Any, Self, TypeVar

from sluicegate.dispatch.client import Dispatcher

__all__ = ["SyncDispatcher"]

_Result = TypeVar("_Result")

_PATIENCE = 10.0  # seconds for the thread to end, beside one exchange with Redis


class SyncDispatcher:
    """The arguments are those of `Dispatcher`. Safe to share between threads."""

    def __init__(self, url: str, queue: str, **options: Any) -> None:
        self._arguments = (url, queue)
        self._patience = options.get("timeout", 0.0) + _PATIENCE
        self._options = options
        self._dispatcher = Dispatcher(url, queue, **options)  # checks the arguments at once
        self._lock = threading.Lock()
        self._is_closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._orphans: list[Dispatcher] = []

    @property
    def queue(self) -> str:
        return self._dispatcher.queue

    def metrics(self) -> str:
        """As `Dispatcher.metrics`."""
        return self._dispatcher.metrics()

    def call(
        self,
        data: Any,
        *,
        timeout: float,
        priority: int = 0,
        idempotency_key: str | None = None,
    ) -> Any:
        """As `Dispatcher.call`."""
        self._check_thread("call")
        return self.submit(
            data, timeout=timeout, priority=priority, idempotency_key=idempotency_key
        ).result()

    def call_many(
        self,
        items: Iterable[Any],
        *,
        timeout: float,
        priority: int = 0,
        return_errors: bool = False,
    ) -> list[Any]:
        """As `Dispatcher.call_many`."""
        self._check_thread("call_many")
        many = list(items)
        return self._schedule(
            lambda dispatcher: dispatcher.call_many(
                many, timeout=timeout, priority=priority, return_errors=return_errors
            )
        ).result()

    def submit(
        self,
        data: Any,
        *,
        timeout: float,
        priority: int = 0,
        idempotency_key: str | None = None,
    ) -> "Future[Any]":
        """As `Dispatcher.submit`, with a `concurrent.futures.Future`.

        Its callbacks run in the client's own thread: they must not block.
        """
        return self._schedule(
            lambda dispatcher: dispatcher.call(
                data, timeout=timeout, priority=priority, idempotency_key=idempotency_key
            )
        )

    def close(self) -> None:
        """As `Dispatcher.close`; it ends the thread, too."""
        self._check_thread("close")
        with self._lock:
            self._is_closed = True
            loop, thread, self._loop = self._loop, self._thread, None
        if loop is None or thread is None or self._pid != os.getpid():
            return
        closing = asyncio.run_coroutine_threadsafe(self._dispatcher.close(), loop)
        closing.result(self._patience)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_PATIENCE)

    def __enter__(self) -> Self:
        self._is_closed = False
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _check_thread(self, method: str) -> None:
        """A method that waits for the client's thread would wait for ever there."""
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                f"{method}() waits, and was called in the client's own thread, by a callback of "
                "a future: use submit(), or another thread"
            )

    def _schedule(
        self, begin: Callable[[Dispatcher], Coroutine[Any, Any, _Result]]
    ) -> "Future[_Result]":
        """Run a call on the loop. It is there before `close` can be, which then ends it."""
        if sys.is_finalizing():
            raise RuntimeError("the interpreter is shutting down: the client's thread has ended")
        if self._pid != os.getpid():
            # The parent's thread is not here, and the lock may have been held by it.
            self._lock = threading.Lock()
            self._loop = None
            self._orphans.append(self._dispatcher)  # not collected: its tasks would warn
            self._dispatcher = Dispatcher(*self._arguments, **self._options)
            self._pid = os.getpid()
        with self._lock:
            if self._is_closed:
                raise RuntimeError(
                    f"the SyncDispatcher of {self.queue!r} is closed; `with` opens it again"
                )
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_run, args=(self._loop,), name="sluicegate-dispatch", daemon=True
                )
                self._thread.start()
                # Before any call: the loop runs them in this order.
                asyncio.run_coroutine_threadsafe(self._dispatcher.__aenter__(), self._loop)
            return asyncio.run_coroutine_threadsafe(begin(self._dispatcher), self._loop)

    def __repr__(self) -> str:
        return f"Sync{self._dispatcher!r}"


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        late = asyncio.all_tasks(loop)  # calls that came while it was closed: their threads wait
        for task in late:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*late, return_exceptions=True))
    finally:
        loop.close()

"""`BackgroundLookup`: a blocking lookup (DNS, sentinels, a cluster) that cannot hold up its caller.

The system's resolver and redis-py's discovery take as long as they like. So the lookup
runs in a daemon thread of its own, one at a time, and callers wait for it no longer
than they have; the answer is there for the next. A thread is started when a connection
is to be opened and the address is not known, never for a call.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from sluicegate.errors import Unavailable

__all__ = ["BackgroundLookup"]

Answer = TypeVar("Answer")


class BackgroundLookup(Generic[Answer]):
    """Calls `function` in a thread; at most one call runs at a time."""

    def __init__(self, what: str, function: Callable[[], Answer]) -> None:
        self._what = what
        self._function = function
        self._lock = threading.RLock()
        self._running: Future[Answer] | None = None

    def wait(self, seconds: float) -> Answer:
        """The answer, or `Unavailable` when there is none in time."""
        try:
            return self._start().result(max(seconds, 0.0))
        except TimeoutError:
            raise self._late(seconds) from None

    async def wait_async(self, seconds: float) -> Answer:
        running = asyncio.wrap_future(self._start())
        # Not wait_for: it would cancel a lookup that others wait for too.
        done, _ = await asyncio.wait({running}, timeout=max(seconds, 0.0))
        if not done:
            running.add_done_callback(_look_at_error)
            raise self._late(seconds)
        return running.result()

    def after_fork(self) -> None:
        """In a forked child, where the thread is gone and the lock may be held for ever."""
        self._lock = threading.RLock()
        self._running = None

    def _late(self, seconds: float) -> Unavailable:
        return Unavailable(f"timed out after {seconds * 1000:.0f} ms looking up {self._what}")

    def _start(self) -> Future[Answer]:
        with self._lock:
            if self._running is None:
                self._running = Future()
                name = f"sluicegate: {self._what}"
                threading.Thread(
                    target=self._run, args=(self._running,), name=name, daemon=True
                ).start()
            return self._running

    def _run(self, running: Future[Answer]) -> None:
        try:
            answer = self._function()
        except Exception as error:  # noqa: BLE001  whatever it is, the callers must hear of it
            reason = Unavailable(f"cannot find {self._what}: {error or type(error).__name__}")
            self._finish()
            running.set_exception(reason)
        else:
            self._finish()
            running.set_result(answer)

    def _finish(self) -> None:
        with self._lock:
            self._running = None


def _look_at_error(running: "asyncio.Future[Answer]") -> None:
    if not running.cancelled():
        running.exception()

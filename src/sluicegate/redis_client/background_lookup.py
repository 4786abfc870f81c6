"""A blocking question (a name, a sentinel, a cluster) that cannot hold up its asker.

The system's resolver and redis-py's discovery take as long as they like. So the question
is asked in a daemon thread of its own, one at a time, and callers wait for it no longer
than they have; the answer is there for the next. A thread is started when a connection
is to be opened and the address is not known, never for a call.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from sluicegate.errors import Unavailable

__all__ = ["Lookup"]

Answer = TypeVar("Answer")


class Lookup(Generic[Answer]):
    """Asks `question` off the caller's path; at most one asking is under way."""

    def __init__(self, what: str, question: Callable[[], Answer]) -> None:
        self._what = what
        self._question = question
        self._lock = threading.RLock()
        self._asking: Future[Answer] | None = None

    def wait(self, seconds: float) -> Answer:
        """The answer, or `Unavailable` when there is none in time."""
        try:
            return self._ask().result(max(seconds, 0.0))
        except TimeoutError:
            raise self._late(seconds) from None

    async def wait_async(self, seconds: float) -> Answer:
        asking = asyncio.wrap_future(self._ask())
        # Not wait_for: it would cancel a question that others wait for too.
        done, _ = await asyncio.wait({asking}, timeout=max(seconds, 0.0))
        if not done:
            asking.add_done_callback(_look_at_error)
            raise self._late(seconds)
        return asking.result()

    def forget(self) -> None:
        """In a forked child, where the thread is gone and the lock may be held for ever."""
        self._lock = threading.RLock()
        self._asking = None

    def _late(self, seconds: float) -> Unavailable:
        return Unavailable(f"{self._what} was not found within {seconds * 1000:.0f} ms")

    def _ask(self) -> Future[Answer]:
        with self._lock:
            if self._asking is None:
                self._asking = Future()
                name = f"sluicegate: {self._what}"
                threading.Thread(
                    target=self._run, args=(self._asking,), name=name, daemon=True
                ).start()
            return self._asking

    def _run(self, asking: Future[Answer]) -> None:
        try:
            answer = self._question()
        except Exception as error:  # noqa: BLE001  whatever it is, the callers must hear of it
            reason = Unavailable(f"{self._what} was not found: {error or type(error).__name__}")
            self._finish()
            asking.set_exception(reason)
        else:
            self._finish()
            asking.set_result(answer)

    def _finish(self) -> None:
        with self._lock:
            self._asking = None


def _look_at_error(asking: "asyncio.Future[Answer]") -> None:
    if not asking.cancelled():
        asking.exception()

"""`ConcurrencyLimit`: so many at once, and so many more that may wait.

A rate says how often; this says how many together. `with limit:` takes one of the
places and gives it back at the end. When all are taken, up to `queue` callers wait
in their order, and a place that is given back goes straight to the first of them:
nobody who comes later can slip in between.
"""

import threading
import time
from collections import deque
from types import TracebackType
from typing import Self

from sluicegate._validate import check_timeout, check_whole
from sluicegate.limits._decision import Decision
from sluicegate.limits.errors import RateLimited
from sluicegate.limits.waiting import Nap, Sleeper, TaskSleeper, ThreadSleeper, WaitPlan

__all__ = ["ConcurrencyLimit"]


class _Waiter:
    __slots__ = ("has_place", "sleeper")

    def __init__(self, sleeper: Sleeper) -> None:
        self.sleeper = sleeper
        self.has_place = False


class ConcurrencyLimit:
    """At most `limit` at once; `queue` more may wait, first come, first served.

    Full, with the queue full too, it raises `RateLimited` at once. Nobody can tell
    when a place will be free, so `retry_after` is 0 there.
    """

    def __init__(self, limit: int, *, queue: int = 0) -> None:
        self._limit = check_whole("limit", limit, 1)
        self._queue = check_whole("queue", queue, 0)
        self._in_use = 0
        self._waiters: deque[_Waiter] = deque()
        self._lock = threading.RLock()

    def try_acquire(self) -> bool:
        """Take a place if one is free and nobody waits for it."""
        with self._lock:
            return self._take()

    def acquire(self, timeout: float | None = None) -> float:
        """Wait for a place; return the seconds waited. `RateLimited` past the time-out."""
        seconds = check_timeout(timeout)
        if self.try_acquire():
            return 0.0
        sleeper = ThreadSleeper(None)
        return sleeper.wait(self._wait(seconds, sleeper))

    async def acquire_async(self, timeout: float | None = None) -> float:
        """As `acquire`, for tasks. A cancelled one leaves the queue."""
        seconds = check_timeout(timeout)
        if self.try_acquire():
            return 0.0
        sleeper = TaskSleeper(None)
        return await sleeper.wait(self._wait(seconds, sleeper))

    def release(self) -> None:
        """Give a place back."""
        with self._lock:
            if self._in_use == 0:
                raise RuntimeError("release() without acquire(): no place is taken")
            self._in_use -= 1
            self._hand_on()

    @property
    def limit(self) -> int:
        """Places; may be set. When lowered, those who have one keep it."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        with self._lock:
            self._limit = check_whole("limit", limit, 1)
            self._hand_on()

    @property
    def queue(self) -> int:
        """How many may wait."""
        return self._queue

    @property
    def in_use(self) -> int:
        """Places taken now."""
        return self._in_use

    @property
    def waiting(self) -> int:
        """How many wait now."""
        return len(self._waiters)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    async def __aenter__(self) -> Self:
        await self.acquire_async()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        return (
            f"ConcurrencyLimit(limit={self._limit}, in_use={self._in_use}, "
            f"waiting={self.waiting} of {self._queue})"
        )

    def _take(self) -> bool:
        if self._in_use >= self._limit or self._waiters:
            return False
        self._in_use += 1
        return True

    def _hand_on(self) -> None:
        while self._waiters and self._in_use < self._limit:
            waiter = self._waiters.popleft()
            waiter.has_place = True  # before it wakes, for it looks at once
            self._in_use += 1
            if not waiter.sleeper.wake():
                waiter.has_place = False
                self._in_use -= 1

    def _wait(self, timeout: float, sleeper: Sleeper) -> WaitPlan:
        start = time.monotonic()
        waiter = _Waiter(sleeper)
        try:
            with self._lock:
                if self._take():
                    return 0.0
                is_full = timeout == 0.0 or len(self._waiters) >= self._queue
                if not is_full:
                    self._waiters.append(waiter)
            if is_full:
                raise RateLimited(Decision(False))
            while not waiter.has_place:
                left = start + timeout - time.monotonic()
                if left <= 0.0:
                    raise RateLimited(Decision(False))
                yield Nap(left, in_queue=True)
        except BaseException:
            self._leave(waiter)
            raise
        return time.monotonic() - start

    def _leave(self, waiter: _Waiter) -> None:
        with self._lock:
            if waiter.has_place:
                self._in_use -= 1
                self._hand_on()
            elif waiter in self._waiters:
                self._waiters.remove(waiter)

"""`AdaptiveConcurrency`: finds by itself how many calls a server takes at once.

By Little's law a server with c workers and a service time s does c/s per second at
best; more than c calls at once only wait in its queue, and the time of a call grows.
So the time of calls tells where the limit is. `Gradient` is that rule, without I/O,
after Gradient2 of Netflix's concurrency-limits:

    gradient = tolerance * time without load / time now         (held within 0.5 and 1)
    limit   := limit * gradient + sqrt(limit)                   (a little room to grow)

applied to the mean of a window of calls and smoothed, and only while the limit is
made use of. It differs from the model in how it knows the time without load. There it is
a long average of the times seen, which under lasting overload becomes the
overloaded time itself, and the limit creeps up without end. Here it is the shortest
window mean of the last two *eras*; and an era begins with probes: windows run at
fewer calls at once than should queue, and at half of that again as long as calls
become quicker by it. So the truth is seen again and again, also when the limit was far
off at first, or the server has become slower for good. It costs about one percent
of the calls. A window counts the calls that began in it: what was sent before still
tells of the limit as it was then.

A call that ends in `TimeoutError` or `RateLimited` says that the server is past its
limit, whatever the time: the limit falls by a tenth. A call that is cancelled (a
time-out around it, say) counts with the time it had taken. Calls that end in other
errors say nothing, for an error is often quick.
"""

import asyncio
import math
import threading
from types import TracebackType
from typing import Self

from sluicegate._validate import check_number, check_whole
from sluicegate.clock import Clock, SystemClock
from sluicegate.limits.concurrency import ConcurrencyLimit
from sluicegate.limits.errors import RateLimited

__all__ = ["AdaptiveConcurrency", "Gradient"]

_TOLERANCE = 1.5  # a call may take this much longer than without load
_SMOOTHING = 0.2
_BACKOFF = 0.9
_WINDOW_SECONDS = 0.1
_WINDOW_CALLS = 10
_WINDOWS_PER_ERA = 100
_PROBE = 0.8  # of the number of calls that would just not queue
_QUICKER = 0.9  # a probe that makes calls this much quicker is followed by another


class Gradient:
    """The rule, without I/O: told how each call went, it says how many may run."""

    def __init__(self, initial: int, least: int, most: int) -> None:
        self._least = least
        self._most = most
        self._estimate = float(initial)
        self._probe: float | None = None
        self._windows = _WINDOWS_PER_ERA - 1  # the first window is followed by probes
        self._shortest_before = math.inf
        self._shortest = math.inf
        self._start: float | None = None
        self._calls = 0
        self._seconds = 0.0
        self._busiest = 0

    @property
    def limit(self) -> int:
        return int(self._estimate if self._probe is None else self._probe)

    @property
    def time_without_load(self) -> float:
        """Seconds; infinite until the first window is over."""
        return min(self._shortest_before, self._shortest)

    def dropped(self) -> None:
        """A call was refused or timed out."""
        self._estimate = max(self._estimate * _BACKOFF, self._least)

    def finished(self, now: float, seconds: float, in_use: int) -> None:
        """A call took `seconds`; `in_use` ran at once when it ended, itself included."""
        if self._start is None:
            self._start = now - seconds
        start = self._start
        if now - seconds < start:
            return
        self._calls += 1
        self._seconds += seconds
        self._busiest = max(self._busiest, in_use)
        if self._calls >= _WINDOW_CALLS and now - start >= _WINDOW_SECONDS:
            self._end_window(self._seconds / self._calls, self._busiest)
            self._start = now
            self._calls = 0
            self._seconds = 0.0
            self._busiest = 0

    def _end_window(self, mean: float, busiest: int) -> None:
        mean = max(mean, 1e-9)
        shortest_so_far = self._shortest
        self._shortest = min(self._shortest, mean)
        if self._probe is not None:
            became_quicker = mean < shortest_so_far * _QUICKER
            self._probe = max(self._least, self._probe / 2) if became_quicker else None
            return
        # An idle limit says nothing about the server.
        if busiest * 2 >= self._estimate:
            gradient = max(0.5, min(1.0, _TOLERANCE * self.time_without_load / mean))
            wanted = self._estimate * gradient + math.sqrt(self._estimate)
            smoothed = self._estimate + (wanted - self._estimate) * _SMOOTHING
            self._estimate = max(self._least, min(self._most, smoothed))
        self._windows += 1
        if self._windows == _WINDOWS_PER_ERA:
            unqueued = self._estimate * min(1.0, self.time_without_load / mean)
            self._probe = max(self._least, unqueued * _PROBE)
            self._windows = 0
            self._shortest_before, self._shortest = self._shortest, mean


class AdaptiveConcurrency:
    """As `ConcurrencyLimit`, for callers who do not know their number.

    It starts at `initial` and stays from `minimum` to `maximum`. Use it as `with`
    or `async with`, around the call whose time it is to learn from.
    """

    def __init__(
        self,
        initial: int = 20,
        *,
        minimum: int = 1,
        maximum: int = 1000,
        queue: int = 0,
        clock: Clock | None = None,
    ) -> None:
        check_whole("minimum", minimum, 1)
        check_whole("maximum", maximum, minimum)
        if not minimum <= check_whole("initial", initial, 1) <= maximum:
            raise ValueError(f"initial must be from {minimum} to {maximum}, got {initial!r}")
        self._places = ConcurrencyLimit(initial, queue=queue)
        self._gradient = Gradient(initial, minimum, maximum)
        self._clock = SystemClock() if clock is None else clock
        self._clock.now()
        self._starts: dict[object, list[float]] = {}
        self._lock = threading.RLock()

    @property
    def limit(self) -> int:
        """What it takes to be the server's limit now."""
        return self._places.limit

    @property
    def in_use(self) -> int:
        return self._places.in_use

    @property
    def waiting(self) -> int:
        return self._places.waiting

    def record(self, seconds: float) -> None:
        """Learn from a call that was timed elsewhere."""
        took = check_number("seconds", seconds)
        if not 0.0 <= took < math.inf:
            raise ValueError(f"seconds must be a finite number, 0 or more, got {seconds!r}")
        with self._lock:
            self._gradient.finished(self._clock.now(), took, self._places.in_use)
            self._places.limit = self._gradient.limit

    def __enter__(self) -> Self:
        self._places.acquire()
        self._begin(threading.get_ident())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end(threading.get_ident(), kind)

    async def __aenter__(self) -> Self:
        await self._places.acquire_async()
        self._begin(asyncio.current_task())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end(asyncio.current_task(), kind)

    def __repr__(self) -> str:
        return (
            f"AdaptiveConcurrency(limit={self.limit}, in_use={self.in_use}, "
            f"waiting={self.waiting}, time_without_load={self._gradient.time_without_load:g} s)"
        )

    def _begin(self, caller: object) -> None:
        with self._lock:
            self._starts.setdefault(caller, []).append(self._clock.now())

    def _end(self, caller: object, kind: type[BaseException] | None) -> None:
        with self._lock:
            start = self._start_of(caller)
            now = self._clock.now()
            if kind is not None and issubclass(kind, TimeoutError | RateLimited):
                self._gradient.dropped()
            elif start is not None and (kind is None or issubclass(kind, asyncio.CancelledError)):
                self._gradient.finished(now, max(now - start, 0.0), self._places.in_use)
            self._places.limit = self._gradient.limit
        self._places.release()

    def _start_of(self, caller: object) -> float | None:
        """When the caller began; None for one who began as another thread or task."""
        is_known = caller in self._starts
        if not is_known:
            caller = next(iter(self._starts), None)
        starts = self._starts.get(caller, [math.nan])
        start = starts.pop()
        if not starts:
            self._starts.pop(caller, None)
        return start if is_known else None

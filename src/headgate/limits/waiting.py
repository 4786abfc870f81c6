"""How callers wait: in order, in threads and in tasks, until their time or their turn.

A wait is a *plan*: a generator that yields how long to sleep next (None: until
woken) and returns the seconds it took. It touches no timer. `ThreadSleeper.wait` drives a
plan from a thread, `TaskSleeper.wait` from a task; both close it when they are interrupted or
cancelled, and the plan then gives back what it held. Two kinds of plan are made here:

- `Schedule`, for limiters that can say at once *when* a caller may go. Each holds
  a place with its time; when somebody leaves, those behind him move up.
- `Line`, for limiters whose answer depends on what happens until then. Only the
  one at the head asks; when he goes, he wakes the next.

Both are first come, first served. Their locks guard the lists alone: nobody sleeps
inside one, and a call that need not wait never comes here.
"""

import asyncio
import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Generator
from typing import Any, Protocol

from headgate.clock import Clock

__all__ = [
    "Line",
    "Lines",
    "Plan",
    "Schedule",
    "Sleeper",
    "TaskSleeper",
    "ThreadSleeper",
]

_DAY = 86400.0  # longer sleeps overflow the system's timers; a plan asks again anyway

Plan = Generator[float | None, None, float]


class Sleeper(Protocol):
    """One who waits and can be woken from any thread, also before he has fallen asleep."""

    def wake(self) -> None: ...


class ThreadSleeper:
    """Sleeps in the calling thread; on a clock of the caller's when there is one."""

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock
        self._woken = threading.Event()

    def wake(self) -> None:
        self._woken.set()

    def wait(self, plan: Plan) -> float:
        try:
            while True:
                self._sleep(next(plan))
        except StopIteration as done:
            return float(done.value)
        finally:
            plan.close()

    def _sleep(self, seconds: float | None) -> None:
        if seconds is None or self._clock is None:
            self._woken.wait(None if seconds is None else min(seconds, _DAY))
        elif not self._woken.is_set():
            self._clock.sleep(seconds)
        self._woken.clear()


class TaskSleeper:
    """Sleeps in the running asyncio task; on a clock of the caller's when there is one."""

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._woken = self._loop.create_future()
        self._napping: asyncio.Task[Any] | None = None

    def wake(self) -> None:
        self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        _finish(self._woken)
        if self._napping is not None:
            self._napping.cancel()
            self._napping = None

    async def wait(self, plan: Plan) -> float:
        try:
            while True:
                await self._sleep(next(plan))
        except StopIteration as done:
            return float(done.value)
        finally:
            plan.close()

    async def _sleep(self, seconds: float | None) -> None:
        if seconds is not None and self._clock is not None:
            await self._nap(self._clock, seconds)
        elif seconds is not None:
            alarm = self._loop.call_later(seconds, _finish, self._woken)
            try:
                await self._woken
            finally:
                alarm.cancel()
        else:
            await self._woken
        if self._woken.done():
            self._woken = self._loop.create_future()

    async def _nap(self, clock: Clock, seconds: float) -> None:
        """Sleep on a clock that cannot be woken: interrupt it, as asyncio.timeout does."""
        task = asyncio.current_task()
        assert task is not None
        if self._woken.done():
            return
        cancelled_before = task.cancelling()
        self._napping = task
        try:
            await clock.sleep_async(seconds)
        except asyncio.CancelledError:
            if not self._woken.done() or task.uncancel() > cancelled_before:
                raise
        finally:
            self._napping = None


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class _Place:
    __slots__ = ("held", "ready", "sleeper")

    def __init__(self, ready: float, held: Any, sleeper: Sleeper) -> None:
        self.ready = ready
        self.held = held
        self.sleeper = sleeper


class Schedule:
    """Callers who each hold a place, and a time when it is theirs.

    `reserve(cost, timeout)` takes a place and returns when it is ready, with what
    it holds; or raises, and nothing has changed. `give_back(held)` undoes it and
    returns by how many seconds everyone behind may move up. `tick` is the finest
    step of `now`.
    """

    def __init__(
        self,
        now: Callable[[], float],
        tick: float,
        reserve: Callable[[float, float], tuple[float, Any]],
        give_back: Callable[[Any], float],
    ) -> None:
        self._now = now
        self._tick = tick
        self._reserve = reserve
        self._give_back = give_back
        self._places: deque[_Place] = deque()
        self._fixed = -math.inf
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._places)

    def held(self) -> list[Any]:
        """What those who wait hold, in order."""
        with self._lock:
            return [place.held for place in self._places]

    def fix(self, cost: float) -> float:
        """Reserve a place for a caller who keeps the time himself; it never moves again."""
        with self._lock:
            ready, _ = self._reserve(cost, math.inf)
            self._fixed = ready
            return ready

    def keep(self, cost: float, timeout: float, sleeper: Sleeper) -> Plan:
        start = self._now()
        with self._lock:
            ready, held = self._reserve(cost, timeout)
            place = _Place(ready, held, sleeper)
            self._places.append(place)
        try:
            while (delay := place.ready - self._now()) > self._tick:
                yield delay
        except BaseException:
            self._leave(place)
            raise
        with self._lock:
            self._places.remove(place)
        return max(self._now() - start, 0.0)

    def move_up(self, seconds: float) -> None:
        """Everyone who waits may go this much earlier."""
        with self._lock:
            self._move_up(0, seconds)

    def _leave(self, place: _Place) -> None:
        with self._lock:
            index = self._places.index(place)
            del self._places[index]
            # A place reserved behind this one by `fix` cannot move up; to let the
            # others pass it would break the order, so the time is simply lost.
            if place.ready >= self._fixed:
                self._move_up(index, self._give_back(place.held))

    def _move_up(self, index: int, seconds: float) -> None:
        for place in list(self._places)[index:]:
            place.ready -= seconds
            place.sleeper.wake()


class Line:
    """Callers in a line of which only the head asks.

    `attempt()` takes what is wanted and returns 0.0, or returns the seconds after
    which it is worth asking again. `refuse()` makes the exception for those whose
    time-out comes first.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._sleepers: deque[Sleeper] = deque()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._sleepers)

    def queue(
        self,
        attempt: Callable[[], float],
        refuse: Callable[[], Exception],
        timeout: float,
        sleeper: Sleeper,
    ) -> Plan:
        start = self._now()
        deadline = start + timeout
        with self._lock:
            self._sleepers.append(sleeper)
        try:
            while True:
                delay = attempt() if self._sleepers[0] is sleeper else None
                if delay == 0.0:
                    return max(self._now() - start, 0.0)
                left = deadline - self._now()
                if left <= 0.0 or (delay is not None and delay > left):
                    raise refuse()
                yield delay if left == math.inf else left if delay is None else delay
        finally:
            self._leave(sleeper)

    def wake_head(self) -> None:
        """What the head waits for may have come early: let him ask again."""
        with self._lock:
            head = self._sleepers[0] if self._sleepers else None
        if head is not None:
            head.wake()

    def _leave(self, sleeper: Sleeper) -> None:
        with self._lock:
            was_head = self._sleepers[0] is sleeper
            self._sleepers.remove(sleeper)
            head = self._sleepers[0] if was_head and self._sleepers else None
        if head is not None:
            head.wake()


class Lines:
    """A line for each key that has somebody waiting, and none for the others."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lines: dict[Any, Line] = {}
        self._callers: Counter[Any] = Counter()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._callers.total()

    def queue(
        self,
        key: Any,
        attempt: Callable[[], float],
        refuse: Callable[[], Exception],
        timeout: float,
        sleeper: Sleeper,
    ) -> Plan:
        with self._lock:
            line = self._lines.setdefault(key, Line(self._now))
            self._callers[key] += 1
        try:
            return (yield from line.queue(attempt, refuse, timeout, sleeper))
        finally:
            with self._lock:
                self._callers[key] -= 1
                if not self._callers[key]:
                    del self._lines[key], self._callers[key]

    def wake_head(self, key: Any) -> None:
        with self._lock:
            line = self._lines.get(key)
        if line is not None:
            line.wake_head()

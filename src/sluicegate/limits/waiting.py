"""How callers wait: in order, in threads and in tasks, until their time or their turn.

A wait is a *plan*: a generator that yields the next `Nap` and returns the seconds it
took. It touches no timer. `ThreadSleeper.wait` drives a plan from a thread,
`TaskSleeper.wait` from a task; both close it when they are interrupted or cancelled,
and the plan then gives back what it held. Two kinds of plan are made here:

- `Schedule`, for limiters that can say at once *when* a caller may go. Each holds
  a place with its time; when somebody leaves, those behind him move up.
- `Line`, for limiters whose answer depends on what happens until then. Only the
  one at the head asks.

Both are first come, first served, and in both only the head has an alarm set: who
goes or leaves wakes the one behind him. So a thousand who are cancelled together
cost a thousand wake-ups, not a million. The locks guard the lists and the numbers
that must change with them: nobody sleeps inside one, and a call that need not wait
never comes here. They are re-entrant, for a finalizer or a signal handler may use the
limiter that was being used.
"""

import asyncio
import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Generator
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from sluicegate.clock import Clock

__all__ = ["Line", "Lines", "Nap", "Plan", "Schedule", "Sleeper", "TaskSleeper", "ThreadSleeper"]

_DAY = 86400.0  # longer sleeps overflow the system's timers; a plan asks again anyway
_GLANCE = 0.005  # seconds between two looks at a clock that cannot wake us


class Nap(NamedTuple):
    """Sleep this long, or until woken. `in_line`: it is others who move on, not the time."""

    seconds: float
    in_line: bool = False


Plan = Generator[Nap, None, float]


class Sleeper(Protocol):
    """One who waits, and can be woken from any thread, also before he has fallen asleep."""

    def wake(self) -> bool:
        """Wake him; False when there is nobody any more who could wake up."""


class ThreadSleeper:
    """Sleeps in the calling thread; on a clock of the caller's when there is one.

    Such a clock's `sleep` cannot be cut short: whoever is woken early sleeps it out.
    """

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock
        self._woken = threading.Event()

    def wake(self) -> bool:
        self._woken.set()
        return True

    def wait(self, plan: Plan) -> float:
        try:
            while True:
                self._sleep(next(plan))
        except StopIteration as done:
            return float(done.value)
        finally:
            plan.close()

    def _sleep(self, nap: Nap) -> None:
        if self._clock is None or nap == Nap(math.inf, in_line=True):
            self._woken.wait(None if nap.seconds == math.inf else min(nap.seconds, _DAY))
        elif nap.in_line:
            end = self._clock.now() + nap.seconds
            while not self._woken.wait(_GLANCE) and self._clock.now() < end:
                pass
        elif not self._woken.is_set():
            self._clock.sleep(_at_least_a_step(self._clock, nap.seconds))
        self._woken.clear()


class TaskSleeper:
    """Sleeps in the running asyncio task; on a clock of the caller's when there is one."""

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._woken = self._loop.create_future()
        self._napping: asyncio.Task[Any] | None = None

    def wake(self) -> bool:
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:  # the loop was closed over the heads of its tasks
            return False
        return True

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

    async def _sleep(self, nap: Nap) -> None:
        if nap.seconds == math.inf:
            await self._woken
        elif self._clock is not None:
            await self._nap(self._clock, nap.seconds)
        else:
            alarm = self._loop.call_later(nap.seconds, _finish, self._woken)
            try:
                await self._woken
            finally:
                alarm.cancel()
        if self._woken.done():
            self._woken = self._loop.create_future()

    async def _nap(self, clock: Clock, seconds: float) -> None:
        """Sleep on a clock that cannot be woken: interrupt it, as asyncio.timeout does."""
        task = asyncio.current_task()
        if self._woken.done() or task is None:
            return
        cancelled_before = task.cancelling()
        self._napping = task
        try:
            await clock.sleep_async(_at_least_a_step(clock, seconds))
        except asyncio.CancelledError:
            if not self._woken.done() or task.uncancel() > cancelled_before:
                raise
        finally:
            self._napping = None


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _at_least_a_step(clock: Clock, seconds: float) -> float:
    """Far from its start a clock of doubles has coarse steps; less than one does not move it."""
    return max(seconds, 2 * math.ulp(clock.now()))


Held = TypeVar("Held")


class _Place(Generic[Held]):
    """A place in a schedule, linked to its neighbours.

    `ready` is in the schedule's own reckoning: less the `shift` of everyone up to
    this place, it is the time when the place is the caller's.
    """

    __slots__ = ("after", "before", "held", "is_linked", "ready", "shift", "sleeper")

    def __init__(self, ready: float, held: Held, sleeper: Sleeper) -> None:
        self.ready = ready
        self.held = held
        self.sleeper = sleeper
        self.shift = 0.0
        self.is_linked = False
        self.before: _Place[Held] | None = None
        self.after: _Place[Held] | None = None


class Schedule(Generic[Held]):
    """Callers who each hold a place, and a time when it is theirs.

    To move up all who are behind somebody, in one step whatever their number: the
    seconds are noted at the first of them, and added up as the head passes on.
    `_moved` is what has been passed already, `_noted` all that stands in the list.
    """

    def __init__(self, now: Callable[[], float], tick: float) -> None:
        self._now = now
        self._tick = tick
        self._head: _Place[Held] | None = None
        self._last: _Place[Held] | None = None
        self._count = 0
        self._moved = 0.0
        self._noted = 0.0
        self._fixed = -math.inf
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return self._count

    def fix(self, reserve: Callable[[], tuple[float, Held]]) -> float:
        """Reserve a place for a caller who keeps the time himself; it never moves again."""
        with self._lock:
            ready, _ = reserve()
            self._fixed = ready
            return ready

    def keep(
        self,
        reserve: Callable[[], tuple[float, Held]],
        give_back: Callable[[Held], float],
        sleeper: Sleeper,
    ) -> Plan:
        """Wait for a place.

        `reserve` takes it and returns when it is ready, with what it holds; or raises,
        and nothing has changed. `give_back` undoes it, for a caller who leaves early,
        and returns by how many seconds everyone behind may move up.
        """
        start = self._now()
        place = None
        try:
            with self._lock:
                ready, held = reserve()
                place = _Place(ready, held, sleeper)
                self._append(place)
            while place is not self._head:
                yield Nap(math.inf, in_line=True)
            while (delay := self._time_of_head() - self._now()) > self._tick:
                yield Nap(delay)
        except BaseException:
            if place is not None:
                self._leave(place, give_back)
            raise
        with self._lock:
            self._unlink(place)
            self._wake_head()
        return max(self._now() - start, 0.0)

    def move_up(self, change: Callable[[list[Held]], float]) -> None:
        """`change` is told what those who wait hold, and returns by how much they move up."""
        with self._lock:
            held = []
            place = self._head
            while place is not None:
                held.append(place.held)
                place = place.after
            self._shift_from(self._head, change(held))
            self._wake_head()

    def _leave(self, place: _Place[Held], give_back: Callable[[Held], float]) -> None:
        with self._lock:
            if not place.is_linked:
                return
            was_head, behind = place is self._head, place.after
            may_move_up = not self._is_due(place) and not self._is_before_a_fixed_place(place)
            self._unlink(place)
            if may_move_up:
                self._shift_from(behind, give_back(place.held))
            if was_head:
                self._wake_head()

    def _is_due(self, place: _Place[Held]) -> bool:
        """His time has come: what he held has been filled up again since, and is not given back."""
        now = self._now()
        return self._time_of(self._head or place) <= now and self._time_of(place) <= now

    def _is_before_a_fixed_place(self, place: _Place[Held]) -> bool:
        """One that cannot move up; to let others pass it would break the order."""
        return self._fixed > -math.inf and self._time_of(place) < self._fixed

    def _append(self, place: _Place[Held]) -> None:
        place.ready += self._moved + self._noted
        place.before = self._last
        if self._last is None:
            self._head = place
        else:
            self._last.after = place
        self._last = place
        place.is_linked = True
        self._count += 1

    def _unlink(self, place: _Place[Held]) -> None:
        """Take a place out; what is noted there passes to the one behind, or is done with."""
        place.is_linked = False
        self._count -= 1
        if place.after is not None:
            place.after.before = place.before
        else:
            self._last = place.before
        if place.before is None:
            self._head = place.after
            self._moved += place.shift
            self._noted -= place.shift
        else:
            place.before.after = place.after
            if place.after is not None:
                place.after.shift += place.shift
            else:
                self._noted -= place.shift
        if self._head is None:
            self._moved = self._noted = 0.0

    def _wake_head(self) -> None:
        while self._head is not None and not self._head.sleeper.wake():
            self._unlink(self._head)

    def _shift_from(self, place: _Place[Held] | None, seconds: float) -> None:
        if place is not None:
            place.shift += seconds
            self._noted += seconds

    def _time_of_head(self) -> float:
        with self._lock:
            return self._time_of(self._head) if self._head is not None else -math.inf

    def _time_of(self, place: _Place[Held]) -> float:
        moved = self._moved
        one: _Place[Held] | None = place
        while one is not None:
            moved += one.shift
            one = one.before
        return place.ready - moved


class Line:
    """Callers in a line of which only the head asks."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.sleepers: deque[Sleeper] = deque()  # for others to look at, not to change
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self.sleepers)

    def queue(
        self,
        attempt: Callable[[], float],
        refuse: Callable[[], Exception],
        timeout: float,
        sleeper: Sleeper,
    ) -> Plan:
        """Wait until `attempt` succeeds.

        It takes what is wanted and returns 0.0, or returns the seconds after which it
        is worth asking again. `refuse` makes the exception for one whose time-out
        comes first.
        """
        start = self._now()
        deadline = start + timeout
        try:
            with self._lock:
                self.sleepers.append(sleeper)
            while True:
                is_head = self.sleepers[0] is sleeper
                delay = attempt() if is_head else math.inf
                if delay == 0.0:
                    return max(self._now() - start, 0.0)
                left = deadline - self._now()
                if left <= 0.0 or (is_head and delay > left):
                    raise refuse()
                yield Nap(min(delay, left), in_line=not is_head)
        finally:
            self._leave(sleeper)

    def wake_head(self) -> None:
        """What the head waits for may have come early: let him ask again."""
        with self._lock:
            self._wake_head()

    def _leave(self, sleeper: Sleeper) -> None:
        with self._lock:
            if sleeper not in self.sleepers:
                return
            was_head = self.sleepers[0] is sleeper
            self.sleepers.remove(sleeper)
            if was_head:
                self._wake_head()

    def _wake_head(self) -> None:
        while self.sleepers and not self.sleepers[0].wake():
            self.sleepers.popleft()


class Lines:
    """A line for each key that has somebody waiting, and none for the others."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lines: dict[Any, Line] = {}
        self._callers: Counter[Any] = Counter()
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return self._callers.total()

    def __contains__(self, key: Any) -> bool:
        return key in self._lines

    def queue(
        self,
        key: Any,
        attempt: Callable[[], float],
        refuse: Callable[[], Exception],
        timeout: float,
        sleeper: Sleeper,
    ) -> Plan:
        """As `Line.queue`, in the line of `key`."""
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
        """As `Line.wake_head`."""
        with self._lock:
            line = self._lines.get(key)
        if line is not None:
            line.wake_head()

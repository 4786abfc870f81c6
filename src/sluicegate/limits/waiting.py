"""How callers wait in `acquire`: in order, in threads and in tasks.

A wait is a *plan*: a generator that yields the next `Nap` and returns the seconds it
took. It touches no timer. `ThreadSleeper.wait` drives a plan from a thread,
`TaskSleeper.wait` from a task; both close it when they are interrupted or cancelled,
and the plan then gives back what it reserved. Two kinds of plan are made here:

- `Schedule`, for limiters that can say at once *when* a caller may go. Each holds
  a place with its time; when a caller leaves, those behind it move forward.
- `WaitQueue`, for limiters whose answer depends on what happens until then. Only the
  one at the head asks.

Both are first come, first served, and in both only the head has a timer: a waiter
that goes or leaves wakes the one behind it. So a thousand who are cancelled together
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

__all__ = [
    "Nap",
    "Schedule",
    "Sleeper",
    "TaskSleeper",
    "ThreadSleeper",
    "WaitPlan",
    "WaitQueue",
    "WaitQueues",
]

_MAX_SLEEP = 86400.0  # longer sleeps overflow the system's timers; a plan asks again anyway
_POLL_SECONDS = 0.005  # seconds between two looks at a clock that cannot wake us


class Nap(NamedTuple):
    """Sleep this long, or until woken. `in_queue`: it is others who move on, not the time."""

    seconds: float
    in_queue: bool = False


WaitPlan = Generator[Nap, None, float]


class Sleeper(Protocol):
    """A waiter that can be woken from any thread, also before it has fallen asleep."""

    def wake(self) -> bool:
        """Wake it; False when its event loop is closed and it cannot wake up."""


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

    def wait(self, plan: WaitPlan) -> float:
        try:
            while True:
                self._sleep(next(plan))
        except StopIteration as done:
            return float(done.value)
        finally:
            plan.close()

    def _sleep(self, nap: Nap) -> None:
        if self._clock is None or nap == Nap(math.inf, in_queue=True):
            self._woken.wait(None if nap.seconds == math.inf else min(nap.seconds, _MAX_SLEEP))
        elif nap.in_queue:
            end = self._clock.now() + nap.seconds
            while not self._woken.wait(_POLL_SECONDS) and self._clock.now() < end:
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
        self._sleeping_task: asyncio.Task[Any] | None = None

    def wake(self) -> bool:
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:  # the loop was closed over the heads of its tasks
            return False
        return True

    def _wake(self) -> None:
        _finish(self._woken)
        if self._sleeping_task is not None:
            self._sleeping_task.cancel()
            self._sleeping_task = None

    async def wait(self, plan: WaitPlan) -> float:
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
            await self._sleep_on(self._clock, nap.seconds)
        else:
            alarm = self._loop.call_later(nap.seconds, _finish, self._woken)
            try:
                await self._woken
            finally:
                alarm.cancel()
        if self._woken.done():
            self._woken = self._loop.create_future()

    async def _sleep_on(self, clock: Clock, seconds: float) -> None:
        """Sleep on a clock that cannot be woken: interrupt it, as asyncio.timeout does."""
        task = asyncio.current_task()
        if self._woken.done() or task is None:
            return
        cancelled_before = task.cancelling()
        self._sleeping_task = task
        try:
            await clock.sleep_async(_at_least_a_step(clock, seconds))
        except asyncio.CancelledError:
            if not self._woken.done() or task.uncancel() > cancelled_before:
                raise
        finally:
            self._sleeping_task = None


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _at_least_a_step(clock: Clock, seconds: float) -> float:
    """Far from its start a clock of doubles has coarse steps; less than one does not move it."""
    return max(seconds, 2 * math.ulp(clock.now()))


Reserved = TypeVar("Reserved")


class _Place(Generic[Reserved]):
    """A place in a schedule, linked to its neighbours.

    `ready` is in the schedule's own reckoning: less the `shift` of everyone up to
    this place, it is the time when the place is the caller's.
    """

    __slots__ = ("after", "before", "is_linked", "ready", "reserved", "shift", "sleeper")

    def __init__(self, ready: float, reserved: Reserved, sleeper: Sleeper) -> None:
        self.ready = ready
        self.reserved = reserved
        self.sleeper = sleeper
        self.shift = 0.0
        self.is_linked = False
        self.before: _Place[Reserved] | None = None
        self.after: _Place[Reserved] | None = None


class Schedule(Generic[Reserved]):
    """Callers who each hold a place, and a time when it is theirs.

    To move up all who are behind somebody, in one step whatever their number: the
    seconds are noted at the first of them, and added up as the head passes on.
    `_applied_shift` is what has been passed already, `_pending_shift` all that stands in the list.
    """

    def __init__(self, now: Callable[[], float], clock_epsilon: float) -> None:
        self._now = now
        self._clock_epsilon = clock_epsilon
        self._head: _Place[Reserved] | None = None
        self._last: _Place[Reserved] | None = None
        self._count = 0
        self._applied_shift = 0.0
        self._pending_shift = 0.0
        self._fixed = -math.inf
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return self._count

    def reserve_fixed(self, reserve: Callable[[], tuple[float, Reserved]]) -> float:
        """Reserve a place for a caller that keeps the time itself; it never moves again."""
        with self._lock:
            ready, _ = reserve()
            self._fixed = ready
            return ready

    def wait(
        self,
        reserve: Callable[[], tuple[float, Reserved]],
        give_back: Callable[[Reserved], float],
        sleeper: Sleeper,
    ) -> WaitPlan:
        """Wait for a place.

        `reserve` takes it and returns when it is ready, with what it holds; or raises,
        and nothing has changed. `give_back` undoes it, for a caller who leaves early,
        and returns by how many seconds everyone behind may move up.
        """
        start = self._now()
        place = None
        try:
            with self._lock:
                ready, reserved = reserve()
                place = _Place(ready, reserved, sleeper)
                self._append(place)
            while place is not self._head:
                yield Nap(math.inf, in_queue=True)
            while (delay := self._time_of_head() - self._now()) > self._clock_epsilon:
                yield Nap(delay)
        except BaseException:
            if place is not None:
                self._leave(place, give_back)
            raise
        with self._lock:
            self._unlink(place)
            self._wake_head()
        return max(self._now() - start, 0.0)

    def move_forward(self, change: Callable[[list[Reserved]], float]) -> None:
        """`change` is told what those who wait hold, and returns by how much they move up."""
        with self._lock:
            reserved = []
            place = self._head
            while place is not None:
                reserved.append(place.reserved)
                place = place.after
            self._shift_from(self._head, change(reserved))
            self._wake_head()

    def _leave(self, place: _Place[Reserved], give_back: Callable[[Reserved], float]) -> None:
        with self._lock:
            if not place.is_linked:
                return
            was_head, behind = place is self._head, place.after
            may_move_up = not self._is_due(place) and not self._is_before_fixed_place(place)
            self._unlink(place)
            if may_move_up:
                self._shift_from(behind, give_back(place.reserved))
            if was_head:
                self._wake_head()

    def _is_due(self, place: _Place[Reserved]) -> bool:
        """A place is due: its permits have been refilled by now, so none are given back."""
        now = self._now()
        return self._time_of(self._head or place) <= now and self._time_of(place) <= now

    def _is_before_fixed_place(self, place: _Place[Reserved]) -> bool:
        """One that cannot move up; to let others pass it would break the order."""
        return self._fixed > -math.inf and self._time_of(place) < self._fixed

    def _append(self, place: _Place[Reserved]) -> None:
        place.ready += self._applied_shift + self._pending_shift
        place.before = self._last
        if self._last is None:
            self._head = place
        else:
            self._last.after = place
        self._last = place
        place.is_linked = True
        self._count += 1

    def _unlink(self, place: _Place[Reserved]) -> None:
        """Take a place out; what is noted there passes to the one behind, or is done with."""
        place.is_linked = False
        self._count -= 1
        if place.after is not None:
            place.after.before = place.before
        else:
            self._last = place.before
        if place.before is None:
            self._head = place.after
            self._applied_shift += place.shift
            self._pending_shift -= place.shift
        else:
            place.before.after = place.after
            if place.after is not None:
                place.after.shift += place.shift
            else:
                self._pending_shift -= place.shift
        if self._head is None:
            self._applied_shift = self._pending_shift = 0.0

    def _wake_head(self) -> None:
        while self._head is not None and not self._head.sleeper.wake():
            self._unlink(self._head)

    def _shift_from(self, place: _Place[Reserved] | None, seconds: float) -> None:
        if place is not None:
            place.shift += seconds
            self._pending_shift += seconds

    def _time_of_head(self) -> float:
        with self._lock:
            return self._time_of(self._head) if self._head is not None else -math.inf

    def _time_of(self, place: _Place[Reserved]) -> float:
        moved = self._applied_shift
        one: _Place[Reserved] | None = place
        while one is not None:
            moved += one.shift
            one = one.before
        return place.ready - moved


class WaitQueue:
    """Callers in a queue of which only the head asks."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.sleepers: deque[Sleeper] = deque()  # for others to look at, not to change
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self.sleepers)

    def wait(
        self,
        attempt: Callable[[], float],
        refuse: Callable[[], Exception],
        timeout: float,
        sleeper: Sleeper,
    ) -> WaitPlan:
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
                yield Nap(min(delay, left), in_queue=not is_head)
        finally:
            self._leave(sleeper)

    def wake_head(self) -> None:
        """What the head waits for may have come early: let it ask again."""
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


class WaitQueues:
    """A queue for each key that has somebody waiting, and none for the others."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._queues: dict[Any, WaitQueue] = {}
        self._callers: Counter[Any] = Counter()
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return self._callers.total()

    def __contains__(self, key: Any) -> bool:
        return key in self._queues

    def wait(
        self,
        key: Any,
        attempt: Callable[[], float],
        refuse: Callable[[], Exception],
        timeout: float,
        sleeper: Sleeper,
    ) -> WaitPlan:
        """As `WaitQueue.wait`, in the queue of `key`."""
        with self._lock:
            queue = self._queues.setdefault(key, WaitQueue(self._now))
            self._callers[key] += 1
        try:
            return (yield from queue.wait(attempt, refuse, timeout, sleeper))
        finally:
            with self._lock:
                self._callers[key] -= 1
                if not self._callers[key]:
                    del self._queues[key], self._callers[key]

    def wake_head(self, key: Any) -> None:
        """As `WaitQueue.wake_head`."""
        with self._lock:
            queue = self._queues.get(key)
        if queue is not None:
            queue.wake_head()

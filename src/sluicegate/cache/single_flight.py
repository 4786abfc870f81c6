"""One computation of a missing value, however many callers ask for it (a "single flight").

The first caller that misses a key computes; those that ask for the same key meanwhile wait for
that flight, and get its value or its exception. `ThreadFlights` is for functions, `TaskFlights` for
coroutine functions, which run in a task of their own: a caller that is cancelled takes nothing
away from the others, and when all are cancelled, so is the task.

The rules that keep it from hanging:

- `_lock` guards the dicts and counts of all flights. Nothing of the user's runs under it but the
  `__hash__` and `__eq__` of keys (which may come back here: it is an RLock).
- A caller never waits for itself. Each computation runs in a context that knows the flights it is
  part of (`_part_of`), and a flight knows which flights its computation waits for (`waits_for`).
  Where a wait would close a circle, in one thread or across several, the caller computes directly:
  a recursion without an end is then a RecursionError, as it is without a cache.
- A leader that is interrupted (KeyboardInterrupt, SystemExit) has no result for others: one of
  those that wait takes over. Whatever is raised where, a flight is over when its leader has left:
  if it could not be taken out of the dict (a key's `__hash__` may fail in a deep recursion), the
  next caller replaces it.
- In a forked child no flight of the parent goes on, so the child forgets them all.

`forget` detaches a flight: callers that wait for it still get its value, which is not kept.
"""

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Hashable, Iterator
from contextvars import ContextVar
from typing import Any, Protocol

__all__ = ["MISSING", "TaskFlights", "ThreadFlights", "ValueCache"]

MISSING: Any = object()  # what a look-up answers where None is a value as any other

_lock = threading.RLock()


class ValueCache(Protocol):
    """What flights need of a cache."""

    def peek(self, key: Any, default: Any = None) -> Any: ...
    def set(self, key: Any, value: Any, *, ttl: float | None = None) -> None: ...
    def pop(self, key: Any, default: Any = None) -> Any: ...


class _Flight:
    """One computation under way."""

    __slots__ = ("is_over", "waits_for")

    def __init__(self) -> None:
        self.is_over = False
        self.waits_for: list[_Flight] = []  # one entry for each wait inside the computation


class _ThreadFlight(_Flight):
    __slots__ = ("error", "has_result", "running", "value")

    def __init__(self) -> None:
        super().__init__()
        self.running = threading.Lock()  # locked until the end; an Event takes 20 times as long
        self.running.acquire()
        self.has_result = False  # at the end: the leader was interrupted
        self.value: Any = None
        self.error: Exception | None = None


class _TaskFlight(_Flight):
    __slots__ = ("callers", "task")

    def __init__(self) -> None:
        super().__init__()
        self.callers = 0
        self.task: asyncio.Task[Any] | None = None


_part_of: ContextVar[tuple[_Flight, ...]] = ContextVar("sluicegate_cache_flights", default=())


class ThreadFlights:
    """Computes the missing values of a function for threads."""

    def __init__(self, function: Callable[..., Any], cache: ValueCache, ttl: float | None) -> None:
        self._function = function
        self._cache = cache
        self._ttl = ttl
        self._flights: dict[Hashable, _ThreadFlight] = {}
        _everyone.add(self)

    def load(self, key: Hashable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The value of a key that was missing: computed here, or by the caller that was first."""
        while True:
            mine = flight = _ThreadFlight()
            try:
                with _lock:
                    flight = self._flights.setdefault(key, mine)
                    if flight.is_over:
                        flight = self._flights[key] = mine
                if flight is mine:
                    return self._lead(flight, key, args, kwargs)
                with _waiting(flight) as may_wait:
                    if not may_wait:
                        return self._function(*args, **kwargs)
                    with flight.running:
                        pass
                if flight.error is not None:
                    raise flight.error
                if flight.has_result:
                    return flight.value
            finally:
                mine.running.release()  # first: no call of Python code that could be interrupted
                mine.is_over = True
                self._land(mine, key)
                del flight, mine  # an exception refers to this frame, and must not to itself

    def forget(self, key: Hashable) -> None:
        with _lock:
            self._flights.pop(key, None)
        self._cache.pop(key, None)

    def clear(self) -> None:
        self._flights.clear()

    def _lead(
        self, flight: _ThreadFlight, key: Hashable, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        try:
            # One that was in flight at our look-up may have landed before we took off.
            value = self._cache.peek(key, MISSING)
            if value is MISSING:
                token = _part_of.set(_with(flight))
                try:
                    value = self._function(*args, **kwargs)
                finally:
                    _part_of.reset(token)
                self._keep(flight, key, value)
            flight.value = value
            flight.has_result = True
        except Exception as error:
            flight.error = error
            raise
        finally:
            del flight
        return value

    def _keep(self, flight: _ThreadFlight, key: Hashable, value: Any) -> None:
        """Store the value, unless the key was forgotten since the flight began."""
        if self._flights.get(key) is flight:
            self._cache.set(key, value, ttl=self._ttl)
            if not self._land(flight, key):
                self._cache.pop(key, None)  # forgotten in this very moment

    def _land(self, flight: _ThreadFlight, key: Hashable) -> bool:
        """Whether the flight was still that of its key."""
        with _lock:
            is_known = self._flights.get(key) is flight
            if is_known:
                del self._flights[key]
        return is_known


class TaskFlights:
    """Computes the missing values of a coroutine function: one task per event loop and key."""

    def __init__(
        self,
        function: Callable[..., Coroutine[Any, Any, Any]],
        cache: ValueCache,
        ttl: float | None,
    ) -> None:
        self._function = function
        self._cache = cache
        self._ttl = ttl
        self._flights: dict[Hashable, dict[asyncio.AbstractEventLoop, _TaskFlight]] = {}
        _everyone.add(self)

    async def load(self, key: Hashable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The value of a key that was missing: by the task that computes it, or a new one."""
        loop = asyncio.get_running_loop()
        mine = _TaskFlight()
        with _lock:
            flight = self._flights.setdefault(key, {}).setdefault(loop, mine)
        if flight is mine:
            computing = self._compute(flight, key, args, kwargs)
            try:
                flight.task = loop.create_task(computing)
            except BaseException:
                computing.close()
                self._land(mine, key, loop)
                raise
            flight.task.add_done_callback(lambda task: self._land(mine, key, loop))
        with _waiting(flight) as may_wait:
            if not may_wait:
                return await self._function(*args, **kwargs)
            return await self._join(flight, key)

    def forget(self, key: Hashable) -> None:
        with _lock:
            self._flights.pop(key, None)
        self._cache.pop(key, None)

    def clear(self) -> None:
        self._flights.clear()

    async def _join(self, flight: _TaskFlight, key: Hashable) -> Any:
        task = flight.task
        assert task is not None, "only its own computation can meet a flight before its task"
        flight.callers += 1
        try:
            await asyncio.wait((task,))  # which does not cancel it when this caller is cancelled
            return task.result()
        finally:
            flight.callers -= 1
            if flight.callers == 0 and not task.done():
                self._land(flight, key, task.get_loop())  # who comes now begins anew
                task.cancel()

    async def _compute(
        self, flight: _TaskFlight, key: Hashable, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        value = self._cache.peek(key, MISSING)
        if value is MISSING:
            _part_of.set(_with(flight))  # in the context of this task
            value = await self._function(*args, **kwargs)
            loop = asyncio.get_running_loop()
            if self._is_known(flight, key, loop):
                self._cache.set(key, value, ttl=self._ttl)
                if not self._land(flight, key, loop):
                    self._cache.pop(key, None)  # forgotten by another thread meanwhile
        return value

    def _is_known(
        self, flight: _TaskFlight, key: Hashable, loop: asyncio.AbstractEventLoop
    ) -> bool:
        return self._flights.get(key, {}).get(loop) is flight

    def _land(self, flight: _TaskFlight, key: Hashable, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether the flight was still that of its key."""
        flight.is_over = flight.task is None or flight.task.done()
        with _lock:
            is_known = self._is_known(flight, key, loop)
            if is_known:
                of_key = self._flights[key]
                del of_key[loop]
                if not of_key:
                    del self._flights[key]
        return is_known


def _with(flight: _Flight) -> tuple[_Flight, ...]:
    """The flights that this context is part of, and one more. A context may outlive its flights."""
    return (*(one for one in _part_of.get() if not one.is_over), flight)


@contextlib.contextmanager
def _waiting(flight: _Flight) -> Iterator[bool]:
    """Whether the caller may wait for this flight; while it does, its own flights know of it."""
    part_of = _part_of.get()
    if not part_of:
        yield True
        return
    with _lock:
        may_wait = not _leads_to(flight, part_of)
        if may_wait:
            for one in part_of:
                one.waits_for.append(flight)
    try:
        yield may_wait
    finally:
        if may_wait:
            with _lock:
                for one in part_of:
                    one.waits_for.remove(flight)


def _leads_to(flight: _Flight, goals: tuple[_Flight, ...]) -> bool:
    """Whether the end of this flight depends on one of the goals."""
    seen: set[_Flight] = set()
    open_ends = [flight]
    while open_ends:
        one = open_ends.pop()
        if one in goals:
            return True
        if one not in seen:
            seen.add(one)
            open_ends += one.waits_for
    return False


_everyone: "weakref.WeakSet[ThreadFlights | TaskFlights]" = weakref.WeakSet()


def _begin_anew_in_child() -> None:
    for flights in _everyone:
        flights.clear()
    _lock.release()


# The lock is taken around a fork, so that the child finds the dicts whole and the lock free.
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_begin_anew_in_child
)

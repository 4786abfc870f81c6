# cython: language_level=3, binding=False, embedsignature=True, embedsignature.format=clinic, cdivision=True
"""`FixedWindow`, `SlidingWindow`, `SlidingCounter`: at most so many per window.

    fixed      |aaaa....|....bbbb|     counts per window of the wall clock; at an edge
               twice the limit may pass in a moment (aaaa at the end, bbbb at the start)
    sliding    ....[aaaa....]bbbb      an exact log: never more than the limit in any
               window; 16 bytes for each call in it
    counter    |aaaa....|bb..          two numbers: the window before counts by the part
               of it that is still in reach, as though its calls had been spread evenly

All three answer by one function, and differ in how they count (`_algorithms.pxd`). A call
may weigh more than one; the sliding window takes whole weights only, for its log
is bounded by the limit.

Who waits stands in a line of which only the head asks; while it is not empty, calls
that do not wait are refused, so nobody is overtaken.
"""

from collections import deque

from cpython.object cimport Py_SIZE
from libc.math cimport INFINITY, floor

from sluicegate.limits._algorithms cimport (
    FIXED_WINDOW, Rule, SLIDING_COUNTER, SLIDING_WINDOW, WORDS, cell_clear, cell_free,
    cell_idle_after, cell_used, cell_wait, counter_wait, fixed_wait, log_charge, log_prepare,
    log_wait, window_charge,
)
from sluicegate.limits._decision cimport Decision, decide
from sluicegate._minmax cimport larger
from sluicegate.limits._rules cimport make_rule
from sluicegate.limits._limiter_clock cimport Timing

from sluicegate._validate import positive, timeout_seconds
from sluicegate.limits.errors import RateLimited
from sluicegate.limits.limit import Limit
from sluicegate.limits.waiting import Line, TaskSleeper, ThreadSleeper

__all__ = ["FixedWindow", "SlidingCounter", "SlidingWindow"]


cdef class _Window:
    cdef Timing _timing
    cdef Rule _rule
    cdef double[WORDS] _cell
    cdef object _limit
    cdef object _line
    cdef object _sleepers    # of the line: those who wait
    cdef object __weakref__

    def __cinit__(self, *_, **__):
        self._timing = Timing(None)  # so that an object without __init__ is useless, not deadly
        self._sleepers = deque()

    cdef _set_up(self, int algorithm, limit, window, clock):
        self._timing = Timing(clock)
        self._limit = Limit(positive("limit", limit), positive("window", window))
        self._rule = make_rule(algorithm, self._limit, self._timing)
        self._forget()
        self._line = Line(self._timing)
        self._sleepers = self._line.sleepers

    def __dealloc__(self):
        cell_free(self._rule.algorithm, self._cell)

    def check(self, double n=1.0):
        """Pass if it fits now, and tell all about it. `check(0)` only looks."""
        cdef double now, wait
        check_amount(self, n, n >= 0.0)
        now = self._timing.now()
        if Py_SIZE(self._sleepers) and n > 0.0:
            wait = self._overtaking(now)
        else:
            wait = take(self, now, n)
        return self._decision(now, wait)

    def acquire(self, double n=1.0, timeout=None):
        """Wait until it fits; return the seconds waited.

        Raises `RateLimited` when it does not fit within `timeout` seconds: at
        once, where that is known at once.
        """
        cdef double seconds = INFINITY if timeout is None else timeout_seconds(timeout)
        if passes_now(self, n):
            return 0.0
        sleeper = ThreadSleeper(self._timing.clock)
        return sleeper.wait(self._queue(n, seconds, sleeper))

    async def acquire_async(self, n=1.0, timeout=None):
        """As `acquire`, for tasks. A cancelled one leaves the line."""
        seconds = INFINITY if timeout is None else timeout_seconds(timeout)
        if passes_now(self, n):
            return 0.0
        sleeper = TaskSleeper(self._timing.clock)
        return await sleeper.wait(self._queue(n, seconds, sleeper))

    def reset(self):
        """Forget what was used."""
        self._forget()
        self._line.wake_head()

    @property
    def available(self):
        """What could pass now."""
        return self._decision(self._timing.now(), 0.0).remaining

    @property
    def waiting(self):
        """How many wait in `acquire`."""
        return len(self._sleepers)

    @property
    def limit(self):
        return self._rule.limit

    @property
    def window(self):
        """Seconds."""
        return self._rule.span

    def __enter__(self):
        self.acquire()
        return self

    def __exit__(self, *_):
        return None

    async def __aenter__(self):
        await self.acquire_async()
        return self

    async def __aexit__(self, *_):
        return None

    def __repr__(self):
        return f"{type(self).__name__}(limit={self.limit:g} per {self.window:g} s, available={self.available:g})"

    cdef void _forget(self) noexcept:
        cell_free(self._rule.algorithm, self._cell)
        cell_clear(self._rule.algorithm, self._cell)

    def _queue(self, double n, double timeout, sleeper):
        def attempt():
            return take(self, self._timing.now(), n)

        def refuse():
            now = self._timing.now()
            wait = cell_wait(&self._rule, self._cell, now, n)
            return RateLimited(self._decision(now, wait if wait > 0.0 else self._overtaking(now)))

        return self._line.queue(attempt, refuse, timeout, sleeper)

    cdef double _overtaking(self, double now) noexcept:
        """About how long one waits who may not overtake those in line: till all that is used now is free."""
        return larger(cell_idle_after(&self._rule, self._cell, now), self._timing.tick)

    cdef Decision _decision(self, double now, double wait):
        cdef double used = cell_used(&self._rule, self._cell, now)
        return decide(
            wait == 0.0, self._limit, larger(self._rule.limit - used, 0.0), wait,
            cell_idle_after(&self._rule, self._cell, now),
        )


cdef inline int check_amount(_Window self, double n, bint is_positive) except -1:
    if not is_positive or not n <= self._rule.limit:
        raise ValueError(f"n must be above 0 and at most the limit of {self.limit:g}, got {n!r}")
    if self._rule.algorithm == SLIDING_WINDOW and n != floor(n):
        raise ValueError(f"n must be a whole number for SlidingWindow, got {n!r}")
    return 0


# Each class has a `try_acquire` of its own around this, for CPython calls an inherited
# method of a compiled class 10 ns slower than one of its own.
cdef inline bint passes_now(_Window self, double n) except -1:
    check_amount(self, n, n > 0.0)
    return Py_SIZE(self._sleepers) == 0 and take(self, self._timing.now(), n) == 0.0


cdef inline double take(_Window self, double now, double n) except -1.0:
    """Take `n` and return 0, or change nothing and return the seconds until they fit."""
    cdef double wait
    if self._rule.algorithm == SLIDING_WINDOW:
        wait = log_wait(&self._rule, self._cell, now, n)
        if wait == 0.0 and n > 0.0:
            if log_prepare(&self._rule, self._cell) < 0:
                raise MemoryError
            log_charge(&self._rule, self._cell, now, n)
    else:
        if self._rule.algorithm == FIXED_WINDOW:
            wait = fixed_wait(&self._rule, self._cell, now, n)
        else:
            wait = counter_wait(&self._rule, self._cell, now, n)
        if wait == 0.0 and n > 0.0:
            window_charge(&self._rule, self._cell, now, n)
    return wait


cdef class FixedWindow(_Window):
    """At most `limit` in each window of `window` seconds, aligned to the wall clock.

    Alignment is fixed when the limiter is made: a wall clock that is stepped later
    neither opens a window early nor holds one shut.
    """

    def __init__(self, limit, window, *, clock=None):
        self._set_up(FIXED_WINDOW, limit, window, clock)

    def try_acquire(self, double n=1.0):
        """Pass, with a weight of `n`, if it fits now."""
        return passes_now(self, n)


cdef class SlidingWindow(_Window):
    """At most `limit` in any `window` seconds, exactly. Memory grows with use, up to 16 bytes x limit."""

    def __init__(self, limit, window, *, clock=None):
        self._set_up(SLIDING_WINDOW, limit, window, clock)

    def try_acquire(self, double n=1.0):
        """Pass, with a weight of `n`, if it fits now."""
        return passes_now(self, n)


cdef class SlidingCounter(_Window):
    """About `limit` in any `window` seconds, in three numbers."""

    def __init__(self, limit, window, *, clock=None):
        self._set_up(SLIDING_COUNTER, limit, window, clock)

    def try_acquire(self, double n=1.0):
        """Pass, with a weight of `n`, if it fits now."""
        return passes_now(self, n)

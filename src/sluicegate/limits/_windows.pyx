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

Callers that wait form a queue, and only its head asks; while it is not empty, calls
that do not wait are refused, so no waiter is overtaken.
"""

from collections import deque

from cpython.object cimport Py_SIZE
from libc.math cimport INFINITY, floor

from sluicegate.limits._algorithms cimport (
    FIXED_WINDOW, Params, SLIDING_COUNTER, SLIDING_WINDOW, MAX_WORDS, state_clear, state_free,
    state_idle_after, state_used, state_wait, counter_wait, fixed_wait, log_charge, log_prepare,
    log_wait, window_charge,
)
from sluicegate.limits._decision cimport Decision, decide
from sluicegate._minmax cimport fast_max
from sluicegate.limits._limit_set cimport make_params
from sluicegate.limits._limiter_clock cimport LimiterClock

from sluicegate._validate import check_positive, check_timeout
from sluicegate.limits.errors import RateLimited
from sluicegate.limits.limit import Limit
from sluicegate.limits.waiting import WaitQueue, TaskSleeper, ThreadSleeper

__all__ = ["FixedWindow", "SlidingCounter", "SlidingWindow"]


cdef class _Window:
    cdef LimiterClock _clock
    cdef Params _params
    cdef double[MAX_WORDS] _state
    cdef object _limit
    cdef object _waiters
    cdef object _sleepers    # of the queue: those that wait
    cdef object __weakref__

    def __cinit__(self, *_, **__):
        self._clock = LimiterClock(None)  # so that an object without __init__ is useless, not deadly
        self._sleepers = deque()

    cdef _set_up(self, int algorithm, limit, window, clock):
        self._clock = LimiterClock(clock)
        self._limit = Limit(check_positive("limit", limit), check_positive("window", window))
        self._params = make_params(algorithm, self._limit, self._clock)
        self._forget()
        self._waiters = WaitQueue(self._clock)
        self._sleepers = self._waiters.sleepers

    def __dealloc__(self):
        state_free(self._params.algorithm, self._state)

    def check(self, double n=1.0):
        """Pass if it fits now, and tell all about it. `check(0)` only looks."""
        cdef double now, wait
        check_amount(self, n, n >= 0.0)
        now = self._clock.now()
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
        cdef double seconds = INFINITY if timeout is None else check_timeout(timeout)
        if passes_now(self, n):
            return 0.0
        sleeper = ThreadSleeper(self._clock.source)
        return sleeper.wait(self._wait_plan(n, seconds, sleeper))

    async def acquire_async(self, n=1.0, timeout=None):
        """As `acquire`, for tasks. A cancelled one leaves the queue."""
        seconds = INFINITY if timeout is None else check_timeout(timeout)
        if passes_now(self, n):
            return 0.0
        sleeper = TaskSleeper(self._clock.source)
        return await sleeper.wait(self._wait_plan(n, seconds, sleeper))

    def reset(self):
        """Forget what was used."""
        self._forget()
        self._waiters.wake_head()

    @property
    def available(self):
        """What could pass now."""
        return self._decision(self._clock.now(), 0.0).remaining

    @property
    def waiting(self):
        """How many wait in `acquire`."""
        return len(self._sleepers)

    @property
    def limit(self):
        return self._params.limit

    @property
    def window(self):
        """Seconds."""
        return self._params.span

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
        state_free(self._params.algorithm, self._state)
        state_clear(self._params.algorithm, self._state)

    def _wait_plan(self, double n, double timeout, sleeper):
        def attempt():
            return take(self, self._clock.now(), n)

        def refuse():
            now = self._clock.now()
            wait = state_wait(&self._params, self._state, now, n)
            return RateLimited(self._decision(now, wait if wait > 0.0 else self._overtaking(now)))

        return self._waiters.wait(attempt, refuse, timeout, sleeper)

    cdef double _overtaking(self, double now) noexcept:
        """About how long a caller waits that may not overtake the queue: till all that is used now is free."""
        return fast_max(state_idle_after(&self._params, self._state, now), self._clock.epsilon)

    cdef Decision _decision(self, double now, double wait):
        cdef double used = state_used(&self._params, self._state, now)
        return decide(
            wait == 0.0, self._limit, fast_max(self._params.limit - used, 0.0), wait,
            state_idle_after(&self._params, self._state, now),
        )


cdef inline int check_amount(_Window self, double n, bint is_positive) except -1:
    if not is_positive or not n <= self._params.limit:
        raise ValueError(f"n must be above 0 and at most the limit of {self.limit:g}, got {n!r}")
    if self._params.algorithm == SLIDING_WINDOW and n != floor(n):
        raise ValueError(f"n must be a whole number for SlidingWindow, got {n!r}")
    return 0


# Each class has a `try_acquire` of its own around this, for CPython calls an inherited
# method of a compiled class 10 ns slower than one of its own.
cdef inline bint passes_now(_Window self, double n) except -1:
    check_amount(self, n, n > 0.0)
    return Py_SIZE(self._sleepers) == 0 and take(self, self._clock.now(), n) == 0.0


cdef inline double take(_Window self, double now, double n) except -1.0:
    """Take `n` and return 0, or change nothing and return the seconds until they fit."""
    cdef double wait
    if self._params.algorithm == SLIDING_WINDOW:
        wait = log_wait(&self._params, self._state, now, n)
        if wait == 0.0 and n > 0.0:
            if log_prepare(&self._params, self._state) < 0:
                raise MemoryError
            log_charge(&self._params, self._state, now, n)
    else:
        if self._params.algorithm == FIXED_WINDOW:
            wait = fixed_wait(&self._params, self._state, now, n)
        else:
            wait = counter_wait(&self._params, self._state, now, n)
        if wait == 0.0 and n > 0.0:
            window_charge(&self._params, self._state, now, n)
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

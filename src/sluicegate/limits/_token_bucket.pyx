# cython: language_level=3, binding=False, embedsignature=True, embedsignature.format=clinic, cdivision=True
"""`TokenBucket`: strict. The tokens must be there before anything passes.

Tokens drip in at `rate` per second until `burst` of them are there; a call takes
some and passes, or finds too few. So in any time of t seconds at most
rate * t + burst get through. Inside it is one number (GCRA, see `_algorithms.pxd`).

A waiter in `acquire` has taken its tokens already, from the future: the bucket is
below zero, no other caller can take them, and its release time is known at once.
"""

from libc.math cimport INFINITY

from sluicegate.limits._algorithms cimport (
    Params, TOKEN_BUCKET, bucket_charge, bucket_used, bucket_wait, state_clear,
)
from sluicegate.limits._decision cimport Decision, decide
from sluicegate._minmax cimport fast_max, fast_min
from sluicegate.limits._limit_set cimport make_params
from sluicegate.limits._limiter_clock cimport LimiterClock

from sluicegate._validate import check_positive, check_timeout
from sluicegate.limits.errors import RateLimited
from sluicegate.limits.limit import Limit
from sluicegate.limits.waiting import Schedule, TaskSleeper, ThreadSleeper

__all__ = ["TokenBucket"]


cdef class TokenBucket:
    """A bucket of `burst` tokens (default: one second's worth, at least 1), refilled at `rate` per second."""

    cdef LimiterClock _clock
    cdef Params _params
    cdef double _state
    cdef object _limit
    cdef object _waiting
    cdef object __weakref__

    def __cinit__(self, *_, **__):
        self._clock = LimiterClock(None)  # so that an object without __init__ is useless, not deadly

    def __init__(self, rate, burst=None, *, clock=None):
        rate = check_positive("rate", rate)
        burst = max(rate, 1.0) if burst is None else check_positive("burst", burst)
        self._clock = LimiterClock(clock)
        self._limit = Limit(rate, 1.0, burst)
        self._params = make_params(TOKEN_BUCKET, self._limit, self._clock)
        state_clear(TOKEN_BUCKET, &self._state)
        self._waiting = Schedule(self._clock, self._clock.epsilon)

    def try_acquire(self, double n=1.0):
        """Take `n` tokens if they are there now."""
        cdef double now
        if not 0.0 < n <= self._params.limit:
            raise self._bad_amount(n)
        now = self._clock.now()
        if bucket_wait(&self._params, &self._state, now, n) > 0.0:
            return False
        bucket_charge(&self._params, &self._state, now, n)
        return True

    def check(self, double n=1.0):
        """Take `n` tokens if they are there now, and tell all about it. `check(0)` only looks."""
        cdef double now, wait
        if not 0.0 <= n <= self._params.limit:
            raise self._bad_amount(n)
        now = self._clock.now()
        wait = bucket_wait(&self._params, &self._state, now, n)
        if wait == 0.0 and n > 0.0:
            bucket_charge(&self._params, &self._state, now, n)
        return self._decision(now, wait)

    def acquire(self, double n=1.0, timeout=None):
        """Wait for `n` tokens; return the seconds waited.

        Raises `RateLimited` when they will not be there within `timeout` seconds:
        at once, for that is known at once.
        """
        cdef double seconds = INFINITY if timeout is None else check_timeout(timeout)
        if self.try_acquire(n):
            return 0.0
        sleeper = ThreadSleeper(self._clock.source)
        return sleeper.wait(self._wait_plan(n, seconds, sleeper))

    async def acquire_async(self, n=1.0, timeout=None):
        """As `acquire`, for tasks. A cancelled one gives its tokens and its place back."""
        seconds = INFINITY if timeout is None else check_timeout(timeout)
        if self.try_acquire(n):
            return 0.0
        sleeper = TaskSleeper(self._clock.source)
        return await sleeper.wait(self._wait_plan(n, seconds, sleeper))

    def refund(self, double n):
        """Put `n` tokens back; what would not fit is lost. Those who wait move up."""
        if not 0.0 < n < INFINITY:
            raise ValueError(f"n must be a finite number above 0, got {n!r}")
        self._fill(n)

    def reset(self):
        """Fill the bucket. Those who wait are served from it, in their order."""
        self._fill(INFINITY)

    @property
    def available(self):
        """Tokens that could be taken now."""
        return fast_max(self._params.limit - bucket_used(&self._params, &self._state, self._clock.now()), 0.0)

    @property
    def waiting(self):
        """How many wait in `acquire`."""
        return len(self._waiting)

    @property
    def rate(self):
        return self._params.rate

    @property
    def burst(self):
        return self._params.limit

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
        return f"TokenBucket(rate={self.rate:g}/s, burst={self.burst:g}, available={self.available:g})"

    def _wait_plan(self, double n, double timeout, sleeper):
        return self._waiting.wait(lambda: self._reserve(n, timeout), self._give_back, sleeper)

    def _reserve(self, double n, double timeout):
        cdef double now = self._clock.now()
        cdef double wait = bucket_wait(&self._params, &self._state, now, n)
        if wait > timeout:
            raise RateLimited(self._decision(now, wait))
        bucket_charge(&self._params, &self._state, now, n)
        return now + wait, n

    def _give_back(self, double n):
        self._state -= n
        return n / self._params.rate

    def _fill(self, double most):
        def change(reserved):
            # Those who wait have taken theirs from the future; only what others spent comes back.
            cdef double spent = bucket_used(&self._params, &self._state, self._clock.now())
            return self._give_back(fast_min(most, fast_max(spent - <double>sum(reserved), 0.0)))

        self._waiting.move_forward(change)

    cdef Decision _decision(self, double now, double wait):
        cdef double used = bucket_used(&self._params, &self._state, now)
        return decide(
            wait == 0.0, self._limit, fast_max(self._params.limit - used, 0.0), wait, used / self._params.rate
        )

    cdef object _bad_amount(self, double n):
        return ValueError(f"n must be above 0 and at most the burst of {self.burst:g}, got {n!r}")

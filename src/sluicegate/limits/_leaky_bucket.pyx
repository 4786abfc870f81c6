# cython: language_level=3, binding=False, embedsignature=True, embedsignature.format=clinic, cdivision=True
"""`LeakyBucket`: a shaper. Whatever comes in, it goes out at a steady beat.

    in    xxxxx.........x...
    out   x.x.x.x.x.....x...      one per 1/rate seconds; a free beat lets one pass at once

Those who must wait stand in a queue of `capacity` places: the k-th of them leaves
k/rate seconds later, and one who finds it full is refused at once. Inside it is a
token bucket of one token that may be owed up to `capacity` tokens.
"""

from libc.math cimport INFINITY, ceil

from sluicegate.limits._algorithms cimport Params, TOKEN_BUCKET, bucket_charge, bucket_used, state_clear
from sluicegate.limits._decision cimport decide
from sluicegate._minmax cimport fast_max
from sluicegate.limits._limit_set cimport make_params
from sluicegate.limits._limiter_clock cimport LimiterClock

from sluicegate._validate import check_positive, check_timeout, check_whole
from sluicegate.limits.errors import RateLimited
from sluicegate.limits.limit import Limit
from sluicegate.limits.waiting import Schedule, TaskSleeper, ThreadSleeper

__all__ = ["LeakyBucket"]


cdef class LeakyBucket:
    """Lets one through every 1/`rate` seconds; `capacity` more may queue."""

    cdef LimiterClock _clock
    cdef Params _params
    cdef double _state
    cdef Py_ssize_t _capacity
    cdef object _limit
    cdef object _waiting
    cdef object __weakref__

    def __cinit__(self, *_, **__):
        self._clock = LimiterClock(None)  # so that an object without __init__ is useless, not deadly

    def __init__(self, rate, capacity, *, clock=None):
        rate = check_positive("rate", rate)
        self._capacity = check_whole("capacity", capacity, 0)
        self._clock = LimiterClock(clock)
        self._limit = Limit(rate, 1.0)
        self._params = make_params(TOKEN_BUCKET, Limit(rate, 1.0, 1.0), self._clock)
        state_clear(TOKEN_BUCKET, &self._state)
        self._waiting = Schedule(self._clock, self._clock.epsilon)

    def try_acquire(self):
        """Pass if the beat is free now, without a wait."""
        cdef double now = self._clock.now()
        if bucket_used(&self._params, &self._state, now) > self._params.slack:
            return False
        bucket_charge(&self._params, &self._state, now, 1.0)
        return True

    def acquire(self, timeout=None):
        """Wait for a beat; return the seconds waited.

        Raises `RateLimited` at once when the queue is full, or when the turn would
        not come within `timeout` seconds.
        """
        cdef double seconds = INFINITY if timeout is None else check_timeout(timeout)
        if self.try_acquire():
            return 0.0
        sleeper = ThreadSleeper(self._clock.source)
        return sleeper.wait(self._wait_plan(seconds, sleeper))

    async def acquire_async(self, timeout=None):
        """As `acquire`, for tasks. A cancelled one frees its place."""
        seconds = INFINITY if timeout is None else check_timeout(timeout)
        if self.try_acquire():
            return 0.0
        sleeper = TaskSleeper(self._clock.source)
        return await sleeper.wait(self._wait_plan(seconds, sleeper))

    def reserve(self):
        """Take a place and return the seconds until its beat, which the caller must wait itself.

        Raises `RateLimited` when the queue is full.
        """
        return fast_max(self._waiting.reserve_fixed(lambda: self._reserve(INFINITY)) - self._clock.now(), 0.0)

    @property
    def queued(self):
        """Places taken in the queue now."""
        cdef double ahead = bucket_used(&self._params, &self._state, self._clock.now())
        return max(0, int(ceil(ahead - 1.0 - self._params.slack)))

    @property
    def rate(self):
        return self._params.rate

    @property
    def capacity(self):
        return self._capacity

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
        return f"LeakyBucket(rate={self.rate:g}/s, capacity={self.capacity}, queued={self.queued})"

    def _wait_plan(self, double timeout, sleeper):
        return self._waiting.wait(lambda: self._reserve(timeout), self._give_back, sleeper)

    def _reserve(self, double timeout):
        cdef double now = self._clock.now()
        cdef double ahead = bucket_used(&self._params, &self._state, now)
        cdef double wait = ahead / self._params.rate if ahead > self._params.slack else 0.0
        cdef double crowd = ahead - self._capacity
        if crowd > self._params.slack or wait > timeout:
            retry_after = wait if wait > timeout else crowd / self._params.rate
            raise RateLimited(decide(False, self._limit, 0.0, retry_after, ahead / self._params.rate))
        bucket_charge(&self._params, &self._state, now, 1.0)
        return now + wait, None

    def _give_back(self, _):
        self._state -= 1.0
        return 1.0 / self._params.rate

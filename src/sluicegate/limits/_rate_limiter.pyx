# cython: language_level=3, binding=False, embedsignature=True, embedsignature.format=clinic, cdivision=True
"""`RateLimiter`: Guava's, to the microsecond.

The model. The limiter does not remember past requests; it remembers when the next
one may go (`next_free`), and how much unused time lies behind, as *stored permits*.
A request is granted at `next_free`, whatever it asks for: **the next request pays**.
So a request for 100 permits on an idle limiter goes at once, and who comes after it
waits for 100 permits' worth of time.

What a request costs is counted in time, and has two parts:

    stored permits    it takes first: how dear they are is the policy
    fresh permits     the rest, at the stable interval of 1/rate each

*Bursty* (warm_up = 0): an idle limiter is one that is owed something. Stored
permits are free; at most `burst_seconds` of them pile up.

*Warming up*: an idle limiter is one whose caches have gone cold. Stored permits are
dearer than fresh ones, and the more are stored the dearer. To take k of them costs
the area under this line:

        interval
           ^
    cold   +                  /          cold = cold_factor / rate
           |                /.
           |              /  .
    stable +------------/    .
           |            .    .
         0 +------------+----+--> stored permits
           0         threshold max

- the trapezoid right of `threshold` has an area of `warm_up` seconds: to get from cold
  to the stable rate takes just that long; the rectangle left of it has half of that;
- therefore threshold = warm_up / (2 * stable), max = threshold + 2 * warm_up / (stable + cold);
- permits pile up evenly, so that an empty limiter is cold again after `warm_up` idle seconds.

It starts with nothing stored when bursty, and cold when warming up. A change of
`rate` keeps the filled part of the store; who is already due pays at the old rate.
A cancelled `acquire_async` gives its time and its stored permits back, which Guava
has no notion of.
"""

from libc.math cimport INFINITY, isinf

from sluicegate._minmax cimport fast_max, fast_min
from sluicegate.limits._limiter_clock cimport LimiterClock

from sluicegate._validate import check_number, check_timeout
from sluicegate.limits.waiting import Schedule, TaskSleeper, ThreadSleeper

__all__ = ["RateLimiter"]

# Far beyond any use, and such that no product of them is infinite.
cdef double MAX_PERMITS = 9007199254740992.0  # 2^53
cdef double MIN_RATE = 1e-100
cdef double MAX_SECONDS = 1e100
cdef double MAX_COLD_FACTOR = 1e6


cdef class RateLimiter:
    """Grants `rate` permits per second (may be infinite), the next request paying for the one before."""

    cdef LimiterClock _clock
    cdef double _burst_seconds, _warm_up, _cold_factor
    cdef double _rate, _stable, _stored, _max_stored, _threshold, _slope
    cdef double _next_free
    cdef object _waiting
    cdef object __weakref__

    def __cinit__(self, *_, **__):
        self._clock = LimiterClock(None)  # so that an object without __init__ is useless, not deadly

    def __init__(self, rate, *, burst_seconds=1.0, warm_up=0.0, cold_factor=3.0, clock=None):
        self._burst_seconds = _within("burst_seconds", burst_seconds, 0.0, MAX_SECONDS)
        self._warm_up = _within("warm_up", warm_up, 0.0, MAX_SECONDS)
        if 0.0 < self._warm_up < 1e-9:
            raise ValueError(f"warm_up must be 0 or at least a nanosecond, got {warm_up!r}")
        self._cold_factor = _within("cold_factor", cold_factor, 1.0, MAX_COLD_FACTOR)
        rate = _checked_rate(rate)
        self._clock = LimiterClock(clock)
        self._next_free = self._stored = self._max_stored = 0.0
        self._set_rate(rate)
        self._waiting = Schedule(self._clock, self._clock.epsilon)

    def try_acquire(self, double permits=1.0, timeout=0.0):
        """Take `permits` if they are granted within `timeout` seconds, and wait for them if so.

        Answers False at once otherwise, and has changed nothing.
        """
        cdef double now
        _check_permits(permits)
        if timeout == 0.0:
            now = self._clock.now()
            if self._next_free > now + self._clock.epsilon:
                return False
            self._take(now, permits, NULL, NULL)
            return True
        sleeper = ThreadSleeper(self._clock.source)
        try:
            sleeper.wait(self._wait_plan(permits, check_timeout(timeout), sleeper))
        except _TooLate:
            return False
        return True

    def acquire(self, double permits=1.0):
        """Wait until granted; return the seconds waited."""
        if self.try_acquire(permits):
            return 0.0
        sleeper = ThreadSleeper(self._clock.source)
        return sleeper.wait(self._wait_plan(permits, INFINITY, sleeper))

    async def acquire_async(self, permits=1.0):
        """As `acquire`, for tasks. A cancelled one gives its permits and its place back."""
        if self.try_acquire(permits):
            return 0.0
        sleeper = TaskSleeper(self._clock.source)
        return await sleeper.wait(self._wait_plan(permits, INFINITY, sleeper))

    def reserve(self, double permits=1.0):
        """Take `permits` and return the seconds until they are granted, which the caller must wait itself."""
        _check_permits(permits)
        granted = self._waiting.reserve_fixed(lambda: self._reserve(permits, INFINITY))
        return fast_max(<double>granted - self._clock.now(), 0.0)

    @property
    def rate(self):
        """Permits per second; may be set."""
        return self._rate

    @rate.setter
    def rate(self, rate):
        rate = _checked_rate(rate)
        self._resync(self._clock.now())
        self._set_rate(rate)

    @property
    def stored(self):
        """Permits stored now."""
        self._resync(self._clock.now())
        return self._stored

    @property
    def waiting(self):
        """How many wait in `acquire`."""
        return len(self._waiting)

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
        warm_up = f", warm_up={self._warm_up:g} s" if self._warm_up else ""
        wait = fast_max(self._next_free - self._clock.now(), 0.0)
        return f"RateLimiter(rate={self._rate:g}/s{warm_up}, stored={self.stored:g}, next_free_in={wait:g} s)"

    def _wait_plan(self, double permits, double timeout, sleeper):
        return self._waiting.wait(lambda: self._reserve(permits, timeout), self._give_back, sleeper)

    def _reserve(self, double permits, double timeout):
        cdef double now = self._clock.now()
        cdef double seconds, stored
        # A caller whose time is within `epsilon` is granted: `try_acquire` says the same.
        if self._next_free > now + timeout + self._clock.epsilon:
            raise _TooLate
        return self._take(now, permits, &seconds, &stored), (seconds, stored)

    def _give_back(self, reserved):
        seconds, stored = reserved
        self._next_free -= <double>seconds
        self._stored = fast_min(self._max_stored, self._stored + <double>stored)
        return seconds

    cdef double _take(self, double now, double permits, double* seconds, double* stored) noexcept:
        """Grant `permits`: return when they may go. Also what they cost, for who may cancel."""
        cdef double granted, from_store, cost
        self._resync(now)
        granted = self._next_free
        from_store = fast_min(permits, self._stored)
        cost = self._cost_of_stored(from_store) + (permits - from_store) * self._stable
        self._next_free += cost
        self._stored -= from_store
        if seconds != NULL:
            seconds[0] = cost
            stored[0] = from_store
        return granted

    cdef void _resync(self, double now) noexcept:
        """Turn the time since `next_free` into stored permits."""
        cdef double gained
        if now <= self._next_free:
            return
        if self._stable == 0.0:
            gained = INFINITY
        elif self._warm_up > 0.0:
            gained = (now - self._next_free) * self._max_stored / self._warm_up
        else:
            gained = (now - self._next_free) / self._stable
        self._stored = fast_min(self._max_stored, self._stored + gained)
        self._next_free = now

    cdef double _cost_of_stored(self, double permits) noexcept:
        cdef double above, dear, cost = 0.0
        if self._warm_up == 0.0 or self._stable == 0.0:
            return 0.0
        above = self._stored - self._threshold
        if above > 0.0:
            dear = fast_min(above, permits)
            # The trapezoid between two points of the slope: width times mean height.
            cost = dear * (self._stable + (above - dear / 2.0) * self._slope)
            permits -= dear
        return cost + permits * self._stable

    cdef void _set_rate(self, double rate) noexcept:
        cdef double max_stored_before = self._max_stored
        cdef double cold, slope_width
        self._rate = rate
        self._stable = 0.0 if isinf(rate) else 1.0 / rate
        if self._warm_up == 0.0:
            self._max_stored = self._burst_seconds * rate if self._burst_seconds > 0.0 else 0.0
        elif self._stable == 0.0:
            self._max_stored = INFINITY
        else:
            cold = self._stable * self._cold_factor
            self._threshold = 0.5 * self._warm_up / self._stable
            slope_width = 2.0 * self._warm_up / (self._stable + cold)
            self._max_stored = self._threshold + slope_width
            self._slope = (cold - self._stable) / slope_width
        if isinf(self._max_stored):
            self._stored = self._max_stored
        elif isinf(max_stored_before):
            # From infinite to finite: owed a full burst, or freshly used and warm.
            self._stored = self._max_stored if self._warm_up == 0.0 else 0.0
        elif max_stored_before > 0.0:
            self._stored *= self._max_stored / max_stored_before
        else:
            self._stored = 0.0 if self._warm_up == 0.0 else self._max_stored


class _TooLate(Exception):
    """The permits would be granted after the time-out."""


cdef double _within(name, value, double least, double most) except? -1.0:
    cdef double number = check_number(name, value)
    if not least <= number <= most:
        raise ValueError(f"{name} must be a number from {least:g} to {most:g}, got {value!r}")
    return number


cdef double _checked_rate(value) except? -1.0:
    cdef double number = check_number("rate", value)
    if not number >= MIN_RATE:
        raise ValueError(f"rate must be a number above 0 (at least {MIN_RATE:g}), got {value!r}")
    return number


cdef inline int _check_permits(double permits) except -1:
    if not 0.0 < permits <= MAX_PERMITS:
        raise ValueError(f"permits must be above 0 and at most 2^53, got {permits!r}")
    return 0

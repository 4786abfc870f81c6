# cython: language_level=3, binding=False
"""`LimiterClock`: setting its start, and reading a given clock."""

import time

from libc.math cimport fabs, isfinite, nextafter, INFINITY

from sluicegate._minmax cimport fast_max

from sluicegate.clock import SystemClock

__all__ = []


cdef class LimiterClock:
    def __init__(self, clock):
        if clock is None or type(clock) is SystemClock:
            self._begin(time.time)
        elif not callable(getattr(clock, "now", None)):
            raise TypeError(f"clock must have a method now(), got {clock!r}")
        else:
            self.source = clock
            self._read = clock.now
            self._begin(getattr(clock, "wall", clock.now))
            if not isfinite(self.wall):
                raise ValueError(f"{clock!r} must return a finite Unix time, got {self.wall!r}")

    cdef int _begin(self, read_wall) except -1:
        """Count from now. A process that is held up between the two readings of the clocks reads
        them again: otherwise its windows would turn late for good.
        """
        cdef double start, wall, took
        cdef double best_start = 0.0, best_wall = 0.0, shortest = INFINITY
        self.start = 0.0
        for _ in range(10):
            start = self.now()
            wall = read_wall()
            took = fabs(self.now() - start)
            if took < shortest:
                best_start, best_wall, shortest = start, wall, took
            if took < 0.001:
                break
        self.begin_at(best_start, best_wall)
        return 0

    cdef void begin_at(self, double start, double wall) noexcept:
        """Count from a start on the clock, which was `wall` in Unix time."""
        self.start = start
        self.wall = wall
        self.epsilon = fast_max(1e-9, 2.0 * (nextafter(start, INFINITY) - start))

    def __call__(self):
        """The time, for Python code."""
        return self.now()

    cdef double _read_clock(self) except? -1e300:
        cdef double now = self._read()
        if not isfinite(now):
            raise ValueError(f"{self.source!r} must return a finite time in seconds, got {now!r}")
        return now

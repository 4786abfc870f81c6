# cython: language_level=3, binding=False
import time

from libc.math cimport isfinite, nextafter, INFINITY

from headgate._time cimport monotonic
from headgate.limits._numbers cimport larger

from headgate.clock import SystemClock

__all__ = []


cdef class Timing:
    def __init__(self, clock):
        if clock is None or type(clock) is SystemClock:
            self.begin_at(monotonic(), time.time())
        elif not callable(getattr(clock, "now", None)):
            raise TypeError(f"clock must have a method now(), got {clock!r}")
        else:
            self.clock = clock
            self._read = clock.now
            self.begin_at(self._read_clock(), getattr(clock, "wall", clock.now)())
            if not isfinite(self.wall):
                raise ValueError(f"{clock!r} must tell a finite Unix time, got {self.wall!r}")

    cdef void begin_at(self, double start, double wall) noexcept:
        """Count from a start on the clock, which was `wall` in Unix time."""
        self.start = start
        self.wall = wall
        self.tick = larger(1e-9, 2.0 * (nextafter(start, INFINITY) - start))

    def __call__(self):
        """The time, for Python code."""
        return self.now()

    cdef double _read_clock(self) except? -1e300:
        cdef double now = self._read()
        if not isfinite(now):
            raise ValueError(f"{self.clock!r} must tell a finite time in seconds, got {now!r}")
        return now

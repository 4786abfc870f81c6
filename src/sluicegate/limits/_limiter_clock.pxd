# cython: language_level=3
"""`LimiterClock`: seconds since a limiter was made, on the system's clock or a given one.

Counting from the limiter's start keeps the numbers small, so that doubles stay
exact to well below a nanosecond, and a Unix time costs no more precision than the
clock itself lost.
"""

cimport cython

from sluicegate._clock cimport monotonic


@cython.final
cdef class LimiterClock:
    cdef readonly object source  # the given clock; None: the system's
    cdef object _read
    cdef double start
    cdef double epsilon          # two of the clock's finest steps, at least a nanosecond
    cdef double wall             # Unix time at the start

    cdef inline double now(self) except? -1e300:
        if self._read is None:
            return monotonic() - self.start
        return self._read_clock() - self.start

    cdef int _begin(self, read_wall) except -1
    cdef void begin_at(self, double start, double wall) noexcept
    cdef double _read_clock(self) except? -1e300

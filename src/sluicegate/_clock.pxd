# cython: language_level=3
"""The system's clocks for compiled code: no Python call, no object."""

from libc.stdint cimport int64_t
from posix.time cimport CLOCK_MONOTONIC, CLOCK_REALTIME, clock_gettime, clockid_t, nanosleep, timespec

cdef extern from "<time.h>" nogil:
    const clockid_t CLOCK_MONOTONIC_COARSE


cdef inline double monotonic() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <double>t.tv_sec + 1e-9 * <double>t.tv_nsec


cdef inline double monotonic_coarse() noexcept nogil:
    """The same clock as it was up to some milliseconds ago, for a fifth of the price."""
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t)
    return <double>t.tv_sec + 1e-9 * <double>t.tv_nsec


cdef inline int64_t realtime_ms() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_REALTIME, &t)
    return <int64_t>t.tv_sec * 1000 + t.tv_nsec // 1000000


cdef inline void wait_until_realtime_ms(int64_t ms) noexcept nogil:
    """Sleep most of the way, at most a second, and spin the last 0.1 ms.

    A sleep alone overshoots by more than the 0.08 ms it takes to make the 4,096
    ids of a millisecond, and would halve the rate. May return early: when the
    sleep was interrupted, or the clock was stepped.
    """
    cdef timespec now, nap
    cdef int64_t left
    clock_gettime(CLOCK_REALTIME, &now)
    left = (ms - <int64_t>now.tv_sec * 1000) * 1000000 - now.tv_nsec - 100000
    if left > 0:
        left = min(left, <int64_t>999999999)
        nap.tv_sec = 0
        nap.tv_nsec = left
        nanosleep(&nap, NULL)
    while realtime_ms() == ms - 1:
        pass

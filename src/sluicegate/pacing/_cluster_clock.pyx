# cython: language_level=3, binding=False
"""`ClusterClock`: reading a given clock, and following the store's."""

from time import time as unix_time

from libc.math cimport isfinite

from sluicegate.clock import SystemClock

__all__ = ["ClusterClock"]


cdef class ClusterClock:
    def __init__(self, clock):
        if clock is None or type(clock) is SystemClock:
            self.offset = unix_time() - self.local()
        elif not callable(getattr(clock, "now", None)):
            raise TypeError(f"clock must have a method now(), got {clock!r}")
        else:
            self.source = clock
            self._read = clock.now
            self.offset = getattr(clock, "wall", clock.now)() - self.local()

    def now(self):
        """Local seconds."""
        return self.local()

    def unix(self, double local):
        """The Unix time, as the cluster knows it, of a local time."""
        return local + self.offset

    def follow(self, double time, double sent, double received):
        """Learn that the store's clock showed `time` between two local times.

        The offset moves no further than that interval demands.
        """
        if self.offset < time - received:
            self.offset = time - received
        elif self.offset > time - sent:
            self.offset = time - sent

    cdef double _read_clock(self) except? -1e300:
        cdef double now = self._read()
        if not isfinite(now):
            raise ValueError(f"{self.source!r} must return a finite time in seconds, got {now!r}")
        return now

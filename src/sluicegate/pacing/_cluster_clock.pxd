# cython: language_level=3
"""`ClusterClock`: the time of a cluster's counters, local and as all nodes agree on it.

Local seconds decide on the hot path; they come from the system's coarse clock, which is some
milliseconds old at most and costs a fifth of the exact one. Periods are in Unix time: local time
plus `offset`, which follows the store's clock, so that nodes with wrong clocks agree.
"""

cimport cython

from sluicegate._clock cimport monotonic_coarse


@cython.final
cdef class ClusterClock:
    cdef readonly object source   # the given clock; None: the system's
    cdef object _read
    cdef double offset

    cdef inline double local(self) except? -1e300:
        if self._read is None:
            return monotonic_coarse()
        return self._read_clock()

    cdef double _read_clock(self) except? -1e300

# cython: language_level=3
"""`ClusterCounter`: what this node has counted, and what the others have."""

from sluicegate.pacing._cluster_clock cimport ClusterClock


cdef class ClusterCounter:
    cdef readonly str name
    cdef readonly tuple label_values
    cdef ClusterClock _clock
    cdef object _schedule
    cdef object _lock
    cdef object __weakref__

    # Of this node, in this period.
    cdef double _sum
    cdef long long _count
    cdef double _begin, _end          # Unix time
    cdef double _ends                 # local time; infinite: the owner turns the period
    cdef list _closed                 # (begin, end, sum, count, was_sent) of earlier periods
    cdef double _sent_begin           # of the period that the last request had as its current one
    cdef double _earlier_sum          # of all earlier periods
    cdef long long _earlier_count
    cdef double _renamed_sum          # of this period, told under an earlier name of this node
    cdef long long _renamed_count
    cdef double _told_begin, _told_sum  # what the store has acknowledged, of which period
    cdef long long _told_count

    # The rate of this node.
    cdef double _rate
    cdef double _count_rate
    cdef double _measured_at, _measured_sum
    cdef long long _measured_count

    # As of the last sync; local time.
    cdef double _synced_at, _first_sync
    cdef double _others_sum, _others_rate
    cdef double _others_lead          # what they had added since they synced
    cdef double _others_room          # what they can have added at most
    cdef double _others_count
    cdef double _share
    cdef object _history

    cdef inline void count(self, double v) noexcept:
        self._sum += v
        self._count += 1

    cdef int turn(self, double begin, double end) except -1
    cdef double projected(self, double local) noexcept

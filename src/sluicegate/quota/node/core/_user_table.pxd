# cython: language_level=3
"""The users of a host, for those who read and write their records. See `_user_table.pyx`."""

cimport cython
from libc.stdint cimport uint32_t, uint64_t

from sluicegate.shm._lockfree_table cimport Chains, Key, Look
from sluicegate.quota.node.core._shared_header cimport Head
from sluicegate.quota.node.core._admission cimport Now, Terms

cdef enum:  # outcomes of putting a record back
    AGAIN = 0
    DONE = 1
    FULL = 2


@cython.final
cdef class Host:
    cdef Chains chains
    cdef readonly Head head
    cdef readonly str node_id
    cdef readonly object path
    cdef readonly double slot_seconds
    cdef readonly uint64_t max_users
    cdef readonly int lease
    cdef readonly uint32_t reservation_windows
    cdef readonly object clock
    cdef Terms _fallback
    cdef double _no_memory_until
    cdef object _read_clock
    cdef object __weakref__

    cdef object find(self, Key *key, Look *look, Now *now, object service, object kept)
    cdef int put(self, Key *key, Look *look, int count) except -1
    cdef double _time(self) except? -1e300
    cdef int _set_roughly(self, Now *now) except -1
    cdef int _throttle(self, Now *now, object service, object user, object expect) except -2
    cdef object _refusal(self, Now *now, object service, object user, int short)
    cdef int _consume(self, Now *now, object service, object user, object amounts) except -1
    cdef bint _is_full(self, double time, Look *look)


cdef inline void set_time(Now *now, double time) noexcept:
    """`now` is a time that a caller gave."""
    now.time = time
    now.is_rough = False


cdef str name_of_state(int state)

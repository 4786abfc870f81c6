# cython: language_level=3
"""`UserTable` for the modules that read and write its records. See `_user_table.pyx`."""

cimport cython
from libc.stdint cimport uint32_t, uint64_t

from sluicegate.shm._lockfree_table cimport LockFreeTable, Key, ChainSnapshot
from sluicegate.quota.node.core._shared_header cimport SharedHeader
from sluicegate.quota.node.core._admission cimport (
    Costs, DefaultShares, ResourceCell, TicketCosts, UserRecord, WindowInfo,
)

cdef enum:  # outcomes of writing a record back
    AGAIN = 0
    DONE = 1
    FULL = 2


@cython.final
cdef class Ticket:
    cdef TicketCosts costs


@cython.final
cdef class UserTable:
    cdef LockFreeTable table
    cdef readonly SharedHeader header
    cdef readonly str node_id
    cdef readonly object path
    cdef readonly double slot_seconds
    cdef readonly uint64_t max_users
    cdef readonly int lease
    cdef readonly uint32_t reservation_windows
    cdef readonly object clock
    cdef DefaultShares _fallback
    cdef double _no_memory_until
    cdef object _read_clock
    cdef public int waiting  # requests of this process that wait for an answer
    cdef object __weakref__

    cdef object find(self, Key *key, ChainSnapshot *snapshot, WindowInfo *window, object service, object key_owner)
    cdef int put(self, Key *key, ChainSnapshot *snapshot, int count) except -1
    cdef double _time(self) except? -1e300
    cdef int _set_coarse_time(self, WindowInfo *window) except -1
    cdef int _throttle(
        self, WindowInfo *window, object service, object user, object expect, bint can_wait, bint is_retry,
        Ticket ticket,
    ) except -2
    cdef int _accrue(
        self, UserRecord *record, ResourceCell *cells, int count, WindowInfo *window, object service, Key *key
    ) except -1
    cdef bint _is_worth_waiting(
        self, UserRecord *record, ResourceCell *cells, int count, Costs *expect, WindowInfo *window
    ) noexcept
    cdef double _retry_after(self, UserRecord *record, WindowInfo *window) noexcept
    cdef object _throttled(self, WindowInfo *window, object service, object user, int short)
    cdef int _consume(self, WindowInfo *window, object service, object user, object amounts, Ticket ticket) except -1
    cdef bint _is_full(self, double time, ChainSnapshot *snapshot)


cdef inline void set_time(WindowInfo *window, double time) noexcept:
    """Decide by `time`, which is precise."""
    window.time = time
    window.is_coarse = False


cdef str state_name(int state)

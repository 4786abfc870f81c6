# cython: language_level=3
"""The totals of a host's users, and which central has acknowledged them. See `_report_tracker.pyx`."""

cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from sluicegate.quota.packed._report_lines cimport PackedLines, StringTable
from sluicegate.quota.node.core._admission cimport MAX_CELLS, ResourceCell, UserRecord

cdef enum:
    MAX_PENDING = 4  # totals that are kept of reports which no leader has acknowledged

cdef struct ResourceTotal:
    # One user and one resource, as far as it was collected.
    double consumed
    double reserved          # by running requests: the `held` of a report's line
    double granted
    double returned
    double settled
    double stored_settled    # `settled` as stored in the shared memory
    double[MAX_PENDING] pending_consumed
    uint32_t[MAX_PENDING] pending_sequence
    uint32_t rejected
    uint32_t requests
    uint32_t changed_sequence  # the first report that has the newest change
    uint32_t first_sequence  # the first report that has it; 0: none yet
    int entry                # in the string table of the lines; -1: none yet
    uint8_t pending          # how many of `pending_consumed` and `pending_sequence` are set
    uint8_t resource


@cython.final
cdef class UserTotals:
    cdef readonly str service
    cdef readonly str name
    cdef readonly uint64_t service_number
    cdef readonly bytes key      # the name in the shared memory
    cdef readonly uint32_t changed_sequence  # the first report that has the newest change
    cdef readonly uint32_t changed_window    # the window of it
    cdef ResourceTotal[MAX_CELLS] totals
    cdef int count
    cdef ResourceTotal *total_for(self, int resource, double settled) noexcept
    cdef bint has_reservations(self) noexcept


@cython.final
cdef class ReportTracker:
    cdef readonly str node
    cdef readonly object boot
    cdef readonly uint32_t sequence
    cdef readonly uint32_t settled
    cdef readonly long long settled_slot
    cdef object _slots        # (sequence, slot) of the reports that no leader has acknowledged
    cdef dict _acknowledged
    cdef dict _answered
    cdef dict _users          # service number -> name -> UserTotals
    cdef dict _changed        # in the order of their newest change
    cdef dict with_reservations  # had running requests at their last report
    cdef dict holding         # had credit that was not used, when they were collected
    cdef dict unsettled       # of which a leader has still something to acknowledge
    cdef object _service_name
    cdef object _resource_name
    cdef StringTable _string_table
    cdef Py_ssize_t _entries_in_use
    cdef int update(
        self, uint64_t service, bytes key, UserRecord *record, ResourceCell *cells, int count, uint32_t window,
        uint32_t reservation_windows
    ) except -1
    cdef int mark_changed(self, UserTotals user) except -1
    cdef list _since(self, uint32_t sequence)
    cdef uint32_t _assumed_acknowledged(self, uint32_t acknowledged, uint32_t sequence)
    cdef PackedLines _lines(self, list users, uint32_t since)

cdef bint acknowledge_user(UserTotals user, uint32_t sequence) noexcept

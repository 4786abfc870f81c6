# cython: language_level=3
"""The accounts of a host's users as its reporter keeps them. See `_report_tracker.pyx`."""

cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from sluicegate.quota.packed._report_lines cimport Dictionary, PackedLines
from sluicegate.quota.node.core._admission cimport MOST_CELLS, Cell, User

cdef enum:
    MOST_NOTES = 4  # totals that are kept of reports which no leader has acknowledged

cdef struct Total:
    # One user and one resource, as far as it was collected.
    double consumed
    double held
    double settled
    double noted             # `settled` as it stands in the shared memory
    double[MOST_NOTES] note_consumed
    uint32_t[MOST_NOTES] note_sequence
    uint32_t rejected
    uint32_t requests
    uint32_t changed         # the first report that has the newest change
    uint32_t first           # the first report that has it; 0: none yet
    int entry                # in the dictionary of the lines; -1: none yet
    uint8_t notes
    uint8_t resource


@cython.final
cdef class Account:
    cdef readonly str service
    cdef readonly str name
    cdef readonly uint64_t service_number
    cdef readonly bytes key      # the name in the shared memory
    cdef readonly uint32_t changed      # the first report that has the newest change
    cdef readonly uint32_t changed_in   # the window of it
    cdef Total[MOST_CELLS] totals
    cdef int count
    cdef Total *total(self, int resource, double settled) noexcept
    cdef bint holds(self) noexcept


@cython.final
cdef class ReportBook:
    cdef readonly str node
    cdef readonly object boot
    cdef readonly uint32_t sequence
    cdef readonly uint32_t settled
    cdef readonly long long settled_slot
    cdef object _slots        # (sequence, slot) of the reports that no leader has acknowledged
    cdef dict _acknowledged
    cdef dict _answered
    cdef dict _accounts       # service number -> name -> Account
    cdef dict _changed        # in the order of their newest change
    cdef dict holding         # had running requests at their last report
    cdef dict unsettled       # of which a leader has still something to acknowledge
    cdef object _service_name
    cdef object _resource_name
    cdef Dictionary _dictionary
    cdef Py_ssize_t _entries_in_use
    cdef int enter(
        self, uint64_t service, bytes key, User *user, Cell *cells, int count, uint32_t window,
        uint32_t reservation_windows
    ) except -1
    cdef int mark(self, Account account) except -1
    cdef list _since(self, uint32_t sequence)
    cdef uint32_t _nearest(self, uint32_t acknowledged, uint32_t sequence)
    cdef PackedLines _lines(self, list accounts, uint32_t since)

cdef bint has_settled(Account account, uint32_t sequence) noexcept

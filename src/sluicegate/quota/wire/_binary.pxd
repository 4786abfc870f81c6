from sluicegate.quota.packed._shares cimport PackedShares
from sluicegate.quota.packed._report_lines cimport PackedLines, StringTable
from sluicegate.quota.packed._bucket_ids cimport BucketIds
from sluicegate.quota.wire._buffer cimport Buffer

cdef struct Known:  # an entry that the other end knows
    int bucket
    unsigned int generation
    int entry

cdef class KnownBuckets:
    cdef BucketIds bucket_ids
    cdef Known *known  # by bucket, rising
    cdef Py_ssize_t count
    cdef Py_ssize_t place_of(self, int bucket) noexcept
    cdef int learn(self, dict fresh) except -1

cdef class Introduced:
    cdef readonly Py_ssize_t count, users
    cdef Py_ssize_t most_entries, most_users, most_lines, usual, frames
    cdef bint is_ragged
    cdef dict numbers  # service -> user -> resource -> entry
    cdef dict buckets  # service -> KnownBuckets
    cdef int *entries  # of the frame that is being written: of each share, or -1
    cdef Py_ssize_t entries_room
    cdef StringTable source_table  # of the lines that were written last
    cdef int *packed_numbers  # of its entries, the entry here; -1: not introduced yet
    cdef Py_ssize_t packed_count, packed_room
    cdef Buffer fresh  # the new entries of this frame, as they are written
    cdef unsigned int fresh_count
    cdef str last_service, last_user  # of the newest of them
    cdef bint anew  # shares: it began anew with this frame
    cdef Py_ssize_t used, part, numbered, of_part  # shares: of this frame; in which part we are, and where in it
    cdef int forget(self) except -1
    cdef int settle(self) except -1
    cdef int introduce(self, str service, str user, str resource) except -1
    cdef bint is_outgrown(self, Py_ssize_t used)
    cdef int number(self, str service, dict users, str user, str resource) except -1
    cdef int number_given(
        self, str service, PackedShares shares, int *entries, Py_ssize_t begin, Py_ssize_t end
    ) except -1
    cdef bint has_room(self) noexcept
    cdef int _number_lines(self, PackedLines packed) except -1

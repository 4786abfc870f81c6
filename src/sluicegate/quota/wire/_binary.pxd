from sluicegate.quota.packed._shares cimport PackedShares
from sluicegate.quota.packed._report_lines cimport PackedLines, StringTable
from sluicegate.quota.packed._bucket_ids cimport BucketIds
from sluicegate.quota.wire._buffer cimport Buffer

cdef int fail_truncated(bytes frame) except -1
cdef unsigned int read_count(
    bytes frame, Py_ssize_t at, Py_ssize_t least, Py_ssize_t most, str what
) except? 0
cdef str read_name(bytes frame, Py_ssize_t at, Py_ssize_t most, str what)

cdef struct KnownBucket:  # a bucket for which the peer has an entry
    int bucket
    unsigned int generation
    int entry

cdef class KnownBuckets:
    cdef BucketIds bucket_ids
    cdef KnownBucket *known  # sorted by bucket
    cdef Py_ssize_t count
    cdef Py_ssize_t place_of(self, int bucket) noexcept
    cdef int merge(self, dict added) except -1

cdef class StringTableWriter:
    cdef readonly Py_ssize_t count, user_count
    cdef Py_ssize_t max_entries, max_users, max_lines, typical_count, frame_count
    cdef bint is_fragmented
    cdef dict entries_by_name  # service -> user -> resource -> entry
    cdef dict known_buckets  # service -> KnownBuckets
    cdef int *share_entries  # the entry of each share of the frame being written; -1: bucket forgotten
    cdef Py_ssize_t share_entries_room
    cdef StringTable source_table  # of the lines that were written last
    cdef int *source_entries  # the entry here of each entry of `source_table`; -1: not added yet
    cdef Py_ssize_t source_count, source_room
    cdef Buffer new_entries  # those of this frame, encoded
    cdef unsigned int new_count
    cdef str last_service, last_user  # of the newest of them
    # While the shares of a frame are written, in steps:
    cdef bint is_reset  # the table was reset with this frame
    cdef bint is_whole  # it is a whole quota
    cdef Py_ssize_t share_count  # of this frame
    cdef Py_ssize_t next_service, next_in_service, next_share  # the first share without an entry: its service,
    # its index in the service, and that in `share_entries`; for packed shares, the start of their service
    cdef int reset(self) except -1
    cdef int end_frame(self) except -1
    cdef int add_entry(self, str service, str user, str resource) except -1
    cdef bint needs_reset(self, Py_ssize_t used)
    cdef int find_or_add(self, str service, dict users, str user, str resource) except -1
    cdef int resolve_packed(
        self, str service, PackedShares shares, int *entries, Py_ssize_t begin, Py_ssize_t end
    ) except -1
    cdef bint is_within_bounds(self) noexcept
    cdef int put_new_entries(self, Buffer *buffer) except -1
    cdef int _resolve_lines(self, PackedLines packed) except -1

from headgate.quota._given cimport GivenShares
from headgate.quota._lines cimport Dictionary, PackedLines
from headgate.quota._register cimport Register

cdef struct Known:  # an entry that the other end knows
    int bucket
    unsigned int serial
    int entry

cdef class KnownBuckets:
    cdef Register register
    cdef Known *known  # by bucket, rising
    cdef Py_ssize_t count
    cdef Py_ssize_t place_of(self, int bucket) noexcept
    cdef int learn(self, dict fresh) except -1

cdef class Introduced:
    cdef readonly Py_ssize_t count, users
    cdef Py_ssize_t most_entries, most_users, usual, frames
    cdef bint is_ragged
    cdef dict numbers  # service -> user -> resource -> entry
    cdef dict buckets  # service -> KnownBuckets
    cdef int *entries  # of the frame that is being written: of each share, or -1
    cdef Py_ssize_t entries_room
    cdef Dictionary packed_dictionary  # of the lines that were written last
    cdef int *packed_numbers  # of its entries, the entry here; -1: not introduced yet
    cdef Py_ssize_t packed_count, packed_room
    cdef list fresh  # new in this frame, in order: (service, (user, resource))
    cdef int forget(self)
    cdef bint is_outgrown(self, Py_ssize_t used)
    cdef int number(self, str service, dict users, str user, str resource) except -1
    cdef int number_given(self, str service, GivenShares shares, int *entries) except -1
    cdef bint has_room(self)
    cdef int _number_lines(self, PackedLines packed) except -1
    cdef int settle(self, Py_ssize_t used, Py_ssize_t runs) except -1

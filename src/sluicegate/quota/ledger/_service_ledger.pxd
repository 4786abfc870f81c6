cimport cython

from sluicegate.quota.ledger._bucket cimport Bucket, Cell, News
from sluicegate.quota.packed._shares cimport PackedShare
from sluicegate.quota.packed._report_lines cimport StringTable
from sluicegate.quota.ledger._node_table cimport Nodes
from sluicegate.quota.packed._bucket_ids cimport BucketIds
from sluicegate.quota.ledger._fair_share cimport Wish
from sluicegate.quota.ledger._usage cimport Sums, Usage

cdef struct Out:
    PackedShare *given
    Py_ssize_t count, room
    long long slot


@cython.final
cdef class Book:
    cdef Nodes nodes
    cdef object rule
    cdef int kind
    cdef Bucket *buckets
    cdef Py_ssize_t count, room
    cdef readonly Py_ssize_t cells
    cdef readonly long long first, assigned
    cdef dict users  # user -> {resource: bucket}
    cdef BucketIds bucket_ids
    cdef list names  # those of `bucket_ids`: bucket -> (user, resource), or None
    cdef object free  # (slot, bucket): forgotten, since when
    cdef object terms  # user, resource -> (rate, capacity, the slot it began in), or None: no limit
    cdef Wish *wishes
    cdef Py_ssize_t wishes_room
    cdef Out *outs  # two for each node
    cdef Py_ssize_t outs_room
    cdef readonly int nr_slot
    cdef bint is_assigning  # at this moment, and not only between two parts of it
    cdef int phase
    cdef long long begun  # the slot that is being assigned, unless at rest
    cdef Py_ssize_t done  # the buckets before this one are assigned for it
    cdef Py_ssize_t tidied, forgotten
    cdef object rule_error
    cdef int _node(self, str node_id) except -1
    cdef dict sums  # slot -> Sums
    cdef dict past  # slot -> node -> what was given, as packed `PackedShare`s
    cdef Py_ssize_t _number_of(self, str user, str resource, long long slot) except -1
    cdef Cell *_cell(self, Bucket *bucket, int node) except NULL
    cdef Sums _sums(self, long long slot)
    cdef int _day(self, long long slot) noexcept
    cdef double _outstanding(self, Bucket *bucket, long long slot)
    cdef double _on_its_own(self, Cell *cell, long long slot) noexcept
    cdef double _grown(self, Bucket *bucket, double request, long long slot) noexcept
    cdef double _of_silent(self, Cell *cell, long long slot) noexcept
    cdef int _know(self, StringTable string_table, int service) except -1
    cdef int _find(self, StringTable string_table, int entry, long long slot) except -1
    cdef int _tell(self, int number, const News *news, Sums sums, Usage usage) except -1
    cdef bint _assign_buckets(self, Py_ssize_t cells) except -1
    cdef bint _tidy_buckets(self, Py_ssize_t cells) except -1
    cdef int _assign(self, int number, long long slot) except -1
    cdef Out *_out(self, int node, long long slot) noexcept
    cdef int _tidy(self, int number, long long slot) except -1

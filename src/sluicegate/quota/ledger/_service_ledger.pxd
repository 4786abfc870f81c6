cimport cython

from sluicegate.quota.ledger._bucket cimport Bucket, Delta, NodeCell
from sluicegate.quota.packed._shares cimport PackedShare
from sluicegate.quota.packed._report_lines cimport StringTable
from sluicegate.quota.ledger._node_table cimport NodeTable
from sluicegate.quota.packed._bucket_ids cimport BucketIds
from sluicegate.quota.ledger._fair_share cimport Demand
from sluicegate.quota.ledger._usage cimport SlotTotals, Usage

cdef struct ShareBuffer:  # the shares of one node for one slot
    PackedShare *data
    Py_ssize_t count, room
    long long slot


@cython.final
cdef class ServiceLedger:
    cdef NodeTable nodes
    cdef object rule
    cdef int rule_kind
    cdef Bucket *buckets
    cdef Py_ssize_t count, room
    cdef readonly Py_ssize_t cells
    cdef readonly long long first, assigned
    cdef dict users  # user -> {resource: bucket}
    cdef BucketIds bucket_ids
    cdef list names  # those of `bucket_ids`: bucket -> (user, resource), or None
    cdef object free  # (slot, bucket): forgotten, since when
    cdef object limit_of  # (user, resource) -> (rate, capacity, start slot), or None: no limit
    cdef Demand *demands
    cdef Py_ssize_t demands_room
    cdef ShareBuffer *share_buffers  # two for each node
    cdef Py_ssize_t share_buffers_room
    cdef readonly int nr_slot
    cdef bint is_assigning  # at this moment, and not only between two parts of it
    cdef int phase
    cdef long long assigning_slot  # unless the phase is NOT_ASSIGNING
    cdef Py_ssize_t next_bucket  # the buckets before this one are assigned for it
    cdef Py_ssize_t next_swept, forgotten
    cdef object rule_error
    cdef int _node_number(self, str node_id) except -1
    cdef dict totals  # slot -> SlotTotals
    cdef dict quota_history  # slot -> node -> bytes of an array of PackedShare
    cdef Py_ssize_t _bucket_number(self, str user, str resource, long long slot) except -1
    cdef NodeCell *_cell_of(self, Bucket *bucket, int node) except NULL
    cdef SlotTotals _totals_of(self, long long slot)
    cdef int _slot_offset(self, long long slot) noexcept
    cdef double _outstanding(self, Bucket *bucket, long long slot)
    cdef double _safe_usage(self, NodeCell *cell, long long slot) noexcept
    cdef double _growth_cap(self, Bucket *bucket, double request, long long slot) noexcept
    cdef double _silent_usage(self, NodeCell *cell, long long slot) noexcept
    cdef int _drop_foreign_refs(self, StringTable string_table, int service) except -1
    cdef int _resolve(self, StringTable string_table, int entry, long long slot) except -1
    cdef int _add_to_totals(self, int number, const Delta *delta, SlotTotals totals, Usage usage) except -1
    cdef bint _assign_buckets(self, Py_ssize_t cells) except -1
    cdef bint _sweep_buckets(self, Py_ssize_t cells) except -1
    cdef int _assign(self, int number, long long slot) except -1
    cdef ShareBuffer *_buffer_of(self, int node, long long slot) noexcept
    cdef int _sweep_bucket(self, int number, long long slot) except -1

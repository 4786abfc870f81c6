cimport cython

from sluicegate.quota.ledger._booking cimport Delta, ReportContext
from sluicegate.quota.ledger._bucket cimport Bucket, NodeCell
from sluicegate.quota.packed._shares cimport PackedShare
from sluicegate.quota.packed._report_lines cimport StringTable
from sluicegate.quota.ledger._node_table cimport NodeTable
from sluicegate.quota.packed._bucket_ids cimport BucketIds
from sluicegate.quota.ledger._fair_share cimport Demand
from sluicegate.quota.ledger._usage cimport SlotTotals, Usage

cdef inline unsigned int milliseconds(double seconds) noexcept nogil:
    """A time as a cell stores it, modulo 2**32."""
    return <unsigned int> (<long long> (seconds * 1000.0))


cdef inline double granted_in(bytes packed, int bucket):
    """What an array of PackedShare, by rising buckets, has of a bucket; 0 if it has none."""
    cdef const PackedShare *shares = <const PackedShare *> <const char *> packed
    cdef Py_ssize_t low = 0, high = len(packed) // <Py_ssize_t> sizeof(PackedShare), middle, end = high
    while low < high:
        middle = (low + high) >> 1
        if shares[middle].bucket < bucket:
            low = middle + 1
        else:
            high = middle
    return shares[low].granted if low < end and shares[low].bucket == bucket else 0.0


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
    cdef readonly double slot_seconds
    cdef unsigned long limits_version  # changes whenever limits may have changed
    cdef bint is_assigning  # at this moment, and not only between two parts of it
    cdef int phase
    cdef long long assigning_slot  # unless the phase is NOT_ASSIGNING
    cdef Py_ssize_t next_bucket  # the buckets before this one are assigned for it
    cdef Py_ssize_t next_swept, forgotten
    cdef object rule_error
    cdef int _node_number(self, str node_id) except -1
    cdef dict totals  # slot -> SlotTotals
    cdef dict quota_history  # slot -> node -> bytes of an array of PackedShare
    cdef bytes quota_before(self, long long slot, str node_id)
    cdef Py_ssize_t _bucket_number(self, str user, str resource, long long slot) except -1
    cdef NodeCell *_cell_of(self, Bucket *bucket, int node) except NULL
    cdef SlotTotals _totals_of(self, long long slot)
    cdef int _slot_offset(self, long long slot) noexcept
    cdef ReportContext _report_context(self, long long slot)
    cdef int _expect_no_traffic(self, Bucket *bucket, long long slot) noexcept
    cdef double _safe_usage(self, NodeCell *cell, long long slot) noexcept
    cdef bint is_silent(self, const NodeCell *cell, long long slot) noexcept
    cdef int hear_asking(self, Bucket *bucket, const NodeCell *cell) noexcept
    cdef int _recount(self, Bucket *bucket, long long slot, double time) noexcept
    cdef bint _gather_demands(self, Bucket *bucket, long long slot) noexcept
    cdef long long _idle_slots(self, NodeCell *cell) noexcept
    cdef double _budget(self, Bucket *bucket, long long slot, double autonomous) noexcept
    cdef int _promise_shares(self, Bucket *bucket, double budget, long long slot) noexcept
    cdef double _limit_promises(self, Bucket *bucket) noexcept
    cdef double _autonomous_part(self, Bucket *bucket, long long slot) noexcept
    cdef int _sum_promises(self, Bucket *bucket, long long slot) noexcept
    cdef bint _is_classic_at(self, Bucket *bucket, int i) noexcept
    cdef int _write_shares(self, int number, long long slot) except -1
    cdef int _push_share(self, int node, long long target, int number, double amount, float safe) except -1
    cdef int _keep_for_unknown_nodes(self, Bucket *bucket, double time) noexcept
    cdef int _drop_foreign_refs(self, StringTable string_table, int service) except -1
    cdef int _resolve(self, StringTable string_table, int entry, long long slot) except -1
    cdef int _add_to_totals(self, int number, const Delta *delta, SlotTotals totals, Usage usage) except -1
    cdef bint _assign_buckets(self, Py_ssize_t cells) except -1
    cdef bint _sweep_buckets(self, Py_ssize_t cells) except -1
    cdef int _assign(self, int number, long long slot) except -1
    cdef ShareBuffer *_buffer_of(self, int node, long long slot) noexcept
    cdef int _sweep_bucket(self, int number, long long slot) except -1

# cython: language_level=3, cdivision=True
"""`KeyTable`: its fields, and the lookup, which is on the path of every call."""

cimport cython
from cpython.object cimport Py_EQ, PyObject, PyObject_RichCompareBool
from libc.stdint cimport uint64_t

from sluicegate.limits._limit_set cimport LimitSet

cdef struct Slot:
    Py_hash_t key_hash
    PyObject* key       # NULL: free
    # the state follows

cdef struct Segment:
    char* slots
    size_t size         # a power of two, or 0
    size_t count


@cython.final
cdef class KeyTable:
    cdef LimitSet limit_set
    cdef size_t count
    cdef double last_eviction
    cdef double* overflow    # NULL until it is needed
    cdef Segment* _segments
    cdef size_t _segment_count
    cdef int _shift
    cdef size_t _stride
    cdef size_t _sweep_segment
    cdef size_t _sweep_slot

    cdef void set_limits(self, LimitSet* limit_set) noexcept
    cdef double* add(self, object key, Py_hash_t key_hash, double now) except NULL
    cdef int remove(self, object key, Py_hash_t key_hash) except -1
    cdef int allocate_overflow(self) except -1
    cdef double* overflow_state(self, Py_hash_t key_hash) noexcept
    cdef void sweep(self, double now, int steps) noexcept
    cdef void _purge(self, Segment* segment, double now) noexcept
    cdef int _resize(self, Segment* segment, size_t size) noexcept
    cdef void _delete(self, Segment* segment, size_t slot) noexcept

    cdef inline double* find(self, object key, Py_hash_t key_hash) except? NULL:
        """The state of `key`, valid until the table changes; NULL when there is none."""
        cdef Slot* slot = lookup(self, segment_of(self, key_hash), key, key_hash)
        return state_in(slot) if slot != NULL else NULL


cdef inline uint64_t mix(Py_hash_t key_hash) noexcept:
    """Spread the hash: small ints hash to themselves, and the table takes both ends of it."""
    cdef uint64_t x = <uint64_t>key_hash * <uint64_t>0x9E3779B97F4A7C15
    return x ^ (x >> 32)


cdef inline Segment* segment_of(KeyTable table, Py_hash_t key_hash) noexcept:
    return &table._segments[mix(key_hash) >> table._shift if table._shift < 64 else 0]


cdef inline Slot* slot_at(KeyTable table, Segment* segment, size_t index) noexcept:
    return <Slot*>(segment.slots + index * table._stride)


cdef inline double* state_in(Slot* slot) noexcept:
    return <double*>(slot + 1)


cdef inline Slot* lookup(
    KeyTable table, Segment* segment, object key, Py_hash_t key_hash
) except? NULL:
    cdef size_t index
    cdef Slot* slot
    if segment.size == 0:
        return NULL
    index = mix(key_hash) & (segment.size - 1)
    while True:
        slot = slot_at(table, segment, index)
        if slot.key == <PyObject*>key:
            return slot
        if slot.key == NULL:
            return NULL
        # The types first: str and bytes of one text have one hash, and `python -bb`
        # forbids to compare them.
        if (
            slot.key_hash == key_hash
            and type(<object>slot.key) is type(key)
            and PyObject_RichCompareBool(<object>slot.key, key, Py_EQ)
        ):
            return slot
        index = (index + 1) & (segment.size - 1)

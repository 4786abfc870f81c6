# cython: language_level=3
"""`ExpiryHeap`: the entries that expire, the earliest first."""

from sluicegate.cache._entry cimport Entry

cdef struct Expiry:
    double at
    Entry* entry

cdef struct ExpiryHeap:
    Expiry* items      # an entry's `heap_place` is its index + 1
    size_t count
    size_t room

cdef int expiry_reserve(ExpiryHeap* heap) except -1
cdef void expiry_set(ExpiryHeap* heap, Entry* entry, double at) noexcept
cdef void expiry_remove(ExpiryHeap* heap, Entry* entry) noexcept
cdef void expiry_free(ExpiryHeap* heap) noexcept


cdef inline Entry* expiry_due(ExpiryHeap* heap, double now) noexcept:
    """The entry that expires first if its time has come, or NULL."""
    return heap.items[0].entry if heap.count and heap.items[0].at <= now else NULL

# cython: language_level=3, binding=False, cdivision=True
"""`ExpiryHeap`: a binary heap in a C array, in which each entry knows its place.

So the next entry to expire is known at once, and one that is removed or gets another time
needs O(log n) steps and leaves nothing behind.
"""

from libc.math cimport INFINITY
from libc.stdlib cimport free, realloc

from sluicegate.cache._entry cimport Entry

__all__ = []


cdef int expiry_reserve(ExpiryHeap* heap) except -1:
    """Make sure that `expiry_set` has room for one more entry."""
    cdef size_t room
    cdef Expiry* items
    if heap.count == heap.room:
        room = max(2 * heap.room, <size_t>16)
        items = <Expiry*>realloc(heap.items, room * sizeof(Expiry))
        if items == NULL:
            raise MemoryError
        heap.items = items
        heap.room = room
    return 0


cdef void expiry_set(ExpiryHeap* heap, Entry* entry, double at) noexcept:
    """Let the entry expire at a time, or never (INFINITY); a new one needs a `reserve` before."""
    if at == INFINITY:
        expiry_remove(heap, entry)
        return
    entry.expires_at = at
    if entry.heap_place == 0:
        heap.count += 1
        entry.heap_place = <unsigned int>heap.count
    place(heap, entry.heap_place - 1, Expiry(at, entry))


cdef void expiry_remove(ExpiryHeap* heap, Entry* entry) noexcept:
    cdef size_t index = entry.heap_place
    cdef Expiry last
    entry.expires_at = INFINITY
    if index == 0:
        return
    entry.heap_place = 0
    heap.count -= 1
    last = heap.items[heap.count]
    if last.entry != entry:
        place(heap, index - 1, last)


cdef void expiry_free(ExpiryHeap* heap) noexcept:
    free(heap.items)
    heap.items = NULL
    heap.count = heap.room = 0


cdef void place(ExpiryHeap* heap, size_t index, Expiry item) noexcept:
    """Put the item where index is free, or above or below it."""
    cdef size_t above, below
    while index:
        above = (index - 1) // 2
        if heap.items[above].at <= item.at:
            break
        put(heap, index, heap.items[above])
        index = above
    while True:
        below = 2 * index + 1
        if below >= heap.count:
            break
        if below + 1 < heap.count and heap.items[below + 1].at < heap.items[below].at:
            below += 1
        if heap.items[below].at >= item.at:
            break
        put(heap, index, heap.items[below])
        index = below
    put(heap, index, item)


cdef inline void put(ExpiryHeap* heap, size_t index, Expiry item) noexcept:
    heap.items[index] = item
    item.entry.heap_place = <unsigned int>(index + 1)

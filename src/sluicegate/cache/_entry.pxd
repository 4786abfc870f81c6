# cython: language_level=3
"""`Entry` and `Queue`: a key with its value, and the lists in which a policy keeps entries.

A queue is circular and doubly linked through the entries themselves: to move an entry is to
set six pointers. New entries come in at the front; the back is where a policy looks for a
victim. A ghost is an entry without a value: a key that was evicted, and is remembered.
"""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t

cdef struct Link:
    Link* prev           # towards the front; of a queue's ends: the back
    Link* next           # towards the back; of a queue's ends: the front

cdef struct Entry:       # 64 bytes: one cache line
    Link link            # first, so that a Link* is an Entry*
    PyObject* key        # owned
    PyObject* value      # owned; NULL: a ghost
    Py_hash_t hash
    int64_t weight
    double expires_at    # INFINITY: never
    uint32_t heap_place  # in the expiry heap, from 1; 0: not there
    uint8_t place        # which queue it is in
    uint8_t frequency    # a reference bit or a small counter of its uses

cdef struct Queue:
    Link ends
    int64_t weight       # the sum of its entries
    Py_ssize_t count


cdef inline void queue_clear(Queue* queue) noexcept nogil:
    queue.ends.prev = &queue.ends
    queue.ends.next = &queue.ends
    queue.weight = 0
    queue.count = 0


cdef inline Entry* queue_back(Queue* queue) noexcept nogil:
    """The oldest entry, or NULL."""
    return <Entry*>queue.ends.prev if queue.count else NULL


cdef inline void link_before(Link* link, Link* next) noexcept nogil:
    link.prev = next.prev
    link.next = next
    next.prev.next = link
    next.prev = link


cdef inline void link_remove(Link* link) noexcept nogil:
    link.prev.next = link.next
    link.next.prev = link.prev


cdef inline void queue_add(Queue* queue, Entry* entry) noexcept nogil:
    """Put the entry at the front."""
    link_before(&entry.link, queue.ends.next)
    queue.weight += entry.weight
    queue.count += 1


cdef inline void queue_remove(Queue* queue, Entry* entry) noexcept nogil:
    link_remove(&entry.link)
    queue.weight -= entry.weight
    queue.count -= 1


cdef inline void queue_refresh(Queue* queue, Entry* entry) noexcept nogil:
    """Move the entry, which is in the queue, to the front."""
    link_remove(&entry.link)
    link_before(&entry.link, queue.ends.next)

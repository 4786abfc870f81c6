# cython: language_level=3, binding=False, embedsignature=True, embedsignature.format=clinic, cdivision=True
"""The inner loops of `replay`: a trace through a cache, and the best that was possible.

`optimal_hits` is Belady's rule: of the cached keys and the one that comes, drop the one whose next
use is the farthest. A key that is not used again is never kept, and one that comes need not be
kept, as no policy is bound to keep it: so no policy, whatever it knows, has more hits.

The cached keys are in a heap by their next uses, which differ: of each request, only its index in
the trace is kept. When a key is hit, its entry is that very request. It is not removed: it is in the
past then, and the largest entry, the one that goes, is always in the future. When the heap is full,
the past is swept out.
"""

from cpython.exc cimport PyErr_CheckSignals
from libc.stdlib cimport free, malloc

from array import array

__all__ = ["count_hits", "next_uses", "optimal_hits"]

cdef enum:
    BETWEEN_SIGNALS = 0xFFFF  # requests after which Ctrl-C is looked for, less 1


def count_hits(cache, const long long[::1] numbers, list keys):
    """Ask `cache` for each key (`keys[number]`), store what is missing, and count the hits."""
    cdef Py_ssize_t i
    cdef Py_ssize_t hits = 0
    cdef object get = cache.get
    cdef object key
    for i in range(numbers.shape[0]):
        key = keys[numbers[i]]
        if get(key) is None:
            cache[key] = True
        else:
            hits += 1
        if i & BETWEEN_SIGNALS == 0:
            PyErr_CheckSignals()
    return hits


def next_uses(const long long[::1] numbers, Py_ssize_t distinct):
    """For each request, the index of the next one for its key; without one, the trace's length."""
    cdef Py_ssize_t length = numbers.shape[0]
    cdef Py_ssize_t i
    found = array("q", bytes(8 * length))
    seen = array("q", [length]) * distinct
    cdef long long[::1] nexts = found
    cdef long long[::1] next_of_key = seen
    for i in range(length - 1, -1, -1):
        nexts[i] = next_of_key[numbers[i]]
        next_of_key[numbers[i]] = i
    return found


def optimal_hits(
    const long long[::1] numbers, const long long[::1] nexts, Py_ssize_t distinct, Py_ssize_t capacity
):
    """The most hits that any cache of `capacity` entries can have. `nexts` are the `next_uses`."""
    cdef Py_ssize_t room = min(2 * min(capacity, distinct) + 16, numbers.shape[0] + 1)
    cdef long long* heap = <long long*>malloc(room * sizeof(long long))
    cached = bytearray(distinct)
    cdef unsigned char[::1] is_cached = cached
    cdef Py_ssize_t hits
    if heap == NULL:
        raise MemoryError
    with nogil:
        hits = run_optimal(numbers, nexts, is_cached, capacity, heap, room)
    free(heap)
    return hits


cdef Py_ssize_t run_optimal(
    const long long[::1] numbers,
    const long long[::1] nexts,
    unsigned char[::1] is_cached,
    Py_ssize_t capacity,
    long long* heap,
    Py_ssize_t room,
) noexcept nogil:
    cdef Py_ssize_t length = numbers.shape[0]
    cdef Py_ssize_t hits = 0
    cdef Py_ssize_t size = 0     # of the cache
    cdef Py_ssize_t count = 0    # of the heap, with what is in the past
    cdef Py_ssize_t i
    cdef long long number, following
    for i in range(length):
        number = numbers[i]
        following = nexts[i]
        if is_cached[number]:
            hits += 1
            if following == length:
                is_cached[number] = 0
                size -= 1
                continue
        elif following == length:
            continue
        elif size < capacity:
            is_cached[number] = 1
            size += 1
        elif heap[0] > following:
            is_cached[numbers[heap[0]]] = 0
            is_cached[number] = 1
            heap[0] = following
            sift_down(heap, count, 0)
            continue
        else:
            continue
        if count == room:
            count = sweep(heap, count, i)
        heap[count] = following
        count += 1
        sift_up(heap, count - 1)
    return hits


cdef Py_ssize_t sweep(long long* heap, Py_ssize_t count, long long now) noexcept nogil:
    """Remove what is not after `now` from the heap; return how many are left."""
    cdef Py_ssize_t left = 0
    cdef Py_ssize_t i
    for i in range(count):
        if heap[i] > now:
            heap[left] = heap[i]
            left += 1
    for i in range(left // 2 - 1, -1, -1):
        sift_down(heap, left, i)
    return left


cdef void sift_up(long long* heap, Py_ssize_t place) noexcept nogil:
    cdef long long moved = heap[place]
    while place > 0 and heap[(place - 1) // 2] < moved:
        heap[place] = heap[(place - 1) // 2]
        place = (place - 1) // 2
    heap[place] = moved


cdef void sift_down(long long* heap, Py_ssize_t count, Py_ssize_t place) noexcept nogil:
    cdef long long moved = heap[place]
    cdef Py_ssize_t child = 2 * place + 1
    while child < count:
        if child + 1 < count and heap[child + 1] > heap[child]:
            child += 1
        if heap[child] <= moved:
            break
        heap[place] = heap[child]
        place = child
        child = 2 * place + 1
    heap[place] = moved

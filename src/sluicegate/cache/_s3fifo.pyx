# cython: language_level=3, binding=False, embedsignature=True, embedsignature.format=clinic, cdivision=True
# cython: auto_pickle=False
"""`S3Fifo`: a small queue in front of the main one keeps out what is used only once.

(Yang and others: FIFO queues are all you need for cache eviction, SOSP 2023, algorithm 1.)
A new entry goes into the small queue, a tenth of the cache. At its end, an entry that was used
twice goes on into the main queue; any other is evicted, and its key goes into the ghost
queue. A key that comes back from there goes into the main queue at once. At the end of that,
an entry goes round again as often as it was used, at most three times.

One thing differs: the paper goes on to evict from the small queue when an entry that it moved
has already forced one out of the main queue. That would evict more than there is need for.
"""

from sluicegate.cache._bounded_table cimport NEW, NO_GHOST
from sluicegate.cache._cache cimport Cache
from sluicegate.cache._entry cimport Entry, Queue, queue_back, queue_refresh, queue_remove

__all__ = ["S3Fifo"]

cdef enum:  # places
    SMALL
    MAIN
    GHOST

cdef enum:
    MAX_FREQUENCY = 3


cdef class S3Fifo(Cache):
    """Three first-in-first-out queues: quick to let go of what is used once, so it resists scans.

    Remembers as many evicted keys as the main queue has room for. To replace an entry is to
    use it.
    """

    cdef void on_hit(self, Entry* entry) noexcept:
        if entry.frequency < MAX_FREQUENCY:
            entry.frequency += 1

    cdef Entry* victim(self, Entry* incoming) noexcept:
        cdef Queue* small = &self.queues[SMALL]
        cdef Queue* main = &self.queues[MAIN]
        cdef Entry* entry
        if 10 * small.weight >= self.limit or main.count == 0:
            while small.count:
                entry = queue_back(small)
                if entry.frequency <= 1:
                    queue_remove(small, entry)
                    return entry
                entry.frequency = 0
                self.move_to(MAIN, entry)
                if self.exceeds_main(main.weight):
                    break
        return self.main_victim()

    cdef Entry* main_victim(self) noexcept:
        cdef Queue* main = &self.queues[MAIN]
        cdef Entry* entry = queue_back(main)
        while entry.frequency:
            entry.frequency -= 1
            queue_refresh(main, entry)
            entry = queue_back(main)
        queue_remove(main, entry)
        return entry

    cdef int ghost_place(self, Entry* evicted) noexcept:
        return GHOST if evicted.place == SMALL else NO_GHOST

    cdef void trim_ghosts(self, Entry* incoming) noexcept:
        while self.exceeds_main(self.queues[GHOST].weight):
            self.drop_oldest_ghost(GHOST)

    cdef void insert(self, Entry* entry) noexcept:
        self.add_to(SMALL if entry.place == NEW else MAIN, entry)

    cdef bint exceeds_main(self, long long weight) noexcept:
        """Whether it is more than the main queue's nine tenths of the cache."""
        return 10 * weight > 9 * self.limit

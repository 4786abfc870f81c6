# cython: language_level=3, binding=False, embedsignature=True, embedsignature.format=clinic, cdivision=True
# cython: auto_pickle=False
"""`Arc`: balances recency and frequency by what it regrets to have evicted.

The names are those of the paper (Megiddo, Modha: ARC: a self-tuning, low overhead replacement
cache, FAST 2003, figure 4):

    T1   entries that were used once lately        B1   keys that were evicted from T1
    T2   entries that were used more often         B2   keys that were evicted from T2
    p    the weight that T1 should have: grows with each put of a key in B1, shrinks with
         each put of a key in B2

Never are there more than `capacity` entries in T1 and B1, nor twice as many in all four.
Where the paper counts pages, this adds up weights; without weights it is the same.
"""

from sluicegate.cache._bounded_table cimport NEW
from sluicegate.cache._cache cimport Cache
from sluicegate.cache._entry cimport Entry, Queue, queue_back, queue_remove
from sluicegate._minmax cimport fast_max, fast_min

__all__ = ["Arc"]

cdef enum:  # places
    T1
    T2
    B1
    B2


cdef class Arc(Cache):
    """Adapts to the traffic: recent entries and frequent ones share the room as it pays.

    Remembers as many evicted keys as it has entries. To replace an entry is to use it.
    """

    cdef double p

    cdef void reset(self) noexcept:
        Cache.reset(self)
        self.p = 0.0

    cdef void on_hit(self, Entry* entry) noexcept:
        self.move_to(T2, entry)

    cdef void prepare(self, Entry* incoming) noexcept:
        cdef double b1 = self.queues[B1].weight
        cdef double b2 = self.queues[B2].weight
        if incoming.place == B1:
            self.p = fast_min(self.p + incoming.weight * fast_max(1.0, b2 / b1), self.limit)
        elif incoming.place == B2:
            self.p = fast_max(self.p - incoming.weight * fast_max(1.0, b1 / b2), 0.0)
        elif self.recent_weight() + incoming.weight > self.limit:
            self.trim_recent(incoming.weight)
        else:
            self.trim_frequent(incoming.weight)

    cdef Entry* victim(self, Entry* incoming) noexcept:
        """REPLACE of the paper."""
        cdef Queue* queue = &self.queues[T1]
        cdef bint is_from_b2 = incoming != NULL and incoming.place == B2
        cdef Entry* entry
        if self.queues[T2].count and (queue.weight < self.p or queue.weight == self.p and not is_from_b2):
            queue = &self.queues[T2]
        if queue.count == 0:
            queue = &self.queues[T2]
        entry = queue_back(queue)
        queue_remove(queue, entry)
        return entry

    cdef int ghost_place(self, Entry* evicted) noexcept:
        return B1 if evicted.place == T1 else B2

    cdef void trim_ghosts(self, Entry* incoming) noexcept:
        # When T1 fills the cache, its victim has no place in B1.
        self.trim_recent(incoming.weight if incoming.place == NEW else 0)
        self.trim_frequent(incoming.weight)

    cdef void insert(self, Entry* entry) noexcept:
        self.add_to(T1 if entry.place == NEW else T2, entry)

    cdef long long recent_weight(self) noexcept:
        return self.queues[T1].weight + self.queues[B1].weight

    cdef void trim_recent(self, long long incoming) noexcept:
        """Make T1 and B1, with what comes in, fit into the capacity."""
        while self.queues[B1].count and self.recent_weight() + incoming > self.limit:
            self.drop_oldest_ghost(B1)

    cdef void trim_frequent(self, long long incoming) noexcept:
        """Make all four, with what comes in, fit into twice the capacity."""
        while self.queues[B2].count and (
            self.recent_weight() + self.queues[T2].weight + self.queues[B2].weight + incoming
            > 2 * self.limit
        ):
            self.drop_oldest_ghost(B2)

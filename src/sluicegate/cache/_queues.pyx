# cython: language_level=3, binding=False, embedsignature=True, embedsignature.format=clinic, cdivision=True
# cython: auto_pickle=False
"""The policies that need one queue: `Fifo`, `Lru`, `Clock` and `Sieve`."""

from sluicegate.cache._cache cimport Cache
from sluicegate.cache._entry cimport Entry, Link, Queue, queue_back, queue_refresh, queue_remove

__all__ = ["Clock", "Fifo", "Lru", "Sieve"]


cdef class Fifo(Cache):
    """First in, first out. No use of an entry changes its turn, and a replaced one keeps it."""


cdef class Lru(Cache):
    """Evicts what was least recently used. To replace an entry is to use it."""

    cdef void on_hit(self, Entry* entry) noexcept:
        queue_refresh(&self.queues[0], entry)


cdef class Clock(Cache):
    """First in, first out, with a second chance for what was used since its last turn.

    To use an entry, or to replace it, sets its reference bit. One whose turn comes with the bit
    set goes to the front without it. This is the hand that goes round: the entries move past
    it instead.
    """

    cdef void on_hit(self, Entry* entry) noexcept:
        entry.frequency = 1

    cdef Entry* victim(self, Entry* incoming) noexcept:
        cdef Queue* queue = &self.queues[0]
        cdef Entry* entry = queue_back(queue)
        while entry.frequency:
            entry.frequency = 0
            queue_refresh(queue, entry)
            entry = queue_back(queue)
        queue_remove(queue, entry)
        return entry


cdef class Sieve(Cache):
    """As `Clock`, but what survives keeps its place, so new entries are sieved out quickly.

    The hand goes from the oldest to the newest entry and then begins again. It takes the mark
    from each entry that was used, or replaced, and stops at the first one without. (Zhang and
    others: SIEVE is simpler than LRU, NSDI 2024.)
    """

    cdef Link* hand  # where to look next; the ends of the queue: at the oldest

    cdef void reset(self) noexcept:
        Cache.reset(self)
        self.hand = &self.queues[0].ends

    cdef void on_hit(self, Entry* entry) noexcept:
        entry.frequency = 1

    cdef Entry* victim(self, Entry* incoming) noexcept:
        cdef Link* ends = &self.queues[0].ends
        cdef Link* link = self.hand if self.hand != ends else ends.prev
        while (<Entry*>link).frequency:
            (<Entry*>link).frequency = 0
            link = link.prev if link.prev != ends else ends.prev
        self.hand = link.prev
        queue_remove(&self.queues[0], <Entry*>link)
        return <Entry*>link

    cdef void unlink(self, Entry* entry) noexcept:
        if self.hand == &entry.link:
            self.hand = entry.link.prev
        queue_remove(&self.queues[0], entry)

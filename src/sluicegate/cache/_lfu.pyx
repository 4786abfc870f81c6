# cython: language_level=3, binding=False, embedsignature=True, embedsignature.format=clinic, cdivision=True
# cython: auto_pickle=False
"""`Lfu`: evicts what was used least often, in constant time.

Entries of one frequency are in one bucket, the least recently used at its back. The buckets
are a list in the order of their frequencies, so a use moves an entry to the bucket after its
own, which is made when it is not there. (Shah, Mitra, Matani: An O(1) algorithm for
implementing the LFU cache eviction scheme, 2010.)
"""

from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc

from sluicegate.cache._cache cimport Cache
from sluicegate.cache._entry cimport (
    Entry, Link, Queue, link_before, link_remove, queue_add, queue_back, queue_clear, queue_refresh, queue_remove,
)
from sluicegate.cache._table cimport EntryTable

__all__ = ["Lfu"]

cdef struct Bucket:
    Link link            # first, so that a Link* is a Bucket*; `next` has the next higher frequency
    uint64_t frequency
    Queue entries

cdef struct LfuEntry:
    Entry entry          # first, so that an Entry* is an LfuEntry*
    Bucket* bucket


cdef class Lfu(Cache):
    """Evicts what was least often used; of several, what was least recently used.

    A new entry counts as used once. To replace an entry is to use it. What was popular once
    stays for long: `TinyLfu` forgets.
    """

    cdef Bucket once     # frequency 1; the list begins and ends here

    def __cinit__(self, *_, **__):
        self.table = EntryTable(sizeof(LfuEntry), None)
        self.reset()

    def __dealloc__(self):
        self.free_buckets()

    cdef void reset(self) noexcept:
        self.free_buckets()
        self.once.link.prev = self.once.link.next = &self.once.link
        self.once.frequency = 1
        queue_clear(&self.once.entries)

    cdef void on_hit(self, Entry* entry) noexcept:
        cdef Bucket* bucket = (<LfuEntry*>entry).bucket
        cdef Bucket* following = <Bucket*>bucket.link.next
        if following.frequency != bucket.frequency + 1:
            if bucket.entries.count == 1 and bucket != &self.once:
                bucket.frequency += 1
                return
            following = self.add_bucket_after(bucket)
            if following == NULL:  # no memory: it is the most recently used one at least
                queue_refresh(&bucket.entries, entry)
                return
        queue_remove(&bucket.entries, entry)
        self.free_if_empty(bucket)
        (<LfuEntry*>entry).bucket = following
        queue_add(&following.entries, entry)

    cdef Entry* victim(self, Entry* incoming) noexcept:
        cdef Bucket* bucket = &self.once
        if bucket.entries.count == 0:
            bucket = <Bucket*>bucket.link.next
        cdef Entry* entry = queue_back(&bucket.entries)
        self.unlink(entry)
        return entry

    cdef void insert(self, Entry* entry) noexcept:
        entry.place = 0
        (<LfuEntry*>entry).bucket = &self.once
        queue_add(&self.once.entries, entry)

    cdef void unlink(self, Entry* entry) noexcept:
        cdef Bucket* bucket = (<LfuEntry*>entry).bucket
        queue_remove(&bucket.entries, entry)
        self.free_if_empty(bucket)

    cdef Entry** list_entries(self, Entry** end) noexcept:
        cdef Bucket* bucket = &self.once
        cdef Link* link
        while True:
            link = bucket.entries.ends.prev
            while link != &bucket.entries.ends:
                end[0] = <Entry*>link
                end += 1
                link = link.prev
            bucket = <Bucket*>bucket.link.next
            if bucket == &self.once:
                return end

    cdef Bucket* add_bucket_after(self, Bucket* bucket) noexcept:
        cdef Bucket* added = <Bucket*>malloc(sizeof(Bucket))
        if added != NULL:
            added.frequency = bucket.frequency + 1
            queue_clear(&added.entries)
            link_before(&added.link, bucket.link.next)
        return added

    cdef void free_if_empty(self, Bucket* bucket) noexcept:
        if bucket.entries.count == 0 and bucket != &self.once:
            link_remove(&bucket.link)
            free(bucket)

    cdef void free_buckets(self) noexcept:
        cdef Link* link = self.once.link.next
        cdef Link* following
        while link != NULL and link != &self.once.link:
            following = link.next
            free(link)
            link = following

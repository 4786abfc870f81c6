# cython: language_level=3
"""`BoundedTable`: its fields, and what a policy overrides."""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint64_t

from sluicegate.cache._entry cimport Entry, Queue
from sluicegate.cache._expiry cimport ExpiryHeap
from sluicegate.cache._table cimport Drop, EntryTable

cdef enum:
    MAX_QUEUES = 4
    NEW = MAX_QUEUES      # the `place` of an entry that comes in; of a known key: its ghost's place
    NO_GHOST = MAX_QUEUES

cdef enum Lookup:
    ABSENT
    LIVE
    DUE                   # it is still there, but has expired
    LOOKUP_FAILED         # a key's __hash__ or __eq__ or the clock raised


cdef class BoundedTable:
    cdef EntryTable table             # live entries and ghosts
    cdef Queue[MAX_QUEUES] queues     # an entry's `place` is its queue's index
    cdef ExpiryHeap heap
    cdef Entry* first_dropped         # chained by link.next; NULL between calls
    cdef Entry* last_dropped
    cdef int64_t limit                # the capacity
    cdef int64_t used                 # the weight of the live entries
    cdef Py_ssize_t size              # how many they are
    cdef double default_ttl           # INFINITY: none
    cdef object weigh
    cdef object read_clock            # None: the system's
    cdef readonly uint64_t hits
    cdef readonly uint64_t misses
    cdef readonly uint64_t evictions
    cdef readonly uint64_t expirations
    cdef object __weakref__

    # What a policy overrides. None of these runs Python code.
    cdef void reset(self) noexcept
    cdef void on_hit(self, Entry* entry) noexcept
    cdef void prepare(self, Entry* incoming) noexcept
    cdef Entry* victim(self, Entry* incoming) noexcept
    cdef int ghost_place(self, Entry* evicted) noexcept
    cdef void trim_ghosts(self, Entry* incoming) noexcept
    cdef void insert(self, Entry* entry) noexcept
    cdef void unlink(self, Entry* entry) noexcept
    cdef Entry** list_entries(self, Entry** end) noexcept

    # For policies.
    cdef void add_to(self, int place, Entry* entry) noexcept
    cdef void move_to(self, int place, Entry* entry) noexcept
    cdef void drop_oldest_ghost(self, int place) noexcept

    cdef double now(self) except? -1e300
    cdef int64_t weight_of(self, key, value) except -1
    cdef Entry* use(self, key) except? NULL
    cdef Lookup look_up(self, key, Entry** entry) except LOOKUP_FAILED
    cdef object put(self, key, value, double ttl, int64_t weight, bint keep)
    cdef PyObject* replace(self, Entry* entry, value, int64_t weight, double expires_at) noexcept
    cdef int admit(
        self, Entry* old, key, value, Py_hash_t key_hash, int64_t weight, double now, double expires_at
    ) except -1
    cdef bint make_room(self, Entry* incoming, double now) noexcept
    cdef void evict(self, Entry* entry, Entry* incoming) noexcept
    cdef int remove_all(self) except -1
    cdef Py_ssize_t expire_all(self) except -1
    cdef size_t drop_due(self, double now, size_t most) noexcept
    cdef void expire_entry(self, Entry* entry) noexcept
    cdef void discard(self, Entry* entry) noexcept
    cdef void leave(self, Entry* entry) noexcept
    cdef void drop(self, Entry* entry, Drop why) noexcept
    cdef void chain(self, Entry* entry, Drop why) noexcept
    cdef int finish(self) except -1
    cdef tuple snapshot(self)

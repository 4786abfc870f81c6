# cython: language_level=3, binding=False, cdivision=True
# cython: auto_pickle=False
"""`BoundedTable`: entries under a capacity; a policy decides which one makes room for a new one.

A policy overrides a few functions:

    on_hit(entry)        the entry was read or replaced
    prepare(incoming)    a new entry comes; its `place` is NEW, or that of its key's ghost
    victim(incoming)     take the entry that goes next out of its queue; the incoming one itself:
                         it is turned away
    ghost_place(entry)   the queue in which the evicted entry's key is remembered, or NO_GHOST
    trim_ghosts(...)     forget old ghosts, after one was added
    insert(entry)        put a new entry, for which there is room now, in a queue
    unlink(entry)        take an entry that was deleted or has expired out of its queue

Threads: each call first runs what may be Python code (the clock, `weigh`, the hash of the key,
comparisons of keys), then changes the table in one step that runs none, then, in `finish`,
releases what was dropped and calls `on_evict`. So there is no lock, any callback may use the
cache, and a key whose `__eq__` raises leaves it as it was. See `_table.pyx`.
"""

cimport cython
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.object cimport PyObject, PyObject_Hash
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.unicode cimport PyUnicode_CheckExact
from libc.math cimport INFINITY, isfinite
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc

from sluicegate._clock cimport monotonic
from sluicegate.cache._entry cimport Entry, Link, queue_add, queue_back, queue_clear, queue_remove
from sluicegate.cache._expiry cimport expiry_due, expiry_free, expiry_remove, expiry_reserve, expiry_set
from sluicegate.cache._table cimport Drop, EntryTable

from sluicegate._validate import check_whole

__all__ = []

cdef extern from "Python.h":
    ctypedef struct StrObject "PyASCIIObject":
        Py_hash_t hash

cdef enum:
    DUE_PER_PUT = 8     # expired entries that a put removes at most, unless it needs their room


@cython.no_gc_clear  # the table breaks all cycles; without it an object would be deadly
cdef class BoundedTable:
    """What all policies share but the look of it, which is `Cache`."""

    def __cinit__(self, *_, **__):
        # So that an object without __init__ is useless, not deadly.
        self.table = EntryTable(sizeof(Entry), None)
        self.default_ttl = INFINITY
        self.reset()

    def __dealloc__(self):
        expiry_free(&self.heap)

    # --- what a policy overrides

    cdef void reset(self) noexcept:
        """Begin with empty queues."""
        cdef int place
        for place in range(MAX_QUEUES):
            queue_clear(&self.queues[place])

    cdef void on_hit(self, Entry* entry) noexcept:
        pass

    cdef void prepare(self, Entry* incoming) noexcept:
        pass

    cdef Entry* victim(self, Entry* incoming) noexcept:
        cdef Entry* entry = queue_back(&self.queues[0])
        queue_remove(&self.queues[0], entry)
        return entry

    cdef int ghost_place(self, Entry* evicted) noexcept:
        return NO_GHOST

    cdef void trim_ghosts(self, Entry* incoming) noexcept:
        pass

    cdef void insert(self, Entry* entry) noexcept:
        self.add_to(0, entry)

    cdef void unlink(self, Entry* entry) noexcept:
        queue_remove(&self.queues[entry.place], entry)

    cdef Entry** list_entries(self, Entry** end) noexcept:
        """Append the live entries, queue by queue, the oldest first; return the new end."""
        cdef int place
        cdef Link* link
        for place in range(MAX_QUEUES):
            link = self.queues[place].ends.prev
            while link != &self.queues[place].ends:
                if (<Entry*>link).value != NULL:
                    end[0] = <Entry*>link
                    end += 1
                link = link.prev
        return end

    # --- for policies

    cdef void add_to(self, int place, Entry* entry) noexcept:
        entry.place = place
        queue_add(&self.queues[place], entry)

    cdef void move_to(self, int place, Entry* entry) noexcept:
        queue_remove(&self.queues[entry.place], entry)
        self.add_to(place, entry)

    cdef void drop_oldest_ghost(self, int place) noexcept:
        cdef Entry* ghost = queue_back(&self.queues[place])
        queue_remove(&self.queues[place], ghost)
        self.drop(ghost, Drop.REMOVED)

    # --- the steps of reading and writing

    cdef Entry* use(self, key) except? NULL:
        """The live entry of `key`, with all that a hit or a miss entails."""
        cdef Entry* entry
        cdef Lookup found = self.look_up(key, &entry)
        if found == LIVE:
            self.hits += 1
            self.on_hit(entry)
            return entry
        self.misses += 1
        if found == DUE:
            self.expire_entry(entry)
            self.finish()
        return NULL

    cdef inline Lookup look_up(self, key, Entry** entry) except LOOKUP_FAILED:
        cdef Py_hash_t key_hash = hash_of(key)
        cdef double now = self.now() if self.heap.count else -INFINITY
        if not self.table.find(key, key_hash, entry) or entry[0].value == NULL:
            return ABSENT
        return LIVE if entry[0].expires_at > now else DUE

    cdef object put(self, key, value, double ttl, int64_t weight, bint keep):
        """Store a value, or `keep` the one that is there; return the one that counts."""
        cdef Py_hash_t key_hash = hash_of(key)
        cdef double now = self.now() if ttl < INFINITY or self.heap.count else -INFINITY
        cdef double expires_at = now + ttl if ttl < INFINITY else INFINITY
        cdef Entry* entry
        cdef PyObject* replaced
        self.table.find(key, key_hash, &entry)
        # No Python code from here to `finish`: this is one step for other threads.
        if entry != NULL and entry.value != NULL:
            if entry.expires_at <= now:
                self.expire_entry(entry)
                entry = NULL
            elif keep:
                return <object>entry.value
        if self.heap.count:
            self.drop_due(now, DUE_PER_PUT)
        if ttl < INFINITY:
            expiry_reserve(&self.heap)
        if entry != NULL and entry.value != NULL and self.used - entry.weight + weight <= self.limit:
            replaced = self.replace(entry, value, weight, expires_at)
            try:
                self.finish()
            finally:
                Py_DECREF(<object>replaced)
        else:
            self.admit(entry, key, value, key_hash, weight, now, expires_at)
            self.finish()
        return value

    cdef PyObject* replace(self, Entry* entry, value, int64_t weight, double expires_at) noexcept:
        """Give a live entry another value; return the old one, which the caller has to release."""
        cdef PyObject* replaced = entry.value
        Py_INCREF(value)
        entry.value = <PyObject*>value
        self.used += weight - entry.weight
        self.queues[entry.place].weight += weight - entry.weight
        entry.weight = weight
        if entry.heap_place or expires_at < INFINITY:
            expiry_set(&self.heap, entry, expires_at)
        self.on_hit(entry)
        return replaced

    cdef int admit(
        self, Entry* old, key, value, Py_hash_t key_hash, int64_t weight, double now, double expires_at
    ) except -1:
        """Let a new entry in. `old` is its key's ghost, or an entry that would have to make room for
        its own heavier value.
        """
        cdef Entry* entry
        self.table.reserve()
        entry = self.table.new_entry()
        if entry == NULL:
            raise MemoryError
        Py_INCREF(key)
        Py_INCREF(value)
        entry.key = <PyObject*>key
        entry.value = <PyObject*>value
        entry.hash = key_hash
        entry.weight = weight
        entry.expires_at = INFINITY
        entry.heap_place = 0
        entry.frequency = 0
        entry.place = NEW
        if old != NULL and old.value != NULL:
            self.discard(old)
            old = NULL
        if weight > self.limit:
            self.evictions += 1
            self.chain(entry, Drop.EVICTED)
            return 0
        if old != NULL:
            entry.place = old.place
        self.prepare(entry)
        if old != NULL:
            queue_remove(&self.queues[old.place], old)
            self.drop(old, Drop.REMOVED)
        if self.used + weight > self.limit and not self.make_room(entry, now):
            self.evictions += 1
            self.chain(entry, Drop.EVICTED)
            return 0
        self.table.add(entry)
        self.size += 1
        self.used += weight
        if expires_at < INFINITY:
            expiry_set(&self.heap, entry, expires_at)
        self.insert(entry)
        return 0

    cdef bint make_room(self, Entry* incoming, double now) noexcept:
        """Evict until the new entry fits; False if the policy would rather not have it."""
        cdef Entry* entry
        while self.used + incoming.weight > self.limit:
            entry = expiry_due(&self.heap, now)
            if entry != NULL:
                self.expire_entry(entry)
                continue
            entry = self.victim(incoming)
            if entry == incoming:
                return False
            self.evict(entry, incoming)
        return True

    cdef void evict(self, Entry* entry, Entry* incoming) noexcept:
        """Let a victim go. If its key is to be remembered, another entry carries its value out."""
        cdef int place = self.ghost_place(entry)
        cdef Entry* carrier = NULL
        self.evictions += 1
        self.leave(entry)
        if place != NO_GHOST:
            carrier = self.table.new_entry()
        if carrier == NULL:
            self.drop(entry, Drop.EVICTED)
            return
        Py_INCREF(<object>entry.key)
        carrier.key = entry.key
        carrier.value = entry.value
        entry.value = NULL
        self.chain(carrier, Drop.EVICTED)
        self.add_to(place, entry)
        self.trim_ghosts(incoming)

    cdef int remove_all(self) except -1:
        cdef Entry* chain = NULL
        self.table.remove_all(&chain)
        expiry_free(&self.heap)
        self.size = 0
        self.used = 0
        self.reset()
        self.table.release(chain)
        return self.table.shrink()

    cdef Py_ssize_t expire_all(self) except -1:
        """Remove all entries that have expired by now; return how many they were."""
        cdef size_t count = 0
        if self.heap.count:
            count = self.drop_due(self.now(), self.heap.count)
            self.finish()
        return count

    cdef size_t drop_due(self, double now, size_t most) noexcept:
        """Drop at most `most` entries that have expired; return how many."""
        cdef size_t count = 0
        cdef Entry* entry = expiry_due(&self.heap, now)
        while entry != NULL and count < most:
            self.expire_entry(entry)
            count += 1
            entry = expiry_due(&self.heap, now)
        return count

    cdef void expire_entry(self, Entry* entry) noexcept:
        self.expirations += 1
        self.unlink(entry)
        self.leave(entry)
        self.drop(entry, Drop.EVICTED)

    cdef void discard(self, Entry* entry) noexcept:
        """Remove a live entry that the user does not want any more."""
        self.unlink(entry)
        self.leave(entry)
        self.drop(entry, Drop.REMOVED)

    cdef void leave(self, Entry* entry) noexcept:
        """Count an unlinked entry as gone."""
        self.size -= 1
        self.used -= entry.weight
        if entry.heap_place:
            expiry_remove(&self.heap, entry)

    cdef void drop(self, Entry* entry, Drop why) noexcept:
        self.table.remove(entry)
        self.chain(entry, why)

    cdef void chain(self, Entry* entry, Drop why) noexcept:
        """Leave the entry for `finish`."""
        entry.place = why
        entry.link.next = NULL
        if self.first_dropped == NULL:
            self.first_dropped = entry
        else:
            self.last_dropped.link.next = &entry.link
        self.last_dropped = entry

    cdef inline int finish(self) except -1:
        """The change is complete: release what was dropped. This runs Python code."""
        cdef Entry* chain = self.first_dropped
        if chain == NULL:
            return 0
        self.first_dropped = NULL
        return self.table.release(chain)

    cdef double now(self) except? -1e300:
        cdef double now
        if self.read_clock is None:
            return monotonic()
        now = self.read_clock()
        if not isfinite(now):
            raise ValueError(f"clock must return a finite time in seconds, got {now!r}")
        return now

    cdef inline int64_t weight_of(self, key, value) except -1:
        if self.weigh is None:
            return 1
        return check_whole("weigh(key, value)", self.weigh(key, value), 1)

    cdef tuple snapshot(self):
        """Lists are filled in one step: to make them may run the garbage collector, and with it
        code that changes the cache.
        """
        cdef Py_ssize_t size = -1, i
        cdef list keys, values
        cdef Entry** entries = NULL
        self.expire_all()
        while size != self.size:
            size = self.size
            keys = PyList_New(size)
            values = PyList_New(size)
            free(entries)
            entries = <Entry**>malloc((size + 1) * sizeof(Entry*))
            if entries == NULL:
                raise MemoryError
        self.list_entries(entries)
        for i in range(size):
            Py_INCREF(<object>entries[i].key)
            PyList_SET_ITEM(keys, i, <object>entries[i].key)
            Py_INCREF(<object>entries[i].value)
            PyList_SET_ITEM(values, i, <object>entries[i].value)
        free(entries)
        return keys, values


cdef inline Py_hash_t hash_of(key) except -1:
    """Of a str it is known mostly."""
    cdef Py_hash_t key_hash
    if PyUnicode_CheckExact(key):
        key_hash = (<StrObject*>key).hash
        if key_hash != -1:
            return key_hash
    return PyObject_Hash(key)

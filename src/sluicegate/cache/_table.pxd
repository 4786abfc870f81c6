# cython: language_level=3, cdivision=True
"""`EntryTable`: its fields, and the lookup, which is on the path of every call."""

cimport cython
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_CheckExact, PyUnicode_Compare
from libc.stdint cimport uint64_t

from sluicegate.cache._entry cimport Entry

cdef struct Slot:
    Py_hash_t hash
    Entry* entry        # NULL: free

cdef struct Chunk:
    Chunk* next

cdef enum Drop:         # in the `place` of an entry that was dropped
    REMOVED             # by the user
    EVICTED             # for room or because it expired: `on_evict` is called


@cython.final
cdef class EntryTable:
    cdef object on_evict
    cdef size_t count               # entries, ghosts included
    cdef uint64_t changes           # how often an entry came, left, or may have moved
    cdef Slot* slots
    cdef size_t mask                # number of slots - 1
    cdef int shift                  # 64 - log2(number of slots)
    cdef size_t entry_size
    cdef size_t in_use              # entries not in `free_entries`
    cdef Entry* free_entries        # chained by link.next
    cdef Chunk* chunks
    cdef size_t allocated           # entries in all chunks

    cdef bint holds(self, size_t index, Entry* entry, stored) noexcept
    cdef int reserve(self) except -1
    cdef Entry* new_entry(self) noexcept
    cdef void free_entry(self, Entry* entry) noexcept
    cdef void add(self, Entry* entry) noexcept
    cdef void remove(self, Entry* entry) noexcept
    cdef void remove_all(self, Entry** chain) noexcept
    cdef int release(self, Entry* chain) except -1
    cdef int shrink(self) except -1
    cdef void free_chunks(self) noexcept
    cdef bint search(self, object key, Py_hash_t key_hash, Entry** found) except -1
    cdef void _allocate_chunk(self) noexcept
    cdef int _resize(self, size_t size) except -1

    cdef inline bint find(self, object key, Py_hash_t key_hash, Entry** found) except -1:
        """Whether there is an entry of `key`; which one. May run the keys' code, and holds after that."""
        cdef size_t index = home_of(self, key_hash)
        cdef Slot* slot
        while True:
            slot = &self.slots[index]
            found[0] = slot.entry
            if slot.entry == NULL:
                return False
            if slot.hash == key_hash:
                if slot.entry.key == <PyObject*>key:
                    return True
                if not (PyUnicode_CheckExact(key) and PyUnicode_CheckExact(<object>slot.entry.key)):
                    return self.search(key, key_hash, found)
                if PyUnicode_Compare(key, <object>slot.entry.key) == 0:
                    return True
            index = (index + 1) & self.mask


cdef inline size_t home_of(EntryTable table, Py_hash_t key_hash) noexcept:
    """The slot to look at first. Small ints hash to themselves: a product spreads them."""
    return (<uint64_t>key_hash * <uint64_t>0x9E3779B97F4A7C15) >> table.shift

# cython: language_level=3, binding=False, cdivision=True
"""`EntryTable`: a hash table from keys to entries, and the memory of the entries.

It is what makes a cache safe for threads without a lock. Compiled code is never interrupted
by another thread unless it runs Python code, and Python code may hide in the `__eq__` of a
key and in the destructor of a key or a value. So:

- `find` alone compares keys. When the table has changed during a comparison it starts again,
  unless it has found what it looks for: what it returns holds at the moment when it returns.
- Nothing else compares keys or releases an object. An entry is removed by its address. What
  the caller does between `find` and `release` is one step for all other threads.
- Dropped entries are chained, and `release` lets go of their keys and values, and calls
  `on_evict`, when the change is complete.

A dict would compare keys when an entry is added and when it is deleted. Open addressing with
linear probing; an entry that leaves moves the ones behind it up, so nothing has to be cleaned
up later. Entries are cut from chunks and used again: what comes in for what goes out
allocates nothing, so it cannot start the garbage collector, either.
"""

from cpython.exc cimport PyErr_SetObject, PyErr_WriteUnraisable
from cpython.object cimport Py_EQ, PyObject, PyObject_RichCompareBool
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free

from sluicegate.cache._entry cimport Entry, Link

__all__ = []

cdef extern from "<stdlib.h>" nogil:
    void* aligned_alloc(size_t alignment, size_t size)

cdef extern from "Python.h":
    ctypedef int (*visit_function "visitproc")(PyObject*, void*) noexcept
    ctypedef int (*traverse_function "traverseproc")(PyObject*, visit_function, void*) noexcept
    ctypedef int (*clear_function "inquiry")(PyObject*) noexcept
    ctypedef struct Type "PyTypeObject":
        traverse_function tp_traverse
        clear_function tp_clear

cdef enum:
    CACHE_LINE = 64
    SMALLEST_TABLE = 16
    MOST_PER_CHUNK = 4096
    MAX_RESTARTS = 10_000   # of one search


cdef class EntryTable:
    def __cinit__(self, size_t entry_size, on_evict):
        self.on_evict = on_evict
        self.entry_size = (entry_size + 15) & ~<size_t>15
        self._resize(SMALLEST_TABLE)

    def __dealloc__(self):
        cdef Entry* chain = NULL
        if self.slots != NULL:
            self.remove_all(&chain)
            self.release(chain)
            self.free_chunks()
            free(self.slots)

    cdef bint search(self, object key, Py_hash_t key_hash, Entry** found) except -1:
        """`find` for keys whose comparison may run Python code."""
        cdef size_t index = home_of(self, key_hash)
        cdef size_t restarts = 0
        cdef uint64_t changes
        cdef Entry* entry
        cdef object stored  # the comparison may drop the entry, and with it the key
        cdef bint is_equal
        while True:
            entry = found[0] = self.slots[index].entry
            if entry == NULL:
                return False
            if self.slots[index].hash == key_hash:
                if entry.key == <PyObject*>key:
                    return True
                changes = self.changes
                stored = <object>entry.key
                is_equal = PyObject_RichCompareBool(stored, key, Py_EQ)
                if is_equal and self.holds(index, entry, stored):
                    return True
                if self.changes != changes:
                    restarts += 1
                    if restarts == MAX_RESTARTS:
                        raise RuntimeError(f"the cache changed in each of {restarts} comparisons with {key!r}")
                    index = home_of(self, key_hash)
                    continue
            index = (index + 1) & self.mask

    cdef bint holds(self, size_t index, Entry* entry, stored) noexcept:
        """Whether the entry with this key object still is in this slot."""
        return (
            index <= self.mask
            and self.slots[index].entry == entry
            and entry.key == <PyObject*>stored
        )

    cdef int reserve(self) except -1:
        """Make sure that `add` has a slot for one more entry."""
        if 2 * (self.count + 1) > self.mask + 1:
            self._resize(2 * (self.mask + 1))
        return 0

    cdef Entry* new_entry(self) noexcept:
        """An entry whose fields are not set, or NULL when memory has run out."""
        cdef Entry* entry
        if self.free_entries == NULL:
            self._allocate_chunk()
        entry = self.free_entries
        if entry != NULL:
            self.free_entries = <Entry*>entry.link.next
            self.in_use += 1
        return entry

    cdef void free_entry(self, Entry* entry) noexcept:
        entry.link.next = <Link*>self.free_entries
        self.free_entries = entry
        self.in_use -= 1

    cdef void add(self, Entry* entry) noexcept:
        """Add an entry whose key is not there: only `find` can tell."""
        cdef size_t index = home_of(self, entry.hash)
        while self.slots[index].entry != NULL:
            index = (index + 1) & self.mask
        self.slots[index].hash = entry.hash
        self.slots[index].entry = entry
        self.count += 1
        self.changes += 1

    cdef void remove(self, Entry* entry) noexcept:
        cdef size_t hole = home_of(self, entry.hash)
        cdef size_t index
        while self.slots[hole].entry != entry:
            hole = (hole + 1) & self.mask
        index = hole
        while True:
            index = (index + 1) & self.mask
            if self.slots[index].entry == NULL:
                break
            # Move it into the hole unless that is before its home.
            if ((index - home_of(self, self.slots[index].hash)) & self.mask) >= ((index - hole) & self.mask):
                self.slots[hole] = self.slots[index]
                hole = index
        self.slots[hole].entry = NULL
        self.count -= 1
        self.changes += 1

    cdef void remove_all(self, Entry** chain) noexcept:
        """Chain all entries as removed, and leave the table empty."""
        cdef size_t index
        cdef Entry* entry
        for index in range(self.mask + 1):
            entry = self.slots[index].entry
            if entry != NULL:
                entry.place = Drop.REMOVED
                entry.link.next = <Link*>chain[0]
                chain[0] = entry
                self.slots[index].entry = NULL
        self.count = 0
        self.changes += 1

    cdef int release(self, Entry* chain) except -1:
        """Let go of the keys and values of dropped entries, and call `on_evict` for evicted ones.

        This runs Python code, and that may use the cache. The first error is raised after all
        of them were called; later ones go to `sys.unraisablehook`.
        """
        cdef Entry* entry
        cdef PyObject* key
        cdef PyObject* value
        cdef bint is_evicted
        cdef object error = None
        while chain != NULL:
            entry = chain
            chain = <Entry*>entry.link.next
            key = entry.key
            value = entry.value
            is_evicted = entry.place == Drop.EVICTED
            self.free_entry(entry)
            if is_evicted and self.on_evict is not None:
                try:
                    self.on_evict(<object>key, <object>value)
                except BaseException as raised:
                    if error is None:
                        error = raised
                    else:
                        PyErr_SetObject(type(raised), raised)
                        PyErr_WriteUnraisable(self.on_evict)
            Py_DECREF(<object>key)
            Py_XDECREF(value)
        if error is not None:
            raise error
        return 0

    cdef int shrink(self) except -1:
        """Give the memory back if no entry is in use, not even in a chain."""
        if self.in_use == 0:
            self.free_chunks()
            self._resize(SMALLEST_TABLE)
        return 0

    cdef void free_chunks(self) noexcept:
        cdef Chunk* chunk
        while self.chunks != NULL:
            chunk = self.chunks
            self.chunks = chunk.next
            free(chunk)
        self.free_entries = NULL
        self.allocated = 0

    cdef void _allocate_chunk(self) noexcept:
        """As many entries as there are already: few calls for a large cache, little for a small one."""
        cdef size_t count = min(max(self.allocated, <size_t>16), <size_t>MOST_PER_CHUNK)
        cdef size_t size = CACHE_LINE + (count * self.entry_size + CACHE_LINE - 1) // CACHE_LINE * CACHE_LINE
        cdef Chunk* chunk = <Chunk*>aligned_alloc(CACHE_LINE, size)
        cdef size_t i
        if chunk == NULL:
            return
        chunk.next = self.chunks
        self.chunks = chunk
        self.allocated += count
        self.in_use += count
        for i in range(count, 0, -1):
            self.free_entry(<Entry*>(<char*>chunk + CACHE_LINE + (i - 1) * self.entry_size))

    cdef int _resize(self, size_t size) except -1:
        """`size` slots, a power of two."""
        cdef Slot* old = self.slots
        cdef size_t old_size = self.mask + 1 if old != NULL else 0
        cdef size_t i
        cdef Slot* slots = <Slot*>calloc(size, sizeof(Slot))
        if slots == NULL:
            raise MemoryError
        self.slots = slots
        self.mask = size - 1
        self.shift = 65
        while size:
            self.shift -= 1
            size >>= 1
        self.count = 0
        for i in range(old_size):
            if old[i].entry != NULL:
                self.add(old[i].entry)
        self.changes += 1
        free(old)
        return 0


# The garbage collector sees the entries through the table. Cython knows of `on_evict` only.

cdef traverse_function traverse_fields = (<Type*>EntryTable).tp_traverse
cdef clear_function clear_fields = (<Type*>EntryTable).tp_clear


cdef int traverse(PyObject* self, visit_function visit, void* arg) noexcept:
    cdef EntryTable table = <EntryTable>self
    cdef size_t index
    cdef Entry* entry
    cdef int stop = traverse_fields(self, visit, arg)
    for index in range(table.mask + 1 if table.slots != NULL else 0):
        if stop:
            break
        entry = table.slots[index].entry
        if entry != NULL:
            stop = visit(entry.key, arg)
            if not stop and entry.value != NULL:
                stop = visit(entry.value, arg)
    return stop


cdef int clear(PyObject* self) noexcept:
    """Break the cycles. The entries stay, with None for their keys and values: queues point to them."""
    cdef EntryTable table = <EntryTable>self
    cdef size_t index = 0
    cdef Entry* entry
    cdef PyObject* key
    cdef PyObject* value
    while index <= table.mask:
        entry = table.slots[index].entry
        index += 1
        if entry != NULL:
            key = entry.key
            value = entry.value
            Py_INCREF(None)
            entry.key = <PyObject*>None
            if value != NULL:
                Py_INCREF(None)
                entry.value = <PyObject*>None
            Py_DECREF(<object>key)
            Py_XDECREF(value)
    return clear_fields(self)


(<Type*>EntryTable).tp_traverse = traverse
(<Type*>EntryTable).tp_clear = clear

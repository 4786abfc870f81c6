# cython: language_level=3, binding=False, cdivision=True
"""`KeyTable`: a segmented hash table of keys and their states, without long pauses.

A slot is (hash, key, state), 16 bytes and the doubles of the state; open addressing
with linear probing. The table is cut into segments of about a thousand keys by
the upper bits of the hash. A segment grows, shrinks and is purged by itself, so the
longest step is that of a thousand keys (some 50 us), not that of a million.

A key whose state is idle (a full bucket, an empty window) is the same as an absent
one. Such keys are dropped in small steps: a sweep goes round the slots, a few at each
call that asks for it, and a segment that is about to grow drops its own first. A live
key is never dropped.

`last_eviction` is the newest time at which a key was dropped. Should the clock step back
behind it, an absent key may be one that was in use at that time.

Keys are str, bytes, int and tuples of them, exactly; so comparing and freeing them
runs no code but the interpreter's own, and the table cannot change underneath.
"""

from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.math cimport INFINITY
from libc.string cimport memcpy

from sluicegate._minmax cimport fast_max
from sluicegate.limits._limit_set cimport limit_set_clear, limit_set_free, limit_set_is_idle

__all__ = []

cdef enum:
    KEYS_PER_SEGMENT = 1024
    MAX_SEGMENTS = 1 << 20
    MIN_SEGMENT_SIZE = 8
    OVERFLOW_STATES = 1024

cdef class KeyTable:
    def __cinit__(self, size_t max_keys):
        cdef size_t wanted = max_keys // KEYS_PER_SEGMENT
        cdef int bits = 0
        while (<size_t>1 << bits) < wanted and (<size_t>1 << bits) < MAX_SEGMENTS:
            bits += 1
        self._segment_count = <size_t>1 << bits
        self._shift = 64 - bits
        self.last_eviction = -INFINITY
        self._segments = <Segment*>PyMem_Calloc(self._segment_count, sizeof(Segment))
        if self._segments == NULL:
            raise MemoryError

    def __dealloc__(self):
        cdef size_t i, j
        cdef Slot* slot
        if self._segments == NULL:
            return
        for i in range(self._segment_count):
            for j in range(self._segments[i].size):
                slot = slot_at(self, &self._segments[i], j)
                if slot.key != NULL:
                    limit_set_free(&self.limit_set, state_in(slot))
                    Py_DECREF(<object>slot.key)
            PyMem_Free(self._segments[i].slots)
        PyMem_Free(self._segments)
        if self.overflow != NULL:
            for i in range(<size_t>OVERFLOW_STATES):
                limit_set_free(&self.limit_set, self.overflow + i * self.limit_set.words)
            PyMem_Free(self.overflow)

    cdef void set_limits(self, LimitSet* limit_set) noexcept:
        """Before the first key."""
        self.limit_set = limit_set[0]
        self._stride = sizeof(Slot) + limit_set.words * sizeof(double)

    cdef double* add(self, object key, Py_hash_t key_hash, double now) except NULL:
        """Add a key that is not there, with an idle state."""
        cdef Segment* segment = segment_of(self, key_hash)
        cdef Slot* slot
        cdef size_t index
        if (segment.count + 1) * 4 > segment.size * 3:
            self._purge(segment, now)
            if (segment.count + 1) * 2 > segment.size:
                if self._resize(segment, segment.size * 2 if segment.size else MIN_SEGMENT_SIZE) < 0:
                    raise MemoryError
        index = mix(key_hash) & (segment.size - 1)
        slot = slot_at(self, segment, index)
        while slot.key != NULL:
            index = (index + 1) & (segment.size - 1)
            slot = slot_at(self, segment, index)
        Py_INCREF(key)
        slot.key = <PyObject*>key
        slot.key_hash = key_hash
        limit_set_clear(&self.limit_set, state_in(slot))
        segment.count += 1
        self.count += 1
        return state_in(slot)

    cdef int remove(self, object key, Py_hash_t key_hash) except -1:
        """Drop a key, idle or not; 1 when it was there."""
        cdef Segment* segment = segment_of(self, key_hash)
        cdef Slot* found = lookup(self, segment, key, key_hash)
        if found == NULL:
            return 0
        self._delete(segment, (<char*>found - segment.slots) // self._stride)
        return 1

    cdef int allocate_overflow(self) except -1:
        """Allocate the states that keys share when the table has its most keys."""
        cdef int i
        if self.overflow == NULL:
            self.overflow = <double*>PyMem_Calloc(OVERFLOW_STATES, self.limit_set.words * sizeof(double))
            if self.overflow == NULL:
                raise MemoryError
            for i in range(OVERFLOW_STATES):
                limit_set_clear(&self.limit_set, self.overflow + i * self.limit_set.words)
        return 0

    cdef double* overflow_state(self, Py_hash_t key_hash) noexcept:
        return self.overflow + (mix(key_hash) & (OVERFLOW_STATES - 1)) * self.limit_set.words

    cdef void sweep(self, double now, int steps) noexcept:
        """Look at the next `steps` slots and drop those that are idle."""
        cdef Segment* segment
        cdef Slot* slot
        while steps > 0:
            steps -= 1
            segment = &self._segments[self._sweep_segment]
            if self._sweep_slot >= segment.size:
                # Memory that was needed once goes back; -1 (none to be had) leaves it as it is.
                if segment.size > MIN_SEGMENT_SIZE and segment.count * 8 < segment.size:
                    self._resize(segment, segment.size // 4)
                self._sweep_slot = 0
                self._sweep_segment = (self._sweep_segment + 1) & (self._segment_count - 1)
                continue
            slot = slot_at(self, segment, self._sweep_slot)
            if slot.key != NULL and limit_set_is_idle(&self.limit_set, state_in(slot), now):
                self.last_eviction = fast_max(self.last_eviction, now)
                self._delete(segment, self._sweep_slot)  # may move another key here
            else:
                self._sweep_slot += 1

    cdef void _purge(self, Segment* segment, double now) noexcept:
        cdef size_t index = 0
        cdef Slot* slot
        while index < segment.size:
            slot = slot_at(self, segment, index)
            if slot.key != NULL and limit_set_is_idle(&self.limit_set, state_in(slot), now):
                self.last_eviction = fast_max(self.last_eviction, now)
                self._delete(segment, index)
            else:
                index += 1

    cdef int _resize(self, Segment* segment, size_t size) noexcept:
        cdef char* slots = <char*>PyMem_Calloc(size, self._stride)
        cdef char* old = segment.slots
        cdef size_t old_size = segment.size
        cdef size_t i, index
        cdef Slot* slot
        if slots == NULL:
            return -1
        segment.slots = slots
        segment.size = size
        for i in range(old_size):
            slot = <Slot*>(old + i * self._stride)
            if slot.key != NULL:
                index = mix(slot.key_hash) & (size - 1)
                while slot_at(self, segment, index).key != NULL:
                    index = (index + 1) & (size - 1)
                memcpy(slot_at(self, segment, index), slot, self._stride)
        PyMem_Free(old)
        return 0

    cdef void _delete(self, Segment* segment, size_t hole) noexcept:
        """Free a slot and close the gap, so that no probe ends before its key."""
        cdef Slot* slot = slot_at(self, segment, hole)
        cdef object key = <object>slot.key
        cdef size_t mask = segment.size - 1
        cdef size_t index = hole, home
        limit_set_free(&self.limit_set, state_in(slot))
        Py_DECREF(key)
        while True:
            index = (index + 1) & mask
            slot = slot_at(self, segment, index)
            if slot.key == NULL:
                break
            home = mix(slot.key_hash) & mask
            # It may fill the hole unless its probe starts behind the hole.
            if ((index - home) & mask) >= ((index - hole) & mask):
                memcpy(slot_at(self, segment, hole), slot, self._stride)
                hole = index
        slot_at(self, segment, hole).key = NULL
        segment.count -= 1
        self.count -= 1

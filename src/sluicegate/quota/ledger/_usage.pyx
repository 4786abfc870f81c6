# cython: language_level=3, boundscheck=False, wraparound=False
"""The usage that a report adds, and the totals of all reports of a slot.

Both refer to a bucket by its number in the service ledger they come from.
"""

from libc.stdlib cimport free, realloc
from libc.string cimport memset

__all__ = ["Usage"]


cdef class SlotTotals:
    """What all nodes together consumed and refused in one slot, by bucket."""

    def __cinit__(self, Py_ssize_t room):
        self.consumed = NULL
        self.rejected = NULL
        self.room = 0
        self.grow(room)

    def grow(self, Py_ssize_t room):
        cdef double *consumed = <double *> realloc(self.consumed, room * sizeof(double))
        if consumed == NULL:
            raise MemoryError
        self.consumed = consumed
        cdef double *rejected = <double *> realloc(self.rejected, room * sizeof(double))
        if rejected == NULL:
            raise MemoryError
        self.rejected = rejected
        memset(self.consumed + self.room, 0, (room - self.room) * sizeof(double))
        memset(self.rejected + self.room, 0, (room - self.room) * sizeof(double))
        self.room = room

    def __dealloc__(self):
        free(self.consumed)
        free(self.rejected)


cdef class Usage:
    """What is new in one report, for one service: the amounts since the report before it."""

    def __cinit__(self, str node, int slots, list names):
        self.node = node
        self.slots = slots
        self.names = names
        self.rows = NULL
        self.count = self.room = 0

    def __dealloc__(self):
        free(self.rows)

    cdef int push(self, int bucket, double consumed, unsigned int rejected, unsigned int requests) except -1:
        cdef UsageRow *grown
        if self.count == self.room:
            grown = <UsageRow *> realloc(self.rows, max(8, 2 * self.room) * sizeof(UsageRow))
            if grown == NULL:
                raise MemoryError
            self.rows = grown
            self.room = max(8, 2 * self.room)
        self.rows[self.count] = UsageRow(bucket, consumed, rejected, requests)
        self.count += 1
        return 0

    def __len__(self):
        """How many buckets something is new of."""
        return self.count

    @property
    def consumed(self):
        """user -> resource -> amount"""
        return self._as_dict(0)

    @property
    def rejected(self):
        """user -> resource -> number of requests"""
        return self._as_dict(1)

    @property
    def requests(self):
        """user -> resource -> number of requests that consumed some of it"""
        return self._as_dict(2)

    def _as_dict(self, int which):
        cdef Py_ssize_t i
        result = {}
        for i in range(self.count):
            user, resource = self.names[self.rows[i].bucket]
            if which == 0:
                value = self.rows[i].consumed
            elif which == 1:
                value = self.rows[i].rejected
            else:
                value = self.rows[i].requests
            if value:
                result.setdefault(user, {})[resource] = value
        return result

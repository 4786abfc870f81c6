# cython: language_level=3, boundscheck=False, wraparound=False
"""The ids of a service's buckets: a slot map from a bucket's number to its (user, resource).

The number of a forgotten bucket is reused. A reference to a bucket therefore stores the number and
its generation; it is stale when the generation has changed. Generations wrap after 2**32 bindings.
"""

from libc.stdlib cimport free, realloc
from libc.string cimport memset

__all__ = ["BucketIds"]


cdef class BucketIds:
    def __cinit__(self):
        self.names = []
        self.generations = NULL
        self.room = 0
        self.last_generation = 0

    def __dealloc__(self):
        free(self.generations)

    def __len__(self):
        return len(self.names)

    cdef int bind(self, Py_ssize_t number, tuple name) except -1:
        """Bind a number, a free one or the next, to a (user, resource)."""
        cdef Py_ssize_t room = self.room
        cdef unsigned int *grown
        if number >= room:
            room = max(16, room + room // 2)
            grown = <unsigned int *> realloc(self.generations, room * sizeof(unsigned int))
            if grown == NULL:
                raise MemoryError
            memset(grown + self.room, 0, (room - self.room) * sizeof(unsigned int))
            self.generations = grown
            self.room = room
        if number == len(self.names):
            self.names.append(name)
        else:
            self.names[number] = name
        self.last_generation += 1
        if self.last_generation == 0:
            self.last_generation = 1
        self.generations[number] = self.last_generation
        return 0

    cdef int release(self, Py_ssize_t number) except -1:
        """Free a number for another bucket."""
        self.names[number] = None
        self.generations[number] = 0
        return 0

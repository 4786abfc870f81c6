# cython: language_level=3, boundscheck=False, wraparound=False
"""Who is behind a bucket's number.

A bucket that is forgotten leaves its number to another one. Whoever has noted a number notes the
serial with it: it is another one when the number has changed hands. Serials wrap after four
thousand million buckets.
"""

from libc.stdlib cimport free, realloc
from libc.string cimport memset

__all__ = ["Register"]


cdef class Register:
    def __cinit__(self):
        self.names = []
        self.serials = NULL
        self.room = 0
        self.last = 0

    def __dealloc__(self):
        free(self.serials)

    def __len__(self):
        return len(self.names)

    cdef int enter(self, Py_ssize_t number, tuple name) except -1:
        """Give a number to a name; it is free, or the next one."""
        cdef Py_ssize_t room = self.room
        cdef unsigned int *grown
        if number >= room:
            room = max(16, room + room // 2)
            grown = <unsigned int *> realloc(self.serials, room * sizeof(unsigned int))
            if grown == NULL:
                raise MemoryError
            memset(grown + self.room, 0, (room - self.room) * sizeof(unsigned int))
            self.serials = grown
            self.room = room
        if number == len(self.names):
            self.names.append(name)
        else:
            self.names[number] = name
        self.last += 1
        if self.last == 0:
            self.last = 1
        self.serials[number] = self.last
        return 0

    cdef int strike(self, Py_ssize_t number) except -1:
        """Nobody is behind a number any more."""
        self.names[number] = None
        self.serials[number] = 0
        return 0

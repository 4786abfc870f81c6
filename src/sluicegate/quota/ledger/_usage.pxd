cdef class SlotTotals:
    cdef double *consumed
    cdef double *rejected
    cdef Py_ssize_t room

cdef struct UsageRow:
    int bucket
    double consumed
    unsigned int rejected, requests

cdef class Usage:
    cdef readonly str node
    cdef readonly int slots
    cdef list names
    cdef UsageRow *rows
    cdef Py_ssize_t count, room
    cdef int push(self, int bucket, double consumed, unsigned int rejected, unsigned int requests) except -1

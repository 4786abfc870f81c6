# cython: language_level=3
cimport cython


@cython.final
cdef class DecisionCounters:
    cdef readonly long long allowed
    cdef readonly long long denied
    cdef readonly long long decided_locally

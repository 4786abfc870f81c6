# cython: language_level=3
"""`Memory`: a file mapped into memory, for as long as the object lives.

Not Python's mmap: that keeps a descriptor of its own, and with it, in every child that
is forked, the locks of its parent.
"""


cdef class Memory:
    cdef char* start
    cdef size_t size

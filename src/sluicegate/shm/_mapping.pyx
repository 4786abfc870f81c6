# cython: language_level=3, binding=False
"""`Memory`: mapping and unmapping a file."""

from posix.mman cimport MAP_FAILED, MAP_SHARED, PROT_READ, PROT_WRITE, mmap, munmap

from libc.errno cimport errno

import os

from sluicegate.errors import ConfigError

__all__ = []


cdef class Memory:
    def __init__(self, int descriptor, size_t size):
        cdef void* start = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0)
        if start == MAP_FAILED:
            raise ConfigError(f"cannot map {size} bytes into memory: {os.strerror(errno)}")
        self.start = <char*>start
        self.size = size

    def __dealloc__(self):
        if self.start != NULL:
            munmap(self.start, self.size)

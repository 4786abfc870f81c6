# cython: language_level=3
"""`Cache`: no fields of its own."""

from sluicegate.cache._bounded_table cimport BoundedTable


cdef class Cache(BoundedTable):
    pass

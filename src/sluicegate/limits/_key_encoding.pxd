# cython: language_level=3
from sluicegate.shm._lockfree_table cimport Key

cdef object key_of(object given, Key* key)

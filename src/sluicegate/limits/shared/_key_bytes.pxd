# cython: language_level=3
from sluicegate.limits.shared._chains cimport Key

cdef object key_of(object given, Key* key)

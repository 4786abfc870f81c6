# cython: language_level=3
from headgate.limits.shared._chains cimport Key

cdef object key_of(object given, Key* key)

# cython: language_level=3
from sluicegate.shm._lockfree_table cimport Key

cdef object key_of(object given, Key* key)
cdef object bytes_of(object given, const char** data, Py_ssize_t* size, unsigned char* kind)

cdef object plain(object key, int depth=*)

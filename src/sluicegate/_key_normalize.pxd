cdef object normalize_key(object key, int depth=*)

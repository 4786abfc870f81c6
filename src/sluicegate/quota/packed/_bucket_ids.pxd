cdef class BucketIds:
    cdef list names  # bucket -> (user, resource), or None
    cdef unsigned int *generations  # bucket -> number of its binding, which no other binding has; 0: free
    cdef Py_ssize_t room
    cdef unsigned int last_generation  # of the newest binding
    cdef int bind(self, Py_ssize_t number, tuple name) except -1
    cdef int release(self, Py_ssize_t number) except -1

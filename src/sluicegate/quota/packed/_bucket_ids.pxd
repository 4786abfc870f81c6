cdef class Register:
    cdef list names  # bucket -> (user, resource), or None
    cdef unsigned int *serials  # bucket -> which of all that were ever entered it is; 0: none
    cdef Py_ssize_t room
    cdef unsigned int last  # the newest serial
    cdef int enter(self, Py_ssize_t number, tuple name) except -1
    cdef int strike(self, Py_ssize_t number) except -1

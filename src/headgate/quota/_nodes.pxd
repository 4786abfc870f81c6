cdef class Nodes:
    cdef long long *reported  # the last slot that a node has reported in full
    cdef int *lead  # how many slots after an assignment its quota is for
    cdef Py_ssize_t room
    cdef dict numbers  # node id -> number
    cdef list names  # number -> node id, or None where a number is free
    cdef list free
    cdef int number_of(self, str node_id)

cdef class Nodes:
    cdef long long *reported  # the last slot that a node has reported in full
    cdef int *lead  # how many slots after an assignment its quota is for
    cdef long long *alone  # the last slot in which it is taken to live on its safe share; 0: it is not
    cdef public long long awaited_until  # before this slot there may be nodes that had no time to come; 0: not known
    cdef long long back  # the slot in which we came back, after we were away; 0: we were not
    cdef Py_ssize_t room
    cdef dict numbers  # node id -> number
    cdef list names  # number -> node id, or None where a number is free
    cdef list free
    cdef int guess(self, long long slot) noexcept
    cdef int number_of(self, str node_id)

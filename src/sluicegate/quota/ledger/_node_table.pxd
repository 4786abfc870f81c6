cdef class NodeTable:
    cdef long long *reported  # the last slot that a node has reported in full
    cdef int *lead_slots  # how many slots after an assignment its quota is for
    cdef long long *autonomous_until  # the last slot in which it is assumed to consume its safe share; 0: none
    cdef public long long warmup_until  # before this slot nodes may still be connecting; 0: not known
    cdef long long resumed_at  # the slot in which the central resumed after an outage; 0: there was none
    cdef Py_ssize_t room
    cdef dict numbers  # node id -> number
    cdef list names  # number -> node id, or None where a number is free
    cdef list free
    cdef int estimated_count(self, long long slot) noexcept
    cdef int number_of(self, str node_id)

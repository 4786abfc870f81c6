cimport cython

cdef extern from *:
    """
    /* A node this many slots behind has missed two reports: it is assumed gone. */
    #define NODE_TIMEOUT 3
    """
    const int NODE_TIMEOUT


@cython.final
cdef class NodeTable:
    cdef long long *reported  # the last slot that a node has reported in full
    cdef int *lead_slots  # how many slots after an assignment its quota is for
    cdef long long *autonomous_until  # the last slot in which it is assumed to consume its safe share; 0: none
    cdef public long long warmup_until  # before this slot nodes may still be connecting; 0: not known
    cdef readonly long long resumed_at  # the slot in which the central resumed after an outage, or took over; 0: never
    cdef public long long led_until  # up to which slot a leader was heard before that outage, as nodes tell; 0: unknown
    cdef Py_ssize_t room
    cdef dict numbers  # node id -> number
    cdef list names  # number -> node id, or None where a number is free
    cdef list free
    cdef int estimated_count(self, long long slot) noexcept
    cdef int number_of(self, str node_id)

    cdef inline bint is_silent(self, int node, long long slot) noexcept nogil:
        """Whether a node is not heard any more, or not yet after an outage of ours."""
        return slot - self.reported[node] >= NODE_TIMEOUT or self.autonomous_until[node] >= slot

    cdef inline bint is_classic(self, int node) noexcept nogil:
        """Whether its quota is for whole slots: it knows nothing of credit."""
        return self.lead_slots[node] == 2

cdef class Decision:
    cdef readonly bint allowed
    cdef readonly object limit
    cdef readonly double remaining
    cdef readonly double retry_after
    cdef readonly double reset_after
    cdef tuple _fields(self)


cdef inline Decision decide(
    bint allowed, object limit, double remaining, double retry_after, double reset_after
):
    cdef Decision decision = Decision.__new__(Decision)
    decision.allowed = allowed
    decision.limit = limit
    decision.remaining = remaining
    decision.retry_after = retry_after
    decision.reset_after = reset_after
    return decision

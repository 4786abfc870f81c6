# cython: language_level=3, cdivision=True
"""`LimitSet`: all limits of one key. A key's state is the states of these limits in a row.

`Keyed` and `SharedKeyed` differ in where they store the state; what they do with it is here,
so that they give the same answers. Several limits are charged all or none.
"""

from sluicegate.limits._algorithms cimport (
    Params, MAX_WORDS, state_charge, state_idle_after, state_prepare, state_wait, words_of,
)
from sluicegate.limits._decision cimport Decision
from sluicegate._minmax cimport fast_max
from sluicegate.limits._limiter_clock cimport LimiterClock

cdef enum:
    MAX_LIMITS = 8
    MAX_SET_WORDS = MAX_LIMITS * MAX_WORDS

cdef struct LimitSet:
    int count
    int words           # doubles of state per key
    double max_cost     # the largest cost that could ever pass
    Params[MAX_LIMITS] params


cdef inline double limit_set_wait(LimitSet* limit_set, double* state, double now, double cost) noexcept nogil:
    """Seconds until every limit has room for `cost`."""
    cdef int i
    cdef double wait = 0.0
    for i in range(limit_set.count):
        wait = fast_max(wait, state_wait(&limit_set.params[i], state, now, cost))
        state += words_of(limit_set.params[i].algorithm)
    return wait


cdef inline int limit_set_charge(LimitSet* limit_set, double* state, double now, double cost) except -1:
    """Charge every limit; MemoryError, and none is charged."""
    cdef int i
    cdef double* cursor = state
    for i in range(limit_set.count):
        if state_prepare(&limit_set.params[i], cursor) < 0:
            raise MemoryError
        cursor += words_of(limit_set.params[i].algorithm)
    for i in range(limit_set.count):
        state_charge(&limit_set.params[i], state, now, cost)
        state += words_of(limit_set.params[i].algorithm)
    return 0


cdef inline bint limit_set_is_idle(LimitSet* limit_set, double* state, double now) noexcept nogil:
    """Whether the state is the same as no state."""
    cdef int i
    for i in range(limit_set.count):
        if state_idle_after(&limit_set.params[i], state, now) > 0.0:
            return False
        state += words_of(limit_set.params[i].algorithm)
    return True


cdef Params make_params(int algorithm, object limit, LimiterClock clock) except *
cdef Params params_from_numbers(int algorithm, double amount, double per, double burst, LimiterClock clock) except *
cdef object limit_of(double amount, double per, double burst)
cdef int make_limit_set(object algorithm, tuple limits, LimiterClock clock, LimitSet* limit_set) except -1
cdef void limit_set_clear(LimitSet* limit_set, double* state) noexcept nogil
cdef void limit_set_free(LimitSet* limit_set, double* state) noexcept nogil
cdef list limit_set_marks(LimitSet* limit_set, double* state, double now)
cdef int limit_set_refund(LimitSet* limit_set, double* state, double now, double cost, list marks) except -1
cdef Decision limit_set_decision(
    LimitSet* limit_set, double* state, tuple limits, double now, double cost, double wait
)
cdef void migrate_state(LimitSet* old, double* old_state, LimitSet* limit_set, double* state, double now) noexcept
cdef void exhaust_state(LimitSet* limit_set, double* state, double now) noexcept
cdef object bad_cost(double cost, double max_cost)
cdef int check_whole_cost(LimitSet* limit_set, double cost) except -1

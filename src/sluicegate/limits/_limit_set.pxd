# cython: language_level=3, cdivision=True
"""All limits of one key: its rules, and its state, which is a cell for each of them in a row.

`Keyed` and `SharedKeyed` differ in where they keep a state; what they do with it is here,
so that they give the same answers. Several limits are all or nothing.
"""

from sluicegate.limits._algorithms cimport (
    Rule, WORDS, cell_charge, cell_idle_after, cell_prepare, cell_wait, words_of,
)
from sluicegate.limits._decision cimport Decision
from sluicegate._minmax cimport larger
from sluicegate.limits._limiter_clock cimport Timing

cdef enum:
    MOST_RULES = 8
    MOST_WORDS = MOST_RULES * WORDS

cdef struct Rules:
    int count
    int words           # doubles of state per key
    double most         # the largest cost that could ever pass
    Rule[MOST_RULES] rule


cdef inline double state_wait(Rules* rules, double* state, double now, double cost) noexcept nogil:
    """Seconds until every limit has room for `cost`."""
    cdef int i
    cdef double wait = 0.0
    for i in range(rules.count):
        wait = larger(wait, cell_wait(&rules.rule[i], state, now, cost))
        state += words_of(rules.rule[i].algorithm)
    return wait


cdef inline int state_charge(Rules* rules, double* state, double now, double cost) except -1:
    """Charge every limit; MemoryError, and none is charged."""
    cdef int i
    cdef double* cell = state
    for i in range(rules.count):
        if cell_prepare(&rules.rule[i], cell) < 0:
            raise MemoryError
        cell += words_of(rules.rule[i].algorithm)
    for i in range(rules.count):
        cell_charge(&rules.rule[i], state, now, cost)
        state += words_of(rules.rule[i].algorithm)
    return 0


cdef inline bint state_is_idle(Rules* rules, double* state, double now) noexcept nogil:
    """It is as good as none."""
    cdef int i
    for i in range(rules.count):
        if cell_idle_after(&rules.rule[i], state, now) > 0.0:
            return False
        state += words_of(rules.rule[i].algorithm)
    return True


cdef int make_rules(object algorithm, tuple limits, Timing timing, Rules* rules) except -1
cdef void state_clear(Rules* rules, double* state) noexcept nogil
cdef void state_free(Rules* rules, double* state) noexcept nogil
cdef list state_marks(Rules* rules, double* state, double now)
cdef int state_refund(Rules* rules, double* state, double now, double cost, list marks) except -1
cdef Decision state_decision(
    Rules* rules, double* state, tuple limits, double now, double cost, double wait
)
cdef void state_carry(Rules* old, double* old_state, Rules* rules, double* state, double now) noexcept
cdef void state_use_up(Rules* rules, double* state, double now) noexcept
cdef object bad_cost(double cost, double most)
cdef int check_whole(Rules* rules, double cost) except -1

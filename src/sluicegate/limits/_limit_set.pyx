# cython: language_level=3, binding=False, cdivision=True
"""The functions on a key's state that are not on the path of every call."""

from libc.math cimport INFINITY, floor

from sluicegate.limits._algorithms cimport (
    FIXED_WINDOW, Rule, SLIDING_COUNTER, SLIDING_WINDOW, TOKEN_BUCKET, cell_charge, cell_clear,
    cell_copy, cell_free, cell_idle_after, cell_mark, cell_prepare, cell_refund, cell_used,
    cell_wait, words_of,
)
from sluicegate.limits._decision cimport Decision, decide
from sluicegate._minmax cimport larger, smaller
from sluicegate.limits._rules cimport make_rule
from sluicegate.limits._limiter_clock cimport Timing

from sluicegate.limits.limit import Limit

__all__ = []

_ALGORITHMS = {
    "token_bucket": TOKEN_BUCKET,
    "leaky_bucket": TOKEN_BUCKET,
    "fixed_window": FIXED_WINDOW,
    "sliding_counter": SLIDING_COUNTER,
    "sliding_window": SLIDING_WINDOW,
}


cdef int make_rules(object algorithm, tuple limits, Timing timing, Rules* rules) except -1:
    """Turn limits into the numbers of the algorithm, or say what is wrong with them."""
    cdef int i
    if not isinstance(algorithm, str) or algorithm not in _ALGORITHMS:
        raise ValueError(f"algorithm must be one of {', '.join(_ALGORITHMS)}, got {algorithm!r}")
    if len(limits) > MOST_RULES:
        raise ValueError(f"a key has at most {MOST_RULES} limits, got {len(limits)}")
    rules.count = len(limits)
    rules.words = rules.count * words_of(_ALGORITHMS[algorithm])
    rules.most = INFINITY
    for i in range(rules.count):
        limit = limits[i]
        if algorithm == "leaky_bucket":
            if limit.burst is not None:
                raise ValueError(f"{limit}: a leaky bucket lets one through per beat and has no burst")
            limit = Limit(limit.amount, limit.per, 1.0)
        rules.rule[i] = make_rule(_ALGORITHMS[algorithm], limit, timing)
        rules.most = smaller(rules.most, rules.rule[i].limit)
    return 0


cdef void state_clear(Rules* rules, double* state) noexcept nogil:
    cdef int i
    for i in range(rules.count):
        cell_clear(rules.rule[i].algorithm, state)
        state += words_of(rules.rule[i].algorithm)


cdef void state_free(Rules* rules, double* state) noexcept nogil:
    cdef int i
    for i in range(rules.count):
        cell_free(rules.rule[i].algorithm, state)
        state += words_of(rules.rule[i].algorithm)


cdef list state_marks(Rules* rules, double* state, double now):
    """Where a charge was put just now, to be given back later."""
    cdef int i
    marks = []
    for i in range(rules.count):
        marks.append(cell_mark(&rules.rule[i], state, now))
        state += words_of(rules.rule[i].algorithm)
    return marks


cdef int state_refund(Rules* rules, double* state, double now, double cost, list marks) except -1:
    """Give back what was taken at `marks`, or (None) just now."""
    cdef int i
    cdef double since
    for i in range(rules.count):
        since = cell_mark(&rules.rule[i], state, now) if marks is None else marks[i]
        cell_refund(&rules.rule[i], state, now, cost, since)
        state += words_of(rules.rule[i].algorithm)
    return 0


cdef Decision state_decision(
    Rules* rules, double* state, tuple limits, double now, double cost, double wait
):
    """From the limit that makes one wait the longest, or else has the least left.

    `state` is as it was found by a call that must `wait`, or as it was left by one that need not.
    """
    cdef Rule* rule
    cdef double this_wait, left, decided_by = -1.0, least = INFINITY, reset_after = 0.0
    cdef int i, index = 0
    for i in range(rules.count):
        rule = &rules.rule[i]
        left = larger(rule.limit - cell_used(rule, state, now), 0.0)
        this_wait = cell_wait(rule, state, now, cost) if wait > 0.0 else 0.0
        if this_wait > decided_by or (this_wait == decided_by and left < least):
            index = i
            decided_by = this_wait
            least = left
            reset_after = cell_idle_after(rule, state, now)
        state += words_of(rule.algorithm)
    return decide(wait == 0.0, limits[index], least, wait, larger(reset_after, wait))


cdef void state_carry(
    Rules* old, double* old_state, Rules* rules, double* state, double now
) noexcept:
    """Bring what was used under the old rules to the new ones, which may have some use already.

    A limit over the same time takes over its cell as it is, or a bucket's use (the first
    over that time from the first, the second from the second). One over another time takes
    the largest use there was, up to its own limit: better too strict for a while than to
    forgive. Where there is no memory for a log, it starts afresh.
    """
    cdef int i, j, before
    cdef double* cell
    cdef double used, wanted, has
    cdef bint is_same, is_settled
    for i in range(rules.count):
        has = cell_used(&rules.rule[i], state, now)
        cell = old_state
        wanted = 0.0
        is_settled = False
        before = 0
        for j in range(i):
            before += rules.rule[j].per == rules.rule[i].per
        for j in range(old.count):
            used = cell_used(&old.rule[j], cell, now)
            is_same = old.rule[j].per == rules.rule[i].per
            if is_same and before > 0:
                before -= 1
                wanted = larger(wanted, used)
            elif is_same and not is_settled:
                wanted = used
                is_settled = True
                if has == 0.0 and cell_copy(&old.rule[j], cell, &rules.rule[i], state):
                    has = used
            elif not is_settled:
                wanted = larger(wanted, used)
            cell += words_of(old.rule[j].algorithm)
        if not is_settled:
            wanted = smaller(wanted, rules.rule[i].limit)
        if wanted > has and cell_prepare(&rules.rule[i], state) == 0:
            cell_charge(&rules.rule[i], state, now, wanted - has)
        state += words_of(rules.rule[i].algorithm)


cdef void state_use_up(Rules* rules, double* state, double now) noexcept:
    """For a key of which nobody knows what it has used."""
    cdef int i
    for i in range(rules.count):
        if cell_prepare(&rules.rule[i], state) == 0:
            cell_charge(&rules.rule[i], state, now, rules.rule[i].limit)
        state += words_of(rules.rule[i].algorithm)


cdef object bad_cost(double cost, double most):
    return ValueError(
        f"cost must be above 0 and at most {most:g}, which is all that is let through at once; got {cost!r}"
    )


cdef int check_whole(Rules* rules, double cost) except -1:
    if rules.rule[0].algorithm == SLIDING_WINDOW and cost != floor(cost):
        raise ValueError(f"cost must be a whole number for sliding_window, got {cost!r}")
    return 0

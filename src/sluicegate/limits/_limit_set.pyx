# cython: language_level=3, binding=False, cdivision=True
"""`LimitSet`: making one from `Limit`s, and the functions that are not on the path of every call."""

from libc.math cimport INFINITY, floor, fmod

from sluicegate.limits._algorithms cimport (
    FIXED_WINDOW, Params, SLIDING_COUNTER, SLIDING_WINDOW, TOKEN_BUCKET, state_charge, state_clear,
    state_copy, state_free, state_idle_after, state_mark, state_prepare, state_refund, state_used,
    state_wait, words_of,
)
from sluicegate.limits._decision cimport Decision, decide
from sluicegate._minmax cimport fast_max, fast_min
from sluicegate.limits._limiter_clock cimport LimiterClock

from sluicegate.limits.limit import Limit

__all__ = []

_ALGORITHMS = {
    "token_bucket": TOKEN_BUCKET,
    "leaky_bucket": TOKEN_BUCKET,
    "fixed_window": FIXED_WINDOW,
    "sliding_counter": SLIDING_COUNTER,
    "sliding_window": SLIDING_WINDOW,
}

cdef double MAX_EXACT = 9007199254740992.0  # 2^53: beyond it a double no longer counts one by one


cdef Params make_params(int algorithm, object limit, LimiterClock clock) except *:
    """Validate `limit` for the algorithm and compute its parameters."""
    return params_from_numbers(algorithm, limit.amount, limit.per, limit.burst or 0.0, clock)


cdef Params params_from_numbers(
    int algorithm, double amount, double per, double burst, LimiterClock clock
) except *:
    """As `make_params`, from the limit's numbers; a burst of 0 means none."""
    cdef Params params
    params.algorithm = algorithm
    params.rate = amount / per
    params.per = per
    params.clock_epsilon = clock.epsilon
    if not 1e-100 < params.rate < MAX_EXACT:
        limit = limit_of(amount, per, burst)
        raise ValueError(f"invalid limit: {limit} is {params.rate:g} per second; expected above 1e-100 and below 2^53")
    if algorithm == TOKEN_BUCKET:
        params.limit = burst if burst > 0.0 else fast_max(amount, 1.0)
        params.span = params.limit / params.rate
        params.phase = 0.0
    else:
        if burst > 0.0:
            limit = limit_of(amount, per, burst)
            raise ValueError(f"invalid limit: {limit} has a burst; only the token bucket has one")
        if algorithm == SLIDING_WINDOW and amount != floor(amount):
            limit = limit_of(amount, per, burst)
            raise ValueError(f"invalid limit: sliding_window needs a whole amount, got {limit}")
        params.limit = amount
        params.span = per
        params.phase = fmod(clock.wall, per)
        params.clock_epsilon = fast_min(params.clock_epsilon, per / 1000.0)
    params.inverse_span = 1.0 / params.span
    if params.limit > MAX_EXACT:
        limit = limit_of(amount, per, burst)
        raise ValueError(f"invalid limit: {limit} allows {params.limit:g} at once; expected at most 2^53")
    # In units: what passes in `clock_epsilon`, at least the noise of the arithmetic, and never a
    # part of a unit, or of the whole, that would matter.
    params.slack = fast_min(fast_max(1e-9, params.rate * params.clock_epsilon), 1e-3 * fast_min(params.limit, 1.0))
    return params


cdef object limit_of(double amount, double per, double burst):
    """The limit as it was written."""
    return Limit(amount, per, burst if burst > 0.0 else None)


cdef int make_limit_set(object algorithm, tuple limits, LimiterClock clock, LimitSet* limit_set) except -1:
    """Fill in `limit_set` from the limits; ValueError for limits that the algorithm cannot have."""
    cdef int i
    if not isinstance(algorithm, str) or algorithm not in _ALGORITHMS:
        raise ValueError(f"algorithm must be one of {', '.join(_ALGORITHMS)}, got {algorithm!r}")
    if len(limits) > MAX_LIMITS:
        raise ValueError(f"too many limits: a key has at most {MAX_LIMITS}, got {len(limits)}")
    limit_set.count = len(limits)
    limit_set.words = limit_set.count * words_of(_ALGORITHMS[algorithm])
    limit_set.max_cost = INFINITY
    for i in range(limit_set.count):
        limit = limits[i]
        if algorithm == "leaky_bucket":
            if limit.burst is not None:
                raise ValueError(f"invalid limit: a leaky bucket has no burst, got {limit}")
            limit = Limit(limit.amount, limit.per, 1.0)
        limit_set.params[i] = make_params(_ALGORITHMS[algorithm], limit, clock)
        limit_set.max_cost = fast_min(limit_set.max_cost, limit_set.params[i].limit)
    return 0


cdef void limit_set_clear(LimitSet* limit_set, double* state) noexcept nogil:
    cdef int i
    for i in range(limit_set.count):
        state_clear(limit_set.params[i].algorithm, state)
        state += words_of(limit_set.params[i].algorithm)


cdef void limit_set_free(LimitSet* limit_set, double* state) noexcept nogil:
    cdef int i
    for i in range(limit_set.count):
        state_free(limit_set.params[i].algorithm, state)
        state += words_of(limit_set.params[i].algorithm)


cdef list limit_set_marks(LimitSet* limit_set, double* state, double now):
    """Where a charge was put just now, to be given back later."""
    cdef int i
    marks = []
    for i in range(limit_set.count):
        marks.append(state_mark(&limit_set.params[i], state, now))
        state += words_of(limit_set.params[i].algorithm)
    return marks


cdef int limit_set_refund(LimitSet* limit_set, double* state, double now, double cost, list marks) except -1:
    """Give back what was taken at `marks`, or (None) just now."""
    cdef int i
    cdef double since
    for i in range(limit_set.count):
        since = state_mark(&limit_set.params[i], state, now) if marks is None else marks[i]
        state_refund(&limit_set.params[i], state, now, cost, since)
        state += words_of(limit_set.params[i].algorithm)
    return 0


cdef Decision limit_set_decision(
    LimitSet* limit_set, double* state, tuple limits, double now, double cost, double wait
):
    """From the limit that makes one wait the longest, or else has the least left.

    `state` is as it was found by a call that must `wait`, or as it was left by one that need not.
    """
    cdef Params* params
    cdef double this_wait, left, decided_by = -1.0, least = INFINITY, reset_after = 0.0
    cdef int i, index = 0
    for i in range(limit_set.count):
        params = &limit_set.params[i]
        left = fast_max(params.limit - state_used(params, state, now), 0.0)
        this_wait = state_wait(params, state, now, cost) if wait > 0.0 else 0.0
        if this_wait > decided_by or (this_wait == decided_by and left < least):
            index = i
            decided_by = this_wait
            least = left
            reset_after = state_idle_after(params, state, now)
        state += words_of(params.algorithm)
    return decide(wait == 0.0, limits[index], least, wait, fast_max(reset_after, wait))


cdef void migrate_state(
    LimitSet* old, double* old_state, LimitSet* limit_set, double* state, double now
) noexcept:
    """Carry what was used under the old limits over to the new ones, which may have some use already.

    A limit over the same time takes over its state as it is, or a bucket's use (the first
    over that time from the first, the second from the second). One over another time takes
    the largest use there was, up to its own limit: better too strict for a while than to
    forgive. Where there is no memory for a log, it starts afresh.
    """
    cdef int i, j, before
    cdef double* cursor
    cdef double used, wanted, has
    cdef bint is_same, is_settled
    for i in range(limit_set.count):
        has = state_used(&limit_set.params[i], state, now)
        cursor = old_state
        wanted = 0.0
        is_settled = False
        before = 0
        for j in range(i):
            before += limit_set.params[j].per == limit_set.params[i].per
        for j in range(old.count):
            used = state_used(&old.params[j], cursor, now)
            is_same = old.params[j].per == limit_set.params[i].per
            if is_same and before > 0:
                before -= 1
                wanted = fast_max(wanted, used)
            elif is_same and not is_settled:
                wanted = used
                is_settled = True
                if has == 0.0 and state_copy(&old.params[j], cursor, &limit_set.params[i], state):
                    has = used
            elif not is_settled:
                wanted = fast_max(wanted, used)
            cursor += words_of(old.params[j].algorithm)
        if not is_settled:
            wanted = fast_min(wanted, limit_set.params[i].limit)
        if wanted > has and state_prepare(&limit_set.params[i], state) == 0:
            state_charge(&limit_set.params[i], state, now, wanted - has)
        state += words_of(limit_set.params[i].algorithm)


cdef void exhaust_state(LimitSet* limit_set, double* state, double now) noexcept:
    """Charge every limit in full, for a key whose use is unknown."""
    cdef int i
    for i in range(limit_set.count):
        if state_prepare(&limit_set.params[i], state) == 0:
            state_charge(&limit_set.params[i], state, now, limit_set.params[i].limit)
        state += words_of(limit_set.params[i].algorithm)


cdef object bad_cost(double cost, double max_cost):
    return ValueError(
        f"cost must be above 0 and at most {max_cost:g}, the largest amount that can pass at once, got {cost!r}"
    )


cdef int check_whole_cost(LimitSet* limit_set, double cost) except -1:
    if limit_set.params[0].algorithm == SLIDING_WINDOW and cost != floor(cost):
        raise ValueError(f"cost must be a whole number for sliding_window, got {cost!r}")
    return 0

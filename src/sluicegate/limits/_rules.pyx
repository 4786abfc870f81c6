# cython: language_level=3, binding=False, cdivision=True
"""From a `Limit` to the numbers that the algorithms in `_algorithms.pxd` work with."""

from libc.math cimport floor, fmod

from sluicegate.limits._algorithms cimport Rule, SLIDING_WINDOW, TOKEN_BUCKET
from sluicegate._minmax cimport larger, smaller
from sluicegate.limits._limiter_clock cimport Timing

from sluicegate.limits.limit import Limit

__all__ = []

cdef double MOST = 9007199254740992.0  # 2^53: beyond it a double no longer counts one by one


cdef Rule make_rule(int algorithm, object limit, Timing timing) except *:
    """Check that `limit` makes sense for the algorithm, and prepare its numbers."""
    return rule_of(algorithm, limit.amount, limit.per, limit.burst or 0.0, timing)


cdef Rule rule_of(
    int algorithm, double amount, double per, double burst, Timing timing
) except *:
    """As `make_rule`, of the limit's numbers; a burst of 0 is none."""
    cdef Rule rule
    rule.algorithm = algorithm
    rule.rate = amount / per
    rule.per = per
    rule.tick = timing.tick
    if not 1e-100 < rule.rate < MOST:
        limit = limit_of(amount, per, burst)
        raise ValueError(f"{limit} is {rule.rate:g} per second; expected above 1e-100 and below 2^53")
    if algorithm == TOKEN_BUCKET:
        rule.limit = burst if burst > 0.0 else larger(amount, 1.0)
        rule.span = rule.limit / rule.rate
        rule.phase = 0.0
    else:
        if burst > 0.0:
            limit = limit_of(amount, per, burst)
            raise ValueError(f"{limit}: a window has no burst; only the token bucket has one")
        if algorithm == SLIDING_WINDOW and amount != floor(amount):
            limit = limit_of(amount, per, burst)
            raise ValueError(f"{limit}: the exact window counts whole calls; take a whole amount")
        rule.limit = amount
        rule.span = per
        rule.phase = fmod(timing.wall, per)
        rule.tick = smaller(rule.tick, per / 1000.0)
    rule.turns = 1.0 / rule.span
    if rule.limit > MOST:
        limit = limit_of(amount, per, burst)
        raise ValueError(f"{limit} lets {rule.limit:g} through at once; expected at most 2^53")
    # In units: what passes in a tick, at least the noise of the arithmetic, and never a
    # part of a unit, or of the whole, that would matter.
    rule.slack = smaller(larger(1e-9, rule.rate * rule.tick), 1e-3 * smaller(rule.limit, 1.0))
    return rule


cdef object limit_of(double amount, double per, double burst):
    """The limit as it was written."""
    return Limit(amount, per, burst if burst > 0.0 else None)

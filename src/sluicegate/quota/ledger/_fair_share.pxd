"""The fair shares of a bucket's nodes: the two built-in assignment rules.

A rule gets the `Demand` of each cell of a bucket (one for each node that has met the user) and
writes a share for each; fractions are dealt with after it. Neither allocates, so that an
assignment of ten million cells runs without the interpreter.
"""

from libc.math cimport INFINITY, floor

cdef struct Demand:
    double per_slot  # wanted per slot: consumed and refused; 0: idle; infinite: not known yet; below 0: gone
    double consumed  # in the last report
    double rejected  # in the last report
    long long age  # slots since the last report that had any of it
    double share  # the result of the rule


cdef extern from *:
    """
    /* The part of a bucket that waits at nodes without traffic, for traffic to come. */
    #define RESERVE 0.05

    /* The level of water-filling is found to nine digits in far fewer rounds. */
    #define MAX_ROUNDS 128

    /* The classic rule looks at reports of so many slots, the newer the heavier. */
    #define CLASSIC_SLOTS 5
    #define CLASSIC_CONSUMPTION 0.6
    #define CLASSIC_REJECTION 0.4
    #define CLASSIC_IDLE 0.1
    """
    const double RESERVE, CLASSIC_CONSUMPTION, CLASSIC_REJECTION, CLASSIC_IDLE
    const long long CLASSIC_SLOTS
    const int MAX_ROUNDS


cdef inline void fair(double budget, Demand *demands, Py_ssize_t count) noexcept nogil:
    """Water-filling: each node gets what it wants up to a level that is the same for all.

    When there is more than is wanted, half of the surplus goes by demand and half evenly, so
    that each node can take a burst and an idle one can begin.
    """
    cdef Py_ssize_t i, busy = 0, idle = 0, unmet
    cdef double wanted = 0.0, left, level, met, surplus, evenly
    for i in range(count):
        demands[i].share = 0.0
        if demands[i].per_slot > 0.0:
            busy += 1
            wanted += demands[i].per_slot
        elif demands[i].per_slot == 0.0:
            idle += 1
    if budget <= 0.0 or busy + idle == 0:
        return
    if busy == 0:
        for i in range(count):
            if demands[i].per_slot == 0.0:
                demands[i].share = budget / idle
        return
    left = budget
    if idle > 0:
        left -= RESERVE * budget
        for i in range(count):
            if demands[i].per_slot == 0.0:
                demands[i].share = RESERVE * budget / idle
    if wanted <= left:
        surplus = 0.5 * (left - wanted)
        evenly = surplus / (busy + idle)
        for i in range(count):
            if demands[i].per_slot > 0.0:
                demands[i].share = demands[i].per_slot * (1.0 + surplus / wanted) + evenly
            elif demands[i].per_slot == 0.0:
                demands[i].share += evenly
        return
    # Raise the level until what is below it, and the level for the rest, make up `left`. Each
    # round leaves out those who are content with less than the level; there are few rounds.
    unmet = busy
    met = 0.0
    level = left / unmet
    for _ in range(MAX_ROUNDS):
        met = 0.0
        unmet = 0
        for i in range(count):
            if demands[i].per_slot > 0.0:
                if demands[i].per_slot <= level:
                    met += demands[i].per_slot
                else:
                    unmet += 1
        if unmet == 0 or level >= (left - met) / unmet * (1.0 - 1e-9):
            break
        level = (left - met) / unmet
    for i in range(count):
        if demands[i].per_slot > 0.0:
            demands[i].share = demands[i].per_slot if demands[i].per_slot <= level else level


cdef inline void classic(double level, Demand *demands, Py_ssize_t count) noexcept nogil:
    """The whole bucket, in every slot, by 0.6 of consumption and 0.4 of rejection; whole units."""
    cdef Py_ssize_t i, idle = 0
    cdef double consumed = 0.0, rejected = 0.0, weight, part, distributed = level
    for i in range(count):
        demands[i].share = 0.0
        if demands[i].per_slot < 0.0:
            continue
        weight = _weight(demands[i].age)
        if weight == 0.0:
            idle += 1
        consumed += weight * demands[i].consumed
        rejected += weight * demands[i].rejected
    if level <= 0.0:
        return
    if idle > 0:
        distributed -= CLASSIC_IDLE * level
    for i in range(count):
        if demands[i].per_slot < 0.0:
            continue
        weight = _weight(demands[i].age)
        if weight == 0.0:
            demands[i].share = floor(CLASSIC_IDLE * level / idle)
            continue
        part = 0.0
        if consumed > 0.0:
            part = (CLASSIC_CONSUMPTION if rejected > 0.0 else 1.0) * weight * demands[i].consumed / consumed
        if rejected > 0.0:
            part += (CLASSIC_REJECTION if consumed > 0.0 else 1.0) * weight * demands[i].rejected / rejected
        demands[i].share = floor(distributed * part)


cdef inline double _weight(long long age) noexcept nogil:
    return 1.0 - <double> age / CLASSIC_SLOTS if age < CLASSIC_SLOTS else 0.0

"""Credit: what a node of our own may let through, in totals that only grow.

    granted      by us, to the node
    returned     by the node, of what it has been granted
    used         by its requests: consumed, and reserved by running ones
    outstanding  granted - returned - consumed: what has left the bucket and is not booked yet
    available    level - outstanding - what is reserved for classic and autonomous nodes, or kept for
                 nodes that are not known yet

A grant takes from what is available at once, a return gives it back. Booking moves an amount from
what is outstanding to the level, and changes nothing in what is available. What is outstanding
counts as being in the bucket (or a user with credit at ten nodes would have ten bursts), but for
what is used already: level <= capacity + used - consumed. So what is available never exceeds the
capacity, and no window holds more than the bucket had.

A bucket keeps the sums over its cells. Whoever changes the totals of a cell takes it out of the sums
before (`take_out`) and puts it back (`put_back`).
"""

from libc.math cimport INFINITY, floor

from sluicegate.quota.ledger._bucket cimport Bucket, NodeCell

cdef extern from *:
    """
    /* Totals that differ by this part of their size are the same. */
    #define ROUNDING 1e-9
    /* A waiter passes those before it that there is not enough for, if it needs at most this part of what they do.
       Where the costs of nodes are nearly the same, the order of the queue is fair. */
    #define OVERTAKING_PART 0.5
    """
    const double ROUNDING, OVERTAKING_PART


cdef inline double outstanding_of(const NodeCell *cell) noexcept nogil:
    return max(0.0, cell.granted - cell.returned - cell.consumed)


cdef inline double unbooked_of(const NodeCell *cell) noexcept nogil:
    """What a node has told to be used and has not reported as consumed."""
    return max(0.0, cell.used - cell.consumed)


cdef inline double unused_of(const NodeCell *cell) noexcept nogil:
    """What a node may still spend of its credit, as far as we know."""
    return cell.granted - cell.returned - cell.used


cdef inline double available_of(const Bucket *bucket) noexcept nogil:
    """What may be granted now."""
    return bucket.level - bucket.outstanding - bucket.reserved + bucket.postponed - bucket.kept


cdef inline void take_out(Bucket *bucket, const NodeCell *cell) noexcept nogil:
    bucket.outstanding -= outstanding_of(cell)
    bucket.unbooked -= unbooked_of(cell)


cdef inline void put_back(Bucket *bucket, const NodeCell *cell) noexcept nogil:
    bucket.outstanding = max(0.0, bucket.outstanding + outstanding_of(cell))
    bucket.unbooked = max(0.0, bucket.unbooked + unbooked_of(cell))


cdef inline bint is_below(double told, double known) noexcept nogil:
    """Whether a total is lower than we know it, by more than rounding."""
    return told < known - ROUNDING * (1.0 + known)


cdef inline void raise_totals(NodeCell *cell, double granted, double returned) noexcept nogil:
    """Believe what a node tells of its credit; what it used beyond it is covered: a debt of the bucket."""
    cell.granted = max(cell.granted, granted)
    cell.returned = max(cell.returned, returned)
    if cell.returned + cell.used > cell.granted:
        cell.uncovered += <float> (cell.returned + cell.used - cell.granted)
        cell.granted = cell.returned + cell.used


cdef inline void tell(
    Bucket *bucket, NodeCell *cell, double granted, double returned, double used, bint is_newest
) noexcept nogil:
    """Bring a cell up to what its node tells in an ask.

    A node that tells less than it told before has forgotten the user, and counts anew; nothing else
    is taken for that but the newest message (`is_newest`). Of a cell that is new here, what was used
    of earlier grants is taken to be booked: by another leader, or before we forgot it.
    """
    take_out(bucket, cell)
    if is_newest and (is_below(returned, cell.returned) or is_below(used, cell.consumed)):
        cell.granted = cell.returned = cell.consumed = 0.0
        cell.uncovered = 0.0
        cell.sequence = 0
    elif cell.sequence == 0 and cell.last_ask == 0 and granted > 0.0:
        cell.consumed = min(used, max(0.0, granted - returned))
    cell.used = max(used, cell.consumed)
    raise_totals(cell, granted, returned)
    put_back(bucket, cell)


cdef inline void grant(Bucket *bucket, NodeCell *cell, double amount) noexcept nogil:
    """Give a node more credit; it is not available from now on."""
    take_out(bucket, cell)
    cell.granted += amount
    put_back(bucket, cell)


cdef inline void give_back(Bucket *bucket, NodeCell *cell) noexcept nogil:
    """A node has stopped: it gives back all it has not consumed."""
    take_out(bucket, cell)
    cell.granted = cell.returned + cell.consumed
    cell.used = cell.consumed
    put_back(bucket, cell)


cdef struct Waiter:  # a node that has asked for a user's credit
    int node
    double requests  # it wants the credit of so many more
    double until  # a request waits for it until then; infinite: it is for requests to come
    bint knows_costs  # it has told what a request costs of each resource
    double given  # the result of `share_out`


cdef inline bint _fits(
    int resources, const double *left, const double *capacities, const double *costs
) noexcept nogil:
    """Whether one more request can be granted. One that costs more than a bucket holds needs a full one."""
    cdef int r
    for r in range(resources):
        if costs[r] > 0.0 and left[r] < min(costs[r], capacities[r]) - 1e-6 * costs[r]:
            return False
        if costs[r] > 0.0 and capacities[r] <= 0.0:
            return False
    return True


cdef inline bint _is_behind(int resources, const double *blocked, const double *costs) noexcept nogil:
    """Whether a waiter must not pass those before it that there is not enough for."""
    cdef int r
    for r in range(resources):
        if costs[r] > OVERTAKING_PART * blocked[r]:
            return True
    return False


cdef inline void _note_blocked(
    int resources, const double *left, const double *capacities, const double *costs, double *blocked
) noexcept nogil:
    """There is not enough for a waiter."""
    cdef int r
    for r in range(resources):
        if left[r] < min(costs[r], capacities[r]) - 1e-6 * costs[r]:
            blocked[r] = min(blocked[r], costs[r])


cdef inline void _mark_blocked(
    int count,
    int resources,
    const double *available,
    const double *capacities,
    Waiter *waiters,
    const double *costs,
    double *blocked,
) noexcept nogil:
    """Set `given` to -1 where there is not enough for a single request, or for one before it that is as large.

    One perfect bucket admits whatever fits: a request that costs more than is there does not keep smaller ones
    from passing. `blocked` gets, of each resource, the smallest cost that there is not enough for.
    """
    cdef int i, r
    for r in range(resources):
        blocked[r] = INFINITY
    for i in range(count):
        waiters[i].given = 0.0
        if _is_behind(resources, blocked, &costs[i * resources]) or not _fits(
            resources, available, capacities, &costs[i * resources]
        ):
            waiters[i].given = -1.0
            _note_blocked(resources, available, capacities, &costs[i * resources], blocked)


cdef inline bint _may_pass(int resources, const double *costs, const double *unfit) noexcept nogil:
    """Whether a waiter may pass one that did not fit, if any."""
    cdef int r
    for r in range(resources if unfit != NULL else 0):
        if costs[r] > OVERTAKING_PART * unfit[r]:
            return False
    return True


cdef inline void share_out(
    int count,
    int resources,
    const double *available,
    const double *capacities,
    Waiter *waiters,
    const double *costs,
    double *left,
) noexcept nogil:
    """Max-min fair in whole requests, all resources together; the remainder to those first in the queue.

    Those that there is not enough for get nothing, and smaller requests pass them. `costs` has a row of
    `resources` for each waiter; `left` gets what remains available.
    """
    cdef int i, r
    cdef bint is_met
    cdef double level = 0.0, raised, wanted, met
    cdef const double *unfit = NULL
    _mark_blocked(count, resources, available, capacities, waiters, costs, left)
    while True:
        # Raise the level until what is wanted below it, and the level for the rest, take all of a resource.
        raised = INFINITY
        is_met = True
        for r in range(resources):
            wanted = met = 0.0
            for i in range(count):
                if waiters[i].given < 0.0:
                    continue
                if waiters[i].requests <= level:
                    met += waiters[i].requests * costs[i * resources + r]
                else:
                    is_met = False
                    wanted += costs[i * resources + r]
            if wanted > 0.0:
                raised = min(raised, (available[r] - met) / wanted)
        if is_met or raised <= level * (1.0 + 1e-9) or raised <= 0.0:
            break
        level = raised
        if raised == INFINITY:
            break
    level = floor(level + 1e-6)
    for r in range(resources):
        left[r] = available[r]
    for i in range(count):
        if waiters[i].given < 0.0:
            continue
        waiters[i].given = min(waiters[i].requests, level)
        for r in range(resources):
            if costs[i * resources + r] > 0.0:
                left[r] -= waiters[i].given * costs[i * resources + r]
    for i in range(count):
        if waiters[i].given < 0.0:
            waiters[i].given = 0.0
        elif waiters[i].given < waiters[i].requests and _may_pass(resources, &costs[i * resources], unfit):
            if not _fits(resources, left, capacities, &costs[i * resources]):
                unfit = &costs[i * resources]
                continue
            waiters[i].given += 1.0
            for r in range(resources):
                left[r] -= costs[i * resources + r]

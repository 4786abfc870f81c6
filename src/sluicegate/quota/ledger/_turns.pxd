"""Turns: how much a node that waits is granted at a time, how long it waits, and what is held for others.

In a large fleet, whose interval is longer than the shortest, a user that is short is granted several requests
at a time: each ask and each frame counts there.
"""

from libc.math cimport floor

from sluicegate.quota.ledger._account cimport Account
from sluicegate.quota.ledger._bucket cimport Bucket, NodeCell, capacity_of, position_of
from sluicegate.quota.ledger._credit cimport OVERTAKING_PART, Waiter, available_of, unused_of
from sluicegate.quota.ledger._service_ledger cimport ServiceLedger, milliseconds

cdef extern from *:
    """
    /* The interval of a small fleet; a fleet is large if its interval is longer. */
    #define SHORTEST_INTERVAL 0.05
    /* In a large fleet a node is granted so many requests in turn, but all that wait not more than this part of
       the capacity: it would fill a small bucket with credit that is not used yet. */
    #define TURN_REQUESTS 4.0
    #define TURN_PART 0.2
    /* A user with less than this part of its capacity is served in batches, one in this part of an interval. */
    #define SCARCE 0.1
    #define BATCH_PART 0.25
    /* A node that was granted something asks again within so many milliseconds, if it goes on. */
    #define FAIR_MS 150
    /* What a node has to wait for is added up for so many of those before it. */
    #define ADDED_WAITERS 64
    /* Of a bucket with more than this part of its capacity, a node that was granted something within so many
       milliseconds before is granted so many times what it asks for. It holds no more than this part of its safe
       share: it would give the rest back when it is idle. */
    #define PLENTY 0.75
    #define AHEAD_MS 3000
    #define AHEAD_TIMES 8.0
    #define AHEAD_PART 0.4
    /* No hint says to wait for longer. */
    #define MAX_WAIT_SECONDS 3600.0
    """
    const double SHORTEST_INTERVAL, TURN_REQUESTS, TURN_PART, SCARCE, BATCH_PART, MAX_WAIT_SECONDS
    const double PLENTY, AHEAD_TIMES, AHEAD_PART
    const int FAIR_MS, AHEAD_MS, ADDED_WAITERS


cdef inline double requests_in_turn(ServiceLedger ledger, Account account, double interval) noexcept:
    """How many requests a node that waits is granted in turn, at least."""
    cdef double requests = min(TURN_REQUESTS, interval / SHORTEST_INTERVAL), capacity
    cdef int r
    for r in range(account.count):
        capacity = capacity_of(&ledger.buckets[account.numbers[r]])
        if account.costs[r] > 0.0:
            requests = min(requests, TURN_PART * capacity / (account.costs[r] * account.waiting))
    return max(1.0, floor(requests))


cdef inline int count_turns(
    ServiceLedger ledger, Account account, double interval, const double *available, double *left
) noexcept:
    """How many of the queue are served now: in a large fleet those that can be granted several requests each.

    `left` is scratch: a number for each resource.
    """
    cdef double requests = requests_in_turn(ledger, account, interval)
    cdef int i, r, count = account.count
    if requests == 1.0:
        return account.waiting
    for r in range(count):
        left[r] = available[r]
    for i in range(account.waiting):
        for r in range(count):
            left[r] -= min(requests, account.waiters[i].requests) * account.costs[i * count + r]
            if left[r] < 0.0:
                return max(1, i)
    return account.waiting


cdef inline double requests_ahead(
    ServiceLedger ledger, Account account, double time, const double *available, const double *capacities
) noexcept:
    """How many requests the only waiter may be granted where there is plenty; 0: what it asks for.

    A user in lasting demand that stays far below its limits need not be asked for many times a second.
    """
    cdef Waiter *waiter = &account.waiters[0]
    cdef double requests = AHEAD_TIMES * waiter.requests, room
    cdef Bucket *bucket
    cdef NodeCell *cell
    cdef int r
    if not waiter.knows_costs:
        return 0.0  # it takes what it is granted for the cost of what it has asked for
    for r in range(account.count):
        bucket = &ledger.buckets[account.numbers[r]]
        cell = &bucket.cells[position_of(bucket, waiter.node)]
        if not 0 < <int> (milliseconds(time) - cell.granted_ms) < AHEAD_MS:
            return 0.0
        room = min(available[r] - PLENTY * capacities[r], AHEAD_PART * cell.safe - unused_of(cell))
        requests = min(requests, room / account.costs[r])
    return max(0.0, floor(requests))


cdef inline double wait_of(
    ServiceLedger ledger, Account account, int position, double time, double interval
) noexcept:
    """Seconds until it is the turn of a waiter, when each one before it that it does not pass gets its turn.

    Where very many wait, to add up what all of them need takes too long for each ask: the requests of the rest
    are taken to cost as much as its own.
    """
    cdef Bucket *bucket
    cdef int i, r
    cdef double wait = max(0.001, account.served + BATCH_PART * interval - time), missing, cost
    cdef double most = MAX_WAIT_SECONDS, requests = requests_in_turn(ledger, account, interval)
    for r in range(account.count):
        bucket = &ledger.buckets[account.numbers[r]]
        cost = account.costs[position * account.count + r]
        if cost <= 0.0:
            continue
        if bucket.rate <= 0.0:
            return MAX_WAIT_SECONDS
        missing = min(cost, capacity_of(bucket)) - available_of(bucket)
        for i in range(min(position, ADDED_WAITERS)):
            if cost > OVERTAKING_PART * account.costs[i * account.count + r]:
                missing += requests * account.costs[i * account.count + r]
        missing += requests * max(0, position - ADDED_WAITERS) * cost
        if missing > 0.0:
            wait = max(wait, missing / bucket.rate * ledger.slot_seconds)
        i = position_of(bucket, account.waiters[position].node)
        if bucket.cells[i].uncovered > 0.0:
            most = ledger.slot_seconds  # its report may show that the refill has covered it
    return min(wait, most)


cdef inline bint _gets_several(ServiceLedger ledger, Account account, int nodes) noexcept:
    """Whether each of so many nodes gets several requests of the refill. If it is one or two, the queue is fair."""
    cdef int r
    for r in range(account.count):
        if (
            ledger.buckets[account.numbers[r]].rate * FAIR_MS * (0.001 / ledger.slot_seconds)
            < 2.0 * account.costs[r] * nodes
        ):
            return False
    return True


cdef inline bint hold_for_others(
    ServiceLedger ledger, Account account, const char *is_waiting, double time, double *available
) noexcept:
    """Hold back the even part of the refill of nodes that were granted something just now, and ask again soon.

    Nodes ask in turns, some of them together: each turn would else take all that has come in since the last.
    `is_waiting` says of each node whether it is in the queue. Returns whether there are such nodes.
    """
    cdef Bucket *bucket = &ledger.buckets[account.numbers[0]]
    cdef unsigned int now_ms = milliseconds(time)
    cdef int i, r, since_ms, nodes = account.waiting
    cdef double held_ms = 0.0, slots_per_ms = 0.001 / ledger.slot_seconds
    if not _gets_several(ledger, account, nodes + 1):
        return False
    for i in range(bucket.count):
        since_ms = <int> (now_ms - bucket.cells[i].granted_ms)
        if 0 <= since_ms < FAIR_MS and not is_waiting[bucket.cells[i].node]:
            nodes += 1
            held_ms += since_ms
    if nodes == account.waiting or not _gets_several(ledger, account, nodes):
        return False
    for r in range(account.count):
        bucket = &ledger.buckets[account.numbers[r]]
        if account.costs[r] > 0.0:
            available[r] -= bucket.rate * held_ms * slots_per_ms / nodes
    return True

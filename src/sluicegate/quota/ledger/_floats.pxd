"""Floats: where a limit is thin, a request may pass ahead of its grant.

Credit must lie at many nodes there, and each of them would refuse what the bucket has room for. So a
node without credit lets one request pass, which is booked as a debt; in sum not more than some seconds
of the limit.
"""

from sluicegate.quota.ledger._account cimport Account
from sluicegate.quota.ledger._bucket cimport ACTIVE_MS, Bucket, NodeCell, cost_of_request, full_level_of
from sluicegate.quota.ledger._credit cimport available_of, unused_of
from sluicegate.quota.ledger._service_ledger cimport ServiceLedger

cdef extern from *:
    """
    /* Thin: fewer requests per node and slot. What is spent beyond the bucket there is bounded by so many
       seconds of the limit. */
    #define THIN_REQUESTS 2.0
    #define FLOAT_SECONDS 3.0
    /* While credit is out that a request waits for, a bucket may hold so many seconds of refill beyond its
       capacity, up to one request. */
    #define SPARE_SECONDS 0.4
    """
    const double THIN_REQUESTS, FLOAT_SECONDS, SPARE_SECONDS


cdef inline bint is_thin(Bucket *bucket, double cost) noexcept nogil:
    """Whether credit must lie at many nodes. An ask may be for a cheap request, and the usual ones cost more."""
    return bucket.rate < THIN_REQUESTS * max(cost, cost_of_request(bucket)) * max(1, bucket.active)


cdef inline double most_float(const Bucket *bucket, double cost, double slot_seconds) noexcept nogil:
    """How much may be spent beyond a bucket where nobody waits and the limit is thin."""
    cdef double most = FLOAT_SECONDS / slot_seconds * bucket.rate
    return max(cost, min(most, cost * bucket.active))


cdef inline double spare_of(Bucket *bucket, double cost, bint waits, double slot_seconds) noexcept nogil:
    """What a bucket may hold beyond its capacity while credit is out, or it stands still until that is used.

    Where requests wait it is used soon. Where they do not, and the limit is thin, credit must lie at many nodes.
    """
    if waits or not is_thin(bucket, cost):
        return min(cost, SPARE_SECONDS / slot_seconds * bucket.rate)
    return most_float(bucket, cost, slot_seconds)


cdef inline bint _covers_floats(
    const Bucket *bucket, double cost, double most_debt, unsigned int now_ms
) noexcept nogil:
    """Whether every node with traffic and no credit, and one at least, may let a request pass before we hear of it."""
    cdef const NodeCell *cell
    cdef double available = available_of(bucket)
    cdef int i, nodes = 0
    if available - cost < -most_debt:
        return False
    if available - cost * bucket.count >= -most_debt:  # no need to count them
        return True
    for i in range(bucket.count):
        cell = &bucket.cells[i]
        if <int> (now_ms - cell.active_ms) < ACTIVE_MS and unused_of(cell) < cost * (1.0 - 1e-6):
            nodes += 1
            if available - cost * nodes < -most_debt:
                return False
    return True


cdef inline bint may_float(
    ServiceLedger ledger, Account account, const double *costs, unsigned int now_ms
) noexcept:
    """Whether a request may pass ahead of its grant: the limit is thin, and the debt is small."""
    cdef Bucket *bucket
    cdef int r
    cdef bint is_any_thin = False
    cdef double most_debt
    for r in range(account.count):
        if costs[r] > 0.0 and is_thin(&ledger.buckets[account.numbers[r]], costs[r]):
            is_any_thin = True
    if not is_any_thin:
        return False
    for r in range(account.count):
        bucket = &ledger.buckets[account.numbers[r]]
        if costs[r] <= 0.0:
            continue
        most_debt = most_float(bucket, costs[r], ledger.slot_seconds)
        most_debt -= max(0.0, bucket.level - full_level_of(bucket))
        if bucket.rate <= 0.0 or not _covers_floats(bucket, costs[r], most_debt, now_ms):
            return False
    return True

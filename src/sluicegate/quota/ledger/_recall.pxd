"""Recalling: while nodes wait, credit is taken back from those that have been quiet for a while.

Nodes that ask less often tell of their traffic later, and give back later: all of it takes longer then.
"""

from sluicegate.quota.ledger._account cimport Account
from sluicegate.quota.ledger._bucket cimport Bucket, NodeCell, capacity_of, ceiling_of
from sluicegate.quota.ledger._credit cimport available_of
from sluicegate.quota.ledger._turns cimport SHORTEST_INTERVAL

cdef extern from *:
    """
    /* A node that has told of no traffic for this many milliseconds gives its credit back when others
       wait. It is asked again after so many. */
    #define QUIET_MS 100
    #define RECALL_MS 300
    /* Where no request waits, it may be quiet for so long: its credit may be needed there as much as here. */
    #define PATIENT_QUIET_MS 1000
    /* What was granted is not recalled for so long: a request may wait for it there. */
    #define SETTLE_MS 300
    /* Cells are looked through for credit to recall once in this many milliseconds; it takes this long to come. */
    #define RECALL_EVERY_MS 20
    #define RECALL_SECONDS 0.25
    """
    const int QUIET_MS, RECALL_MS, PATIENT_QUIET_MS, SETTLE_MS, RECALL_EVERY_MS
    const double RECALL_SECONDS

cdef struct RecallTimes:
    int quiet_ms  # a node is quiet after so long without traffic
    int again_ms  # it is asked again after so long
    double every  # cells are looked through once in so many seconds


cdef inline RecallTimes recall_times(double interval, bint waits) noexcept nogil:
    """`waits`: a request waits for what is recalled."""
    cdef RecallTimes times
    cdef int later_ms = <int> (1000.0 * (interval - SHORTEST_INTERVAL))
    times.quiet_ms = (QUIET_MS if waits else PATIENT_QUIET_MS) + later_ms
    times.again_ms = RECALL_MS + later_ms
    times.every = 0.001 * RECALL_EVERY_MS * interval / SHORTEST_INTERVAL
    return times


cdef inline bint is_short(
    Bucket *bucket, double cost, double left, bint waits, double least_part
) noexcept nogil:
    """Whether a resource has less left than a request, or than this part of the capacity, and is worth a recall."""
    if left >= max(min(cost, capacity_of(bucket)), least_part * capacity_of(bucket)):
        return False
    # While more comes in, nothing is lost if they keep it.
    return waits or bucket.level >= ceiling_of(bucket) - 1e-6 * cost


cdef inline bint is_quiet(const NodeCell *cell, const RecallTimes *times, unsigned int now_ms) noexcept nogil:
    """Whether a node has had no traffic for a while, and no grant that it may not have used yet."""
    cdef int quiet_ms = <int> (now_ms - cell.active_ms), granted_ms = <int> (now_ms - cell.granted_ms)
    if quiet_ms < 0 or granted_ms < 0:  # for more than three weeks
        return times.again_ms >= times.quiet_ms
    return min(quiet_ms, granted_ms - SETTLE_MS + times.quiet_ms) >= times.quiet_ms


cdef inline bint is_recall_due(const NodeCell *cell, const RecallTimes *times, unsigned int now_ms) noexcept nogil:
    """Whether it was not asked just now."""
    return not 0 <= <int> (now_ms - cell.recalled_ms) < times.again_ms


cdef inline bint is_recall_coming(Account account, int position, double time, double interval) noexcept:
    """Whether what was recalled may still come for a waiter."""
    cdef double since = time - account.recalled
    return position < account.recalling and since < RECALL_SECONDS + interval - SHORTEST_INTERVAL

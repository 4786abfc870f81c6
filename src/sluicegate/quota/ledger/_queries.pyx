# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Read-only queries over all buckets of a service ledger: histogram, ranking, usage, monitor.

They read the C arrays, without a Python object for each bucket: a million buckets take
milliseconds, so that the event loop that answers the nodes may run them. Queries that return dicts
cover some users at a time.

Amounts are in the resource's unit, for the slot they are of; a bucket's limit is per slot.
"""

from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from sluicegate.quota.ledger._service_ledger cimport ServiceLedger, granted_in
from sluicegate.quota.ledger._bucket cimport Bucket, cost_of_request
from sluicegate.quota.packed._shares cimport PackedShare
from sluicegate.quota.ledger._usage cimport SlotTotals

__all__ = [
    "bucket_count", "busiest_users", "count_overshoots", "distribution_of", "list_users", "nodes_with_quota",
    "read_quota", "slot_totals", "usage_of",
]

cdef enum:
    MAX_EDGES = 64
    RESOURCES = 4  # as many as a user has, mostly

cdef struct Ranked:
    double score
    Py_ssize_t number


def bucket_count(ServiceLedger service_ledger not None):
    """How many buckets there are to look at, those that were forgotten included."""
    return service_ledger.count


def count_overshoots(ServiceLedger service_ledger not None, long long slot, edges, Py_ssize_t start, Py_ssize_t most):
    """How far the users with a limit and with traffic in a slot were above or below it.

    Looks at `most` buckets from number `start` on. Each is counted at the first of the rising `edges`
    that consumed / limit - 1 is not above; the last count is of those above all edges.
    """
    cdef SlotTotals totals = service_ledger.totals.get(slot)
    cdef double[MAX_EDGES] edge
    cdef long long[MAX_EDGES + 1] counts
    cdef Py_ssize_t number, end
    cdef int i, n = len(edges)
    cdef double ratio
    cdef Bucket *bucket
    if n > MAX_EDGES:
        raise ValueError(f"edges must have at most {MAX_EDGES} values, got {n}")
    for i in range(n):
        edge[i] = edges[i]
        counts[i] = 0
    counts[n] = 0
    if totals is not None:
        end = min(min(totals.room, service_ledger.count), start + most)
        for number in range(start, end):
            if totals.consumed[number] == 0.0 and totals.rejected[number] == 0.0:
                continue
            bucket = &service_ledger.buckets[number]
            if bucket.rate <= 0.0 or service_ledger.names[number] is None:
                continue
            ratio = totals.consumed[number] / bucket.rate - 1.0
            i = 0
            while i < n and ratio > edge[i]:
                i += 1
            counts[i] += 1
    return [counts[i] for i in range(n + 1)]


def busiest_users(ServiceLedger service_ledger not None, long long slot, int slots, Py_ssize_t most):
    """The users with the highest demand relative to their limits in `slots` slots up to `slot`, and how much.

    [(score, user), ...], the highest first. A score is demand / limit of the resource that is the
    scarcest, where demand is what was consumed and what was refused at the mean cost of a request.
    Users without a limit come last; those without traffic are left out.
    """
    cdef Py_ssize_t room = min(service_ledger.count, RESOURCES * most), filled
    cdef Ranked *heap
    while True:
        heap = <Ranked *> malloc(max(1, room) * sizeof(Ranked))
        if heap == NULL:
            raise MemoryError
        try:
            filled = _rank(service_ledger, slot, slots, heap, room)
            ranked = sorted([(heap[i].score, heap[i].number) for i in range(filled)], reverse=True)
        finally:
            free(heap)
        users = {}
        for score, number in ranked:
            users.setdefault(service_ledger.names[number][0], score)
        if len(users) >= most or filled < room or room == service_ledger.count:
            return [(score, user) for user, score in users.items()][:most]
        room = min(service_ledger.count, 4 * room)


cdef Py_ssize_t _rank(ServiceLedger service_ledger, long long slot, int slots, Ranked *heap, Py_ssize_t room) except -1:
    """Fill `heap` with the `room` highest scores, the lowest of them on top; how many there are."""
    cdef dict totals_by_slot = service_ledger.totals
    cdef list slot_list = [totals_by_slot[each] for each in range(slot - slots + 1, slot + 1) if each in totals_by_slot]
    cdef int i, count = len(slot_list)
    cdef Py_ssize_t number, filled = 0
    cdef double demand, score
    cdef Bucket *bucket
    cdef SlotTotals totals
    cdef double **consumed = <double **> malloc(max(1, 2 * count) * sizeof(double *))
    cdef Py_ssize_t *rooms = <Py_ssize_t *> malloc(max(1, count) * sizeof(Py_ssize_t))
    try:
        if consumed == NULL or rooms == NULL:
            raise MemoryError
        for i in range(count):
            totals = slot_list[i]
            consumed[2 * i] = totals.consumed
            consumed[2 * i + 1] = totals.rejected
            rooms[i] = totals.room
        for number in range(service_ledger.count if room else 0):
            bucket = &service_ledger.buckets[number]
            demand = 0.0
            for i in range(count):
                if number < rooms[i]:
                    demand += consumed[2 * i][number] + consumed[2 * i + 1][number] * cost_of_request(bucket)
            if demand <= 0.0 or service_ledger.names[number] is None:
                continue
            if bucket.rate > 0.0:
                score = demand / (bucket.rate * slots)
            else:  # no limit at all, or one of 0, which everything is above
                score = 0.0 if bucket.rate < 0.0 else 1e300
            if filled < room:
                heap[filled] = Ranked(score, number)
                filled += 1
                _sift_up(heap, filled - 1)
            elif score > heap[0].score:
                heap[0] = Ranked(score, number)
                _sift_down(heap, filled)
    finally:
        free(consumed)
        free(rooms)
    return filled


cdef void _sift_up(Ranked *heap, Py_ssize_t at) noexcept nogil:
    cdef Ranked moved = heap[at]
    while at > 0 and heap[(at - 1) >> 1].score > moved.score:
        heap[at] = heap[(at - 1) >> 1]
        at = (at - 1) >> 1
    heap[at] = moved


cdef void _sift_down(Ranked *heap, Py_ssize_t count) noexcept nogil:
    cdef Ranked moved = heap[0]
    cdef Py_ssize_t at = 0, child = 1
    while child < count:
        if child + 1 < count and heap[child + 1].score < heap[child].score:
            child += 1
        if heap[child].score >= moved.score:
            break
        heap[at] = heap[child]
        at = child
        child = 2 * at + 1
    heap[at] = moved


def usage_of(ServiceLedger service_ledger not None, str user not None, long long slot, int slots):
    """resource -> (consumed, rejected in `slot`; consumed, rejected in `slots` slots up to it)."""
    cdef SlotTotals totals
    cdef Py_ssize_t number
    cdef long long each
    result = {}
    for resource, found in service_ledger.users.get(user, {}).items():
        number = found
        last = (0.0, 0.0)
        consumed = rejected = 0.0
        for each in range(slot - slots + 1, slot + 1):
            totals = service_ledger.totals.get(each)
            if totals is None or number >= totals.room:
                continue
            consumed += totals.consumed[number]
            rejected += totals.rejected[number]
            if each == slot:
                last = (totals.consumed[number], totals.rejected[number])
        result[resource] = (*last, consumed, rejected)
    return result


# For the monitor

def list_users(ServiceLedger service_ledger not None, slot):
    """The users that the service_ledger knows; none if there are no totals of the slot (None: whatever there are)."""
    return list(service_ledger.users) if slot is None or slot in service_ledger.totals else []


def slot_totals(ServiceLedger service_ledger not None, long long slot, list users not None, bint rejected):
    """user -> resource -> what all nodes together consumed (or refused) in a slot, of these users."""
    cdef SlotTotals totals = service_ledger.totals.get(slot)
    cdef Py_ssize_t number
    cdef double value
    result = {}
    if totals is None:
        return result
    for user in users:
        amounts = {}
        for resource, found in service_ledger.users.get(user, {}).items():
            number = found
            if number < totals.room:
                value = totals.rejected[number] if rejected else totals.consumed[number]
                if value:
                    amounts[resource] = value
        if amounts:
            result[user] = amounts
    return result


def distribution_of(ServiceLedger service_ledger not None, list users not None, long long start, long long stop):
    """user -> resource -> node -> its last report that had any, if of a slot from `start` to before `stop`."""
    cdef Bucket *bucket
    cdef long long slot
    cdef int i
    result = {}
    for user in users:
        amounts = {}
        for resource, number in service_ledger.users.get(user, {}).items():
            bucket = &service_ledger.buckets[<Py_ssize_t> number]
            nodes = None
            for i in range(bucket.count):
                if bucket.cells[i].last_report:
                    if nodes is None:
                        nodes = amounts[resource] = {}
                    slot = service_ledger.first + bucket.cells[i].last_report - 1
                    if start <= slot < stop:
                        nodes[service_ledger.nodes.names[bucket.cells[i].node]] = {
                            "slot_number": slot,
                            "consumption": bucket.cells[i].last_consumed,
                            "rejection": bucket.cells[i].last_rejected,
                        }
        if amounts:
            result[user] = amounts
    return result


def nodes_with_quota(ServiceLedger service_ledger not None, long long slot):
    """The nodes that have a quota for a slot."""
    return list(service_ledger.quota_history.get(slot, ()))


def read_quota(
    ServiceLedger service_ledger not None,
    long long slot,
    str node not None,
    dict users not None,
    Py_ssize_t at,
    Py_ssize_t most,
):
    """Put `most` amounts of a node's quota into user -> resource; where to go on, or None."""
    cdef bytes packed = service_ledger.quota_history.get(slot, {}).get(node, b"")
    cdef bytes before = service_ledger.quota_before(slot, node)
    cdef const char *data = packed
    cdef Py_ssize_t i, count = len(packed) // <Py_ssize_t> sizeof(PackedShare), end = min(count, at + most)
    cdef PackedShare share
    for i in range(at, end):
        memcpy(&share, data + i * sizeof(PackedShare), sizeof(PackedShare))
        name = service_ledger.names[share.bucket]
        if name is not None:
            users.setdefault(name[0], {})[name[1]] = share.granted - granted_in(before, share.bucket)
    return end if end < count else None

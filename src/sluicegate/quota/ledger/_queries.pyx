# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Looking at all buckets of a book at once, without a Python object for each of them.

What `Book.sums_of` tells as dicts is here counted or ranked where it lies: a million buckets take
milliseconds, and the loop that answers the nodes may be the one that looks. Where all of it is told
as dicts all the same, it is some users at a time.

Amounts are in the resource's unit, for the slot they are of; a bucket's limit is per slot.
"""

from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from sluicegate.quota.ledger._service_ledger cimport Book
from sluicegate.quota.ledger._bucket cimport Bucket, cost_of_request
from sluicegate.quota.packed._shares cimport PackedShare
from sluicegate.quota.ledger._usage cimport Sums

__all__ = [
    "busiest", "count_overshoots", "distribution_of", "given_to", "nodes_given", "size", "sums_of", "used", "users_of",
]

cdef enum:
    MOST_EDGES = 64
    RESOURCES = 4  # as many as a user has, mostly

cdef struct Ranked:
    double score
    Py_ssize_t number


def size(Book book not None):
    """How many buckets there are to look at, those that were forgotten included."""
    return book.count


def count_overshoots(Book book not None, long long slot, edges, Py_ssize_t start, Py_ssize_t most):
    """How far the users with a limit and with traffic in a slot were above or below it.

    Looks at `most` buckets from number `start` on. Each is counted at the first of the rising `edges`
    that consumed / limit - 1 is not above; the last count is of those above all edges.
    """
    cdef Sums sums = book.sums.get(slot)
    cdef double[MOST_EDGES] edge
    cdef long long[MOST_EDGES + 1] counts
    cdef Py_ssize_t number, end
    cdef int i, n = len(edges)
    cdef double ratio
    cdef Bucket *bucket
    if n > MOST_EDGES:
        raise ValueError(f"edges must be at most {MOST_EDGES}, got {n}")
    for i in range(n):
        edge[i] = edges[i]
        counts[i] = 0
    counts[n] = 0
    if sums is not None:
        end = min(min(sums.room, book.count), start + most)
        for number in range(start, end):
            if sums.consumed[number] == 0.0 and sums.rejected[number] == 0.0:
                continue
            bucket = &book.buckets[number]
            if bucket.rate <= 0.0 or book.names[number] is None:
                continue
            ratio = sums.consumed[number] / bucket.rate - 1.0
            i = 0
            while i < n and ratio > edge[i]:
                i += 1
            counts[i] += 1
    return [counts[i] for i in range(n + 1)]


def busiest(Book book not None, long long slot, int slots, Py_ssize_t most):
    """The users who wanted the most of their limits in `slots` slots up to `slot`, and how much.

    [(score, user), ...], the highest first. A score is demand / limit of the resource that is the
    scarcest, where demand is what was consumed and what was refused at the mean cost of a request.
    Users without a limit come last; those without traffic are left out.
    """
    cdef Py_ssize_t room = min(book.count, RESOURCES * most), found
    cdef Ranked *heap
    while True:
        heap = <Ranked *> malloc(max(1, room) * sizeof(Ranked))
        if heap == NULL:
            raise MemoryError
        try:
            found = _rank(book, slot, slots, heap, room)
            ranked = sorted([(heap[i].score, heap[i].number) for i in range(found)], reverse=True)
        finally:
            free(heap)
        users = {}
        for score, number in ranked:
            users.setdefault(book.names[number][0], score)
        if len(users) >= most or found < room or room == book.count:
            return [(score, user) for user, score in users.items()][:most]
        room = min(book.count, 4 * room)


cdef Py_ssize_t _rank(Book book, long long slot, int slots, Ranked *heap, Py_ssize_t room) except -1:
    """Fill `heap` with the `room` highest scores, the lowest of them on top; how many there are."""
    cdef list past = [book.sums[each] for each in range(slot - slots + 1, slot + 1) if each in book.sums]
    cdef int i, count = len(past)
    cdef Py_ssize_t number, found = 0
    cdef double demand, score
    cdef Bucket *bucket
    cdef Sums sums
    cdef double **consumed = <double **> malloc(max(1, 2 * count) * sizeof(double *))
    cdef Py_ssize_t *rooms = <Py_ssize_t *> malloc(max(1, count) * sizeof(Py_ssize_t))
    try:
        if consumed == NULL or rooms == NULL:
            raise MemoryError
        for i in range(count):
            sums = past[i]
            consumed[2 * i] = sums.consumed
            consumed[2 * i + 1] = sums.rejected
            rooms[i] = sums.room
        for number in range(book.count if room else 0):
            bucket = &book.buckets[number]
            demand = 0.0
            for i in range(count):
                if number < rooms[i]:
                    demand += consumed[2 * i][number] + consumed[2 * i + 1][number] * cost_of_request(bucket)
            if demand <= 0.0 or book.names[number] is None:
                continue
            if bucket.rate > 0.0:
                score = demand / (bucket.rate * slots)
            else:  # no limit at all, or one of 0, which everything is above
                score = 0.0 if bucket.rate < 0.0 else 1e300
            if found < room:
                heap[found] = Ranked(score, number)
                found += 1
                _rise(heap, found - 1)
            elif score > heap[0].score:
                heap[0] = Ranked(score, number)
                _sink(heap, found)
    finally:
        free(consumed)
        free(rooms)
    return found


cdef void _rise(Ranked *heap, Py_ssize_t at) noexcept nogil:
    cdef Ranked moved = heap[at]
    while at > 0 and heap[(at - 1) >> 1].score > moved.score:
        heap[at] = heap[(at - 1) >> 1]
        at = (at - 1) >> 1
    heap[at] = moved


cdef void _sink(Ranked *heap, Py_ssize_t count) noexcept nogil:
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


def used(Book book not None, str user not None, long long slot, int slots):
    """resource -> (consumed, rejected in `slot`; consumed, rejected in `slots` slots up to it)."""
    cdef Sums sums
    cdef Py_ssize_t number
    cdef long long each
    result = {}
    for resource, found in book.users.get(user, {}).items():
        number = found
        last = (0.0, 0.0)
        consumed = rejected = 0.0
        for each in range(slot - slots + 1, slot + 1):
            sums = book.sums.get(each)
            if sums is None or number >= sums.room:
                continue
            consumed += sums.consumed[number]
            rejected += sums.rejected[number]
            if each == slot:
                last = (sums.consumed[number], sums.rejected[number])
        result[resource] = (*last, consumed, rejected)
    return result


# For the monitor

def users_of(Book book not None, slot):
    """The users that the book knows; none if there are no sums of the slot (None: whatever there are)."""
    return list(book.users) if slot is None or slot in book.sums else []


def sums_of(Book book not None, long long slot, list users not None, bint rejected):
    """user -> resource -> what all nodes together consumed (or refused) in a slot, of these users."""
    cdef Sums sums = book.sums.get(slot)
    cdef Py_ssize_t number
    cdef double value
    result = {}
    if sums is None:
        return result
    for user in users:
        told = {}
        for resource, found in book.users.get(user, {}).items():
            number = found
            if number < sums.room:
                value = sums.rejected[number] if rejected else sums.consumed[number]
                if value:
                    told[resource] = value
        if told:
            result[user] = told
    return result


def distribution_of(Book book not None, list users not None, long long start, long long stop):
    """user -> resource -> node -> its last report that had any, if of a slot from `start` to before `stop`."""
    cdef Bucket *bucket
    cdef long long slot
    cdef int i
    result = {}
    for user in users:
        told = {}
        for resource, number in book.users.get(user, {}).items():
            bucket = &book.buckets[<Py_ssize_t> number]
            nodes = None
            for i in range(bucket.count):
                if bucket.cells[i].listed:
                    if nodes is None:
                        nodes = told[resource] = {}
                    slot = book.first + bucket.cells[i].listed - 1
                    if start <= slot < stop:
                        nodes[book.nodes.names[bucket.cells[i].node]] = {
                            "slot_number": slot,
                            "consumption": bucket.cells[i].last_consumed,
                            "rejection": bucket.cells[i].last_rejected,
                        }
        if told:
            result[user] = told
    return result


def nodes_given(Book book not None, long long slot):
    """The nodes that were given something for a slot."""
    return list(book.past.get(slot, ()))


def given_to(
    Book book not None, long long slot, str node not None, dict users not None, Py_ssize_t at, Py_ssize_t most
):
    """Put `most` amounts that a node was given for a slot into user -> resource; where to go on, or None."""
    cdef bytes packed = book.past.get(slot, {}).get(node, b"")
    cdef const char *data = packed
    cdef Py_ssize_t i, count = len(packed) // <Py_ssize_t> sizeof(PackedShare), end = min(count, at + most)
    cdef PackedShare given
    for i in range(at, end):
        memcpy(&given, data + i * sizeof(PackedShare), sizeof(PackedShare))
        name = book.names[given.bucket]
        if name is not None:
            users.setdefault(name[0], {})[name[1]] = given.amount
    return end if end < count else None

# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Serving a user's queue: what is available is shared out, granted and told; then credit is recalled for the rest."""

from libc.math cimport INFINITY, floor
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from sluicegate.quota.ledger._account cimport Account, has_request
from sluicegate.quota.ledger._answers cimport AnswerWriter
from sluicegate.quota.ledger._bucket cimport Bucket, NodeCell, capacity_of, refill
from sluicegate.quota.ledger._credit cimport Waiter, available_of, grant, outstanding_of, share_out
from sluicegate.quota.ledger._recall cimport RecallTimes, is_quiet, is_recall_due, is_short, recall_times
from sluicegate.quota.ledger._service_ledger cimport ServiceLedger, milliseconds
from sluicegate.quota.ledger._turns cimport (
    SCARCE,
    SHORTEST_INTERVAL,
    count_turns,
    hold_for_others,
    requests_ahead,
    wait_of,
)

__all__ = ["QueueServer"]

cdef extern from *:
    """
    /* Another node counts as having traffic for this many seconds after the last sign of it. */
    #define OTHERS_SECONDS 0.5
    /* In a large fleet a grant is told after this part of an interval, if the node does not ask before. */
    #define TELL_PART 0.5
    /* If its request has given up, it keeps its place for so many intervals (less the shortest). */
    #define KEEP_INTERVALS 4.0
    /* A queue is looked at once in this many seconds: nodes may be gone. */
    #define LOOK_SECONDS 1.0
    """
    const double OTHERS_SECONDS, TELL_PART, KEEP_INTERVALS, LOOK_SECONDS

cdef enum:  # the rows of `numbers`
    AVAILABLE = 0
    CAPACITIES = 1
    LEFT = 2  # when those that are served have their grants
    ROWS = 3


cdef class QueueServer:
    def __cinit__(self):
        self.numbers = NULL
        self.numbers_room = 0
        self.is_waiting = NULL
        self.is_waiting_room = 0

    def __init__(self, ServiceLedger service_ledger not None, AnswerWriter writer not None):
        self.service_ledger = service_ledger
        self.writer = writer

    def __dealloc__(self):
        free(self.numbers)
        free(self.is_waiting)

    cdef double serve(self, Account account, int asker, double time, double interval, dict answers) except -1.0:
        """Serve the queue of an account; when to look at it again, infinite: nobody waits any more.

        `asker` has asked just now, and is told at once; -1: none has.
        """
        cdef double next_recall, next_turn
        cdef bint is_scarce, waits
        self._reserve_numbers(ROWS * account.count)
        is_scarce = self._find_available(account, time)
        self._drop_gone(account, time, interval)
        if account.waiting == 0:
            return INFINITY
        self._share_out(account, is_scarce, time, interval)
        waits = self._grant(account, time)
        self._tell_served(account, asker, time, interval, answers)
        account.remove_served()
        if account.waiting == 0:
            if waits:  # it was given less than it wants
                self._recall(account, time, interval, True, SCARCE, answers)
            return INFINITY
        next_recall = self._recall(account, time, interval, waits, 0.0, answers)
        next_turn = wait_of(self.service_ledger, account, 0, time, interval)
        return time + min(min(next_turn, next_recall), LOOK_SECONDS)

    cdef int _reserve_numbers(self, int count) except -1:
        cdef double *grown
        if count > self.numbers_room:
            grown = <double *> realloc(self.numbers, 2 * count * sizeof(double))
            if grown == NULL:
                raise MemoryError
            self.numbers = grown
            self.numbers_room = 2 * count
        return 0

    cdef bint _find_available(self, Account account, double time) except -1:
        """Fill the rows AVAILABLE and CAPACITIES; whether there is little of a resource."""
        cdef ServiceLedger ledger = self.service_ledger
        cdef double slots = time / ledger.slot_seconds
        cdef double *available = self.numbers + AVAILABLE * account.count
        cdef double *capacities = self.numbers + CAPACITIES * account.count
        cdef Bucket *bucket
        cdef bint is_scarce = False
        cdef int r
        for r in range(account.count):
            bucket = &ledger.buckets[account.numbers[r]]
            ledger._keep_for_unknown_nodes(bucket, slots)
            refill(bucket, slots)
            available[r] = available_of(bucket)
            capacities[r] = capacity_of(bucket)
            if bucket.rate <= 0.0:
                available[r] = -INFINITY
            is_scarce = is_scarce or available[r] < SCARCE * capacities[r]
        return is_scarce

    cdef int _drop_gone(self, Account account, double time, double interval) except -1:
        """Remove those from the queue whose request has given up, or who are not heard any more."""
        cdef ServiceLedger ledger = self.service_ledger
        cdef double keep_seconds = KEEP_INTERVALS * (interval - SHORTEST_INTERVAL)
        cdef long long slot = <long long> (time / ledger.slot_seconds)
        cdef NodeCell *cell
        cdef int i
        for i in range(account.waiting - 1, -1, -1):
            if account.waiters[i].until + keep_seconds < time:
                account.remove(i)
            elif ledger.nodes.is_silent(account.waiters[i].node, slot):
                cell = ledger._cell_of(&ledger.buckets[account.numbers[0]], account.waiters[i].node)
                if ledger.is_silent(cell, slot):
                    account.remove(i)
        return 0

    cdef int _share_out(self, Account account, bint is_scarce, double time, double interval) except -1:
        """Find what each waiter is given."""
        cdef ServiceLedger ledger = self.service_ledger
        cdef double *available = self.numbers + AVAILABLE * account.count
        cdef double *capacities = self.numbers + CAPACITIES * account.count
        cdef double *left = self.numbers + LEFT * account.count
        cdef Waiter *first = &account.waiters[0]
        cdef double wanted = first.requests, active
        cdef bint is_held
        cdef int i, turns
        self._mark_waiters(account, True)
        is_held = hold_for_others(ledger, account, self.is_waiting, time, available)
        self._mark_waiters(account, False)
        if account.waiting == 1:
            first.requests = INFINITY  # how many there are
        turns = count_turns(ledger, account, interval, available, left)
        share_out(turns, account.count, available, capacities, account.waiters, account.costs, left)
        for i in range(turns, account.waiting):
            account.waiters[i].given = 0.0
        if account.waiting == 1:
            first.requests = wanted
            active = account.other_active if first.node == account.last_node else account.last_active
            if not (is_held and is_scarce) and time - active < OTHERS_SECONDS and first.given > 1.0:
                first.given = floor(0.5 * first.given)
            wanted = max(wanted, requests_ahead(ledger, account, time, available, capacities))
            first.given = min(first.given, wanted)
        return 0

    cdef bint _grant(self, Account account, double time) except -1:
        """Grant what the waiters are given; whether a request of one that wants more waits for it.

        The row LEFT gets what is left.
        """
        cdef ServiceLedger ledger = self.service_ledger
        cdef int i, r, count = account.count
        cdef double *left = self.numbers + LEFT * count
        cdef Bucket *bucket
        cdef NodeCell *cell
        cdef bint waits = False
        for r in range(count):
            left[r] = self.numbers[AVAILABLE * count + r]
        for i in range(account.waiting):
            if account.waiters[i].given > 0.0:
                for r in range(count):
                    left[r] -= account.waiters[i].given * account.costs[i * count + r]
                    bucket = &ledger.buckets[account.numbers[r]]
                    cell = ledger._cell_of(bucket, account.waiters[i].node)
                    grant(bucket, cell, account.waiters[i].given * account.costs[i * count + r])
                    cell.granted_ms = milliseconds(time)
                    if cell.last_ask == 0:  # it was forgotten while the node waited, and has credit again
                        cell.last_ask = ledger._slot_offset(<long long> floor(time / ledger.slot_seconds))
                account.served = time
            if account.waiters[i].given < account.waiters[i].requests and has_request(&account.waiters[i], time):
                waits = True
        return waits

    cdef int _tell_served(self, Account account, int asker, double time, double interval, dict answers) except -1:
        """Tell those that were granted something: at once if a request waits, or in a small fleet."""
        cdef Waiter *waiter
        cdef int i
        for i in range(account.waiting):
            waiter = &account.waiters[i]
            if waiter.given <= 0.0:
                continue
            if waiter.node == asker or has_request(waiter, time) or interval <= SHORTEST_INTERVAL:
                self.writer.answer(
                    account, waiter.node, 0.0, &account.costs[i * account.count], milliseconds(time), answers
                )
            else:
                self.writer.tell_later(account, waiter.node, time + TELL_PART * interval)
        return 0

    cdef int _mark_waiters(self, Account account, bint is_waiting) except -1:
        """Set `is_waiting` of the nodes in a queue: to look for each node in it takes too long where many wait."""
        cdef int i, room = <int> len(self.service_ledger.nodes.names)
        cdef char *grown
        if room > self.is_waiting_room:
            grown = <char *> realloc(self.is_waiting, 2 * room)
            if grown == NULL:
                raise MemoryError
            memset(grown + self.is_waiting_room, 0, 2 * room - self.is_waiting_room)
            self.is_waiting = grown
            self.is_waiting_room = 2 * room
        for i in range(account.waiting):
            self.is_waiting[account.waiters[i].node] = is_waiting
        return 0

    # Recalling

    cdef double _recall(
        self, Account account, double time, double interval, bint waits, double least_part, dict answers
    ) except -1:
        """Recall the credit of nodes that are quiet, of the resources that are short. `waits`: a request waits for it.

        Short is what has less left than a request, or than this part of the capacity; what is left is in the row
        LEFT. Returns in how many seconds there may be more to recall.
        """
        cdef RecallTimes times = recall_times(interval, waits)
        cdef double since = time - account.recalled, recalled, left, least = INFINITY
        cdef bint is_held = False
        cdef Bucket *bucket
        cdef int r
        if since < times.every:
            return times.every - since
        account.recalled = time
        account.recalling = 0.0
        self._mark_waiters(account, True)
        for r in range(account.count):
            bucket = &self.service_ledger.buckets[account.numbers[r]]
            # What is held for others is not there for who waits.
            left = self.numbers[LEFT * account.count + r] if waits else available_of(bucket)
            if is_short(bucket, account.costs[r], left, waits, least_part):
                recalled = self._recall_quiet(account, bucket, time, &times, &is_held, answers)
                if account.costs[r] > 0.0:
                    least = min(least, floor(recalled / min(account.costs[r], capacity_of(bucket)) + 1e-6))
        self._mark_waiters(account, False)
        account.recalling = least if least < INFINITY else 0.0
        return times.every if is_held else INFINITY

    cdef double _recall_quiet(
        self, Account account, Bucket *bucket, double time, const RecallTimes *times, bint *is_held, dict answers
    ) except -1.0:
        """Recall what quiet nodes hold of a bucket; how much will be available then.

        `is_held` is set if any node holds something.
        """
        cdef ServiceLedger ledger = self.service_ledger
        cdef unsigned int now_ms = milliseconds(time)
        cdef long long slot = <long long> (time / ledger.slot_seconds)
        cdef double recalled = max(0.0, available_of(bucket))
        cdef NodeCell *cell
        cdef int i
        for i in range(bucket.count):
            cell = &bucket.cells[i]
            if outstanding_of(cell) <= 0.0 or self.is_waiting[cell.node] or ledger.is_silent(cell, slot):
                continue
            is_held[0] = True
            if is_quiet(cell, times, now_ms):
                recalled += outstanding_of(cell)
                if is_recall_due(cell, times, now_ms):
                    cell.recalled_ms = now_ms
                    self.writer.recall(account, cell.node, now_ms, answers)
        return recalled

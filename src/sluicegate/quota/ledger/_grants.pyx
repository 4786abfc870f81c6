# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Granting: who is given how much credit, and when.

A node asks for the credit of some requests of a user, which are worth their expected cost of every
limited resource. Each user has one queue, with one entry for each node that asks; a newer ask takes the
place of the older one. All resources are granted together, in whole requests, out of what is
available (`_credit.pxd`):

    one node waits       all it wants; half of what is there if another node had traffic just now
    several wait         max-min fair, the remainder to those first in the queue
    others ask soon      what was granted to them just now entitles them to an even part of the refill
    less than a request  everyone is told how long it will take, by its place in the queue

Whoever gets something leaves the queue. A user of whom little is left is served every quarter of an interval at
most: asks that come meanwhile are served together, so they get fair parts. While nodes wait, credit is
recalled from those that have been quiet for a while.

In a large fleet, whose interval is longer than the shortest, each ask and each frame counts. There a user that
is short is granted in turn, several requests at a time. What is granted to a node that has not just asked is
told with the answer to its next ask, or after half an interval; at once where a request waits for it.

An ask may come twice, and cross the answer to the one before: what the node has been granted and does
not know of yet is subtracted from what it wants.

Times are seconds of the leader's clock.
"""

from heapq import heapify, heappop, heappush

from libc.math cimport INFINITY, floor
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove, memset

from sluicegate.errors import ProtocolError
from sluicegate.quota.ledger._bucket cimport (
    ACTIVE_MS,
    FORGET_SLOTS,
    Bucket,
    NodeCell,
    capacity_of,
    ceiling_of,
    cost_of_request,
    full_level_of,
    note_active,
    position_of,
    refill,
    spill,
)
from sluicegate.quota.ledger._credit cimport (
    Waiter,
    available_of,
    grant,
    outstanding_of,
    share_out,
    tell,
    unused_of,
)
from sluicegate.quota.ledger._service_ledger cimport ServiceLedger, milliseconds
from sluicegate.quota.messages import Hint, Share

__all__ = ["Granter", "max_min"]

cdef extern from *:
    """
    /* Another node counts as having traffic for this many seconds after the last sign of it. */
    #define OTHERS_SECONDS 0.5
    /* A node that was granted something asks again within so many milliseconds, if it goes on. */
    #define FAIR_MS 150
    /* A user with less than this part of its capacity is served in batches, one in this part of an interval. */
    #define SCARCE 0.1
    #define BATCH_PART 0.25
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
    /* While credit is out that a request waits for, a bucket may hold so many seconds of refill beyond its
       capacity, up to one request. */
    #define SPARE_SECONDS 0.4
    /* Thin: fewer requests per node and slot. What is spent beyond the bucket there is bounded by so many
       seconds of the limit. */
    #define THIN_REQUESTS 2.0
    #define FLOAT_SECONDS 3.0
    /* A request waits for so long at most; then it is not served any more. */
    #define WAIT_SECONDS 0.2
    /* Requests of a user can wait if one has waited within so many seconds. */
    #define WAITS_SECONDS 60.0
    /* The interval of a small fleet; a fleet is large if its interval is longer. */
    #define SHORTEST_INTERVAL 0.05
    /* In a large fleet a node is granted so many requests in turn, but all that wait not more than this part of
       the capacity: it would fill a small bucket with credit that is not used yet. */
    #define TURN_REQUESTS 4.0
    #define TURN_PART 0.2
    /* What it is granted is told after this part of an interval, if it does not ask before. */
    #define TELL_PART 0.5
    /* If its request has given up, it keeps its place for so many intervals (less the shortest). */
    #define KEEP_INTERVALS 4.0
    /* A queue is looked at once in this many seconds: nodes may be gone. */
    #define LOOK_SECONDS 1.0
    /* No hint says to wait for longer. */
    #define MAX_WAIT_SECONDS 3600.0
    /* Timers are set a little late, or a request would be there but for rounding. */
    #define TIMER_SLACK 1e-6
    /* An account without asks is forgotten after so many seconds. */
    #define IDLE_SECONDS 60.0
    """
    const double OTHERS_SECONDS, SCARCE, BATCH_PART, SPARE_SECONDS, THIN_REQUESTS, FLOAT_SECONDS, LOOK_SECONDS
    const double MAX_WAIT_SECONDS, TIMER_SLACK, IDLE_SECONDS, WAIT_SECONDS, WAITS_SECONDS
    const int FAIR_MS, SETTLE_MS, QUIET_MS, RECALL_MS, RECALL_EVERY_MS, PATIENT_QUIET_MS
    const double RECALL_SECONDS, SHORTEST_INTERVAL, TURN_REQUESTS, TURN_PART, KEEP_INTERVALS, TELL_PART

cdef double MAX_AMOUNT = 1e18  # no total is larger
cdef object _new = tuple.__new__  # a named tuple made by it takes a third of the time


def max_min(list available not None, list capacities not None, list waiters not None):
    """Share out what is available to waiters, (requests, [cost of each resource]); the requests of each."""
    cdef int i, r, count = len(waiters), resources = len(available)
    cdef Waiter *rows = <Waiter *> malloc((count + 1) * sizeof(Waiter))
    cdef double *numbers = <double *> malloc((count + 3) * (resources + 1) * sizeof(double))
    try:
        if rows == NULL or numbers == NULL:
            raise MemoryError
        for r in range(resources):
            numbers[r] = available[r]
            numbers[resources + r] = capacities[r]
        for i in range(count):
            rows[i].requests, costs = waiters[i]
            for r in range(resources):
                numbers[(3 + i) * resources + r] = costs[r]
        share_out(
            count, resources, numbers, numbers + resources, rows, numbers + 3 * resources, numbers + 2 * resources
        )
        return [rows[i].given for i in range(count)]
    finally:
        free(rows)
        free(numbers)


cdef class Account:
    """A user that nodes ask for: its limited resources, and the queue of the nodes that wait."""

    def __cinit__(self, str user):
        self.user = user
        self.numbers = NULL
        self.generations = NULL
        self.waiters = NULL
        self.costs = NULL
        self.count = self.waiting = self.room = 0
        self.due = INFINITY
        self.served = self.recalled = self.waited = self.last_active = self.other_active = -INFINITY
        self.last_node = -1

    def __dealloc__(self):
        free(self.numbers)
        free(self.generations)
        free(self.waiters)
        free(self.costs)

    cdef int bind(self, list resources) except -1:
        """Set the limited resources. The waiters have asked for others, if these are not the same."""
        cdef int count = len(resources)
        if resources != self.resources:
            self.resources = resources
            self.count = self.waiting = self.room = 0
            free(self.numbers)
            free(self.generations)
            free(self.waiters)
            free(self.costs)
            self.waiters = NULL
            self.costs = NULL
            self.numbers = <int *> malloc((count + 1) * sizeof(int))
            self.generations = <unsigned int *> malloc((count + 1) * sizeof(unsigned int))
            if self.numbers == NULL or self.generations == NULL:
                self.resources = None
                raise MemoryError
            self.count = count
        return 0

    cdef int find(self, int node) noexcept:
        """The position of a node in the queue, or -1."""
        cdef int i
        for i in range(self.waiting):
            if self.waiters[i].node == node:
                return i
        return -1

    cdef int put(self, int node, double requests, double until, const double *costs) except -1:
        """Queue a node, or update its entry in place."""
        cdef int position = self.find(node), room
        cdef void *grown
        if position < 0:
            if self.waiting == self.room:
                room = 2 * self.room + 2
                grown = realloc(self.waiters, room * sizeof(Waiter))
                if grown == NULL:
                    raise MemoryError
                self.waiters = <Waiter *> grown
                grown = realloc(self.costs, room * self.count * sizeof(double))
                if grown == NULL:
                    raise MemoryError
                self.costs = <double *> grown
                self.room = room
            position = self.waiting
            self.waiting += 1
        self.waiters[position] = Waiter(node, requests, until, 0.0)
        memcpy(&self.costs[position * self.count], costs, self.count * sizeof(double))
        return 0

    cdef int remove(self, int position) noexcept:
        cdef int after = self.waiting - position - 1
        memmove(&self.waiters[position], &self.waiters[position + 1], after * sizeof(Waiter))
        memmove(
            &self.costs[position * self.count],
            &self.costs[(position + 1) * self.count],
            after * self.count * sizeof(double),
        )
        self.waiting -= 1
        return 0

    cdef int note_traffic(self, int node, double time) noexcept:
        if node != self.last_node:
            self.other_active = self.last_active
            self.last_node = node
        self.last_active = time
        return 0


cdef class Granter:
    def __cinit__(self):
        self.numbers = NULL
        self.numbers_room = 0
        self.is_waiting = NULL
        self.is_waiting_room = 0

    def __init__(self, ServiceLedger service_ledger not None, resources_of):
        """`resources_of(user)` returns the names of a user's limited resources, or None."""
        self.service_ledger = service_ledger
        self.resources_of = resources_of
        self.accounts = {}
        self.heap = []
        self.pushed = 0
        self.untold = {}
        self.is_resuming = False
        self.held_until = -INFINITY

    def __dealloc__(self):
        free(self.numbers)
        free(self.is_waiting)

    def __len__(self):
        """How many users are known here."""
        return len(self.accounts)

    # Asking

    def ask(
        self,
        double time,
        str node_id not None,
        dict users not None,
        dict answers not None,
        *,
        double interval,
        bint is_newest=True,
    ):
        """Process what a node asks and tells; what is to be sent goes into `answers`.

        answers: node -> (user -> resource -> Share, user -> Hint). `is_newest`: the node has sent no
        report since that is booked.
        """
        cdef int node = self.service_ledger._node_number(node_id), position
        cdef unsigned int now_ms = milliseconds(time)
        cdef Account account
        cdef double wanted
        for user, user_ask in users.items():
            if type(user) is not str:
                raise ProtocolError(f"invalid ask of node {node_id!r}: user must be a string, got {user!r}")
            account = self._account_of(user, time)
            if account.count == 0:
                _answers_of(answers, node_id)[0][user] = {}
                continue
            self._reserve_numbers(5 * account.count)
            wanted = self._tell(account, node, time, is_newest, user_ask)
            if wanted > 0.0:
                account.put(node, wanted, time + WAIT_SECONDS if user_ask[2] else INFINITY, self.numbers)
                self._look(account, node, time, interval, answers)
                position = account.find(node)
                if position >= 0:
                    self._answer(
                        account,
                        node,
                        self._hint_of(account, position, time, interval),
                        &account.costs[position * account.count],
                        now_ms,
                        answers,
                    )
                continue
            position = account.find(node)
            if position >= 0:
                account.remove(position)
            if wanted < 0.0:  # it has what it wants, but does not know yet
                self._answer(account, node, 0.0, self.numbers, now_ms, answers)
            if account.waiting:
                self._look(account, node, time, interval, answers)
        self._tell_grants(node, time, answers)

    cdef Account _account_of(self, str user, double time):
        cdef ServiceLedger ledger = self.service_ledger
        cdef Account account = self.accounts.get(user)
        cdef int r
        cdef bint is_valid = account is not None and account.limits_version == ledger.limits_version
        cdef long long slot = <long long> floor(time / ledger.slot_seconds)
        if account is None:
            account = self.accounts[user] = Account(user)
        account.asked = time
        if is_valid:
            for r in range(account.count):
                if ledger.bucket_ids.generations[account.numbers[r]] != account.generations[r]:
                    is_valid = False
                    break
        if not is_valid:
            resources = []
            for resource in self.resources_of(user) or ():
                if ledger.buckets[ledger._bucket_number(user, resource, slot)].rate >= 0.0:
                    resources.append(resource)
            account.bind(resources)
            for r in range(account.count):
                account.numbers[r] = <int> ledger._bucket_number(user, resources[r], slot)
                account.generations[r] = ledger.bucket_ids.generations[account.numbers[r]]
            account.limits_version = ledger.limits_version
        return account

    cdef int _reserve_numbers(self, int count) except -1:
        cdef double *grown
        if count > self.numbers_room:
            grown = <double *> realloc(self.numbers, 2 * count * sizeof(double))
            if grown == NULL:
                raise MemoryError
            self.numbers = grown
            self.numbers_room = 2 * count
        return 0

    cdef double _tell(self, Account account, int node, double time, bint is_newest, user_ask) except? -2.0:
        """Bring the node's cells up to what it tells; the requests it still wants, -1: it was given them.

        The first row of `numbers` gets the costs.
        """
        cdef ServiceLedger ledger = self.service_ledger
        cdef Bucket *bucket
        cdef NodeCell *cell
        cdef int r, slot_offset
        cdef double slots = time / ledger.slot_seconds, granted, returned, used, cost, requests, known = INFINITY
        cdef unsigned int now_ms = milliseconds(time)
        cdef bint is_active, is_told, waits = False
        cdef dict resources
        try:
            asked, resources, may_wait = user_ask
            waits = may_wait
            requests = asked
        except (TypeError, ValueError):
            requests = -1.0
            resources = None
        if not 0.0 <= requests <= MAX_AMOUNT or resources is None:
            raise ProtocolError(
                f"invalid ask for user {account.user!r}: got {user_ask!r}, expected a number of requests "
                f"from 0 up, and resources"
            )
        if waits:
            account.waited = time
        is_active = requests > 0.0
        slot_offset = ledger._slot_offset(<long long> floor(slots))
        for r in range(account.count):
            bucket = &ledger.buckets[account.numbers[r]]
            credit = resources.get(account.resources[r])
            is_told = credit is not None
            granted = returned = used = 0.0
            cost = -1.0
            if is_told:
                try:
                    granted, returned, used, cost = credit
                except (TypeError, ValueError):
                    granted = -1.0
                if not (
                    0.0 <= granted <= MAX_AMOUNT
                    and 0.0 <= returned <= MAX_AMOUNT
                    and 0.0 <= used <= MAX_AMOUNT
                    and 0.0 <= cost <= MAX_AMOUNT
                ):
                    raise ProtocolError(
                        f"invalid credit for user {account.user!r} and resource {account.resources[r]!r}: "
                        f"got {credit!r}, expected amounts from 0 to {MAX_AMOUNT:g}"
                    )
            if cost <= 0.0:  # the node does not know it
                cost = cost_of_request(bucket)
            if bucket.kept > 0.0 or slots < ledger.nodes.warmup_until:
                ledger._keep_for_unknown_nodes(bucket, slots)
            refill(bucket, slots)
            cell = ledger._cell_of(bucket, node)
            if used > cell.used + 1e-9 * used:
                is_active = True
            if cell.last_ask == 0 and cell.last_report == 0:
                cell.demand = INFINITY
                cell.safe = <float> (bucket.rate / ledger.nodes.estimated_count(<long long> slots))
            # A node that knows nothing of the user any more has forgotten its totals, too.
            if is_told or (not resources and ledger._idle_slots(cell) >= FORGET_SLOTS):
                ledger.hear_asking(bucket, cell)
                tell(bucket, cell, granted, returned, used, is_newest)
            cell.last_ask = slot_offset
            self.numbers[r] = cost
            bucket.spare = self._spare_of(bucket, cost, time - account.waited < WAITS_SECONDS)
            # Credit that comes back unused had its place filled meanwhile: it is not there twice.
            spill(bucket)
            if cost > 0.0 and (is_told or not resources):
                # What it has been granted and does not know of yet.
                known = min(
                    known, (unused_of(cell) - max(0.0, granted - returned - used)) / cost
                )
        if is_active:
            account.note_traffic(node, time)
            for r in range(account.count):
                bucket = &ledger.buckets[account.numbers[r]]
                cell = &bucket.cells[position_of(bucket, node)]
                note_active(bucket, cell, now_ms)
        if requests == 0.0:
            return 0.0
        if known < INFINITY:
            requests -= max(0.0, floor(known + 1e-6))
        return requests if requests >= 1.0 else -1.0

    cdef double _spare_of(self, Bucket *bucket, double cost, bint waits) noexcept:
        """What a bucket may hold beyond its capacity while credit is out, or it stands still until that is used.

        Where requests wait it is used soon. Where they do not, and the limit is thin, credit must lie at many nodes.
        """
        if waits or not self._is_thin(bucket, cost):
            return min(cost, SPARE_SECONDS / self.service_ledger.slot_seconds * bucket.rate)
        return self._most_float(bucket, cost)

    cdef double _most_float(self, Bucket *bucket, double cost) noexcept:
        """How much may be spent beyond a bucket where nobody waits and the limit is thin."""
        cdef double most = FLOAT_SECONDS / self.service_ledger.slot_seconds * bucket.rate
        return max(cost, min(most, cost * bucket.active))

    cdef bint _is_thin(self, Bucket *bucket, double cost) noexcept:
        return bucket.rate < THIN_REQUESTS * cost * max(1, bucket.active)

    # Serving

    def due(self):
        """When `serve` has something to do next; infinite: nobody waits."""
        return min(self._queue_due(), self._untold_due())

    cdef double _queue_due(self) except -1.0:
        while self.heap and (<Account> self.heap[0][2]).due != <double> self.heap[0][0]:
            heappop(self.heap)
        return self.heap[0][0] if self.heap else INFINITY

    cdef double _untold_due(self) except -1.0:
        """When a node has to be told what it was granted: the first that was."""
        for due, _ in self.untold.values():
            return due
        return INFINITY

    def serve(self, double time, dict answers not None, *, double interval):
        """Serve the queues that are due; what is to be sent goes into `answers`, as in `ask`."""
        cdef Account account
        while self._queue_due() <= time:
            account = heappop(self.heap)[2]
            account.due = INFINITY
            asked = account.asked
            if self._account_of(account.user, time) is account and account.waiting:
                if self._is_held(time, interval):
                    self._schedule(account, self.held_until + TIMER_SLACK)
                else:
                    self._serve(account, -1, time, interval, answers)
            account.asked = asked
        while self._untold_due() <= time:
            self._tell_grants(next(iter(self.untold)), time, answers)

    cdef int _tell_later(self, Account account, int node, double due) except -1:
        """Tell a node what it was granted with its next answer, or when it is `due`."""
        untold = self.untold.get(node)
        if untold is None:
            untold = self.untold[node] = (due, set())
        (<set> untold[1]).add(account.user)
        return 0

    cdef int _tell_grants(self, int node, double time, dict answers) except -1:
        """Tell a node the grants that it has not been told of yet."""
        cdef Account account
        cdef int r
        untold = self.untold.pop(node, None)
        if untold is None:
            return 0
        told = _answers_of(answers, self.service_ledger.nodes.names[node])[0]
        for user in untold[1]:
            if user in told or user not in self.accounts:
                continue
            account = self._account_of(user, time)
            self._reserve_numbers(5 * account.count)
            for r in range(account.count):
                self.numbers[r] = cost_of_request(&self.service_ledger.buckets[account.numbers[r]])
            self._answer(account, node, 0.0, self.numbers, milliseconds(time), answers)
        return 0

    def untold_grants(self):
        """(node, user, resource, total of its grants) of all that nodes were granted and are not told yet."""
        cdef Account account
        cdef NodeCell *cell
        cdef int node, r
        cdef list grants = []
        for node, (_, users) in self.untold.items():
            for user in users:
                account = self.accounts.get(user)
                if account is None or account.limits_version != self.service_ledger.limits_version:
                    continue
                for r in range(account.count):
                    cell = self.service_ledger._cell_of(&self.service_ledger.buckets[account.numbers[r]], node)
                    grants.append((self.service_ledger.nodes.names[node], user, account.resources[r], cell.granted))
        return grants

    def drop_node(self, str node_id not None):
        """A node has restarted, or is gone: it waits no more."""
        cdef int node = self.service_ledger.nodes.number_of(node_id), position
        for _, _, account in self.heap:
            position = (<Account> account).find(node)
            if position >= 0:
                (<Account> account).remove(position)
        self.untold.pop(node, None)

    def clear(self):
        """Nobody waits any more: another central leads, or the clock has gone back."""
        self.heap.clear()
        self.untold.clear()
        self.accounts.clear()

    def resume(self):
        """The central goes on after a standstill, and hears at once all that nodes have sent since it began.

        What they have spent meanwhile stands in their newest messages. Whoever is served for an older one
        would be given what others have spent.
        """
        self.is_resuming = True

    cdef bint _is_held(self, double time, double interval) noexcept:
        """Whether nobody is served yet, after a standstill."""
        if self.is_resuming:
            self.is_resuming = False
            self.held_until = time + 0.5 * interval
        return self.held_until - interval <= time < self.held_until

    def forget_idle(self, double time):
        """Forget the users that nobody has asked for lately; about once a minute."""
        for user in [user for user, account in self.accounts.items() if _is_idle(account, time)]:
            del self.accounts[user]

    cdef int _look(self, Account account, int asker, double time, double interval, dict answers) except -1:
        """Serve the queue of an account now, or in a batch if there is little left."""
        cdef Bucket *bucket
        cdef double next_batch = account.served + BATCH_PART * interval
        cdef int r
        if self._is_held(time, interval):
            return self._schedule(account, self.held_until + TIMER_SLACK)
        if time < next_batch:
            for r in range(account.count):
                bucket = &self.service_ledger.buckets[account.numbers[r]]
                refill(bucket, time / self.service_ledger.slot_seconds)
                if available_of(bucket) < SCARCE * capacity_of(bucket):
                    return self._schedule(account, min(account.due, next_batch + TIMER_SLACK))
        return self._serve(account, asker, time, interval, answers)

    cdef int _serve(self, Account account, int asker, double time, double interval, dict answers) except -1:
        """Serve the queue of an account. `asker` has asked just now, and is told at once; -1: none has."""
        cdef ServiceLedger ledger = self.service_ledger
        cdef Bucket *bucket
        cdef NodeCell *cell
        cdef int i, r, node, turns, kept = 0, count = account.count
        cdef double slots = time / ledger.slot_seconds, wanted, active, next_recall, next_turn
        cdef unsigned int now_ms = milliseconds(time)
        cdef bint is_held, is_scarce = False, waits = False
        cdef double *available
        cdef double *capacities
        cdef double *left
        cdef double keep_seconds = KEEP_INTERVALS * (interval - SHORTEST_INTERVAL)
        self._reserve_numbers(5 * count)
        available = self.numbers + count
        capacities = self.numbers + 2 * count
        left = self.numbers + 3 * count
        for r in range(count):
            bucket = &ledger.buckets[account.numbers[r]]
            ledger._keep_for_unknown_nodes(bucket, slots)
            refill(bucket, slots)
            available[r] = available_of(bucket)
            capacities[r] = capacity_of(bucket)
            if bucket.rate <= 0.0:
                available[r] = -INFINITY
            is_scarce = is_scarce or available[r] < SCARCE * capacities[r]
        for i in range(account.waiting - 1, -1, -1):
            if account.waiters[i].until + keep_seconds < time:
                account.remove(i)
            elif ledger.nodes.is_silent(account.waiters[i].node, <long long> slots):
                cell = ledger._cell_of(&ledger.buckets[account.numbers[0]], account.waiters[i].node)
                if ledger.is_silent(cell, <long long> slots):
                    account.remove(i)
        if account.waiting == 0:
            account.due = INFINITY
            return 0
        is_held = self._hold_for_others(account, time, available)
        wanted = account.waiters[0].requests
        if account.waiting == 1:
            account.waiters[0].requests = INFINITY  # how many there are
        turns = self._turns(account, interval, available, left)
        share_out(turns, count, available, capacities, account.waiters, account.costs, left)
        for i in range(turns, account.waiting):
            account.waiters[i].given = 0.0
        if account.waiting == 1:
            account.waiters[0].requests = wanted
            active = account.other_active if account.waiters[0].node == account.last_node else account.last_active
            if not (is_held and is_scarce) and time - active < OTHERS_SECONDS and account.waiters[0].given > 1.0:
                account.waiters[0].given = floor(0.5 * account.waiters[0].given)
            account.waiters[0].given = min(account.waiters[0].given, wanted)
        for r in range(count):
            left[r] = available[r]
        for i in range(account.waiting):
            if account.waiters[i].given > 0.0:
                for r in range(count):
                    left[r] -= account.waiters[i].given * account.costs[i * count + r]
                    bucket = &ledger.buckets[account.numbers[r]]
                    cell = ledger._cell_of(bucket, account.waiters[i].node)
                    grant(bucket, cell, account.waiters[i].given * account.costs[i * count + r])
                    cell.granted_ms = now_ms
                    if cell.last_ask == 0:  # it was forgotten while the node waited, and has credit again
                        cell.last_ask = ledger._slot_offset(<long long> floor(slots))
                account.served = time
            if account.waiters[i].given < account.waiters[i].requests and _has_request(&account.waiters[i], time):
                waits = True
        for i in range(account.waiting):
            if account.waiters[i].given > 0.0:
                node = account.waiters[i].node
                if node == asker or _has_request(&account.waiters[i], time) or interval <= SHORTEST_INTERVAL:
                    self._answer(account, node, 0.0, &account.costs[i * count], now_ms, answers)
                else:
                    self._tell_later(account, node, time + TELL_PART * interval)
            else:
                if kept < i:
                    account.waiters[kept] = account.waiters[i]
                    memmove(&account.costs[kept * count], &account.costs[i * count], count * sizeof(double))
                kept += 1
        account.waiting = kept
        if kept == 0:
            account.due = INFINITY
            if waits:  # it was given less than it wants
                self._recall(account, time, interval, True, SCARCE, answers)
            return 0
        next_recall = self._recall(account, time, interval, waits, 0.0, answers)
        next_turn = self._wait_of(account, 0, time, interval)
        return self._schedule(account, time + min(min(next_turn, next_recall), LOOK_SECONDS) + TIMER_SLACK)

    cdef double _requests_in_turn(self, Account account, double interval) noexcept:
        """How many requests a node that waits is granted in turn, at least."""
        cdef double requests = min(TURN_REQUESTS, interval / SHORTEST_INTERVAL), capacity
        cdef int r
        for r in range(account.count):
            capacity = capacity_of(&self.service_ledger.buckets[account.numbers[r]])
            if account.costs[r] > 0.0:
                requests = min(requests, TURN_PART * capacity / (account.costs[r] * account.waiting))
        return max(1.0, floor(requests))

    cdef int _turns(self, Account account, double interval, const double *available, double *left) noexcept:
        """How many of the queue are served now: in a large fleet those that can be granted several requests each."""
        cdef double requests = self._requests_in_turn(account, interval)
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

    cdef bint _hold_for_others(self, Account account, double time, double *available) except -1:
        """Hold back the even part of the refill of nodes that were granted something just now, and ask again soon.

        Nodes ask in turns, some of them together: each turn would else take all that has come in since the last.
        Returns whether there are such nodes.
        """
        cdef ServiceLedger ledger = self.service_ledger
        cdef Bucket *bucket = &ledger.buckets[account.numbers[0]]
        cdef unsigned int now_ms = milliseconds(time)
        cdef int i, r, since_ms, nodes = account.waiting
        cdef double held_ms = 0.0, slots_per_ms = 0.001 / ledger.slot_seconds
        self._mark_waiters(account, True)
        for i in range(bucket.count):
            since_ms = <int> (now_ms - bucket.cells[i].granted_ms)
            if 0 <= since_ms < FAIR_MS and not self.is_waiting[bucket.cells[i].node]:
                nodes += 1
                held_ms += since_ms
        self._mark_waiters(account, False)
        if nodes == account.waiting:
            return False
        for r in range(account.count):
            bucket = &ledger.buckets[account.numbers[r]]
            # Where each gets a request or two, the order of the queue is fair.
            if bucket.rate * FAIR_MS * slots_per_ms < 2.0 * account.costs[r] * nodes:
                return False
        for r in range(account.count):
            bucket = &ledger.buckets[account.numbers[r]]
            if account.costs[r] > 0.0:
                available[r] -= bucket.rate * held_ms * slots_per_ms / nodes
        return True

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

    cdef int _schedule(self, Account account, double due) except -1:
        if due != account.due:
            account.due = due
            self.pushed += 1
            heappush(self.heap, (due, self.pushed, account))
            if len(self.heap) > 64 + 4 * len(self.accounts):
                self.heap = [entry for entry in self.heap if (<Account> entry[2]).due == <double> entry[0]]
                heapify(self.heap)
        return 0

    cdef double _wait_of(self, Account account, int position, double time, double interval) noexcept:
        """Seconds until it is the turn of a waiter, when each one before it is granted what it gets in turn."""
        cdef Bucket *bucket
        cdef int i, r
        cdef double wait = max(0.001, account.served + BATCH_PART * interval - time), missing, cost
        cdef double most = MAX_WAIT_SECONDS, requests = self._requests_in_turn(account, interval)
        for r in range(account.count):
            bucket = &self.service_ledger.buckets[account.numbers[r]]
            cost = account.costs[position * account.count + r]
            if cost <= 0.0:
                continue
            if bucket.rate <= 0.0:
                return MAX_WAIT_SECONDS
            missing = min(cost, capacity_of(bucket)) - available_of(bucket)
            for i in range(position):
                missing += requests * account.costs[i * account.count + r]
            if missing > 0.0:
                wait = max(wait, missing / bucket.rate * self.service_ledger.slot_seconds)
            i = position_of(bucket, account.waiters[position].node)
            if bucket.cells[i].uncovered > 0.0:
                most = self.service_ledger.slot_seconds  # its report may show that the refill has covered it
        return min(wait, most)

    cdef double _hint_of(self, Account account, int position, double time, double interval) noexcept:
        """How long a waiter is told to wait: not at all while what was recalled may come for it."""
        if position < account.recalling and time - account.recalled < RECALL_SECONDS + interval - SHORTEST_INTERVAL:
            return 0.0
        return self._wait_of(account, position, time, interval)

    cdef bint _may_float(self, Account account, const double *costs, unsigned int now_ms) noexcept:
        """Whether a request may pass ahead of its grant: the limit is thin, and the debt is small."""
        cdef Bucket *bucket
        cdef int r
        cdef bint is_thin = False
        cdef double most_debt
        for r in range(account.count):
            bucket = &self.service_ledger.buckets[account.numbers[r]]
            if costs[r] > 0.0 and self._is_thin(bucket, costs[r]):
                is_thin = True
        if not is_thin:
            return False
        for r in range(account.count):
            bucket = &self.service_ledger.buckets[account.numbers[r]]
            if costs[r] <= 0.0:
                continue
            most_debt = self._most_float(bucket, costs[r]) - max(0.0, bucket.level - full_level_of(bucket))
            if bucket.rate <= 0.0 or not _covers_floats(bucket, costs[r], most_debt, now_ms):
                return False
        return True

    cdef int _answer(
        self, Account account, int node, double wait, const double *costs, unsigned int now_ms, dict answers
    ) except -1:
        """Tell a node the totals of its grants, and how long it has to wait for more."""
        cdef Bucket *bucket
        cdef NodeCell *cell
        cdef int r
        cdef dict shares = {}
        for r in range(account.count):
            bucket = &self.service_ledger.buckets[account.numbers[r]]
            cell = self.service_ledger._cell_of(bucket, node)
            shares[account.resources[r]] = _new(Share, (cell.granted, cell.safe))
        users, hints = _answers_of(answers, self.service_ledger.nodes.names[node])
        users[account.user] = shares
        hints[account.user] = _new(Hint, (wait, False, self._may_float(account, costs, now_ms)))
        return 0

    cdef double _recall(
        self, Account account, double time, double interval, bint waits, double least_part, dict answers
    ) except -1:
        """Recall the credit of nodes that are quiet, of the resources that are short. `waits`: a request waits for it.

        Short is what has less left than a request, or than this part of the capacity; what is left is in the fourth
        row of `numbers`. Nodes that ask less often tell of their traffic later, and give back later: all of it takes
        longer then. Returns in how many seconds there may be more to recall.
        """
        cdef ServiceLedger ledger = self.service_ledger
        cdef Bucket *bucket
        cdef NodeCell *cell
        cdef int r, i, quiet_ms, granted_ms, since_recall_ms
        cdef unsigned int now_ms = milliseconds(time)
        cdef double since = time - account.recalled
        cdef bint is_held = False
        cdef double recalled, left, least = INFINITY
        cdef int later_ms = <int> (1000.0 * (interval - SHORTEST_INTERVAL))
        cdef int quiet_for = (QUIET_MS if waits else PATIENT_QUIET_MS) + later_ms
        cdef int recall_ms = RECALL_MS + later_ms
        cdef double recall_every = 0.001 * RECALL_EVERY_MS * interval / SHORTEST_INTERVAL
        if since < recall_every:
            return recall_every - since
        account.recalled = time
        account.recalling = 0.0
        self._mark_waiters(account, True)
        for r in range(account.count):
            bucket = &ledger.buckets[account.numbers[r]]
            # What is held for others is not there for who waits.
            left = self.numbers[3 * account.count + r] if waits else available_of(bucket)
            if left >= max(min(account.costs[r], capacity_of(bucket)), least_part * capacity_of(bucket)):
                continue
            if not waits and bucket.level < ceiling_of(bucket) - 1e-6 * account.costs[r]:
                continue  # more comes in: nothing is lost if they keep it
            recalled = max(0.0, available_of(bucket))
            for i in range(bucket.count):
                cell = &bucket.cells[i]
                if outstanding_of(cell) <= 0.0 or self.is_waiting[cell.node]:
                    continue
                if ledger.is_silent(cell, <long long> (time / ledger.slot_seconds)):
                    continue
                is_held = True
                quiet_ms = <int> (now_ms - cell.active_ms)
                granted_ms = <int> (now_ms - cell.granted_ms)
                if quiet_ms < 0 or granted_ms < 0:  # for more than three weeks
                    quiet_ms = recall_ms
                else:
                    quiet_ms = min(quiet_ms, granted_ms - SETTLE_MS + quiet_for)
                if quiet_ms < quiet_for:
                    continue
                recalled += outstanding_of(cell)
                since_recall_ms = <int> (now_ms - cell.recalled_ms)
                if not 0 <= since_recall_ms < recall_ms:
                    cell.recalled_ms = now_ms
                    _answers_of(answers, ledger.nodes.names[cell.node])[1][account.user] = Hint(
                        0.0, True, self._may_float(account, account.costs, now_ms)
                    )
            if account.costs[r] > 0.0:
                least = min(least, floor(recalled / min(account.costs[r], capacity_of(bucket)) + 1e-6))
        self._mark_waiters(account, False)
        account.recalling = least if least < INFINITY else 0.0
        return recall_every if is_held else INFINITY


cdef bint _covers_floats(const Bucket *bucket, double cost, double most_debt, unsigned int now_ms) noexcept:
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


cdef bint _has_request(const Waiter *waiter, double time) noexcept:
    """Whether a request waits for the answer."""
    return time <= waiter.until < INFINITY


cdef bint _is_idle(Account account, double time) noexcept:
    return account.waiting == 0 and not -IDLE_SECONDS < time - account.asked < IDLE_SECONDS


cdef tuple _answers_of(dict answers, str node_id):
    """What a node is to be told: user -> shares, user -> hint."""
    answer = answers.get(node_id)
    if answer is None:
        answer = answers[node_id] = ({}, {})
    return answer

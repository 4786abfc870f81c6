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
from libc.stdlib cimport free, realloc

from sluicegate.errors import ProtocolError
from sluicegate.quota.ledger._account cimport Account
from sluicegate.quota.ledger._answers cimport AnswerWriter, answers_of
from sluicegate.quota.ledger._bucket cimport Bucket, capacity_of, refill
from sluicegate.quota.ledger._credit cimport available_of
from sluicegate.quota.ledger._queue_server cimport QueueServer
from sluicegate.quota.ledger._recall cimport is_recall_coming
from sluicegate.quota.ledger._service_ledger cimport ServiceLedger, milliseconds
from sluicegate.quota.ledger._turns cimport BATCH_PART, SCARCE, wait_of
from sluicegate.quota.ledger._user_ask cimport hear

__all__ = ["Granter"]

cdef extern from *:
    """
    /* A request waits for so long at most; then it is not served any more. */
    #define WAIT_SECONDS 0.2
    /* Timers are set a little late, or a request would be there but for rounding. */
    #define TIMER_SLACK 1e-6
    /* An account without asks is forgotten after so many seconds. */
    #define IDLE_SECONDS 60.0
    """
    const double WAIT_SECONDS, TIMER_SLACK, IDLE_SECONDS


cdef class Granter:
    def __cinit__(self):
        self.costs = NULL
        self.costs_room = 0

    def __init__(self, ServiceLedger service_ledger not None, resources_of):
        """`resources_of(user)` returns the names of a user's limited resources, or None."""
        self.service_ledger = service_ledger
        self.resources_of = resources_of
        self.writer = AnswerWriter(service_ledger)
        self.server = QueueServer(service_ledger, self.writer)
        self.accounts = {}
        self.heap = []
        self.pushed = 0
        self.is_resuming = False
        self.held_until = -INFINITY

    def __dealloc__(self):
        free(self.costs)

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
        cdef int node = self.service_ledger._node_number(node_id)
        cdef Account account
        cdef int position
        cdef double wanted, until
        cdef bint knows_costs
        for user, user_ask in users.items():
            if type(user) is not str:
                raise ProtocolError(f"invalid ask of node {node_id!r}: user must be a string, got {user!r}")
            account = self._account_of(user, time)
            if account.count == 0:
                answers_of(answers, node_id)[0][user] = {}
                continue
            self._reserve_costs(account.count)
            wanted = hear(
                self.service_ledger, account, node, time, is_newest, user_ask, self.costs, &knows_costs
            )
            if wanted > 0.0:
                until = time + WAIT_SECONDS if user_ask[2] else INFINITY
                position = account.put(node, wanted, until, knows_costs, self.costs)
                self._answer_ask(account, position, time, interval, answers)
            else:
                self._end_wait(account, node, wanted < 0.0, time, interval, answers)
        self._tell_grants(node, time, answers)

    cdef int _answer_ask(self, Account account, int position, double time, double interval, dict answers) except -1:
        """Serve the node at this position of the queue, or tell it how long it has to wait."""
        cdef double wait = 0.0
        cdef int node = account.waiters[position].node
        self._look(account, node, time, interval, answers)
        if position >= account.waiting or account.waiters[position].node != node:
            position = account.find(node)
            if position < 0:
                return 0
        # It need not wait while what was recalled may come for it.
        if not is_recall_coming(account, position, time, interval):
            wait = wait_of(self.service_ledger, account, position, time, interval)
        return self.writer.answer(
            account, node, wait, &account.costs[position * account.count], milliseconds(time), answers
        )

    cdef int _end_wait(
        self, Account account, int node, bint is_granted, double time, double interval, dict answers
    ) except -1:
        """A node wants no more. `is_granted`: it has what it wants, but does not know yet."""
        cdef int position = account.find(node)
        if position >= 0:
            account.remove(position)
        if is_granted:
            self.writer.answer(account, node, 0.0, self.costs, milliseconds(time), answers)
        if account.waiting:
            self._look(account, node, time, interval, answers)
        return 0

    cdef Account _account_of(self, str user, double time):
        cdef ServiceLedger ledger = self.service_ledger
        cdef Account account = self.accounts.get(user)
        if account is None:
            account = self.accounts[user] = Account(user)
        account.asked = time
        if not account.is_bound(ledger):
            account.bind(ledger, <long long> floor(time / ledger.slot_seconds), self.resources_of(user) or ())
        return account

    cdef int _reserve_costs(self, int count) except -1:
        cdef double *grown
        if count > self.costs_room:
            grown = <double *> realloc(self.costs, 2 * count * sizeof(double))
            if grown == NULL:
                raise MemoryError
            self.costs = grown
            self.costs_room = 2 * count
        return 0

    # Serving

    def due(self):
        """When `serve` has something to do next; infinite: nobody waits."""
        return min(self._queue_due(), self.writer.untold_due())

    cdef double _queue_due(self) except -1.0:
        while self.heap and (<Account> self.heap[0][2]).due != <double> self.heap[0][0]:
            heappop(self.heap)
        return self.heap[0][0] if self.heap else INFINITY

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
        while self.writer.untold_due() <= time:
            self._tell_grants(next(iter(self.writer.untold)), time, answers)

    cdef int _tell_grants(self, int node, double time, dict answers) except -1:
        """Tell a node the grants that it has not been told of yet."""
        untold = self.writer.untold.pop(node, None)
        if untold is None:
            return 0
        told = answers_of(answers, self.service_ledger.nodes.names[node])[0]
        for user in untold[1]:
            if user not in told and user in self.accounts:
                self.writer.tell_untold(self._account_of(user, time), node, milliseconds(time), answers)
        return 0

    def untold_grants(self):
        """(node, user, resource, total of its grants) of all that nodes were granted and are not told yet."""
        return self.writer.untold_grants(self.accounts)

    def drop_node(self, str node_id not None):
        """A node has restarted, or is gone: it waits no more."""
        cdef int node = self.service_ledger.nodes.number_of(node_id), position
        for _, _, account in self.heap:
            position = (<Account> account).find(node)
            if position >= 0:
                (<Account> account).remove(position)
        self.writer.untold.pop(node, None)

    def clear(self):
        """Nobody waits any more: another central leads, or the clock has gone back."""
        self.heap.clear()
        self.writer.untold.clear()
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

    cdef int _schedule(self, Account account, double due) except -1:
        if due != account.due:
            account.due = due
            self.pushed += 1
            heappush(self.heap, (due, self.pushed, account))
            if len(self.heap) > 64 + 4 * len(self.accounts):
                self.heap = [entry for entry in self.heap if (<Account> entry[2]).due == <double> entry[0]]
                heapify(self.heap)
        return 0

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
        cdef double due = self.server.serve(account, asker, time, interval, answers)
        if due < INFINITY:
            return self._schedule(account, due + TIMER_SLACK)
        account.due = INFINITY
        return 0


cdef bint _is_idle(Account account, double time) noexcept:
    return account.waiting == 0 and not -IDLE_SECONDS < time - account.asked < IDLE_SECONDS

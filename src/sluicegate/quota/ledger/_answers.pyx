# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False
"""Answers: what nodes are told of their grants, at once or later.

They are gathered in a dict: node -> (user -> resource -> Share, user -> Hint).

In a large fleet, what is granted to a node that has not just asked is told with the answer to its next ask,
or when that takes too long.
"""

from libc.math cimport INFINITY
from libc.stdlib cimport free, malloc

from sluicegate.quota.ledger._account cimport Account
from sluicegate.quota.ledger._bucket cimport NodeCell, cost_of_request
from sluicegate.quota.ledger._floats cimport may_float
from sluicegate.quota.ledger._service_ledger cimport ServiceLedger
from sluicegate.quota.messages import Hint, Share

__all__ = ["AnswerWriter"]

cdef object _new = tuple.__new__  # a named tuple made by it takes a third of the time


cdef tuple answers_of(dict answers, str node_id):
    """What a node is to be told: user -> shares, user -> hint."""
    answer = answers.get(node_id)
    if answer is None:
        answer = answers[node_id] = ({}, {})
    return answer


cdef class AnswerWriter:
    def __init__(self, ServiceLedger service_ledger not None):
        self.service_ledger = service_ledger
        self.untold = {}

    cdef int answer(
        self, Account account, int node, double wait, const double *costs, unsigned int now_ms, dict answers
    ) except -1:
        """Tell a node the totals of its grants, and how long it has to wait for more."""
        cdef ServiceLedger ledger = self.service_ledger
        cdef NodeCell *cell
        cdef int r
        cdef dict shares = {}
        for r in range(account.count):
            cell = ledger._cell_of(&ledger.buckets[account.numbers[r]], node)
            shares[account.resources[r]] = _new(Share, (cell.granted, cell.safe))
        users, hints = answers_of(answers, ledger.nodes.names[node])
        users[account.user] = shares
        hints[account.user] = _new(Hint, (wait, False, may_float(ledger, account, costs, now_ms)))
        return 0

    cdef int recall(self, Account account, int node, unsigned int now_ms, dict answers) except -1:
        """Tell a node to give back what it does not need."""
        hints = answers_of(answers, self.service_ledger.nodes.names[node])[1]
        hints[account.user] = Hint(0.0, True, may_float(self.service_ledger, account, account.costs, now_ms))
        return 0

    # Grants that are told later

    cdef int tell_later(self, Account account, int node, double due) except -1:
        """Tell a node what it was granted with its next answer, or when it is `due`."""
        untold = self.untold.get(node)
        if untold is None:
            untold = self.untold[node] = (due, set())
        (<set> untold[1]).add(account.user)
        return 0

    cdef double untold_due(self) except -1.0:
        """When a node has to be told what it was granted: the first that was."""
        for due, _ in self.untold.values():
            return due
        return INFINITY

    cdef int tell_untold(self, Account account, int node, unsigned int now_ms, dict answers) except -1:
        """Tell a node what it was granted of a user since its last answer."""
        cdef double *costs = <double *> malloc((account.count + 1) * sizeof(double))
        cdef int r
        if costs == NULL:
            raise MemoryError
        try:
            for r in range(account.count):
                costs[r] = cost_of_request(&self.service_ledger.buckets[account.numbers[r]])
            return self.answer(account, node, 0.0, costs, now_ms, answers)
        finally:
            free(costs)

    cdef list untold_grants(self, dict accounts):
        """(node, user, resource, total of its grants) of all that nodes were granted and are not told yet."""
        cdef ServiceLedger ledger = self.service_ledger
        cdef Account account
        cdef NodeCell *cell
        cdef int node, r
        cdef list grants = []
        for node, (_, users) in self.untold.items():
            for user in users:
                account = accounts.get(user)
                if account is None or account.limits_version != ledger.limits_version:
                    continue
                for r in range(account.count):
                    cell = ledger._cell_of(&ledger.buckets[account.numbers[r]], node)
                    grants.append((ledger.nodes.names[node], user, account.resources[r], cell.granted))
        return grants

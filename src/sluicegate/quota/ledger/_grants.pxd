cimport cython

from sluicegate.quota.ledger._account cimport Account
from sluicegate.quota.ledger._answers cimport AnswerWriter
from sluicegate.quota.ledger._queue_server cimport QueueServer
from sluicegate.quota.ledger._service_ledger cimport ServiceLedger


@cython.final
cdef class Granter:
    cdef ServiceLedger service_ledger
    cdef object resources_of  # user -> the names of its limited resources, or None
    cdef AnswerWriter writer
    cdef QueueServer server
    cdef dict accounts  # user -> Account
    cdef list heap  # (due, number, Account): those with waiters, and outdated entries
    cdef long long pushed
    cdef bint is_resuming  # after a standstill, and nobody was looked at since
    cdef double held_until  # nobody is served before
    cdef double *costs  # scratch: of a request of the node that asks
    cdef int costs_room
    cdef int _answer_ask(self, Account account, int position, double time, double interval, dict answers) except -1
    cdef int _end_wait(
        self, Account account, int node, bint is_granted, double time, double interval, dict answers
    ) except -1
    cdef Account _account_of(self, str user, double time)
    cdef int _reserve_costs(self, int count) except -1
    cdef double _queue_due(self) except -1.0
    cdef int _tell_grants(self, int node, double time, dict answers) except -1
    cdef bint _is_held(self, double time, double interval) noexcept
    cdef int _schedule(self, Account account, double due) except -1
    cdef int _look(self, Account account, int asker, double time, double interval, dict answers) except -1
    cdef int _serve(self, Account account, int asker, double time, double interval, dict answers) except -1

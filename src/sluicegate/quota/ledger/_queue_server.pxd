cimport cython

from sluicegate.quota.ledger._account cimport Account
from sluicegate.quota.ledger._answers cimport AnswerWriter
from sluicegate.quota.ledger._bucket cimport Bucket
from sluicegate.quota.ledger._recall cimport RecallTimes
from sluicegate.quota.ledger._service_ledger cimport ServiceLedger


@cython.final
cdef class QueueServer:
    cdef ServiceLedger service_ledger
    cdef AnswerWriter writer
    cdef double *numbers  # scratch: rows of a number for each resource of a user
    cdef int numbers_room
    cdef char *is_waiting  # scratch: of each node, whether it is in a queue
    cdef int is_waiting_room
    cdef double serve(self, Account account, int asker, double time, double interval, dict answers) except -1.0
    cdef int _reserve_numbers(self, int count) except -1
    cdef bint _find_available(self, Account account, double time) except -1
    cdef int _drop_gone(self, Account account, double time, double interval) except -1
    cdef int _share_out(self, Account account, bint is_scarce, double time, double interval) except -1
    cdef bint _grant(self, Account account, double time) except -1
    cdef int _tell_served(self, Account account, int asker, double time, double interval, dict answers) except -1
    cdef int _mark_waiters(self, Account account, bint is_waiting) except -1
    cdef double _recall(
        self, Account account, double time, double interval, bint waits, double least_part, dict answers
    ) except -1
    cdef double _recall_quiet(
        self, Account account, Bucket *bucket, double time, const RecallTimes *times, bint *is_held, dict answers
    ) except -1.0

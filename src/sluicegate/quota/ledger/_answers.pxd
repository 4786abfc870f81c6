cimport cython

from sluicegate.quota.ledger._account cimport Account
from sluicegate.quota.ledger._service_ledger cimport ServiceLedger


@cython.final
cdef class AnswerWriter:
    cdef ServiceLedger service_ledger
    cdef dict untold  # node -> (when it has to be told, the users it was granted credit of), the first first
    cdef int answer(
        self, Account account, int node, double wait, const double *costs, unsigned int now_ms, dict answers
    ) except -1
    cdef int recall(self, Account account, int node, unsigned int now_ms, dict answers) except -1
    cdef int tell_later(self, Account account, int node, double due) except -1
    cdef double untold_due(self) except -1.0
    cdef int tell_untold(self, Account account, int node, unsigned int now_ms, dict answers) except -1
    cdef list untold_grants(self, dict accounts)

cdef tuple answers_of(dict answers, str node_id)

cimport cython

from sluicegate.quota.ledger._bucket cimport Bucket
from sluicegate.quota.ledger._credit cimport Waiter
from sluicegate.quota.ledger._service_ledger cimport ServiceLedger


@cython.final
cdef class Account:
    cdef readonly str user
    cdef list resources  # the names of those that are limited
    cdef int count  # of them
    cdef int *numbers  # their buckets
    cdef unsigned int *generations  # of the bucket ids: they change when a bucket is forgotten
    cdef unsigned long limits_version
    cdef Waiter *waiters  # first come, first served
    cdef double *costs  # a row of `count` for each waiter
    cdef int waiting, room
    cdef double due  # when the queue is to be looked at; infinite: nobody waits
    cdef double served  # when something was last granted
    cdef double recalled  # when credit was last recalled
    cdef double recalling  # the requests' worth of it
    cdef double asked  # when a node last asked
    cdef double waited  # when a request last waited for the answer
    cdef int last_node  # the node that told of traffic last
    cdef double last_active  # when that was
    cdef double other_active  # when another node last did
    cdef int bind(self, list resources) except -1
    cdef int find(self, int node) noexcept
    cdef int put(self, int node, double requests, double until, const double *costs) except -1
    cdef int remove(self, int position) noexcept
    cdef int note_traffic(self, int node, double time) noexcept


@cython.final
cdef class Granter:
    cdef ServiceLedger service_ledger
    cdef object resources_of  # user -> the names of its limited resources, or None
    cdef dict accounts  # user -> Account
    cdef list heap  # (due, number, Account): those with waiters, and outdated entries
    cdef long long pushed
    cdef bint is_resuming  # after a standstill, and nobody was looked at since
    cdef double held_until  # nobody is served before
    cdef double *numbers  # scratch: rows of a number for each resource of a user
    cdef int numbers_room
    cdef char *is_waiting  # scratch: of each node, whether it is in a queue
    cdef int is_waiting_room
    cdef dict untold  # node -> (when it has to be told, the users it was granted credit of), the first first
    cdef Account _account_of(self, str user, double time)
    cdef int _reserve_numbers(self, int count) except -1
    cdef double _tell(self, Account account, int node, double time, bint is_newest, user_ask) except? -2.0
    cdef double _spare_of(self, Bucket *bucket, double cost, bint waits) noexcept
    cdef double _most_float(self, Bucket *bucket, double cost) noexcept
    cdef bint _is_held(self, double time, double interval) noexcept
    cdef bint _is_thin(self, Bucket *bucket, double cost) noexcept
    cdef double _queue_due(self) except -1.0
    cdef double _untold_due(self) except -1.0
    cdef int _tell_later(self, Account account, int node, double due) except -1
    cdef int _tell_grants(self, int node, double time, dict answers) except -1
    cdef int _look(self, Account account, int asker, double time, double interval, dict answers) except -1
    cdef int _serve(self, Account account, int asker, double time, double interval, dict answers) except -1
    cdef double _requests_in_turn(self, Account account, double interval) noexcept
    cdef int _turns(self, Account account, double interval, const double *available, double *left) noexcept
    cdef int _mark_waiters(self, Account account, bint is_waiting) except -1
    cdef bint _hold_for_others(self, Account account, double time, double *available) except -1
    cdef int _schedule(self, Account account, double due) except -1
    cdef double _wait_of(self, Account account, int position, double time, double interval) noexcept
    cdef double _hint_of(self, Account account, int position, double time, double interval) noexcept
    cdef bint _may_float(self, Account account, const double *costs, unsigned int now_ms) noexcept
    cdef int _answer(
        self, Account account, int node, double wait, const double *costs, unsigned int now_ms, dict answers
    ) except -1
    cdef double _recall(
        self, Account account, double time, double interval, bint waits, double least_part, dict answers
    ) except -1

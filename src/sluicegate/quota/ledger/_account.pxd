cimport cython

from libc.math cimport INFINITY

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
    cdef bint is_bound(self, ServiceLedger ledger) noexcept
    cdef int bind(self, ServiceLedger ledger, long long slot, resources) except -1
    cdef int _make_room(self, list resources) except -1
    cdef int find(self, int node) noexcept
    cdef int put(self, int node, double requests, double until, bint knows_costs, const double *costs) except -1
    cdef int _grow(self) except -1
    cdef int remove(self, int position) noexcept
    cdef int remove_served(self) noexcept
    cdef int note_traffic(self, int node, double time) noexcept


cdef inline bint has_request(const Waiter *waiter, double time) noexcept nogil:
    """Whether a request waits for the answer."""
    return time <= waiter.until < INFINITY

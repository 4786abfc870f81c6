# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""A user that nodes ask for: its limited resources, and the queue of the nodes that wait.

A node has one entry in the queue: a newer ask takes the place of the older one.
"""

from libc.math cimport INFINITY
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove

from sluicegate.quota.ledger._credit cimport Waiter, share_out
from sluicegate.quota.ledger._service_ledger cimport ServiceLedger

__all__ = ["Account", "max_min"]


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

    # Resources

    cdef bint is_bound(self, ServiceLedger ledger) noexcept:
        """Whether its resources and their buckets are still the same."""
        cdef int r
        if self.resources is None or self.limits_version != ledger.limits_version:
            return False
        for r in range(self.count):
            if ledger.bucket_ids.generations[self.numbers[r]] != self.generations[r]:
                return False
        return True

    cdef int bind(self, ServiceLedger ledger, long long slot, resources) except -1:
        """Find the buckets of these resources that are limited."""
        cdef list limited = []
        cdef int r
        for resource in resources:
            if ledger.buckets[ledger._bucket_number(self.user, resource, slot)].rate >= 0.0:
                limited.append(resource)
        self._make_room(limited)
        for r in range(self.count):
            self.numbers[r] = <int> ledger._bucket_number(self.user, limited[r], slot)
            self.generations[r] = ledger.bucket_ids.generations[self.numbers[r]]
        self.limits_version = ledger.limits_version
        return 0

    cdef int _make_room(self, list resources) except -1:
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

    # The queue

    cdef int find(self, int node) noexcept:
        """The position of a node in the queue, or -1."""
        cdef int i
        for i in range(self.waiting):
            if self.waiters[i].node == node:
                return i
        return -1

    cdef int put(self, int node, double requests, double until, bint knows_costs, const double *costs) except -1:
        """Queue a node, or update its entry in place; its position."""
        cdef int position = self.find(node)
        if position < 0:
            if self.waiting == self.room:
                self._grow()
            position = self.waiting
            self.waiting += 1
        self.waiters[position] = Waiter(node, requests, until, knows_costs, 0.0)
        memcpy(&self.costs[position * self.count], costs, self.count * sizeof(double))
        return position

    cdef int _grow(self) except -1:
        cdef int room = 2 * self.room + 2
        cdef void *grown = realloc(self.waiters, room * sizeof(Waiter))
        if grown == NULL:
            raise MemoryError
        self.waiters = <Waiter *> grown
        grown = realloc(self.costs, room * self.count * sizeof(double))
        if grown == NULL:
            raise MemoryError
        self.costs = <double *> grown
        self.room = room
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

    cdef int remove_served(self) noexcept:
        """Remove all that were given something."""
        cdef int i, kept = 0
        for i in range(self.waiting):
            if self.waiters[i].given > 0.0:
                continue
            if kept < i:
                self.waiters[kept] = self.waiters[i]
                memmove(&self.costs[kept * self.count], &self.costs[i * self.count], self.count * sizeof(double))
            kept += 1
        self.waiting = kept
        return 0

    cdef int note_traffic(self, int node, double time) noexcept:
        if node != self.last_node:
            self.other_active = self.last_active
            self.last_node = node
        self.last_active = time
        return 0

# cython: language_level=3, binding=False, embedsignature=True, embedsignature.format=clinic, cdivision=True
"""`RoundRobin`: in turn, each server as often as its weight says, evenly spread.

Of every W picks in a row from the first on (W: the sum of the weights), each server gets exactly
its weight, and after any number of picks it is less than one request from its exact share.

Up to 16 servers the order is nginx's: each pick adds its weight to the credit of every server,
takes the one with the most, and takes W from it. {a: 5, b: 1, c: 1} gives a a b a c a a. The order
repeats after W picks, so it is worked out once, when the servers change, and a pick is a look into
a table.

nginx's order is not always within one request of the exact shares: of random weights of 2 to 16
servers, 1 in 100 go beyond it, up to 1.2 requests. Those, more than 16 servers, and orders of more
than 4,096 picks are given out by deadlines. Pick number k of a server (from 0) may not come before
k * W / weight picks were made, and must be among the first (k + 1) * W / weight, rounded up; of
those that may come, the earliest deadline is first. One that is always met: the shares add up to 1
(Baruah et al., "Proportionate progress", 1996). A heap of those that may come, and one of those
that may not yet, make it O(log n).

When servers or weights change, the order goes on and does not begin anew: else a change every few
picks (a slow start, a server that comes and goes) would starve the light ones. In the table it goes
on behind the last server, at one of its places at random; by deadlines each server keeps what it is
owed (`lag`).
"""

from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int64_t, uint16_t

from sluicegate.balance._balancer cimport Balancer, Member
from sluicegate.balance._random cimport random_below

__all__ = ["RoundRobin"]

cdef enum:
    MOST_IN_ORDER = 16    # servers, up to which the order is nginx's
    LONGEST_ORDER = 4096  # picks


cdef struct Turn:
    int64_t weight
    int64_t given     # picks of this server in its round, which has as many as its weight says
    int64_t begin     # the pick at which the round began
    int64_t due       # the pick from which on the next one may come, or its deadline: the heap's key
    int64_t rank      # who is first of two that are due at once
    Py_ssize_t place  # of the server among the usable ones


cdef class RoundRobin(Balancer):
    """In turn, by weight. For servers and requests that are alike; `LeastActive` for all others.

    `random_start`: begin at a random place, so that many clients that start together do not all
    send to the same servers.
    """

    cdef uint16_t* _order
    cdef Py_ssize_t _length    # of the order; 0: by deadlines
    cdef Py_ssize_t _next
    cdef Turn* _ready          # a heap by deadline
    cdef Turn* _early          # a heap by the pick from which on they may come
    cdef Py_ssize_t _ready_count
    cdef Py_ssize_t _early_count
    cdef int64_t _step         # picks by deadlines since the last change
    cdef int64_t _sum          # of the weights
    cdef Member _last
    cdef bint _random_start

    def __init__(
        self, servers=(), *, random_start=False,
        health=None, load_decay=10.0, clock=None, seed=None,
    ):
        self._random_start = bool(random_start)
        Balancer.__init__(
            self, servers, health=health, load_decay=load_decay, clock=clock, seed=seed
        )

    def __dealloc__(self):
        PyMem_Free(self._order)
        PyMem_Free(self._ready)
        PyMem_Free(self._early)

    cdef Member _choose(self, object key):
        cdef Py_ssize_t place
        if self._length > 0:
            place = self._order[self._next]
            self._next = 0 if self._next + 1 == self._length else self._next + 1
        else:
            place = self._earliest_deadline()
        self._last = self._at(place)
        return self._last

    cdef int _usable_changed(self) except -1:
        """Make the order anew, and go on in it."""
        cdef int64_t divisor = 0
        cdef Py_ssize_t i
        self._keep_lags()
        self._length = 0
        if self._count == 0:
            return 0
        self._sum = 0
        for i in range(self._count):
            divisor = gcd(divisor, self._at(i).weight)
            self._sum += self._at(i).weight
        self._sum //= divisor
        if self._count > MOST_IN_ORDER or self._sum > LONGEST_ORDER or not self._write_order(divisor):
            self._begin_deadlines(divisor)
        return 0

    cdef bint _write_order(self, int64_t divisor) except -1:
        """Work out nginx's order. Return whether it stays within one request of the exact shares."""
        cdef int64_t[MOST_IN_ORDER] weights
        cdef int64_t[MOST_IN_ORDER] credit
        cdef Py_ssize_t i, step, best
        cdef uint16_t* order = <uint16_t*>PyMem_Malloc(self._sum * sizeof(uint16_t))
        if order == NULL:
            raise MemoryError
        for i in range(self._count):
            weights[i] = self._at(i).weight // divisor
            credit[i] = 0
        for step in range(self._sum):
            best = 0
            for i in range(self._count):
                credit[i] += weights[i]
                if credit[i] > credit[best]:
                    best = i
            credit[best] -= self._sum
            order[step] = <uint16_t>best
            for i in range(self._count):
                if not -self._sum < credit[i] < self._sum:
                    PyMem_Free(order)
                    return False
        PyMem_Free(self._order)
        self._order, self._length = order, self._sum
        self._next = self._after_last()
        return True

    cdef Py_ssize_t _after_last(self) noexcept:
        """Where to go on, or to begin."""
        cdef Py_ssize_t step, found = 0, places = 0
        if self._last is None:
            return <Py_ssize_t>random_below(&self._random, self._length) if self._random_start else 0
        for step in range(self._length):
            if self._at(self._order[step]) is self._last:
                places += 1
                if random_below(&self._random, places) == 0:
                    found = step + 1
        return found % self._length

    cdef int _begin_deadlines(self, int64_t divisor) except -1:
        cdef Py_ssize_t i, last = -1
        cdef Turn turn
        cdef Turn* ready = <Turn*>PyMem_Malloc(self._count * sizeof(Turn))
        cdef Turn* early = <Turn*>PyMem_Malloc(self._count * sizeof(Turn))
        if ready == NULL or early == NULL:
            PyMem_Free(ready)
            PyMem_Free(early)
            raise MemoryError
        PyMem_Free(self._ready)
        PyMem_Free(self._early)
        self._ready, self._early = ready, early
        self._ready_count = self._early_count = 0
        self._step = 0
        for i in range(self._count):
            if self._at(i) is self._last:
                last = i
        if self._last is None and self._random_start:
            last = random_below(&self._random, self._count)
        for i in range(self._count):
            turn.weight = self._at(i).weight // divisor
            turn.given = 0
            self._at(i).period = <double>self._sum / turn.weight
            self._at(i).due = -self._at(i).lag * self._at(i).period
            turn.begin = turn.due = <int64_t>self._at(i).due
            turn.rank = (i - last - 1 + self._count) % self._count  # behind the last: goes on
            turn.place = i
            push(self._early, &self._early_count, turn)
        return 0

    cdef Py_ssize_t _earliest_deadline(self) noexcept:
        cdef Turn turn
        while self._early_count > 0 and self._early[0].due <= self._step:
            turn = pop(self._early, &self._early_count)
            turn.due = turn.begin + ((turn.given + 1) * self._sum + turn.weight - 1) // turn.weight
            push(self._ready, &self._ready_count, turn)
        if self._ready_count == 0:  # rounded lags have left a gap
            turn = pop(self._early, &self._early_count)
        else:
            turn = pop(self._ready, &self._ready_count)
        turn.given += 1
        if turn.given == turn.weight:
            turn.given = 0
            turn.begin += self._sum
        turn.due = turn.begin + turn.given * self._sum // turn.weight
        (<Member>self._usable[turn.place]).due = turn.begin + turn.given * (<Member>self._usable[turn.place]).period
        push(self._early, &self._early_count, turn)
        self._step += 1
        return turn.place

    cdef void _keep_lags(self) noexcept:
        """Write down what each server is owed, in requests: they are due once in a period."""
        cdef Member member
        for member in self._members:
            member.lag = (self._step - member.due) / member.period if member.period > 0.0 else 0.0
            member.period = 0.0


cdef int64_t gcd(int64_t a, int64_t b) noexcept:
    while b:
        a, b = b, a % b
    return a


cdef inline bint is_before(const Turn* one, const Turn* other) noexcept:
    return one.due < other.due or (one.due == other.due and one.rank < other.rank)


cdef void push(Turn* heap, Py_ssize_t* count, Turn turn) noexcept:
    cdef Py_ssize_t at = count[0], parent
    count[0] += 1
    while at > 0:
        parent = (at - 1) // 2
        if not is_before(&turn, &heap[parent]):
            break
        heap[at] = heap[parent]
        at = parent
    heap[at] = turn


cdef Turn pop(Turn* heap, Py_ssize_t* count) noexcept:
    cdef Turn first = heap[0]
    cdef Turn turn
    cdef Py_ssize_t at = 0, child
    count[0] -= 1
    turn = heap[count[0]]
    while True:
        child = 2 * at + 1
        if child >= count[0]:
            break
        if child + 1 < count[0] and is_before(&heap[child + 1], &heap[child]):
            child += 1
        if not is_before(&heap[child], &turn):
            break
        heap[at] = heap[child]
        at = child
    heap[at] = turn
    return first

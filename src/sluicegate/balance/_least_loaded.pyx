# cython: language_level=3, binding=False, embedsignature=True, embedsignature.format=clinic, cdivision=True
"""`LeastActive`, `LeastConnections`, `PeakEwma`: where the least is going on.

All three count what `use` has begun and not ended. How busy a server is, is divided by its weight.

**The best of all, or of two.** To look at all servers takes time, and clients that hear the same
at the same time all run to the best one. The better of two servers chosen at random ("The power of
two choices", Mitzenmacher 1996) is nearly as good, and clients spread. So `LeastActive` looks at
all of up to 16 servers, and at two of more. With loads that come with responses it is the same, for
each client hears others; with loads that come by themselves (`Balancer.report`) it looks at two:
100 clients told each second, at a load of 90 %, had a p99 of 80 times the work with the best of
all, of 9.5 times with the better of two, and of 5.4 times without. `PeakEwma` always looks at two,
`LeastConnections` at all: connections live long, so each choice matters. Of two, each is drawn
with the probability that its weight says, so that weights hold among servers that are equally busy.

**Reported loads fade.** Calls of all clients and calls from here are numbers of two kinds. If a
load that is old gave way to the calls from here, a server that is stuck, and so reports nothing,
would look idle: 100 clients had ten times the tail with reports than without. So a load fades into
what is typical of all servers, and the calls since it was reported are added.

**Peak EWMA** (from Twitter's Finagle) is the mean time of calls, weighted by how recent they are,
times the calls in flight. It believes bad news at once and good news slowly: a call that took
longer than the mean sets it, one that took less moves it by 1 - exp(-t / decay), with t seconds
since the last one. While nothing ends it falls, so a server that was slow is tried again. A call
that failed, or was given up, may raise it and never lowers it: errors are often quick. If the first
call to a server fails, its time is taken to be a second at least. Calls that are not answered yet
count with the time that they have waited.
"""

from cpython.mem cimport PyMem_Free
from libc.math cimport INFINITY, exp
from libc.stdint cimport int64_t, uint64_t

from sluicegate._minmax cimport fast_max
from sluicegate.balance._alias_table cimport AliasTable, alias_build, alias_choice
from sluicegate.balance._balancer cimport FAILURE, SUCCESS, Balancer, Member
from sluicegate.balance._random cimport random_below

from sluicegate._validate import check_positive

__all__ = ["LeastActive", "LeastConnections", "PeakEwma"]

cdef enum:
    MOST_COMPARED = 16
    MOST_DRAWS = 8  # for a second server that is another one; then the next one is taken

cdef double SHORTEST = 1e-9      # seconds: a latency of 0 would stand for "not known"
cdef double UNKNOWN_COST = 1e12
cdef double FIRST_FAILURE = 1.0  # seconds


cdef class LeastActive(Balancer):
    """The fewest requests in progress for its weight; of equals, one at random.

    What a server reports as its load counts in place of what is known here, and fades.
    """

    cdef AliasTable _table

    def __dealloc__(self):
        PyMem_Free(self._table.columns)

    cdef Member _choose(self, object key):
        cdef double now = self._now() if self._has_loads else 0.0
        cdef Py_ssize_t first, second
        if self._count == 0:  # since the clock was read
            raise self._no_servers()
        if self._count <= MOST_COMPARED and not self._has_loads:
            return self._least_busy(None)
        if self._count == 1 or (self._count <= MOST_COMPARED and not self._is_told_loads):
            return self._least_loaded(now)
        draw_two(&self._table, &self._random, &first, &second)
        return self._better(self._at(first), self._at(second), now)

    cdef Member _least_loaded(self, double now):
        """As `_least_busy`, of the loads as far as they are known."""
        cdef Py_ssize_t place, best = 0
        cdef double load, least = INFINITY
        cdef int64_t weight, equals = 0
        for place in range(self._count):
            weight = (<Member>self._usable[place]).weight
            load = self._load(<Member>self._usable[place], now) / weight
            if load < least:
                best, least, equals = place, load, weight
            elif load == least:
                equals += weight
                if <int64_t>random_below(&self._random, equals) < weight:
                    best = place
        return self._at(best)

    cdef Member _better(self, Member one, Member other, double now):
        """Of two that were drawn by weight, in this order: the first of equals keeps the weights."""
        return one if self._load(one, now) * other.weight <= self._load(other, now) * one.weight else other

    cdef int _usable_changed(self) except -1:
        return alias_build(&self._table, self)


cdef class LeastConnections(Balancer):
    """The fewest connections for its weight; of equals, one at random.

    A connection is a `use` that lasts as long as the connection does.
    """

    cdef Member _choose(self, object key):
        return self._least_busy(None)


cdef class PeakEwma(Balancer):
    """The least time to answer times calls in flight, of two at random.

    `decay`: the seconds after which a time that was measured counts by a third.
    """

    cdef double _decay
    cdef AliasTable _table
    cdef double _typical_latency  # of the answers of all servers; 0: none yet

    def __cinit__(self, *_, **__):
        self._decay = 1.0

    def __init__(
        self, servers=(), *, decay=10.0, health=None, load_decay=10.0, clock=None, seed=None
    ):
        self._decay = check_positive("decay", decay)
        Balancer.__init__(
            self, servers, health=health, load_decay=load_decay, clock=clock, seed=seed
        )

    def __dealloc__(self):
        PyMem_Free(self._table.columns)

    cdef Member _choose(self, object key):
        cdef double now = self._now()
        cdef Py_ssize_t first, second
        cdef Member one, other
        if self._count == 0:  # since the clock was read
            raise self._no_servers()
        if self._count == 1:
            return self._at(0)
        draw_two(&self._table, &self._random, &first, &second)
        one, other = self._at(first), self._at(second)
        return one if self._cost(one, now) <= self._cost(other, now) else other

    cdef double _cost(self, Member member, double now) noexcept:
        cdef double latency, share
        share = <double>member.weight * self._table.count / <double>self._table.sum
        if member.latency == 0.0:
            # Not known yet: one call finds out, and until it has ended no second one is sent.
            return UNKNOWN_COST * member.active / share
        latency = self._decayed(member, now)
        if member.awaited > 0:  # those have waited that long already, in the mean
            latency = fast_max(latency, now - member.began_sum / member.awaited)
        return latency * (self._load(member, now) / share + 1.0)

    cdef double _decayed(self, Member member, double now) noexcept:
        return member.latency * exp(-fast_max(now - member.latency_time, 0.0) / self._decay)

    cdef int _usable_changed(self) except -1:
        return alias_build(&self._table, self)

    cdef void _observe(self, Member member, double latency, int outcome, double now) noexcept:
        cdef double mean = self._decayed(member, now)
        if outcome == SUCCESS:
            self._typical_latency += 0.1 * (latency - self._typical_latency)
        elif member.latency == 0.0:
            if outcome == FAILURE:
                latency = fast_max(latency, FIRST_FAILURE)
            elif latency <= self._typical_latency or self._typical_latency == 0.0:
                return  # given up before it could answer
        if outcome == SUCCESS and member.latency > 0.0 and latency <= mean:
            # As `mean` has decayed already, what is left of it is its weight.
            mean += latency * (1.0 - exp(-fast_max(now - member.latency_time, 0.0) / self._decay))
        elif latency > mean or outcome == SUCCESS:
            mean = latency
        else:
            return
        member.latency = fast_max(mean, SHORTEST)
        member.latency_time = fast_max(now, member.latency_time)


cdef void draw_two(
    const AliasTable* table, uint64_t* random, Py_ssize_t* first, Py_ssize_t* second
) noexcept:
    """Two different places, each drawn by weight. There must be two."""
    cdef int draws = 1
    first[0] = alias_choice(table, random)
    second[0] = alias_choice(table, random)
    while second[0] == first[0] and draws < MOST_DRAWS:
        second[0] = alias_choice(table, random)
        draws += 1
    if second[0] == first[0]:
        second[0] = 0 if first[0] + 1 == table.count else first[0] + 1

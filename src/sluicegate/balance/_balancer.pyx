# cython: language_level=3, binding=False, embedsignature=True, embedsignature.format=clinic, cdivision=True
"""`Balancer`: the servers, their health and the calls to them; each policy adds how to choose.

Some servers are usable: not marked down, not ejected and not unhealthy, or all that are not marked
down, in panic. `_usable` points at them, and is made anew when that changes; a policy chooses among
them. What changes by the time alone (an ejection ends, a weight grows) happens at the first pick
after it, so there is no timer, and while nothing of that kind is to come a pick reads no clock.

Threads: between two lines of compiled code no other thread runs, unless Python code is called. So
the clock is read, objects are made (which may start the garbage collector) and keys are read
before the state is, and the state is whole whenever Python code runs. A pick takes no lock.

Forks: the calls in flight are the parent's. The child begins without any, and with random numbers
of its own, or all workers of a server would pick the same.
"""

import os

cimport cython
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from libc.math cimport INFINITY, isfinite
from libc.stdint cimport int64_t, uint64_t

from sluicegate._clock cimport monotonic
from sluicegate._minmax cimport fast_max, fast_min
from sluicegate.balance._random cimport random_below

from sluicegate._validate import check_number, check_positive, check_whole
from sluicegate.balance.server import MAX_LOAD, Health, NoServers, Server, ServerStatus
from sluicegate.clock import SystemClock

__all__ = ["Balancer", "Call"]

cdef int forks = 0  # before this process


def _count_fork():
    global forks
    forks += 1


os.register_at_fork(after_in_child=_count_fork)


@cython.final
cdef class Member:
    """A server, and what a balancer knows of it."""

    def __cinit__(self, server):
        self.server = server
        self.address = server.address
        self.own_weight = server.weight
        self.ejected_until = self.back_since = self.forget_at = self.load_time = NEVER
        self.judged_from = NEVER


cdef class Balancer:
    """What all policies share. Make one of them: `RoundRobin`, `LeastActive`, ...

    `servers`: each a `Server` or an address. `health`: when a server is left out. `load_decay`: the
    seconds after which a load that a server has reported counts by a third. `seed`: of the random
    choices, for tests.
    """

    def __cinit__(self, *_, **__):
        self._members = []
        self._by_address = {}
        self._next_change = INFINITY
        self._fork = forks
        self._load_decay = 1.0

    def __init__(self, servers=(), *, health=None, load_decay=10.0, clock=None, seed=None):
        if type(self) is Balancer:
            raise TypeError("Balancer has no policy: make a RoundRobin, LeastActive, ...")
        if self.health is not None:
            raise RuntimeError(f"{self!r} is set up already")
        if health is not None and not isinstance(health, Health):
            raise TypeError(f"health must be a Health, got {health!r}")
        if isinstance(servers, str):
            raise TypeError(f"servers must be a list, like [{servers!r}], got {servers!r}")
        health = Health() if health is None else health
        self._max_failures = health.max_failures
        self._panic = health.panic
        self._step_seconds = health.slow_start / (WHOLE - 1)
        self._load_decay = check_positive("load_decay", load_decay)
        if clock is not None and type(clock) is not SystemClock:
            if not callable(getattr(clock, "now", None)):
                raise TypeError(f"clock must have a method now(), got {clock!r}")
            self._clock = clock
            self._read_clock = clock.now
        if seed is None:
            self._random = int.from_bytes(os.urandom(8), "little")
        else:
            self._random = <uint64_t>check_whole("seed", seed, 0)
        members = [Member(server_of(one)) for one in servers]
        by_address = {(<Member>member).address: member for member in members}
        if len(by_address) < len(members):
            addresses = [(<Member>member).address for member in members]
            raise ValueError(f"servers must have different addresses, got {addresses!r}")
        cdef double now = self._now()
        self.health = health
        self._members, self._by_address = members, by_address
        self._change_servers(now)

    def __dealloc__(self):
        PyMem_Free(self._usable)

    # ------------------------------------------------------------------ picks and calls

    def pick(self, key=None):
        """A server for one request. Nothing of the request is counted: see `use`."""
        return self._pick(key).server

    def use(self, key=None, *, avoid=()):
        """A `Call` to a server: `with balancer.use() as server:` counts it and its outcome.

        `avoid`: servers that were tried already, to be picked only if there is no other.
        """
        cdef Call call = Call.__new__(Call)  # made first: the collector may run now, and not later
        cdef set avoided = None
        cdef double now
        if isinstance(avoid, (str, Server)):
            raise TypeError(f"avoid must be a list, like [{avoid!r}], got {avoid!r}")
        if avoid:
            avoided = {server_of(one).address for one in avoid}
        call._balancer = self
        now = self._now()
        call._member = self._pick(key) if avoided is None else self._pick_other(key, avoided)
        call._began = now
        call._fork = forks
        call._has_begun = True
        call._is_awaited = True
        call._member.active += 1
        call._member.awaited += 1
        call._member.began_sum += now
        self._active += 1
        return call

    def report(self, server, double load):
        """The load of a server, as it says itself: the requests in progress there, of all clients.

        It counts in place of what is known here, less and less until there is a newer one. For
        loads that come by themselves: `Call.report` is for one that comes with a response.
        """
        check_load(load)
        cdef double now = self._now()
        cdef Member member = self._member(server)
        self._set_load(member, load, member.active, now)
        self._is_told_loads = True

    # ------------------------------------------------------------------ the servers

    def add(self, server):
        """Add a server. It gets its whole share at once."""
        cdef Member member = Member(server_of(server))
        cdef double now = self._now()
        if member.address in self._by_address:
            raise ValueError(f"server {member.address!r} is there already")
        self._by_address[member.address] = member
        self._members.append(member)
        try:
            self._change_servers(now)
        except BaseException:
            del self._by_address[member.address]
            self._members.remove(member)
            raise

    def remove(self, server):
        """Remove a server. Calls to it that are in flight may end as ever."""
        cdef double now = self._now()
        cdef Member member = self._member(server)
        cdef Py_ssize_t place = self._members.index(member)
        del self._by_address[member.address]
        del self._members[place]
        try:
            self._change_servers(now)
        except BaseException:  # no memory: picks go on as they were
            self._by_address[member.address] = member
            self._members.insert(place, member)
            raise
        member.is_usable = False

    def set_weight(self, server, weight):
        """Change the weight of a server, now."""
        cdef double now = self._now()
        cdef Member member = self._member(server)
        before, after = member.server, Server(member.address, weight)
        member.server, member.own_weight = after, after.weight
        try:
            self._change_servers(now)
        except BaseException:
            member.server, member.own_weight = before, before.weight
            raise

    def mark_down(self, server):
        """Pick this server no more, until `mark_up`. Calls in flight go on."""
        cdef double now = self._now()
        self._member(server).is_down = True
        self._refresh(now)

    def mark_up(self, server):
        """Pick this server again, with its whole weight, whatever was known against it."""
        cdef double now = self._now()
        cdef Member member = self._member(server)
        member.is_down = member.is_unhealthy = False
        member.ejected_until = member.back_since = member.forget_at = NEVER
        member.judged_from = now
        member.failures = member.ejections = 0
        self._refresh(now)

    def mark_unhealthy(self, server):
        """A check has failed: do not pick this server, unless in panic, until `mark_healthy`."""
        cdef double now = self._now()
        self._member(server).is_unhealthy = True
        self._refresh(now)

    def mark_healthy(self, server):
        """A check has passed: pick this server again, with a weight that grows."""
        cdef double now = self._now()
        cdef Member member = self._member(server)
        if member.is_unhealthy:
            member.is_unhealthy = False
            if member.ejected_until == NEVER:
                member.back_since = now
            self._refresh(now)

    @property
    def servers(self):
        """The servers, in the order in which they were added."""
        return [(<Member>member).server for member in list(self._members)]

    def status(self):
        """What is known of each server, in the order in which they were added."""
        cdef double now = self._now()
        if self._fork != forks:
            self._begin_in_child()
        if now >= self._next_change:
            self._refresh(now)
        return [self._status_of(<Member>member, now) for member in list(self._members)]

    def __len__(self):
        return len(self._members)

    def __contains__(self, key):
        return (key.address if isinstance(key, Server) else key) in self._by_address

    def __repr__(self):
        return f"{type(self).__name__}({len(self._members)} servers, {self._count} usable, {self._active} calls)"

    # ------------------------------------------------------------------ what policies override

    cdef Member _choose(self, object key):
        """One of the usable servers, of which there is at least one."""
        raise TypeError(f"{type(self).__name__} has no policy")

    cdef Member _choose_other(self, object key, set avoided):
        """One that is not avoided, if there is any."""
        cdef Member member = self._least_busy(avoided)
        return self._choose(key) if member is None else member

    cdef int _servers_changed(self) except -1:
        """Servers were added or removed, or have other weights of their own."""
        return 0

    cdef int _usable_changed(self) except -1:
        """`_usable` was made anew, or weights in it have changed."""
        return 0

    cdef void _observe(self, Member member, double latency, int outcome, double now) noexcept:
        """A call was answered, or has ended without an answer, after `latency` seconds."""

    # ------------------------------------------------------------------ inside

    cdef double _now(self) except? -1e300:
        if self._read_clock is None:
            return monotonic()
        cdef double now = self._read_clock()
        if not isfinite(now):
            raise ValueError(f"{self._clock!r} must return a finite time in seconds, got {now!r}")
        return now

    cdef int _begin_in_child(self) except -1:
        cdef Member member
        cdef uint64_t fresh = int.from_bytes(os.urandom(8), "little")
        self._fork = forks
        self._random = fresh
        self._active = 0
        for member in self._members:
            member.active_at_load -= member.active
            member.active = member.awaited = 0
            member.began_sum = 0.0
        return 0

    cdef Member _pick(self, object key):
        cdef Member member
        cdef double now
        if self._fork != forks:
            self._begin_in_child()
        if self._next_change < INFINITY:
            now = self._now()
            if now >= self._next_change:
                self._refresh(now)
        if self._count == 0:
            raise self._no_servers()
        member = self._choose(key)
        member.picked += 1
        return member

    cdef Member _pick_other(self, object key, set avoided):
        cdef double now = self._now()
        cdef Member member
        if self._fork != forks:
            self._begin_in_child()
        if now >= self._next_change:
            self._refresh(now)
        if self._count == 0:
            raise self._no_servers()
        member = self._choose_other(key, avoided)
        member.picked += 1
        return member

    cdef Member _least_busy(self, set avoided):
        """The fewest calls in flight for its weight; of equals one at random, by weight.

        None if all are avoided. Through pointers: to count references would double its time.
        """
        cdef Py_ssize_t place, best = -1
        cdef int64_t active, weight, least = 0, of_weight = 1, equals = 0
        for place in range(self._count):
            if avoided is not None and self._at(place).address in avoided:
                continue
            active = (<Member>self._usable[place]).active
            weight = (<Member>self._usable[place]).weight
            if best < 0 or active * of_weight < least * weight:
                best, least, of_weight, equals = place, active, weight, weight
            elif active * of_weight == least * weight:
                equals += weight
                if <int64_t>random_below(&self._random, equals) < weight:
                    best, least, of_weight = place, active, weight
        return None if best < 0 else self._at(best)

    cdef object _no_servers(self):
        if not self._members:
            return NoServers("no server to pick: the balancer has none")
        return NoServers(f"no server to pick: all {len(self._members)} are marked down")

    cdef Member _member(self, object server):
        address = server_of(server).address
        member = self._by_address.get(address)
        if member is None:
            raise ValueError(f"the balancer has no server {address!r}")
        return <Member>member

    cdef int _change_servers(self, double now) except -1:
        """Have the policy follow a change of the servers or of their own weights."""
        cdef uint64_t version
        self._version += 1
        while True:
            version = self._version
            self._servers_changed()
            if self._version == version:  # else the collector ran code that changed them again
                break
        self._is_stale = True
        return self._refresh(now)

    cdef int _refresh(self, double now) except -1:
        """Find out which servers are usable, with which weights, and when that changes."""
        cdef Member member
        cdef bint is_usable, has_changed = self._is_stale
        cdef int64_t weight
        cdef Py_ssize_t up = 0, out = 0, count = 0
        cdef PyObject** usable = <PyObject**>PyMem_Malloc((len(self._members) + 1) * sizeof(PyObject*))
        if usable == NULL:
            raise MemoryError
        self._next_change = INFINITY
        for member in self._members:
            weight = member.weight
            if member.ejected_until <= now and member.ejected_until > NEVER:
                self._end_ejection(member)
            if not member.is_down:
                up += 1
                out += member.is_out()
            self._next_change = fast_min(self._next_change, self._grow(member, now))
            if member.ejected_until > NEVER:
                self._next_change = fast_min(self._next_change, member.ejected_until)
            has_changed = has_changed or member.weight != weight
        is_panic = out > self._panic * up or out == up
        for member in self._members:
            is_usable = not member.is_down and (is_panic or not member.is_out())
            has_changed = has_changed or is_usable != member.is_usable
            member.is_usable = is_usable
            if is_usable:
                usable[count] = <PyObject*>member
                count += 1
        PyMem_Free(self._usable)
        self._usable, self._count = usable, count
        self._is_stale = False
        return self._usable_changed() if has_changed else 0

    cdef double _grow(self, Member member, double now) noexcept:
        """Set the weight of a server; return when it changes next."""
        cdef int64_t steps = WHOLE
        if member.back_since > NEVER:
            if self._step_seconds > 0.0:
                steps = 1 + <int64_t>fast_min(
                    fast_max(now - member.back_since, 0.0) / self._step_seconds, WHOLE - 1
                )
            if steps == WHOLE:
                member.back_since = NEVER
        member.weight = member.own_weight * steps
        return INFINITY if steps == WHOLE else member.back_since + steps * self._step_seconds

    cdef void _end_ejection(self, Member member) noexcept:
        """It is on probation: one more failure ejects it again."""
        cdef double ended = member.ejected_until
        member.ejected_until = NEVER
        member.failures = self._max_failures - 1
        member.judged_from = ended
        if not member.is_unhealthy:
            member.back_since = ended

    cdef int _judge(self, Member member, double began, double now, int outcome) except -1:
        """Count a success or a failure, of a call that began then."""
        if began < member.judged_from or member.ejected_until > NEVER:
            return 0  # it began before an ejection that was its verdict, or is one of a panic
        if outcome == FAILURE:
            self._fail(member, now)
        elif outcome == SUCCESS:
            member.failures = 0
            if now >= member.forget_at:
                member.ejections = 0
        return 0

    cdef int _fail(self, Member member, double now) except -1:
        """Count a failure; eject the server if it was one too many."""
        cdef double seconds
        member.failures += 1
        if self._max_failures == 0 or member.failures < self._max_failures:
            return 0
        if now >= member.forget_at:
            member.ejections = 0
        seconds = fast_min(
            <double>self.health.eject_seconds * 2.0 ** min(member.ejections, 60),
            <double>self.health.max_eject_seconds,
        )
        member.ejections += 1
        member.ejected_until = now + seconds
        member.forget_at = now + 2.0 * seconds
        return self._refresh(now)

    cdef void _set_load(self, Member member, double load, int64_t active, double now) noexcept:
        """`active`: of the calls in flight from here, those that the load contains."""
        # A mean over some ten reports, from 0: servers that never reported are tried early. One that
        # says far too much moves it little.
        cdef double each = fast_min(load / member.own_weight, 10.0 * self._typical_load + 10.0)
        self._typical_load += 0.1 * (each - self._typical_load)
        member.load = load
        member.load_time = now
        member.active_at_load = active
        self._has_loads = True

    cdef object _status_of(self, Member member, double now):
        if member.is_down:
            state = "down"
        elif member.is_unhealthy:
            state = "unhealthy"
        elif member.ejected_until > NEVER:
            state = "ejected"
        elif member.back_since > NEVER:
            state = "starting"
        else:
            state = "up"
        return ServerStatus(
            server=member.server,
            state=state,
            is_usable=bool(member.is_usable),
            active=member.active,
            picked=member.picked,
            failures=member.failures,
            ejected_for=max(member.ejected_until - now, 0.0),
            load=member.load if member.load_time > NEVER else None,
            latency=member.latency if member.latency > 0.0 else None,
        )


@cython.final
@cython.no_gc_clear
@cython.auto_pickle(False)
@cython.nonecheck(True)  # of a Call that was not made by `use`
cdef class Call:
    """One call to `server`, from `use` until `end`; as a context manager it ends with the block.

    An `Exception` out of the block is a failure of the server; `fail()` says so without one.
    What ends the block otherwise (a cancelled task, an interrupt) says nothing of the server. A
    call that is forgotten ends when the object is collected.
    """

    def __init__(self):
        raise TypeError("a Call is made by the method use() of a balancer")

    def __reduce__(self):
        raise TypeError("a Call cannot be copied or pickled")

    def __dealloc__(self):
        if self._has_begun and self._fork == forks:
            self._leave()

    @property
    def server(self):
        return self._member.server

    def fail(self):
        """The server has failed: counts at the end of the call."""
        self._is_failed = True

    def report(self, double load):
        """The load of the server, as it says with its response: the requests in progress there.

        Of all clients, without this one.
        """
        check_load(load)
        cdef double now = self._balancer._now()
        if self._fork == forks:
            self._balancer._set_load(
                self._member, load, self._member.active - self._has_begun, now
            )

    def answered(self):
        """The answer has begun: its latency is the time until now, however long the rest takes.

        For streams, which may go on for hours. The call goes on until it ends.
        """
        cdef double now = self._balancer._now()
        if self._has_begun and self._is_awaited and self._fork == forks:
            self._member.stop_awaiting(self._began)
            self._is_awaited = False
            self._balancer._observe(self._member, fast_max(now - self._began, 0.0), SUCCESS, now)

    def end(self, *, failed=False, latency=None):
        """End the call; a second time does nothing.

        `failed`: None says nothing of the server. `latency`: in seconds, if it is not the time
        since the call began.
        """
        cdef double seconds = -1.0 if latency is None else check_number("latency", latency)
        if latency is not None and not 0.0 <= seconds < INFINITY:
            raise ValueError(f"latency must be finite seconds >= 0, got {latency!r}")
        self._end(UNKNOWN if failed is None else FAILURE if failed else SUCCESS, seconds)

    def __enter__(self):
        return self._member.server

    def __exit__(self, kind, error, traceback):
        self._end(SUCCESS if kind is None else FAILURE if issubclass(kind, Exception) else UNKNOWN, -1.0)

    async def __aenter__(self):
        return self._member.server

    async def __aexit__(self, kind, error, traceback):
        self.__exit__(kind, error, traceback)

    def __repr__(self):
        return f"Call({self._member.server!r}, {'in flight' if self._has_begun else 'ended'})"

    cdef int _end(self, int outcome, double latency) except -1:
        cdef double now = self._balancer._now()
        if not self._has_begun:
            return 0
        self._has_begun = False
        if self._fork != forks:  # of the parent, which ends it, too
            return 0
        self._leave()
        if self._is_failed:
            outcome = FAILURE
        if self._is_awaited:
            latency = fast_max(now - self._began, 0.0) if latency < 0.0 else latency
            self._balancer._observe(self._member, latency, outcome, now)
        return self._balancer._judge(self._member, self._began, now, outcome)

    cdef void _leave(self) noexcept:
        """Count the call as in flight no more."""
        self._member.active -= 1
        self._balancer._active -= 1
        if self._is_awaited:
            self._member.stop_awaiting(self._began)


cdef int check_load(double load) except -1:
    if not 0.0 <= load <= MAX_LOAD:
        raise ValueError(f"load must be from 0 to {MAX_LOAD:,} requests, got {load!r}")
    return 0


cdef object server_of(object given):
    """A `Server`, of which an address is enough."""
    if type(given) is Server:
        return given
    if isinstance(given, str):
        return Server(given)
    if isinstance(given, Server):
        return Server(given.address, given.weight)
    raise TypeError(f"a server must be a Server or an address, got {given!r}")

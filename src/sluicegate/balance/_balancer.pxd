# cython: language_level=3
"""`Member`: a server in a balancer. `Balancer`: what all policies share. `Call`: one call."""

cimport cython
from cpython.object cimport PyObject
from libc.math cimport exp, floor
from libc.stdint cimport int64_t, uint64_t

cdef extern from *:
    """
    #include <math.h>
    #define SG_NEVER (-INFINITY)
    """
    const double NEVER "SG_NEVER"  # before all times

cdef enum Outcome:           # of a call
    SUCCESS
    FAILURE
    UNKNOWN                  # it says nothing of the server

cdef enum:
    WHOLE = 10  # weights are in tenths of the server's own, so that they can grow in ten steps


@cython.final
cdef class Member:
    cdef object server
    cdef str address
    cdef int64_t own_weight      # as the server has it
    cdef int64_t weight          # in tenths of that; less while the server starts slowly
    cdef int64_t active          # calls in flight
    cdef int64_t awaited         # those of them that were not answered
    cdef double began_sum        # the sum of the times at which these began
    cdef uint64_t picked
    cdef bint is_down            # marked by hand
    cdef bint is_unhealthy       # marked by a check
    cdef bint is_usable          # may be picked now
    cdef int64_t failures        # consecutive ones
    cdef int ejections           # how often its time-out has doubled, plus one; 0: forgotten
    cdef double ejected_until    # -inf: it is not ejected
    cdef double back_since       # when it came back, while it starts slowly; else -inf
    cdef double forget_at        # when its ejections are forgotten
    cdef double judged_from      # outcomes of calls that began earlier do not count
    cdef double load             # reported: calls in progress at the server, of all clients
    cdef double load_time        # when; -inf: never
    cdef int64_t active_at_load
    cdef double latency          # seconds, see PeakEwma; 0: not known
    cdef double latency_time
    cdef double due, period, lag  # see RoundRobin

    cdef inline void stop_awaiting(self, double began) noexcept:
        """A call that began then was answered, or has ended."""
        self.awaited -= 1
        # 0 when none is awaited: what was rounded does not add up.
        self.began_sum = self.began_sum - began if self.awaited > 0 else 0.0

    cdef inline bint is_out(self) noexcept:
        return self.is_unhealthy or self.ejected_until > NEVER


cdef class Balancer:
    cdef list _members
    cdef dict _by_address
    cdef PyObject** _usable      # borrowed from `_members`
    cdef Py_ssize_t _count
    cdef uint64_t _version       # grows with each change of servers
    cdef bint _is_stale          # the servers have changed since `_refresh`
    cdef double _next_change     # when a server comes back, or its weight grows
    cdef int64_t _active         # calls in flight, to all servers
    cdef uint64_t _random
    cdef int _fork               # which process of a line of forks this state is of
    cdef double _load_decay
    cdef bint _has_loads         # some server has reported its load
    cdef bint _is_told_loads     # by `report`: other clients may hear the same at the same time
    cdef double _typical_load    # for a weight of 1: of the servers that report
    cdef readonly object health
    cdef int64_t _max_failures
    cdef double _panic
    cdef double _step_seconds    # of a slow start: a tenth of the weight more
    cdef object _clock
    cdef object _read_clock      # None: the system's
    cdef object __weakref__

    cdef double _now(self) except? -1e300
    cdef int _begin_in_child(self) except -1
    cdef Member _pick(self, object key)
    cdef Member _pick_other(self, object key, set avoided)
    cdef Member _least_busy(self, set avoided)
    cdef Member _choose(self, object key)
    cdef Member _choose_other(self, object key, set avoided)
    cdef int _servers_changed(self) except -1
    cdef int _usable_changed(self) except -1
    cdef void _observe(self, Member member, double latency, int outcome, double now) noexcept
    cdef int _refresh(self, double now) except -1
    cdef int _change_servers(self, double now) except -1
    cdef int _judge(self, Member member, double began, double now, int outcome) except -1
    cdef int _fail(self, Member member, double now) except -1
    cdef double _grow(self, Member member, double now) noexcept
    cdef void _end_ejection(self, Member member) noexcept
    cdef void _set_load(self, Member member, double load, int64_t active, double now) noexcept
    cdef Member _member(self, object server)
    cdef object _no_servers(self)
    cdef object _status_of(self, Member member, double now)

    cdef inline Member _at(self, Py_ssize_t place):
        return <Member>self._usable[place]

    cdef inline double _load(self, Member member, double now) noexcept:
        """Calls in progress: as the server has said, plus ours since then.

        What it has said fades into what is typical of all servers. Our calls alone would be a
        number of another kind: a server that has not reported lately would look idle. One that has
        never reported is tried with one call. Whole requests: or what has faded to a hundredth
        would never be equal to 0, and the server would not be picked again.
        """
        cdef double age, fresh, typical, load
        if not self._has_loads or (member.load_time == NEVER and member.active == 0):
            return <double>member.active
        age = now - member.load_time
        fresh = 1.0 if age <= 0.0 else exp(-age / self._load_decay)  # 0: never reported
        typical = self._typical_load * <double>member.weight / WHOLE
        load = typical + (member.load - typical) * fresh
        load += <double>member.active - <double>member.active_at_load * fresh
        return floor(load + 0.5) if load > 0.0 else 0.0


@cython.final
@cython.no_gc_clear
cdef class Call:
    cdef Balancer _balancer
    cdef Member _member
    cdef double _began
    cdef bint _has_begun         # and not ended
    cdef bint _is_awaited        # not answered
    cdef bint _is_failed
    cdef int _fork

    cdef int _end(self, int outcome, double latency) except -1
    cdef void _leave(self) noexcept

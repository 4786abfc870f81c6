# cython: language_level=3, binding=False, embedsignature=True, embedsignature.format=clinic, cdivision=True
"""`SharedKeyed`: one limiter per key, for all processes of a host together.

As `Keyed`, with its state in shared memory (`_lockfree_table.pyx`). A call looks at the key's
record, lets the same functions decide (`_limit_set.pxd`), and puts a new record in its
place; when another process was faster, it looks again. The time is that of the memory:
seconds since it was made, on a clock that all processes of the host share.

A record's payload is the key's state. That of a key with limits of its own (`override`) is

    what it had used of the default limits     `words` doubles
    amount, per and burst of each limit        3 doubles; a burst of 0 is none
    the state of these limits

so an override holds for all processes at once. Where a key's state is has the same names
as in `Keyed`; shared cells are the chains of the spare buckets.
"""

from libc.math cimport INFINITY
from libc.stdint cimport uint32_t
from libc.string cimport memcpy

from sluicegate.limits._algorithms cimport WORDS, words_of
from sluicegate.limits._decision cimport Decision
from sluicegate.limits._key_normalize cimport plain
from sluicegate._minmax cimport larger, smaller
from sluicegate.limits._rules cimport limit_of, rule_of
from sluicegate.limits._limit_set cimport (
    MOST_RULES, MOST_WORDS, Rules, bad_cost, make_rules, state_carry, state_charge, state_clear,
    state_decision, state_is_idle, state_marks, state_refund, state_use_up, state_wait,
)
from sluicegate.limits._limiter_clock cimport Timing
from sluicegate.shm._atomic cimport add, load, raise_double, store
from sluicegate.shm._lockfree_table cimport (
    Chains, Key, LONGEST_CHAIN, Look, PAYLOAD, Record, class_of, payload_in, record_at,
)
from sluicegate.limits._key_encoding cimport key_of

from sluicegate.errors import TableFull
from sluicegate._validate import timeout_seconds
from sluicegate.limits.errors import RateLimited
from sluicegate.limits.limit import as_limits
from sluicegate.limits.reservation import Reservation
from sluicegate.shm.file import path_of, remove
from sluicegate.limits.waiting import Lines, TaskSleeper, ThreadSleeper

__all__ = ["SharedKeyed"]

cdef enum:
    SWEEP_PER_KEY = 8         # buckets looked at for each key that is added
    SWEEP_IN_PASSING = 64     # and once in a while when none is added
    SWEEP_AT_THE_CAP = 256
    NUMBERS = 3               # of a limit

cdef double SWEEP_EVERY = 0.001  # seconds

cdef enum Where:
    OWN
    OVERRIDDEN
    SHARED
    BLANK
    UNKNOWN   # the clock stepped back behind a time at which keys were forgotten

cdef enum Outcome:
    DONE
    AGAIN      # another process was faster
    FULL       # there is no room for one more key
    NO_CHANGE  # it was so already

cdef struct Spot:
    Where where
    Rules* rules
    double* state
    Look look            # at the key's chain
    Look spare           # at the cells it shares, where it does
    Rules own_rules      # of a key that has limits of its own

assert MOST_WORDS + MOST_RULES * (NUMBERS + WORDS) <= PAYLOAD


cdef class SharedKeyed:
    """One limiter per key, shared by all processes of the host that open `name`.

    `name` is a name, for a file in /dev/shm, or a path. The file is made where there is
    none; one with another limit, algorithm or `max_keys` is refused, or with `rebuild`
    replaced. It stays until `SharedKeyed.unlink(name)`.

    `limit`, keys and all methods are as those of `Keyed`; a key has at most 255 bytes.
    `algorithm` is "token_bucket", "leaky_bucket", "fixed_window" or "sliding_counter".
    """

    cdef Chains _chains
    cdef Timing _timing
    cdef str _algorithm
    cdef tuple _limits
    cdef Rules _rules
    cdef double[MOST_WORDS] _blank
    cdef double _next_sweep
    cdef object _lines
    cdef object __weakref__

    def __cinit__(self, *_, **__):
        self._chains = Chains.__new__(Chains)
        self._timing = Timing(None)
        self._algorithm = ""
        self._limits = ()
        self._lines = Lines(self._timing)

    def __init__(
        self, name, limit, *, algorithm="token_bucket", max_keys=100_000, rebuild=False, clock=None
    ):
        cdef Timing timing = Timing(clock)
        cdef Rules rules
        if self._chains.header != NULL:
            raise TypeError(f"{self!r} has been made already")
        path = path_of(name)
        if algorithm == "sliding_window":
            raise ValueError("sliding_window keeps every call and does not fit; take sliding_counter")
        limits = as_limits(limit)
        make_rules(algorithm, limits, timing, &rules)
        state_clear(&rules, self._blank)
        chains = Chains(
            path,
            f"{algorithm} {'; '.join(map(str, limits))}",
            max_keys,
            rules.words,
            NUMBERS + words_of(rules.rule[0].algorithm),
            (<char*>self._blank)[:rules.words * sizeof(double)],
            rebuild,
            timing.clock is None,
            timing.start,
            timing.wall,
        )
        timing.begin_at((<Chains>chains).header.start, (<Chains>chains).header.wall)
        make_rules(algorithm, limits, timing, &self._rules)
        self._chains = chains
        self._timing = timing
        self._algorithm = algorithm
        self._limits = limits
        self._next_sweep = -INFINITY
        self._lines = Lines(timing)

    @staticmethod
    def unlink(name):
        """Remove the memory called `name`; False when there is none.

        Processes that have it open go on with what they have, apart from those that
        open the name anew.
        """
        return remove(name)

    def allow(self, key, double cost=1.0):
        """Charge `cost` to `key` if it fits now."""
        cdef Spot spot
        cdef Key wanted
        cdef double now
        _kept = key_of(key, &wanted)
        if not cost > 0.0:
            raise bad_cost(cost, self._rules.most)
        now = self._timing.now()
        return self._take(&wanted, cost, &now, &spot) == 0.0

    def check(self, key, double cost=1.0):
        """Charge `cost` to `key` if it fits now, and tell all about it. A cost of 0 only looks."""
        cdef Spot spot
        cdef Key wanted
        cdef double wait, now
        _kept = key_of(key, &wanted)
        if not cost >= 0.0:
            raise bad_cost(cost, self._rules.most)
        now = self._timing.now()
        wait = self._take(&wanted, cost, &now, &spot)
        return self._decision(&spot, now, cost, wait)

    def acquire(self, key, double cost=1.0, timeout=None):
        """Wait until `cost` fits; return the seconds waited.

        Those of one process who wait for one key go in their order; between processes,
        whoever asks first when there is room. Raises `RateLimited` when it does not fit
        within `timeout` seconds: at once, where that is known at once.
        """
        cdef double seconds = INFINITY if timeout is None else timeout_seconds(timeout)
        key = plain(key)
        if key not in self._lines and self.allow(key, cost):
            return 0.0
        sleeper = ThreadSleeper(self._timing.clock)
        return sleeper.wait(self._queue(key, cost, seconds, sleeper))

    async def acquire_async(self, key, cost=1.0, timeout=None):
        """As `acquire`, for tasks. A cancelled one leaves the line."""
        seconds = INFINITY if timeout is None else timeout_seconds(timeout)
        key = plain(key)
        if key not in self._lines and self.allow(key, cost):
            return 0.0
        sleeper = TaskSleeper(self._timing.clock)
        return await sleeper.wait(self._queue(key, cost, seconds, sleeper))

    def reserve(self, key, double cost=1.0):
        """Charge an expected cost now; `settle` the real one on what is returned.

        As `Keyed.reserve`. What a process that is killed had reserved has cost just that.
        """
        cdef Spot spot
        cdef Key wanted
        cdef double wait, now
        key = plain(key)
        _kept = key_of(key, &wanted)
        if not cost > 0.0:
            raise bad_cost(cost, self._rules.most)
        now = self._timing.now()
        self._chains.check()
        changes = load(&self._chains.counters.changes.word)  # before: a reset since then counts
        wait = self._take(&wanted, cost, &now, &spot)
        if wait > 0.0:
            raise RateLimited(self._decision(&spot, now, cost, wait))
        marks = None
        if spot.where != SHARED:
            marks = (changes, state_marks(spot.rules, spot.state, now))
        return Reservation(self._settle, key, cost, marks)

    def refund(self, key, double cost):
        """Give `cost` back, as if it had been taken just now. Never fills above full."""
        if not 0.0 < cost < INFINITY:
            raise ValueError(f"cost must be a finite number above 0, got {cost!r}")
        self._give_back(plain(key), cost, None)

    def reset(self, key):
        """Forget what `key` has used. What it used of shared cells stays."""
        cdef Spot spot
        cdef Key wanted
        cdef double now = self._timing.now()
        key = plain(key)
        _kept = key_of(key, &wanted)
        while True:
            self._find(&wanted, &now, False, &spot)
            if spot.where == OWN:
                if not self._chains.change(&spot.look, <uint32_t>1 << spot.look.found, NULL, 0, NULL, -1):
                    continue
            elif spot.where == OVERRIDDEN:
                state_clear(spot.rules, spot.state)
                if self._put(&wanted, now, &spot) == AGAIN:
                    continue
            break
        add(&self._chains.counters.changes.word, 1)
        self._lines.wake_head(key)

    def override(self, key, limit):
        """Give `key` limits of its own, in all processes; None takes them away.

        What it has used stays used. Raises `TableFull` when there is no room for the key.
        """
        cdef Rules rules
        cdef Key wanted
        key = plain(key)
        _kept = key_of(key, &wanted)
        limits = None
        if limit is not None:
            limits = as_limits(limit)
            make_rules(self._algorithm, limits, self._timing, &rules)
        while True:
            if limits is None:
                outcome = self._remove_override(&wanted)
            else:
                outcome = self._set_override(&wanted, limits, &rules)
            if outcome == NO_CHANGE:
                return
            if outcome == DONE:
                break
            if outcome == FULL:
                raise TableFull(f"{self!r} has no room for limits of {key!r}")
        add(&self._chains.counters.changes.word, 1)
        self._lines.wake_head(key)

    def limits_of(self, key):
        """The limits that hold for `key`."""
        cdef Key wanted
        cdef Look look
        _kept = key_of(key, &wanted)
        self._chains.find(&wanted, &look)
        return self._limits if look.found < 0 or look.limits == 0 else self._own_limits(&look)

    def close(self):
        """Let go of the memory; it stays for others, and for later."""
        self._chains.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __len__(self):
        """Keys that take memory: those in use, those idle since a moment ago, and overrides."""
        self._chains.check()
        return load(&self._chains.counters.count.word)

    @property
    def limits(self):
        """The limits of keys that have no override."""
        return self._limits

    @property
    def algorithm(self):
        return self._algorithm

    @property
    def max_keys(self):
        self._chains.check()
        return self._chains.header.max_keys

    @property
    def overflowed(self):
        """Calls of all processes that had to be answered from shared cells, since the start."""
        self._chains.check()
        return load(&self._chains.counters.overflowed.word)

    @property
    def waiting(self):
        """How many of this process wait in `acquire`, over all keys."""
        return len(self._lines)

    @property
    def path(self):
        """The file, as a string."""
        return None if self._chains.file is None else str(self._chains.file.path)

    def __repr__(self):
        if self._chains.file is None:
            return "SharedKeyed(closed)"
        limits = "; ".join(map(str, self._limits))
        overflowed = f", overflowed={self.overflowed}" if self.overflowed else ""
        return (
            f"SharedKeyed({self.path!r}, {limits!r}, algorithm={self._algorithm!r}, "
            f"keys={len(self)}{overflowed})"
        )

    def _queue(self, key, double cost, double timeout, sleeper):
        def attempt():
            cdef Spot spot
            cdef Key wanted
            cdef double now = self._timing.now()
            _kept = key_of(key, &wanted)
            return self._take(&wanted, cost, &now, &spot)

        def refuse():
            cdef Spot spot
            cdef Key wanted
            cdef double now = self._timing.now()
            _kept = key_of(key, &wanted)
            self._find(&wanted, &now, False, &spot)
            wait = larger(self._wait(&spot, now, cost), self._timing.tick)
            return RateLimited(self._decision(&spot, now, cost, wait))

        return self._lines.queue(key, attempt, refuse, timeout, sleeper)

    def _settle(self, key, double taken, marks, double cost):
        """Make `taken`, charged at `marks`, have been `cost`."""
        if not 0.0 <= cost < INFINITY:
            raise ValueError(f"the cost must be a finite number, 0 or more, got {cost!r}")
        self._chains.check()
        if cost > taken:
            self._charge(key, cost - taken)
        elif cost < taken and marks is not None:
            if marks[0] == load(&self._chains.counters.changes.word):
                self._give_back(key, taken - cost, marks[1])

    cdef double _take(self, Key* key, double cost, double* now, Spot* spot) except -1.0:
        """Charge `cost` and return 0, or change nothing and return the seconds until it fits."""
        cdef double wait
        cdef Outcome outcome = AGAIN
        while True:
            self._find(key, now, outcome == FULL, spot)
            if not cost <= spot.rules.most:
                raise bad_cost(cost, spot.rules.most)
            wait = self._wait(spot, now[0], cost)
            if wait > 0.0 or cost == 0.0:
                break
            state_charge(spot.rules, spot.state, now[0], cost)
            outcome = self._put(key, now[0], spot)
            if outcome == DONE:
                break
        if spot.where == SHARED:
            add(&self._chains.counters.overflowed.word, 1)
        if now[0] >= self._next_sweep:
            self._next_sweep = now[0] + SWEEP_EVERY
            self._sweep(now[0], SWEEP_IN_PASSING)
        return wait

    cdef int _charge(self, object key, double cost) except -1:
        """Charge `cost`, whether or not it fits."""
        cdef Spot spot
        cdef Key wanted
        cdef double now = self._timing.now()
        cdef Outcome outcome = AGAIN
        _kept = key_of(key, &wanted)
        while outcome != DONE:
            self._find(&wanted, &now, outcome == FULL, &spot)
            state_charge(spot.rules, spot.state, now, cost)
            outcome = self._put(&wanted, now, &spot)
        return 0

    cdef int _give_back(self, object key, double cost, list marks) except -1:
        """What was taken at `marks`, or (None) just now."""
        cdef Spot spot
        cdef Key wanted
        cdef double now = self._timing.now()
        _kept = key_of(key, &wanted)
        while True:
            self._find(&wanted, &now, False, &spot)
            # Nothing goes back to shared cells: it might be another key's use that is undone.
            if spot.where != OWN and spot.where != OVERRIDDEN:
                break
            state_refund(spot.rules, spot.state, now, cost, marks)
            if self._put(&wanted, now, &spot) == DONE:
                break
        self._lines.wake_head(key)
        return 0

    cdef int _find(self, Key* key, double* now, bint is_full, Spot* spot) except -1:
        """Where the state of a key is, and a copy of it. `is_full`: there is no room for a new one.

        `now` is set anew when others have forgotten keys since it was read.
        """
        cdef Look* look = &spot.look
        cdef double forgot_at
        self._chains.find(key, look)
        spot.rules = &self._rules
        spot.state = look.payload
        if look.found >= 0:
            spot.where = OWN
            if look.limits > 0:
                spot.where = OVERRIDDEN
                self._read_own_rules(look, &spot.own_rules)
                spot.rules = &spot.own_rules
                spot.state = look.payload + self._rules.words + NUMBERS * look.limits
            return 0
        if is_full or load(&self._chains.counters.is_sharing.word):
            self._chains.find_spare(key, &spot.spare)
            if is_full or not state_is_idle(&self._rules, spot.spare.payload, now[0]):
                spot.where = SHARED
                spot.state = spot.spare.payload
                return 0
        memcpy(look.payload, self._blank, self._rules.words * sizeof(double))
        forgot_at = self._chains.counters.forgot_at  # at least when this key was, if it was
        if now[0] < forgot_at:
            now[0] = larger(now[0], self._timing.now())
        spot.where = BLANK if now[0] >= forgot_at else UNKNOWN
        return 0

    cdef double _wait(self, Spot* spot, double now, double cost) noexcept:
        if spot.where == UNKNOWN:
            return larger(self._chains.counters.forgot_at - now, self._timing.tick)
        return state_wait(spot.rules, spot.state, now, cost)

    cdef Outcome _put(self, Key* key, double now, Spot* spot) except *:
        """Put the state back to where it was found; that of a new key, to a place of its own."""
        cdef int size_class
        if spot.where == SHARED:
            if not load(&self._chains.counters.is_sharing.word):
                store(&self._chains.counters.is_sharing.word, 1)
            return DONE if self._chains.change_spare(&spot.spare) else AGAIN
        if spot.look.found >= 0:
            if self._chains.change(
                &spot.look, <uint32_t>1 << spot.look.found, key, spot.look.limits, spot.look.payload, -1
            ):
                return DONE
            return AGAIN
        self._sweep(now, SWEEP_PER_KEY)
        size_class = self._admit(key, now, spot.look.length, 0)
        if size_class < 0:
            return FULL
        if self._chains.change(&spot.look, 0, key, 0, spot.look.payload, size_class):
            return DONE
        self._chains.dismiss()
        return AGAIN

    cdef int _admit(self, Key* key, double now, int chain_length, int limits) except -2:
        """Make room for one more key; the class of its record, or -1."""
        cdef int size_class = class_of(self._chains.header, key.size, limits)
        cdef int admitted
        if chain_length >= LONGEST_CHAIN:
            return -1
        admitted = self._chains.admit(size_class)
        if admitted < 0:
            self._sweep(now, SWEEP_AT_THE_CAP)
            admitted = self._chains.admit(size_class)
        return admitted

    cdef int _sweep(self, double now, int steps) except -1:
        """Look at the next buckets and drop the keys that are idle."""
        cdef Look look
        cdef uint32_t gone
        cdef Record* record
        cdef int i
        while steps > 0:
            steps -= 1
            self._chains.see(self._chains.next_bucket(), &look)
            gone = 0
            for i in range(look.length):
                record = record_at(self._chains, look.units[i])
                if record.limits == 0 and state_is_idle(&self._rules, payload_in(record), now):
                    gone |= <uint32_t>1 << i
            if gone != 0 and self._chains.is_current(&look):
                # First, for who sees that the key is absent must see since when.
                raise_double(&self._chains.counters.forgot_at, now)
                self._chains.change(&look, gone, NULL, 0, NULL, -1)
        return 0

    cdef Decision _decision(self, Spot* spot, double now, double cost, double wait):
        cdef Decision decision
        limits = self._own_limits(&spot.look) if spot.where == OVERRIDDEN else self._limits
        decision = state_decision(spot.rules, spot.state, limits, now, cost, wait)
        if spot.where == UNKNOWN:
            decision.remaining = 0.0
        return decision

    cdef tuple _own_limits(self, Look* look):
        cdef double* numbers = look.payload + self._rules.words
        limits = []
        for _ in range(look.limits):
            limits.append(limit_of(numbers[0], numbers[1], numbers[2]))
            numbers += NUMBERS
        return tuple(limits)

    cdef int _read_own_rules(self, Look* look, Rules* rules) except -1:
        cdef double* numbers = look.payload + self._rules.words
        cdef int algorithm = self._rules.rule[0].algorithm
        cdef bint is_leaky = self._algorithm == "leaky_bucket"
        cdef int i
        rules.count = look.limits
        rules.words = rules.count * words_of(algorithm)
        rules.most = INFINITY
        for i in range(rules.count):
            rules.rule[i] = rule_of(
                algorithm, numbers[0], numbers[1], 1.0 if is_leaky else numbers[2], self._timing
            )
            rules.most = smaller(rules.most, rules.rule[i].limit)
            numbers += NUMBERS
        return 0

    cdef Outcome _set_override(self, Key* key, tuple limits, Rules* rules) except *:
        cdef Spot spot
        cdef double[PAYLOAD] payload
        cdef double* numbers = payload + self._rules.words
        cdef double* state = numbers + NUMBERS * rules.count
        cdef double now = self._timing.now()
        cdef int i, size_class
        cdef bint is_new
        self._find(key, &now, False, &spot)
        if spot.where == OVERRIDDEN and self._own_limits(&spot.look) == limits:
            return NO_CHANGE
        for i in range(rules.count):
            numbers[NUMBERS * i] = limits[i].amount
            numbers[NUMBERS * i + 1] = limits[i].per
            numbers[NUMBERS * i + 2] = limits[i].burst or 0.0
        state_clear(rules, state)
        if spot.where == UNKNOWN:
            state_use_up(rules, state, now)
        elif spot.where != BLANK:
            state_carry(spot.rules, spot.state, rules, state, now)
        if spot.where == OVERRIDDEN:
            memcpy(payload, spot.look.payload, self._rules.words * sizeof(double))
        else:
            state_clear(&self._rules, payload)
            if spot.where == OWN or spot.where == SHARED:
                state_carry(&self._rules, spot.state, &self._rules, payload, now)
        is_new = spot.look.found < 0
        if is_new:
            size_class = self._admit(key, now, spot.look.length, rules.count)
        else:
            size_class = self._chains.room_for(class_of(self._chains.header, key.size, rules.count))
        if size_class < 0:
            return FULL
        if self._chains.change(
            &spot.look, 0 if is_new else <uint32_t>1 << spot.look.found, key, rules.count, payload, size_class
        ):
            return DONE
        if is_new:
            self._chains.dismiss()
        return AGAIN

    cdef Outcome _remove_override(self, Key* key) except *:
        """Bring what a key used, before and during its override, to the default limits."""
        cdef Spot spot
        cdef double* before
        cdef double now = self._timing.now()
        cdef uint32_t gone
        self._find(key, &now, False, &spot)
        if spot.where != OVERRIDDEN:
            return DONE
        before = spot.look.payload
        gone = <uint32_t>1 << spot.look.found
        state_carry(spot.rules, spot.state, &self._rules, before, now)
        if not state_is_idle(&self._rules, before, now):
            return DONE if self._chains.change(&spot.look, gone, key, 0, before, -1) else AGAIN
        raise_double(&self._chains.counters.forgot_at, now)
        return DONE if self._chains.change(&spot.look, gone, NULL, 0, NULL, -1) else AGAIN

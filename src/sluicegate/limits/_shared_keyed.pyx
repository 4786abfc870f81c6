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

so an override holds for all processes at once. `Location` has the same values as in `Keyed`;
the overflow states are the records of the table's overflow chains.
"""

from libc.math cimport INFINITY
from libc.stdint cimport uint32_t
from libc.string cimport memcpy

from sluicegate.limits._algorithms cimport MAX_WORDS, words_of
from sluicegate.limits._decision cimport Decision
from sluicegate._key_normalize cimport normalize_key
from sluicegate._minmax cimport fast_max, fast_min
from sluicegate.limits._limit_set cimport (
    MAX_LIMITS, MAX_SET_WORDS, LimitSet, bad_cost, exhaust_state, limit_of, limit_set_charge, limit_set_clear,
    limit_set_decision, limit_set_is_idle, limit_set_marks, limit_set_refund, limit_set_wait, make_limit_set,
    migrate_state, params_from_numbers,
)
from sluicegate.limits._limiter_clock cimport LimiterClock
from sluicegate.shm._atomic cimport add, load, raise_double, store
from sluicegate.shm._lockfree_table cimport (
    LockFreeTable, Key, MAX_CHAIN_LENGTH, ChainSnapshot, MAX_PAYLOAD, Record, size_class_of, payload_in, record_at,
)
from sluicegate.shm._key_encoding cimport key_of

from sluicegate.errors import TableFull
from sluicegate._validate import check_timeout
from sluicegate.limits.errors import RateLimited
from sluicegate.limits.limit import as_limits
from sluicegate.limits.reservation import Reservation
from sluicegate.shm.file import path_of, remove
from sluicegate.limits.waiting import WaitQueues, TaskSleeper, ThreadSleeper

__all__ = ["SharedKeyed"]

cdef enum:
    SWEEP_PER_KEY = 8         # chains looked at for each key that is added
    SWEEP_PERIODIC = 64       # and once in a while when none is added
    SWEEP_WHEN_FULL = 256
    NUMBERS = 3               # of a limit

cdef double SWEEP_INTERVAL = 0.001  # seconds

cdef enum Location:
    IN_TABLE
    OVERRIDDEN
    IN_OVERFLOW
    ABSENT
    MAYBE_EVICTED

cdef enum Outcome:
    DONE
    AGAIN      # another process was faster
    FULL       # there is no room for one more key
    NO_CHANGE  # it was so already

cdef struct StateRef:
    Location location
    LimitSet* limit_set
    double* state
    ChainSnapshot snapshot   # of the key's chain
    ChainSnapshot overflow   # of its overflow chain, if it uses one
    LimitSet own_limit_set   # of a key that has limits of its own

assert MAX_SET_WORDS + MAX_LIMITS * (NUMBERS + MAX_WORDS) <= MAX_PAYLOAD


cdef class SharedKeyed:
    """One limiter per key, shared by all processes of the host that open `name`.

    `name` is a name, for a file in /dev/shm, or a path. The file is made where there is
    none; one with another limit, algorithm or `max_keys` is refused, or with `rebuild`
    replaced. It stays until `SharedKeyed.unlink(name)`.

    `limit`, keys and all methods are as those of `Keyed`; a key has at most 255 bytes.
    `algorithm` is "token_bucket", "leaky_bucket", "fixed_window" or "sliding_counter".
    """

    cdef LockFreeTable _table
    cdef LimiterClock _clock
    cdef str _algorithm
    cdef tuple _limits
    cdef LimitSet _limit_set
    cdef double[MAX_SET_WORDS] _idle_state
    cdef double _next_sweep
    cdef object _queues
    cdef object __weakref__

    def __cinit__(self, *_, **__):
        self._table = LockFreeTable.__new__(LockFreeTable)
        self._clock = LimiterClock(None)
        self._algorithm = ""
        self._limits = ()
        self._queues = WaitQueues(self._clock)

    def __init__(
        self, name, limit, *, algorithm="token_bucket", max_keys=100_000, rebuild=False, clock=None
    ):
        cdef LimiterClock own_clock = LimiterClock(clock)
        cdef LimitSet limit_set
        if self._table.header != NULL:
            raise TypeError(f"{self!r} is already initialized")
        path = path_of(name)
        if algorithm == "sliding_window":
            raise ValueError("sliding_window is not supported in shared memory; use sliding_counter")
        limits = as_limits(limit)
        make_limit_set(algorithm, limits, own_clock, &limit_set)
        limit_set_clear(&limit_set, self._idle_state)
        table = LockFreeTable(
            path,
            f"{algorithm} {'; '.join(map(str, limits))}",
            max_keys,
            limit_set.words,
            NUMBERS + words_of(limit_set.params[0].algorithm),
            (<char*>self._idle_state)[:limit_set.words * sizeof(double)],
            rebuild,
            own_clock.source is None,
            own_clock.start,
            own_clock.wall,
        )
        own_clock.begin_at((<LockFreeTable>table).header.start, (<LockFreeTable>table).header.wall)
        make_limit_set(algorithm, limits, own_clock, &self._limit_set)
        self._table = table
        self._clock = own_clock
        self._algorithm = algorithm
        self._limits = limits
        self._next_sweep = -INFINITY
        self._queues = WaitQueues(own_clock)

    @staticmethod
    def unlink(name):
        """Remove the memory called `name`; False when there is none.

        Processes that have it open go on with what they have, apart from those that
        open the name anew.
        """
        return remove(name)

    def allow(self, key, double cost=1.0):
        """Charge `cost` to `key` if it fits now."""
        cdef StateRef ref
        cdef Key wanted
        cdef double now
        _kept = key_of(key, &wanted)
        if not cost > 0.0:
            raise bad_cost(cost, self._limit_set.max_cost)
        now = self._clock.now()
        return self._take(&wanted, cost, &now, &ref) == 0.0

    def check(self, key, double cost=1.0):
        """Charge `cost` to `key` if it fits now, and tell all about it. A cost of 0 only looks."""
        cdef StateRef ref
        cdef Key wanted
        cdef double wait, now
        _kept = key_of(key, &wanted)
        if not cost >= 0.0:
            raise bad_cost(cost, self._limit_set.max_cost)
        now = self._clock.now()
        wait = self._take(&wanted, cost, &now, &ref)
        return self._decision(&ref, now, cost, wait)

    def acquire(self, key, double cost=1.0, timeout=None):
        """Wait until `cost` fits; return the seconds waited.

        Those of one process who wait for one key go in their order; between processes,
        whoever asks first when there is room. Raises `RateLimited` when it does not fit
        within `timeout` seconds: at once, where that is known at once.
        """
        cdef double seconds = INFINITY if timeout is None else check_timeout(timeout)
        key = normalize_key(key)
        if key not in self._queues and self.allow(key, cost):
            return 0.0
        sleeper = ThreadSleeper(self._clock.source)
        return sleeper.wait(self._wait_plan(key, cost, seconds, sleeper))

    async def acquire_async(self, key, cost=1.0, timeout=None):
        """As `acquire`, for tasks. A cancelled one leaves the queue."""
        seconds = INFINITY if timeout is None else check_timeout(timeout)
        key = normalize_key(key)
        if key not in self._queues and self.allow(key, cost):
            return 0.0
        sleeper = TaskSleeper(self._clock.source)
        return await sleeper.wait(self._wait_plan(key, cost, seconds, sleeper))

    def reserve(self, key, double cost=1.0):
        """Charge an expected cost now; `settle` the real one on what is returned.

        As `Keyed.reserve`. What a process that is killed had reserved has cost just that.
        """
        cdef StateRef ref
        cdef Key wanted
        cdef double wait, now
        key = normalize_key(key)
        _kept = key_of(key, &wanted)
        if not cost > 0.0:
            raise bad_cost(cost, self._limit_set.max_cost)
        now = self._clock.now()
        self._table.check()
        changes = load(&self._table.counters.changes.word)  # before: a reset since then counts
        wait = self._take(&wanted, cost, &now, &ref)
        if wait > 0.0:
            raise RateLimited(self._decision(&ref, now, cost, wait))
        marks = None
        if ref.location != IN_OVERFLOW:
            marks = (changes, limit_set_marks(ref.limit_set, ref.state, now))
        return Reservation(self._settle, key, cost, marks)

    def refund(self, key, double cost):
        """Give `cost` back, as if it had been taken just now. Never fills above full."""
        if not 0.0 < cost < INFINITY:
            raise ValueError(f"cost must be a finite number above 0, got {cost!r}")
        self._give_back(normalize_key(key), cost, None)

    def reset(self, key):
        """Forget what `key` has used. What it used of overflow states stays."""
        cdef StateRef ref
        cdef Key wanted
        cdef double now = self._clock.now()
        key = normalize_key(key)
        _kept = key_of(key, &wanted)
        while True:
            self._find(&wanted, &now, False, &ref)
            if ref.location == IN_TABLE:
                if not self._table.change(&ref.snapshot, <uint32_t>1 << ref.snapshot.found, NULL, 0, NULL, -1):
                    continue
            elif ref.location == OVERRIDDEN:
                limit_set_clear(ref.limit_set, ref.state)
                if self._put(&wanted, now, &ref) == AGAIN:
                    continue
            break
        add(&self._table.counters.changes.word, 1)
        self._queues.wake_head(key)

    def override(self, key, limit):
        """Give `key` limits of its own, in all processes; None takes them away.

        What it has used stays used. Raises `TableFull` when there is no room for the key.
        """
        cdef LimitSet limit_set
        cdef Key wanted
        key = normalize_key(key)
        _kept = key_of(key, &wanted)
        limits = None
        if limit is not None:
            limits = as_limits(limit)
            make_limit_set(self._algorithm, limits, self._clock, &limit_set)
        while True:
            if limits is None:
                outcome = self._remove_override(&wanted)
            else:
                outcome = self._set_override(&wanted, limits, &limit_set)
            if outcome == NO_CHANGE:
                return
            if outcome == DONE:
                break
            if outcome == FULL:
                raise TableFull(f"{self!r} is full: no room to override the limits of {key!r}")
        add(&self._table.counters.changes.word, 1)
        self._queues.wake_head(key)

    def limits_of(self, key):
        """The limits that hold for `key`."""
        cdef Key wanted
        cdef ChainSnapshot snapshot
        _kept = key_of(key, &wanted)
        self._table.find(&wanted, &snapshot)
        return self._limits if snapshot.found < 0 or snapshot.item_count == 0 else self._own_limits(&snapshot)

    def close(self):
        """Let go of the memory; it stays for others, and for later."""
        self._table.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __len__(self):
        """Keys that take memory: those in use, those idle since a moment ago, and overrides."""
        self._table.check()
        return load(&self._table.counters.count.word)

    @property
    def limits(self):
        """The limits of keys that have no override."""
        return self._limits

    @property
    def algorithm(self):
        return self._algorithm

    @property
    def max_keys(self):
        self._table.check()
        return self._table.header.max_keys

    @property
    def overflowed(self):
        """Calls of all processes that had to be answered from overflow states, since the start."""
        self._table.check()
        return load(&self._table.counters.overflowed.word)

    @property
    def waiting(self):
        """How many of this process wait in `acquire`, over all keys."""
        return len(self._queues)

    @property
    def path(self):
        """The file, as a string."""
        return None if self._table.file is None else str(self._table.file.path)

    def __repr__(self):
        if self._table.file is None:
            return "SharedKeyed(closed)"
        limits = "; ".join(map(str, self._limits))
        overflowed = f", overflowed={self.overflowed}" if self.overflowed else ""
        return (
            f"SharedKeyed({self.path!r}, {limits!r}, algorithm={self._algorithm!r}, "
            f"keys={len(self)}{overflowed})"
        )

    def _wait_plan(self, key, double cost, double timeout, sleeper):
        def attempt():
            cdef StateRef ref
            cdef Key wanted
            cdef double now = self._clock.now()
            _kept = key_of(key, &wanted)
            return self._take(&wanted, cost, &now, &ref)

        def refuse():
            cdef StateRef ref
            cdef Key wanted
            cdef double now = self._clock.now()
            _kept = key_of(key, &wanted)
            self._find(&wanted, &now, False, &ref)
            wait = fast_max(self._wait(&ref, now, cost), self._clock.epsilon)
            return RateLimited(self._decision(&ref, now, cost, wait))

        return self._queues.wait(key, attempt, refuse, timeout, sleeper)

    def _settle(self, key, double taken, marks, double cost):
        """Make `taken`, charged at `marks`, have been `cost`."""
        if not 0.0 <= cost < INFINITY:
            raise ValueError(f"cost must be a finite number, 0 or more, got {cost!r}")
        self._table.check()
        if cost > taken:
            self._charge(key, cost - taken)
        elif cost < taken and marks is not None:
            if marks[0] == load(&self._table.counters.changes.word):
                self._give_back(key, taken - cost, marks[1])

    cdef double _take(self, Key* key, double cost, double* now, StateRef* ref) except -1.0:
        """Charge `cost` and return 0, or change nothing and return the seconds until it fits."""
        cdef double wait
        cdef Outcome outcome = AGAIN
        while True:
            self._find(key, now, outcome == FULL, ref)
            if not cost <= ref.limit_set.max_cost:
                raise bad_cost(cost, ref.limit_set.max_cost)
            wait = self._wait(ref, now[0], cost)
            if wait > 0.0 or cost == 0.0:
                break
            limit_set_charge(ref.limit_set, ref.state, now[0], cost)
            outcome = self._put(key, now[0], ref)
            if outcome == DONE:
                break
        if ref.location == IN_OVERFLOW:
            add(&self._table.counters.overflowed.word, 1)
        if now[0] >= self._next_sweep:
            self._next_sweep = now[0] + SWEEP_INTERVAL
            self._sweep(now[0], SWEEP_PERIODIC)
        return wait

    cdef int _charge(self, object key, double cost) except -1:
        """Charge `cost`, whether or not it fits."""
        cdef StateRef ref
        cdef Key wanted
        cdef double now = self._clock.now()
        cdef Outcome outcome = AGAIN
        _kept = key_of(key, &wanted)
        while outcome != DONE:
            self._find(&wanted, &now, outcome == FULL, &ref)
            limit_set_charge(ref.limit_set, ref.state, now, cost)
            outcome = self._put(&wanted, now, &ref)
        return 0

    cdef int _give_back(self, object key, double cost, list marks) except -1:
        """What was taken at `marks`, or (None) just now."""
        cdef StateRef ref
        cdef Key wanted
        cdef double now = self._clock.now()
        _kept = key_of(key, &wanted)
        while True:
            self._find(&wanted, &now, False, &ref)
            # Nothing goes back to overflow states: it might be another key's use that is undone.
            if ref.location != IN_TABLE and ref.location != OVERRIDDEN:
                break
            limit_set_refund(ref.limit_set, ref.state, now, cost, marks)
            if self._put(&wanted, now, &ref) == DONE:
                break
        self._queues.wake_head(key)
        return 0

    cdef int _find(self, Key* key, double* now, bint is_full, StateRef* ref) except -1:
        """Where the state of a key is, and a copy of it. `is_full`: there is no room for a new one.

        `now` is set anew when others have forgotten keys since it was read.
        """
        cdef ChainSnapshot* snapshot = &ref.snapshot
        cdef double last_eviction
        self._table.find(key, snapshot)
        ref.limit_set = &self._limit_set
        ref.state = snapshot.payload
        if snapshot.found >= 0:
            ref.location = IN_TABLE
            if snapshot.item_count > 0:
                ref.location = OVERRIDDEN
                self._read_own_limit_set(snapshot, &ref.own_limit_set)
                ref.limit_set = &ref.own_limit_set
                ref.state = snapshot.payload + self._limit_set.words + NUMBERS * snapshot.item_count
            return 0
        if is_full or load(&self._table.counters.has_overflowed.word):
            self._table.find_overflow(key, &ref.overflow)
            if is_full or not limit_set_is_idle(&self._limit_set, ref.overflow.payload, now[0]):
                ref.location = IN_OVERFLOW
                ref.state = ref.overflow.payload
                return 0
        memcpy(snapshot.payload, self._idle_state, self._limit_set.words * sizeof(double))
        last_eviction = self._table.counters.last_eviction  # at least when this key was, if it was
        if now[0] < last_eviction:
            now[0] = fast_max(now[0], self._clock.now())
        ref.location = ABSENT if now[0] >= last_eviction else MAYBE_EVICTED
        return 0

    cdef double _wait(self, StateRef* ref, double now, double cost) noexcept:
        if ref.location == MAYBE_EVICTED:
            return fast_max(self._table.counters.last_eviction - now, self._clock.epsilon)
        return limit_set_wait(ref.limit_set, ref.state, now, cost)

    cdef Outcome _put(self, Key* key, double now, StateRef* ref) except *:
        """Put the state back to where it was found; that of a new key, to a place of its own."""
        cdef int size_class
        if ref.location == IN_OVERFLOW:
            if not load(&self._table.counters.has_overflowed.word):
                store(&self._table.counters.has_overflowed.word, 1)
            return DONE if self._table.change_overflow(&ref.overflow) else AGAIN
        if ref.snapshot.found >= 0:
            if self._table.change(
                &ref.snapshot, <uint32_t>1 << ref.snapshot.found, key, ref.snapshot.item_count, ref.snapshot.payload, -1
            ):
                return DONE
            return AGAIN
        self._sweep(now, SWEEP_PER_KEY)
        size_class = self._admit(key, now, ref.snapshot.length, 0)
        if size_class < 0:
            return FULL
        if self._table.change(&ref.snapshot, 0, key, 0, ref.snapshot.payload, size_class):
            return DONE
        self._table.cancel_admit()
        return AGAIN

    cdef int _admit(self, Key* key, double now, int chain_length, int limits) except -2:
        """Make room for one more key; the class of its record, or -1."""
        cdef int size_class = size_class_of(self._table.header, key.size, limits)
        cdef int admitted
        if chain_length >= MAX_CHAIN_LENGTH:
            return -1
        admitted = self._table.admit(size_class)
        if admitted < 0:
            self._sweep(now, SWEEP_WHEN_FULL)
            admitted = self._table.admit(size_class)
        return admitted

    cdef int _sweep(self, double now, int steps) except -1:
        """Look at the next chains and drop the keys that are idle."""
        cdef ChainSnapshot snapshot
        cdef uint32_t removed
        cdef Record* record
        cdef int i
        while steps > 0:
            steps -= 1
            self._table.snapshot_chain(self._table.next_chain(), &snapshot)
            removed = 0
            for i in range(snapshot.length):
                record = record_at(self._table, snapshot.blocks[i])
                if record.item_count == 0 and limit_set_is_idle(&self._limit_set, payload_in(record), now):
                    removed |= <uint32_t>1 << i
            if removed != 0 and self._table.is_current(&snapshot):
                # First: a process that finds the key absent must see since when.
                raise_double(&self._table.counters.last_eviction, now)
                self._table.change(&snapshot, removed, NULL, 0, NULL, -1)
        return 0

    cdef Decision _decision(self, StateRef* ref, double now, double cost, double wait):
        cdef Decision decision
        limits = self._own_limits(&ref.snapshot) if ref.location == OVERRIDDEN else self._limits
        decision = limit_set_decision(ref.limit_set, ref.state, limits, now, cost, wait)
        if ref.location == MAYBE_EVICTED:
            decision.remaining = 0.0
        return decision

    cdef tuple _own_limits(self, ChainSnapshot* snapshot):
        cdef double* numbers = snapshot.payload + self._limit_set.words
        limits = []
        for _ in range(snapshot.item_count):
            limits.append(limit_of(numbers[0], numbers[1], numbers[2]))
            numbers += NUMBERS
        return tuple(limits)

    cdef int _read_own_limit_set(self, ChainSnapshot* snapshot, LimitSet* limit_set) except -1:
        cdef double* numbers = snapshot.payload + self._limit_set.words
        cdef int algorithm = self._limit_set.params[0].algorithm
        cdef bint is_leaky = self._algorithm == "leaky_bucket"
        cdef int i
        limit_set.count = snapshot.item_count
        limit_set.words = limit_set.count * words_of(algorithm)
        limit_set.max_cost = INFINITY
        for i in range(limit_set.count):
            limit_set.params[i] = params_from_numbers(
                algorithm, numbers[0], numbers[1], 1.0 if is_leaky else numbers[2], self._clock
            )
            limit_set.max_cost = fast_min(limit_set.max_cost, limit_set.params[i].limit)
            numbers += NUMBERS
        return 0

    cdef Outcome _set_override(self, Key* key, tuple limits, LimitSet* limit_set) except *:
        cdef StateRef ref
        cdef double[MAX_PAYLOAD] payload
        cdef double* numbers = payload + self._limit_set.words
        cdef double* state = numbers + NUMBERS * limit_set.count
        cdef double now = self._clock.now()
        cdef int i, size_class
        cdef bint is_new
        self._find(key, &now, False, &ref)
        if ref.location == OVERRIDDEN and self._own_limits(&ref.snapshot) == limits:
            return NO_CHANGE
        for i in range(limit_set.count):
            numbers[NUMBERS * i] = limits[i].amount
            numbers[NUMBERS * i + 1] = limits[i].per
            numbers[NUMBERS * i + 2] = limits[i].burst or 0.0
        limit_set_clear(limit_set, state)
        if ref.location == MAYBE_EVICTED:
            exhaust_state(limit_set, state, now)
        elif ref.location != ABSENT:
            migrate_state(ref.limit_set, ref.state, limit_set, state, now)
        if ref.location == OVERRIDDEN:
            memcpy(payload, ref.snapshot.payload, self._limit_set.words * sizeof(double))
        else:
            limit_set_clear(&self._limit_set, payload)
            if ref.location == IN_TABLE or ref.location == IN_OVERFLOW:
                migrate_state(&self._limit_set, ref.state, &self._limit_set, payload, now)
        is_new = ref.snapshot.found < 0
        if is_new:
            size_class = self._admit(key, now, ref.snapshot.length, limit_set.count)
        else:
            size_class = self._table.ensure_free(size_class_of(self._table.header, key.size, limit_set.count))
        if size_class < 0:
            return FULL
        if self._table.change(
            &ref.snapshot, 0 if is_new else <uint32_t>1 << ref.snapshot.found, key, limit_set.count, payload, size_class
        ):
            return DONE
        if is_new:
            self._table.cancel_admit()
        return AGAIN

    cdef Outcome _remove_override(self, Key* key) except *:
        """Bring what a key used, before and during its override, to the default limits."""
        cdef StateRef ref
        cdef double* before
        cdef double now = self._clock.now()
        cdef uint32_t removed
        self._find(key, &now, False, &ref)
        if ref.location != OVERRIDDEN:
            return DONE
        before = ref.snapshot.payload
        removed = <uint32_t>1 << ref.snapshot.found
        migrate_state(ref.limit_set, ref.state, &self._limit_set, before, now)
        if not limit_set_is_idle(&self._limit_set, before, now):
            return DONE if self._table.change(&ref.snapshot, removed, key, 0, before, -1) else AGAIN
        raise_double(&self._table.counters.last_eviction, now)
        return DONE if self._table.change(&ref.snapshot, removed, NULL, 0, NULL, -1) else AGAIN

# cython: language_level=3, binding=False, embedsignature=True, embedsignature.format=clinic, cdivision=True
"""`Leases`: permits taken from Redis in lots and spent locally, for each key of a process.

A lease is what is left of a lot. A call that it covers is answered by one look into a
dictionary; one that it does not cover makes its caller ask Redis for the next lot
(`begin_request`), and report the answer (`grant`, `deny`, `abort`). Rules:

- One caller at a time asks for a lot of a key. Others who find the lease spent meanwhile
  ask for exactly what they need and hold nothing, so a process never holds more than one
  lot of a key.
- A lease expires `LEASE_SECONDS` seconds after it was granted; what is left of it is void.
- A denial is remembered until its time has come: a denied key does not ask again before.
- The lot follows the key: it doubles when a full one was spent within half of `REFILL`
  seconds, and halves when it lasted twice as long. It starts at 1 and ends at `max_lot`.
- Memory: two dictionaries. Every `LEASE_SECONDS` seconds the older one is dropped; it holds only
  keys that nobody has asked for since, whose leases have lapsed. To forget a denial costs
  one question to Redis.
"""

cimport cython
from cpython.unicode cimport PyUnicode_CheckExact

from sluicegate._key_normalize cimport normalize_key
from sluicegate._minmax cimport fast_max, fast_min
from sluicegate.limits._limiter_clock cimport LimiterClock
from sluicegate.limits.redis._counters cimport DecisionCounters

__all__ = ["LEASE_SECONDS", "Leases"]

LEASE_SECONDS = 1.0  # seconds
cdef double _LEASE_SECONDS = LEASE_SECONDS
cdef double REFILL = 0.2
cdef double MAX_PAUSE = 0.05


@cython.final
@cython.freelist(64)
cdef class _Lease:
    cdef double left
    cdef double expires_at
    cdef double reserved         # by the caller that requests the next lot
    cdef double lot
    cdef double granted_at
    cdef double in_use       # units, of the limit that had the least, when it was granted
    cdef double denied_until
    cdef double denied_cost
    cdef int denied_by
    cdef bint is_requesting
    cdef bint was_full       # the last grant was the whole lot


@cython.final
cdef class Leases:
    """The leases of one process. `rate` and `burst` are those of the tightest limit,
    `fastest` is the highest rate of all.

    `lot` is fixed, or None: then it follows each key's own rate up to half of the burst,
    divided by the number of nodes.
    """

    cdef LimiterClock _clock
    cdef DecisionCounters _counters
    cdef dict _new
    cdef dict _old
    cdef double _rotate_at
    cdef double _rate
    cdef double _fastest
    cdef double _burst
    cdef double _fixed
    cdef readonly double max_lot

    def __init__(self, double rate, double fastest, double burst, lot, DecisionCounters counters, clock):
        self._clock = LimiterClock(clock)
        self._counters = counters
        self._new = {}
        self._old = {}
        self._rotate_at = _LEASE_SECONDS
        self._rate = rate
        self._fastest = fastest
        self._burst = burst
        self._fixed = 0.0 if lot is None else lot
        self.set_node_count(1)

    def set_node_count(self, long long nodes):
        """Set the number of nodes that share the limit."""
        self.max_lot = self._fixed if self._fixed > 0.0 else fast_max(self._burst / (2.0 * nodes), 1.0)

    def spend(self, key, double cost):
        """True or False where that is known here; None: Redis must be asked."""
        cdef _Lease lease
        cdef double now
        if not PyUnicode_CheckExact(key):
            key = normalize_key(key)
        now = self._clock.now()
        lease = self._find(key, now)
        if lease is None or not cost > 0.0:
            return None
        if lease.left >= cost and now < lease.expires_at:
            lease.left -= cost
            self._counters.allowed += 1
            self._counters.decided_locally += 1
            return True
        if now < lease.denied_until and cost >= lease.denied_cost:
            self._counters.denied += 1
            self._counters.decided_locally += 1
            return False
        return None

    def begin_request(self, key, double cost):
        """What to ask Redis for: (needed, wanted, whether this caller asks for the lot)."""
        cdef double now = self._clock.now()
        cdef _Lease lease = self._make(normalize_key(key), now)
        cdef double lasted
        # Another asks for the lot, or has just got it: this one takes what it needs.
        if lease.is_requesting or (lease.left >= cost and now < lease.expires_at):
            return cost, cost, False
        lease.is_requesting = True
        lasted = now - lease.granted_at
        if lease.was_full and lasted < REFILL / 2.0:
            lease.lot *= 2.0
        elif lasted > REFILL * 2.0:
            lease.lot /= 2.0
        lease.lot = self._fixed if self._fixed > 0.0 else fast_min(fast_max(lease.lot, 1.0), self.max_lot)
        lease.reserved = lease.left if now < lease.expires_at else 0.0
        lease.left = 0.0
        return cost - lease.reserved, fast_max(cost - lease.reserved, lease.lot), True

    def grant(self, key, double cost, double want, double granted, double in_use):
        """Redis granted the lot, and the caller has spent `cost` of it."""
        cdef double now = self._clock.now()
        cdef _Lease lease = self._make(normalize_key(key), now)
        # Below 0 where the answer took so long that the lease was forgotten meanwhile.
        lease.left = fast_max(lease.left + lease.reserved + granted - cost, 0.0)
        lease.reserved = 0.0
        lease.is_requesting = False
        lease.was_full = granted >= want
        lease.granted_at = now
        lease.expires_at = now + _LEASE_SECONDS
        lease.in_use = in_use
        lease.denied_until = 0.0

    def deny(self, key, double cost, int index, double retry_after, bint owns):
        """Redis had not what was needed. Returns how long that is remembered, in seconds.

        A little longer than need be where the lot is large: to come for a few permits at
        a time is to ask Redis for each.
        """
        cdef double now = self._clock.now()
        cdef _Lease lease = self._make(normalize_key(key), now)
        cdef double pause = fast_min(fast_min((lease.lot - 1.0) / self._rate, MAX_PAUSE),
                                     self._burst / self._rate / 4.0)
        if owns:
            self.abort(key)
        lease.denied_cost = cost
        lease.denied_by = index
        pause = fast_max(retry_after, pause)
        lease.denied_until = now + pause
        return pause

    def abort(self, key):
        """There was no answer: what was reserved before is there to be spent again."""
        cdef _Lease lease = self._make(normalize_key(key), self._clock.now())
        lease.left += lease.reserved
        lease.reserved = 0.0
        lease.is_requesting = False
        lease.was_full = False

    def denial(self, key):
        """The last denial of `key`: (index of the limit, seconds until it is over)."""
        cdef double now = self._clock.now()
        cdef _Lease lease = self._make(normalize_key(key), now)
        return lease.denied_by, fast_max(lease.denied_until - now, 0.0)

    def left(self, key):
        """Permits of `key` that are at hand."""
        cdef double now = self._clock.now()
        cdef _Lease lease = self._find(normalize_key(key), now)
        return lease.left if lease is not None and now < lease.expires_at else 0.0

    def clear_denial(self, key):
        """Forget a denial of `key`: something was given back."""
        cdef _Lease lease = self._find(normalize_key(key), self._clock.now())
        if lease is not None:
            lease.denied_until = 0.0

    def drop(self, key):
        """Forget `key`."""
        key = normalize_key(key)
        self._new.pop(key, None)
        self._old.pop(key, None)

    def drain(self):
        """Take out all that is left, as (key, amount) to be given back.

        Of what the bucket has refilled since, nothing is given back: had it not been
        taken it would have been lost to a full bucket, or somebody has had it.
        """
        cdef double now = self._clock.now()
        cdef double amount, refilled
        cdef _Lease lease
        given_back = []
        for leases in (self._old, self._new):
            for key, value in leases.items():
                lease = value
                refilled = (now - lease.granted_at) * self._fastest
                amount = fast_min(lease.left, lease.in_use - refilled)
                if amount > 0.0 and now < lease.expires_at:
                    given_back.append((key, amount))
        self.clear()
        return given_back

    def clear(self):
        self._new = {}
        self._old = {}

    def __len__(self):
        """Keys with permits at hand."""
        cdef double now = self._clock.now()
        cdef _Lease lease
        cdef long long count = 0
        for leases in (self._old, self._new):
            for value in leases.values():
                lease = value
                count += lease.left > 0.0 and now < lease.expires_at
        return count

    cdef _Lease _find(self, object key, double now):
        if now >= self._rotate_at:
            self._rotate_at = now + _LEASE_SECONDS
            self._old = self._new
            self._new = {}
        found = self._new.get(key)
        if found is None and self._old:
            found = self._old.pop(key, None)
            if found is not None:
                self._new[key] = found
        return <_Lease>found

    cdef _Lease _make(self, object key, double now):
        cdef _Lease lease = self._find(key, now)
        if lease is None:
            lease = _Lease.__new__(_Lease)
            lease.lot = 1.0
            lease.granted_at = now
            self._new[key] = lease
        return lease

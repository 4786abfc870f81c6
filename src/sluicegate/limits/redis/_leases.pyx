# cython: language_level=3, binding=False, embedsignature=True, embedsignature.format=clinic, cdivision=True
"""Permits taken in lots and spent here: what a process holds of each key, and for how long.

A lease is what is left of a lot. A call that it covers is answered by one look into a
dictionary; one that it does not cover makes its caller ask Redis for the next lot
(`ask`), and tell what came of it (`grant`, `deny`, `give_up`). Rules:

- One caller at a time asks for a lot of a key. Others who find the lease spent meanwhile
  ask for exactly what they need and hold nothing, so a process never holds more than one
  lot of a key.
- A lease lapses `LAPSE` seconds after it was granted; what is left of it is void.
- A denial is remembered until its time has come: a denied key does not ask again before.
- The lot follows the key: it doubles when a full one was spent within half of `REFILL`
  seconds, and halves when it lasted twice as long. It starts at 1 and ends at `most`.
- Memory: two dictionaries. Every `LAPSE` seconds the older one is dropped; it holds only
  keys that nobody has asked for since, whose leases have lapsed. To forget a denial costs
  one question to Redis.
"""

cimport cython
from cpython.unicode cimport PyUnicode_CheckExact

from sluicegate.limits._key_normalize cimport plain
from sluicegate._minmax cimport larger, smaller
from sluicegate.limits._limiter_clock cimport Timing
from sluicegate.limits.redis._counters cimport Tally

__all__ = ["LAPSE", "Leases"]

LAPSE = 1.0  # seconds
cdef double _LAPSE = LAPSE
cdef double REFILL = 0.2
cdef double LONGEST_PAUSE = 0.05


@cython.final
@cython.freelist(64)
cdef class _Lease:
    cdef double left
    cdef double lapses_at
    cdef double held         # by the caller who asks for the next lot
    cdef double lot
    cdef double granted_at
    cdef double in_use       # units, of the limit that had the least, when it was granted
    cdef double denied_until
    cdef double denied_cost
    cdef int denied_by
    cdef bint is_asking
    cdef bint was_full       # the last grant was the whole lot


@cython.final
cdef class Leases:
    """The leases of one process. `rate` and `burst` are those of the tightest limit,
    `fastest` is the highest rate of all.

    `lot` is fixed, or None: then it follows each key's own rate up to half of the burst,
    divided by the number of nodes.
    """

    cdef Timing _timing
    cdef Tally _tally
    cdef dict _new
    cdef dict _old
    cdef double _turn_at
    cdef double _rate
    cdef double _fastest
    cdef double _burst
    cdef double _fixed
    cdef readonly double most

    def __init__(self, double rate, double fastest, double burst, lot, Tally tally, clock):
        self._timing = Timing(clock)
        self._tally = tally
        self._new = {}
        self._old = {}
        self._turn_at = _LAPSE
        self._rate = rate
        self._fastest = fastest
        self._burst = burst
        self._fixed = 0.0 if lot is None else lot
        self.divide(1)

    def divide(self, long long nodes):
        """Set the number of nodes that share the limit."""
        self.most = self._fixed if self._fixed > 0.0 else larger(self._burst / (2.0 * nodes), 1.0)

    def spend(self, key, double cost):
        """True or False where that is known here; None: Redis must be asked."""
        cdef _Lease lease
        cdef double now
        if not PyUnicode_CheckExact(key):
            key = plain(key)
        now = self._timing.now()
        lease = self._find(key, now)
        if lease is None or not cost > 0.0:
            return None
        if lease.left >= cost and now < lease.lapses_at:
            lease.left -= cost
            self._tally.allowed += 1
            self._tally.decided_locally += 1
            return True
        if now < lease.denied_until and cost >= lease.denied_cost:
            self._tally.denied += 1
            self._tally.decided_locally += 1
            return False
        return None

    def ask(self, key, double cost):
        """What to ask Redis for: (needed, wanted, whether this caller asks for the lot)."""
        cdef double now = self._timing.now()
        cdef _Lease lease = self._make(plain(key), now)
        cdef double lasted
        # Another asks for the lot, or has just got it: this one takes what it needs.
        if lease.is_asking or (lease.left >= cost and now < lease.lapses_at):
            return cost, cost, False
        lease.is_asking = True
        lasted = now - lease.granted_at
        if lease.was_full and lasted < REFILL / 2.0:
            lease.lot *= 2.0
        elif lasted > REFILL * 2.0:
            lease.lot /= 2.0
        lease.lot = self._fixed if self._fixed > 0.0 else smaller(larger(lease.lot, 1.0), self.most)
        lease.held = lease.left if now < lease.lapses_at else 0.0
        lease.left = 0.0
        return cost - lease.held, larger(cost - lease.held, lease.lot), True

    def grant(self, key, double cost, double want, double granted, double in_use):
        """Redis granted the lot, and the caller has spent `cost` of it."""
        cdef double now = self._timing.now()
        cdef _Lease lease = self._make(plain(key), now)
        # Below 0 where the answer took so long that the lease was forgotten meanwhile.
        lease.left = larger(lease.left + lease.held + granted - cost, 0.0)
        lease.held = 0.0
        lease.is_asking = False
        lease.was_full = granted >= want
        lease.granted_at = now
        lease.lapses_at = now + _LAPSE
        lease.in_use = in_use
        lease.denied_until = 0.0

    def deny(self, key, double cost, int index, double retry_after, bint owns):
        """Redis had not what was needed. Returns how long that is remembered, in seconds.

        A little longer than need be where the lot is large: to come for a few permits at
        a time is to ask Redis for each.
        """
        cdef double now = self._timing.now()
        cdef _Lease lease = self._make(plain(key), now)
        cdef double pause = smaller(smaller((lease.lot - 1.0) / self._rate, LONGEST_PAUSE),
                                    self._burst / self._rate / 4.0)
        if owns:
            self.give_up(key)
        lease.denied_cost = cost
        lease.denied_by = index
        pause = larger(retry_after, pause)
        lease.denied_until = now + pause
        return pause

    def give_up(self, key):
        """There was no answer: what was held before is there to be spent again."""
        cdef _Lease lease = self._make(plain(key), self._timing.now())
        lease.left += lease.held
        lease.held = 0.0
        lease.is_asking = False
        lease.was_full = False

    def denial(self, key):
        """The last denial of `key`: (index of the limit, seconds until it is over)."""
        cdef double now = self._timing.now()
        cdef _Lease lease = self._make(plain(key), now)
        return lease.denied_by, larger(lease.denied_until - now, 0.0)

    def left(self, key):
        """Permits of `key` that are at hand."""
        cdef double now = self._timing.now()
        cdef _Lease lease = self._find(plain(key), now)
        return lease.left if lease is not None and now < lease.lapses_at else 0.0

    def pardon(self, key):
        """Forget a denial of `key`: something was given back."""
        cdef _Lease lease = self._find(plain(key), self._timing.now())
        if lease is not None:
            lease.denied_until = 0.0

    def drop(self, key):
        """Forget `key`."""
        key = plain(key)
        self._new.pop(key, None)
        self._old.pop(key, None)

    def take_all(self):
        """Take out all that is left, as (key, amount) to be given back.

        Of what the bucket has refilled since, nothing is given back: had it not been
        taken it would have been lost to a full bucket, or somebody has had it.
        """
        cdef double now = self._timing.now()
        cdef double amount, refilled
        cdef _Lease lease
        given_back = []
        for leases in (self._old, self._new):
            for key, value in leases.items():
                lease = value
                refilled = (now - lease.granted_at) * self._fastest
                amount = smaller(lease.left, lease.in_use - refilled)
                if amount > 0.0 and now < lease.lapses_at:
                    given_back.append((key, amount))
        self.clear()
        return given_back

    def clear(self):
        self._new = {}
        self._old = {}

    def __len__(self):
        """Keys with permits at hand."""
        cdef double now = self._timing.now()
        cdef _Lease lease
        cdef long long count = 0
        for leases in (self._old, self._new):
            for value in leases.values():
                lease = value
                count += lease.left > 0.0 and now < lease.lapses_at
        return count

    cdef _Lease _find(self, object key, double now):
        if now >= self._turn_at:
            self._turn_at = now + _LAPSE
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

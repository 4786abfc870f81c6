# cython: language_level=3, binding=False, embedsignature=True, embedsignature.format=clinic, cdivision=True
"""`SharedTable`: counters by name, in memory that all processes of a host share.

Many processes add to counters; one collects them, say all those of the second that
has just ended, and nobody waits for anybody. A counter is taken out and what it
held is returned in one step: what is added later starts a new counter, so nothing is
lost or counted twice.

A counter belongs to a *generation*, a number that the caller chooses (a slot of time,
say); the same key in two generations is two counters. How it works is in `_lockfree_table.pyx`.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.math cimport isfinite
from libc.stdint cimport uint64_t

from sluicegate.shm._lockfree_table cimport (
    LockFreeTable, Key, MAX_CHAIN_LENGTH, ChainSnapshot, Record, TEXT, size_class_of, key_in, payload_in, record_at,
)
from sluicegate.shm._key_encoding cimport key_of

from sluicegate.errors import TableFull
from sluicegate.shm.file import path_of, remove

__all__ = ["SharedTable"]

cdef enum:
    CHAINS_AT_ONCE = 1024  # that an iteration looks at before it lets other threads go on


cdef class SharedTable:
    """Counters in shared memory, for as many as `max_keys` keys at a time.

    `name` is a name, for a file in /dev/shm, or a path. Keys are str or bytes of up to 255
    bytes. The file is made where there is none; one that does not fit is refused, or with
    `rebuild` replaced. It stays until `unlink`.
    """

    cdef LockFreeTable _table
    cdef object __weakref__

    def __cinit__(self, *_, **__):
        self._table = LockFreeTable.__new__(LockFreeTable)

    def __init__(self, name, *, max_keys=100_000, rebuild=False):
        if self._table.header != NULL:
            raise TypeError(f"{self!r} is already initialized")
        self._table = LockFreeTable(path_of(name), "counters", max_keys, 1, 0, b"", rebuild, True, 0.0, 0.0)

    @staticmethod
    def unlink(name):
        """Remove the memory called `name`; False when there is none."""
        return remove(name)

    def incr(self, key, double amount=1.0, *, generation=0):
        """Add to a counter, which starts at 0; return what it holds now.

        Raises `TableFull` when there is no room for a new one.
        """
        cdef Key wanted
        cdef ChainSnapshot snapshot
        cdef int size_class
        if not isfinite(amount):
            raise ValueError(f"amount must be a finite number, got {amount!r}")
        _kept = counter_of(key, generation, &wanted)
        while True:
            self._table.find(&wanted, &snapshot)
            if snapshot.found >= 0:
                snapshot.payload[0] += amount
                if not isfinite(snapshot.payload[0]):
                    raise OverflowError(f"adding {amount!r} would make counter {key!r} {snapshot.payload[0]!r}")
                if self._table.change(&snapshot, <unsigned>1 << snapshot.found, &wanted, 0, snapshot.payload, -1):
                    return snapshot.payload[0]
                continue
            size_class = -1
            if snapshot.length < MAX_CHAIN_LENGTH:
                size_class = self._table.admit(size_class_of(self._table.header, wanted.size, 0))
            if size_class < 0:
                self._table.find(&wanted, &snapshot)
                if snapshot.found >= 0:  # it was another who took the last place for this very key
                    continue
                raise TableFull(f"{self!r} is full: no room for {key!r}")
            snapshot.payload[0] = amount
            if self._table.change(&snapshot, 0, &wanted, 0, snapshot.payload, size_class):
                return amount
            self._table.cancel_admit()

    def get(self, key, default=0.0, *, generation=0):
        """What a counter holds; `default` where there is none."""
        cdef Key wanted
        cdef ChainSnapshot snapshot
        _kept = counter_of(key, generation, &wanted)
        self._table.find(&wanted, &snapshot)
        return snapshot.payload[0] if snapshot.found >= 0 else default

    def items(self, prefix=None, *, generation=0):
        """Iterate over (key, amount): all of a generation, or those under a prefix.

        Each is right at the moment it is seen. One that comes or goes meanwhile may be
        missed; no key is seen twice.
        """
        return self._iterate(prefix_of(prefix), number_of(generation), False)

    def take(self, prefix=None, *, generation=0):
        """As `items`, and each counter is taken out as it is returned, with all that it held.

        One by one: those that were not asked for yet are still there.
        """
        return self._iterate(prefix_of(prefix), number_of(generation), True)

    def generations(self):
        """The generations that have counters now, in order."""
        cdef ChainSnapshot snapshot
        cdef uint64_t chain
        self._table.check()
        found = set()
        for chain in range(self._table.header.chains):
            found.update([one.generation for one in self._counters_in(chain, &snapshot)])
        return sorted(found)

    def __len__(self):
        self._table.check()
        return self._table.counters.count.word

    def close(self):
        """Let go of the memory; it stays for others, and for later."""
        self._table.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    @property
    def max_keys(self):
        self._table.check()
        return self._table.header.max_keys

    def __repr__(self):
        if self._table.file is None:
            return "SharedTable(closed)"
        return f"SharedTable({str(self._table.file.path)!r}, keys={len(self)}, max_keys={self.max_keys})"

    def _iterate(self, prefix, generation, is_taking):
        self._table.check()
        chains = self._table.header.chains
        chain = 0
        taken = set()  # of this chain: what is added to them meanwhile is for the next iteration
        while chain < chains:
            on, seen = self._collect(chain, prefix, generation, taken if is_taking else None)
            if on != chain:
                taken.clear()
                chain = on
            for one in seen:
                taken.add(one)
                yield one.key(), one.amount

    cdef tuple _collect(self, uint64_t chain, _SeenCounter prefix, uint64_t generation, set taken):
        """Go on from a chain: where to go on next, and what was seen. Of those taken out, one."""
        cdef ChainSnapshot snapshot
        cdef _SeenCounter one
        cdef uint64_t end
        self._table.check()
        end = min(chain + CHAINS_AT_ONCE, self._table.header.chains)
        seen = []
        while chain < end:
            for one in self._counters_in(chain, &snapshot):
                if one.generation != generation or not (prefix is None or one.starts_with(prefix)):
                    continue
                if taken is None:
                    seen.append(one)
                elif one in taken:
                    continue
                elif self._table.change(&snapshot, <unsigned>1 << one.place, NULL, 0, NULL, -1):
                    return chain, [one]
                else:
                    break
            else:
                chain += 1
        return chain, seen

    cdef list _counters_in(self, uint64_t chain, ChainSnapshot* snapshot):
        """All counters of a chain as they were at one moment."""
        cdef Record* record
        cdef _SeenCounter one
        cdef int i
        while True:
            self._table.snapshot_chain(chain, snapshot)
            seen = []
            for i in range(snapshot.length):
                record = record_at(self._table, snapshot.blocks[i])
                one = _SeenCounter.__new__(_SeenCounter)
                one.place = i
                one.kind = record.kind
                one.generation = record.namespace
                one.data = PyBytes_FromStringAndSize(key_in(record), record.key_size)
                one.amount = payload_in(record)[0]
                seen.append(one)
            if self._table.is_current(snapshot):
                return seen


cdef class _SeenCounter:
    """A counter as it was seen, or the prefix of those that are looked for."""

    cdef readonly double amount
    cdef readonly uint64_t generation
    cdef bytes data
    cdef int kind
    cdef int place

    def __eq__(self, other):
        return self.kind == (<_SeenCounter?>other).kind and self.data == (<_SeenCounter?>other).data

    def __hash__(self):
        return hash(self.data)

    cdef bint starts_with(self, _SeenCounter prefix) except -1:
        return self.kind == prefix.kind and self.data.startswith(prefix.data)

    def key(self):
        return self.data.decode("utf-8", "surrogatepass") if self.kind == TEXT else self.data


cdef _SeenCounter prefix_of(object prefix):
    cdef Key key
    cdef _SeenCounter one
    if prefix is None:
        return None
    _kept = counter_of(prefix, 0, &key)
    one = _SeenCounter.__new__(_SeenCounter)
    one.kind = key.kind
    one.data = PyBytes_FromStringAndSize(key.data, key.size)
    return one


cdef object counter_of(object given, object generation, Key* key):
    """As `key_of`, for str and bytes alone."""
    if not isinstance(given, str | bytes):
        raise TypeError(f"key must be a str or bytes, got {given!r}")
    kept = key_of(given, key)
    key.namespace = number_of(generation)
    return kept


cdef uint64_t number_of(object generation) except? 0:
    if not isinstance(generation, int) or isinstance(generation, bool):
        raise TypeError(f"generation must be an int, got {generation!r}")
    if not 0 <= generation < 1 << 61:
        raise ValueError(f"generation must be from 0 to below 2^61, got {generation!r}")
    return generation

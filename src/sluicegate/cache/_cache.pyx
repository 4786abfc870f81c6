# cython: language_level=3, binding=False, embedsignature=True, embedsignature.format=clinic, cdivision=True
# cython: auto_pickle=False
"""`Cache`: the mapping that all policies share. `_bounded_table.pyx` explains what happens inside."""

cimport cython
from libc.math cimport INFINITY

from sluicegate.cache._bounded_table cimport DUE, LIVE, BoundedTable, Lookup
from sluicegate.cache._entry cimport Entry
from sluicegate.cache._table cimport Drop

from collections.abc import KeysView, Mapping, MutableMapping
from types import GenericAlias

from sluicegate._validate import check_positive, check_whole
from sluicegate.cache.stats import CacheStats
from sluicegate.cache.views import CacheItems, CacheValues
from sluicegate.clock import SystemClock

__all__ = ["Cache"]

cdef object NO_DEFAULT = object()


@cython.no_gc_clear  # as its base
cdef class Cache(BoundedTable):
    """A mapping with a bounded size. Use one of the policies: `Lru`, `Sieve`, `S3Fifo`, ...

    `capacity` is the number of entries or, with `weigh(key, value)`, their total weight. One that
    weighs more than that is not stored, and an old value of its key is removed. `ttl` is how many
    seconds an entry lives if `set` says nothing else. `on_evict(key, value)` is called for what
    was evicted for room or has expired, when the change is complete; it may use the cache. Of
    entries that expire at the same time, any may be the first.
    """

    def __init__(self, capacity, *, ttl=None, on_evict=None, weigh=None, clock=None):
        if self.limit:
            raise RuntimeError(f"{self!r} is set up already")
        if type(self) is Cache:
            raise TypeError("Cache has no policy: use Lru, Sieve, S3Fifo or another of sluicegate.cache")
        for name, function in (("on_evict", on_evict), ("weigh", weigh)):
            if function is not None and not callable(function):
                raise TypeError(f"{name} must be a function (key, value) or None, got {function!r}")
        if clock is not None and type(clock) is not SystemClock:
            if not callable(getattr(clock, "now", None)):
                raise TypeError(f"clock must have a method now(), got {clock!r}")
            self.read_clock = clock.now
        self.default_ttl = INFINITY if ttl is None else check_positive("ttl", ttl)
        capacity = check_whole("capacity", capacity, 1)
        if self.limit:  # by code of `ttl`
            raise RuntimeError(f"{self!r} is set up already")
        self.table.on_evict = on_evict
        self.weigh = weigh
        self.limit = capacity
        self.reset()

    __class_getitem__ = classmethod(GenericAlias)

    def __reduce__(self):
        raise TypeError(f"a cache cannot be copied or pickled, got {self!r}; copy its items()")

    # --- reading

    def __getitem__(self, key):
        cdef Entry* entry = self.use(key)
        if entry == NULL:
            raise KeyError(key)
        return <object>entry.value

    def get(self, key, default=None):
        """The value of `key`; counts a hit or a miss."""
        cdef Entry* entry = self.use(key)
        return <object>entry.value if entry != NULL else default

    def peek(self, key, default=None):
        """As `get`, but counts nothing and leaves the policy alone."""
        cdef Entry* entry
        return <object>entry.value if self.look_up(key, &entry) == LIVE else default

    def __contains__(self, key):
        cdef Entry* entry
        return self.look_up(key, &entry) == LIVE

    def __len__(self):
        self.expire_all()
        return self.size

    def __iter__(self):
        return iter(self.snapshot()[0])

    def keys(self):
        """A view. Iterated over, it shows the keys of one moment."""
        return KeysView(self)

    def values(self):
        """A view. Iterated over, it shows the values of one moment; counts nothing."""
        return CacheValues(self)

    def items(self):
        """A view. Iterated over, it shows the pairs of one moment; counts nothing."""
        return CacheItems(self)

    def __eq__(self, other):
        if not isinstance(other, Mapping):
            return NotImplemented
        return dict(self.items()) == dict(other.items())

    # --- writing

    def __setitem__(self, key, value):
        self.put(key, value, self.default_ttl, self.weight_of(key, value), False)

    def __delitem__(self, key):
        self.pop(key)

    def set(self, key, value, *, ttl=None, weight=None):
        """`cache[key] = value`, with a time to live or a weight of its own."""
        self.put(
            key,
            value,
            self.default_ttl if ttl is None else check_positive("ttl", ttl),
            self.weight_of(key, value) if weight is None else check_whole("weight", weight, 1),
            False,
        )

    def setdefault(self, key, default=None):
        """The value of `key`, which is `default` from now on if there was none. Counts as `get` does."""
        cdef Entry* entry = self.use(key)
        if entry != NULL:
            return <object>entry.value
        return self.put(key, default, self.default_ttl, self.weight_of(key, default), True)

    def update(self, other=(), /, **more):
        """Set each key and value of a mapping or of pairs, one after the other."""
        if isinstance(other, Mapping):
            other = other.items()
        elif hasattr(other, "keys"):
            other = [(key, other[key]) for key in other.keys()]
        for key, value in other:
            self[key] = value
        for key, value in more.items():
            self[key] = value

    def pop(self, key, default=NO_DEFAULT):
        """Remove `key` and return its value; counts nothing."""
        cdef Entry* entry
        cdef Lookup found = self.look_up(key, &entry)
        if found == LIVE:
            value = <object>entry.value
            self.discard(entry)
            self.finish()
            return value
        if found == DUE:
            self.expire_entry(entry)
            self.finish()
        if default is NO_DEFAULT:
            raise KeyError(key)
        return default

    def popitem(self):
        """Remove the entry that the policy would evict next; return its key and value."""
        cdef Entry* entry
        cdef object key, value
        self.expire_all()
        if self.size == 0:
            raise KeyError("the cache is empty")
        entry = self.victim(NULL)
        key = <object>entry.key
        value = <object>entry.value
        self.leave(entry)
        self.drop(entry, Drop.REMOVED)
        self.finish()
        return key, value

    def clear(self):
        """Remove all entries, and what the policy has learned. The counters stay."""
        self.remove_all()

    def expire(self):
        """Remove all entries that have expired by now; return how many they were."""
        return self.expire_all()

    # --- what there is to know

    @property
    def capacity(self):
        return self.limit

    @property
    def weight(self):
        """The weight of all entries; without weights, their number."""
        self.expire_all()
        return self.used

    @property
    def ttl(self):
        """How long an entry lives, in seconds, if nothing else is said; None: for ever."""
        return None if self.default_ttl == INFINITY else self.default_ttl

    def stats(self):
        """All counters of one moment."""
        self.expire_all()
        return CacheStats(
            self.hits, self.misses, self.evictions, self.expirations, self.size, self.used, self.limit
        )

    def reset_stats(self):
        """Set the counters to zero."""
        self.hits = self.misses = self.evictions = self.expirations = 0

    def __repr__(self):
        return (
            f"{type(self).__name__}(capacity={self.limit}, size={self.size}, "
            f"hits={self.hits}, misses={self.misses})"
        )

    def _snapshot(self):
        """Keys and values as two lists, in the order of the policy's queues."""
        return self.snapshot()


MutableMapping.register(Cache)

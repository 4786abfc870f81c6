# cython: language_level=3, binding=False, embedsignature=True, embedsignature.format=clinic, cdivision=True
"""`ConsistentHash`: the same key goes to the same server, on every machine.

A key is hashed to 64 bits by the same function in every process: keys and addresses as bytes
(`shm/_key_encoding.pyx`), under a fixed salt. `method` says how a server is found from there:

- "ring" (Karger et al. 1997): each server has `points` points per unit of weight on a circle, and
  a key belongs to the server of the next point. A server that comes or goes moves only the keys
  that it gets or had. With 2,048 points the largest of 100 servers has some 6 % more than the mean;
  with 160, which is usual, it would be 20 %. A point takes some 16 bytes, and a jump table leads to
  the right one in one step.
- "maglev" (Eisenbud et al. 2016): a table of prime size, filled by the servers in turns, each in an
  order of its own. Shares are equal to within a percent and a pick is one look, but when a server
  goes, some keys of others move, too, and the whole table is made anew.

A server that cannot be used keeps its points: its keys go to whoever is next, each part to another
one, and come back to it when it does. So there is no slow start here.

With `bound` (Mirrokni et al. 2018) no server has more calls in flight than `bound` times its share
of all; what is beyond goes to the next one. It counts the calls of `use`.
"""

from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc
from libc.math cimport ceil
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memset

from sluicegate.balance._balancer cimport Balancer, Member
from sluicegate.balance._random cimport mix
from sluicegate.shm._atomic cimport salted_hash
from sluicegate.shm._key_encoding cimport bytes_of

from sluicegate._validate import check_between, check_whole

__all__ = ["ConsistentHash"]

cdef enum:
    MOST_POINTS = 1 << 25

cdef uint64_t GOLDEN = 0x9E3779B97F4A7C15ULL  # the step of SplitMix64, whose numbers the points are
cdef uint32_t FREE = 0xFFFFFFFF

# Part of what is promised: another salt would move all keys.
cdef uint64_t[4] SALT = [
    0x243F6A8885A308D3ULL, 0x13198A2E03707344ULL, 0xA4093822299F31D0ULL, 0x082EFA98EC4E6C89ULL
]
# A hundred entries for each server keep the shares of Maglev equal to within a percent.
cdef tuple TABLE_SIZES = (65537, 131071, 262139, 524287, 1048573, 2097143, 4194301)


cdef class ConsistentHash(Balancer):
    """By key: the same server for the same key. `pick` and `use` need a key.

    `bound`: how much busier than its share a server may be, 1.25 for a quarter; None: no bound.
    `method`: "ring" or "maglev". `points`: on the ring, per unit of weight.
    """

    cdef uint64_t* _points     # ring: sorted; maglev: not used
    cdef uint32_t* _owners     # of points, or of the entries of the table: places in _numbered
    cdef uint32_t* _jump       # the first point for each value of the upper bits of a hash
    cdef Py_ssize_t _size      # points or entries
    cdef int _shift            # from a hash to its place in the jump table
    cdef list _numbered        # members by number
    cdef bint _is_ring
    cdef int64_t _points_each
    cdef double _bound         # 0: none
    cdef int64_t _usable_weight

    def __init__(
        self, servers=(), *, bound=None, method="ring", points=2048,
        health=None, load_decay=10.0, clock=None, seed=None,
    ):
        if method not in ("ring", "maglev"):
            raise ValueError(f"method must be 'ring' or 'maglev', got {method!r}")
        self._is_ring = method == "ring"
        self._bound = 0.0 if bound is None else check_between("bound", bound, 1.0, 1000.0)
        self._points_each = check_whole("points", points, 1)
        Balancer.__init__(
            self, servers, health=health, load_decay=load_decay, clock=clock, seed=seed
        )

    def __dealloc__(self):
        PyMem_Free(self._points)
        PyMem_Free(self._owners)
        PyMem_Free(self._jump)

    # ------------------------------------------------------------------ a pick

    cdef Member _choose(self, object key):
        return self._walk(key, None)

    cdef Member _choose_other(self, object key, set avoided):
        cdef Py_ssize_t place
        for place in range(self._count):
            if self._at(place).address not in avoided:
                return self._walk(key, avoided)
        return self._walk(key, None)

    cdef Member _walk(self, object key, set avoided):
        """From the place of the key on, the first usable server that is not avoided and not full.

        If there is none, one that is full, and only then one that is avoided.
        """
        cdef uint64_t hash = hash_of(key)
        cdef Member member, found = None
        cdef Py_ssize_t place, _, step = 1
        cdef int rank, best = 4
        if self._count == 0:  # since the key was read
            raise self._no_servers()
        place = self._find(hash)
        if not self._is_ring:
            # Neighbours in the table are no random servers. All steps reach all of a prime size.
            step = mix(hash) % <uint64_t>(self._size - 1) + 1
        for _ in range(self._size):
            member = <Member>(<list>self._numbered)[self._owners[place]]
            if member.is_usable:
                rank = 2 if avoided is not None and member.address in avoided else 0
                rank += self._bound > 0.0 and self._is_full(member)
                if rank == 0:
                    return member
                if rank < best:
                    found, best = member, rank
            place += step
            if place >= self._size:
                place -= self._size
        if found is None:  # the servers are being changed by this thread
            raise self._no_servers()
        return found

    cdef inline bint _is_full(self, Member member) noexcept:
        """Would one more call be too many for its share of all, this one counted?"""
        cdef double share = <double>member.own_weight / <double>self._usable_weight
        return member.active + 1 > ceil(self._bound * share * <double>(self._active + 1))

    cdef inline Py_ssize_t _find(self, uint64_t hash) noexcept:
        cdef Py_ssize_t place
        if not self._is_ring:
            return <Py_ssize_t>(hash % <uint64_t>self._size)
        place = self._jump[hash >> self._shift]
        while place < self._size and self._points[place] < hash:
            place += 1
        return 0 if place == self._size else place

    # ------------------------------------------------------------------ the servers

    cdef int _usable_changed(self) except -1:
        cdef Py_ssize_t i
        self._usable_weight = 0
        for i in range(self._count):
            self._usable_weight += self._at(i).own_weight
        return 0

    cdef int _servers_changed(self) except -1:
        if self._is_ring:
            return self._write_ring()
        return self._write_table()

    cdef int _write_ring(self) except -1:
        """Sort all points by their upper bits, which are evenly spread, then those few of the same."""
        cdef list members = sorted(self._members, key=address_of)
        cdef Member member
        cdef uint64_t base, at
        cdef Py_ssize_t size = 0, bucket, place
        cdef int64_t number, point
        cdef int shift = 63
        cdef uint64_t* points
        cdef uint32_t* owners
        cdef uint32_t* jump
        for member in members:
            size += member.own_weight * self._points_each
            if size > MOST_POINTS:
                raise ValueError(
                    f"the ring would have more than {MOST_POINTS:,} points: use smaller weights, "
                    f"or fewer points than {self._points_each:,} for each"
                )
        while <Py_ssize_t>1 << (64 - shift) < size:
            shift -= 1
        points = <uint64_t*>PyMem_Malloc((size + 1) * sizeof(uint64_t))
        owners = <uint32_t*>PyMem_Malloc((size + 1) * sizeof(uint32_t))
        jump = <uint32_t*>PyMem_Calloc(<size_t>1 << (64 - shift), sizeof(uint32_t))
        if points == NULL or owners == NULL or jump == NULL:
            PyMem_Free(points)
            PyMem_Free(owners)
            PyMem_Free(jump)
            raise MemoryError
        for member in members:
            base = hash_of(member.address)
            for point in range(member.own_weight * self._points_each):
                jump[mix(base + point * GOLDEN) >> shift] += 1
        for bucket in range(1, <Py_ssize_t>1 << (64 - shift)):
            jump[bucket] += jump[bucket - 1]
        # Now each is the end of its bucket. Filled from there, it becomes the beginning.
        for number in range(len(members) - 1, -1, -1):
            member = members[number]
            base = hash_of(member.address)
            for point in range(member.own_weight * self._points_each):
                at = mix(base + point * GOLDEN)
                jump[at >> shift] -= 1
                place = jump[at >> shift]
                points[place], owners[place] = at, <uint32_t>number
        for place in range(1, size):
            sink(points, owners, place)
        PyMem_Free(self._points)
        PyMem_Free(self._jump)
        self._points, self._jump, self._shift = points, jump, shift
        self._set_owners(members, owners, size)
        return 0

    cdef int _write_table(self) except -1:
        """In rounds, each server takes the next free entry in its order, as often as its weight says."""
        cdef list members = sorted(self._members, key=address_of)
        cdef Py_ssize_t count = len(members), size = table_size(count), filled = 0, number
        cdef int64_t round = 0, heaviest = 0
        cdef uint32_t* owners = <uint32_t*>PyMem_Malloc(size * sizeof(uint32_t))
        cdef Order* orders = <Order*>PyMem_Malloc((count + 1) * sizeof(Order))
        if owners == NULL or orders == NULL:
            PyMem_Free(owners)
            PyMem_Free(orders)
            raise MemoryError
        memset(owners, 0xFF, size * sizeof(uint32_t))
        for number in range(count):
            begin_order(&orders[number], <Member>members[number], size)
            heaviest = max(heaviest, orders[number].weight)
        while count > 0 and filled < size:
            round += 1
            for number in range(count):
                while filled < size and orders[number].taken * heaviest < round * orders[number].weight:
                    owners[next_free(&orders[number], owners, size)] = <uint32_t>number
                    orders[number].taken += 1
                    filled += 1
        PyMem_Free(orders)
        self._set_owners(members, owners, size if count > 0 else 0)
        return 0

    cdef void _set_owners(self, list members, uint32_t* owners, Py_ssize_t size):
        PyMem_Free(self._owners)
        self._owners, self._size, self._numbered = owners, size, members


cdef struct Order:
    # The order in which a server takes entries of the table: `entry`, then each `skip` further on.
    int64_t weight
    int64_t taken
    uint64_t entry
    uint64_t skip


cdef void begin_order(Order* order, Member member, Py_ssize_t size):
    cdef uint64_t base = hash_of(member.address)
    order.weight = member.own_weight
    order.taken = 0
    order.entry = mix(base) % <uint64_t>size
    order.skip = mix(base + GOLDEN) % <uint64_t>(size - 1) + 1


cdef Py_ssize_t next_free(Order* order, const uint32_t* owners, Py_ssize_t size) noexcept:
    cdef Py_ssize_t entry
    while True:
        entry = order.entry
        order.entry = (order.entry + order.skip) % <uint64_t>size
        if owners[entry] == FREE:
            return entry


cdef Py_ssize_t table_size(Py_ssize_t count):
    for size in TABLE_SIZES:
        if size >= 100 * count:
            return size
    raise ValueError(f"a maglev table takes at most {TABLE_SIZES[-1] // 100:,} servers, got {count:,}")


cdef void sink(uint64_t* points, uint32_t* owners, Py_ssize_t place) noexcept:
    """Move a point before those that are larger."""
    cdef uint64_t at = points[place]
    cdef uint32_t owner = owners[place]
    while place > 0 and points[place - 1] > at:
        points[place], owners[place] = points[place - 1], owners[place - 1]
        place -= 1
    points[place], owners[place] = at, owner


cdef uint64_t hash_of(object key) except? 0:
    cdef const char* data
    cdef Py_ssize_t size
    cdef unsigned char kind
    if key is None:
        raise TypeError("ConsistentHash needs a key, as in pick(key), got None")
    _kept = bytes_of(key, &data, &size, &kind)
    return salted_hash(data, size, kind, SALT)


def address_of(Member member):
    return member.address

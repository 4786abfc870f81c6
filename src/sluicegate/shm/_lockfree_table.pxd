# cython: language_level=3, cdivision=True
"""The shape of the shared memory. See `_lockfree_table.pyx` for how it is changed.

    header    what the memory is for; changes only while one process is alone with it
    counters  a cache line each
    desks     one for each process that has it open: the records it holds in hand
    buckets   a word each: the first record of a chain, and a tag that grows with each change
    arena     the records, in units of 64 bytes: first those of the shared cells, then those
              that each desk is given when somebody first sits there, then all others
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from sluicegate.shm._atomic cimport salted_hash
from sluicegate.shm._mapping cimport Memory

cdef enum:
    UNIT = 64                # bytes
    UNIT_BITS = 28           # of a word; the tag has the other 36
    CLASSES = 5              # a record has 64, 128, 256, 512 or 1,024 bytes
    LONGEST_CHAIN = 8        # with two buckets for a key, one in 10^9 would be longer
    RESERVE = LONGEST_CHAIN + 1
    STOCK = RESERVE + 7 + LONGEST_CHAIN
    SALTS = 4
    LONGEST_KEY = 255        # bytes
    PURPOSE = 2048           # bytes
    PAYLOAD = 104            # doubles: the most that a record may have, limits of its own included

cdef enum Kind:
    TEXT = 1
    BYTES = 2
    PACKED = 3               # an int or a tuple
    SPARE = 4                # cells that keys share when the table is full

cdef struct Header:
    char[8] magic
    uint64_t version
    uint64_t words           # doubles of payload of a record without limits of its own
    uint64_t limit_words     # and so many more for each limit of its own
    uint64_t max_keys
    uint64_t buckets         # a power of two
    uint64_t spares          # buckets behind these, for shared cells
    uint64_t units           # of the arena
    uint64_t is_system_clock
    uint64_t[SALTS] salt
    char[PURPOSE] purpose
    uint64_t checksum        # of all that is above
    char[40] boot            # of the machine, and
    double start             # where on its clock the memory's own time began
    double wall              # the same in Unix time
    uint64_t is_unsure       # one who was alone with it is looking through it, or died over that

cdef struct Counter:
    uint64_t word
    uint64_t[7] _alone       # in its cache line

cdef struct Counters:
    Counter count            # keys, and those just being added or removed
    Counter overflowed       # calls answered from shared cells
    Counter is_sharing       # 1 since a key first had to share a cell
    Counter changes          # by reset and override
    Counter used             # units of the arena that were ever given out
    Counter committed        # units that have memory behind them
    Counter[CLASSES] free    # records that nobody holds, in a stack for each class
    double forgot_at         # the newest time at which an idle key was dropped

cdef struct Record:
    uint32_t next            # unit of the next in the chain or stack; 0 is the end
    uint8_t size_class       # from 1 up, and it stays; 0: never given out
    uint8_t kind
    uint8_t key_size
    uint8_t limits           # of its own
    uint64_t generation
    # The key follows, filled up to a multiple of 8 bytes, and then the payload.

cdef struct Desk:
    uint64_t busy            # bucket + 1 that is being changed, or 0
    uint64_t before          # its word as it was
    uint64_t after           # and as it becomes
    uint64_t was_used        # 1 since somebody first sat there
    uint64_t owed            # by how much `count` is too high, for what the desk was doing
    uint64_t owed_after      # and will be after the change
    uint32_t new_count
    uint32_t old_count
    uint32_t[RESERVE] new_units
    uint32_t[RESERVE] old_units
    uint32_t[CLASSES] counts
    uint32_t[CLASSES][STOCK] stock

cdef struct Key:
    const char* data
    uint32_t size
    uint8_t kind
    uint64_t generation

cdef struct Look:
    # What a look at a chain has seen.
    uint64_t bucket
    uint64_t word
    int length               # records seen: up to the key, or all
    int found                # where in the chain the key is, or -1
    uint32_t next            # unit behind the last one seen
    int limits
    uint32_t[LONGEST_CHAIN] units
    double[PAYLOAD] payload


@cython.final
cdef class Chains:
    cdef Header* header
    cdef Counters* counters
    cdef object file
    cdef Memory _memory
    cdef char* _desks
    cdef Desk* _desk
    cdef uint64_t _desk_number
    cdef uint64_t* _buckets
    cdef char* _arena
    cdef unsigned long _forks    # in the process's life, when it was opened; NEVER: it is closed
    cdef unsigned long _leaving
    cdef object _leaver          # the thread that takes a desk in a forked child
    cdef uint64_t _hand

    cdef int check(self) except -1
    cdef int find(self, Key* key, Look* look) except -1
    cdef int find_spare(self, Key* key, Look* look) except -1
    cdef int see(self, uint64_t bucket, Look* look) except -1
    cdef uint64_t next_used(self, uint64_t bucket, uint64_t end) noexcept
    cdef bint is_current(self, Look* look) noexcept
    cdef bint change(
        self, Look* look, uint32_t gone, Key* key, int limits, double* payload, int size_class
    ) except -1
    cdef bint _replace_first(self, Look* look, Key* key, int limits, double* payload) noexcept
    cdef bint change_spare(self, Look* look) except -1
    cdef int admit(self, int size_class) except -2
    cdef int room_for(self, int size_class) except -2
    cdef void dismiss(self) noexcept
    cdef uint64_t next_bucket(self) noexcept
    cdef int _find(self, uint64_t bucket, Key* key, Look* look) except -1
    cdef int _damaged(self, Look* look) except -1
    cdef void _pay(self) noexcept
    cdef void _spill(self) noexcept
    cdef void _put_in_hand(self, uint32_t unit) noexcept
    cdef void _push(self, uint32_t unit) noexcept
    cdef uint32_t _pop(self, int size_class) noexcept
    cdef uint32_t _carve(self, int size_class) except? 0
    cdef bint _commit_more(self) except -1
    cdef int _open(self, object path, bytes header, bytes blank, bint rebuild) except -1
    cdef str _attach(self, object file, bytes header)
    cdef str _enter(self)
    cdef int _leave_parent(self) except -1
    cdef int _sit_down(self) except -1
    cdef bint _has_first_records(self) except -1
    cdef void _tidy(self) noexcept
    cdef str _heal(self)
    cdef str _look_through_chains(self, unsigned char[::1] starts)


cdef inline Record* record_at(Chains chains, uint32_t unit) noexcept:
    return <Record*>(chains._arena + <uint64_t>unit * UNIT)


cdef inline char* key_in(Record* record) noexcept nogil:
    return <char*>(record + 1)


cdef inline uint32_t padded(uint32_t key_size) noexcept nogil:
    return (key_size + 7) & ~<uint32_t>7


cdef inline double* payload_in(Record* record) noexcept nogil:
    return <double*>(key_in(record) + padded(record.key_size))


cdef inline int payload_words(Header* header, int limits) noexcept nogil:
    return <int>(header.words + limits * header.limit_words)


cdef inline int class_of(Header* header, uint32_t key_size, int limits) noexcept nogil:
    """The smallest class of record for such a key and payload."""
    cdef uint64_t size = sizeof(Record) + padded(key_size) + 8 * payload_words(header, limits)
    cdef int size_class = 0
    while (<uint64_t>UNIT << size_class) < size:
        size_class += 1
    return size_class


cdef inline uint64_t hash_of(Header* header, Key* key) noexcept nogil:
    return salted_hash(key.data, key.size, key.generation * 8 + key.kind, header.salt)

# cython: language_level=3, cdivision=True
"""`LockFreeTable`: the layout of the shared memory. `_lockfree_table.pyx` says how it is changed.

    header    what the memory is for; changes only while one process has it open
    counters  a cache line each
    slots     one for each process that has the table open: its free records
    heads     a word for each chain: its first record, and a tag that grows with each change
    arena     the records, in blocks of 64 bytes: first those of the overflow chains, then those
              that each process slot gets at its first use, then all others

A record has a key and a payload: `base_words` doubles, and `item_words` more for each of its
`item_count` items. What an item is depends on the user of the table: a limit of a key that has
its own limits (`SharedKeyed`), or a resource of a user (the node). So does the `namespace` of a
key: the generation of a counter (`SharedTable`), or the number of a service (the node).
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from sluicegate.shm._atomic cimport salted_hash
from sluicegate.shm._mapping cimport Memory

cdef enum:
    BLOCK = 64               # bytes
    BLOCK_BITS = 28          # of a word; the tag has the other 36
    CLASSES = 5              # a record has 64, 128, 256, 512 or 1,024 bytes
    MAX_CHAIN_LENGTH = 8     # with two heads for a key, one in 10^9 would be longer
    RESERVE = MAX_CHAIN_LENGTH + 1
    FREE_CAPACITY = RESERVE + 7 + MAX_CHAIN_LENGTH
    SALTS = 4
    MAX_KEY_BYTES = 255      # bytes
    PURPOSE_BYTES = 2048     # bytes
    MAX_PAYLOAD = 106        # doubles: the most that a record may have, items included

cdef enum Kind:
    TEXT = 1
    BYTES = 2
    PACKED = 3               # an int or a tuple
    OVERFLOW = 4             # a state that keys share when the table is full

cdef struct Header:
    char[8] magic
    uint64_t version
    uint64_t base_words      # doubles of payload of a record without items
    uint64_t item_words      # doubles more for each item
    uint64_t max_keys
    uint64_t chains          # a power of two
    uint64_t overflow_chains  # chains behind these, of one overflow record each
    uint64_t arena_blocks
    uint64_t is_system_clock
    uint64_t[SALTS] salt
    char[PURPOSE_BYTES] purpose
    uint64_t checksum        # of all that is above
    char[40] boot            # of the machine, and
    double start             # where on its clock the memory's own time began
    double wall              # the same in Unix time
    uint64_t needs_repair    # 1 while the only process repairs it, or since it died over that

cdef struct Counter:
    uint64_t word
    uint64_t[7] _alone       # in its cache line

cdef struct Counters:
    Counter count            # keys, and those just being added or removed
    Counter overflowed       # calls answered from overflow chains
    Counter has_overflowed   # 1 since a key first used an overflow chain
    Counter changes          # by reset and override
    Counter used             # blocks of the arena that were ever given out
    Counter committed        # blocks that have memory behind them
    Counter[CLASSES] free_lists  # records that no process slot has, in a stack for each class
    double last_eviction     # the newest time at which an idle key was dropped

cdef struct Record:
    uint32_t next            # block of the next in the chain or stack; 0 is the end
    uint8_t size_class       # from 1 up, and it stays; 0: never given out
    uint8_t kind
    uint8_t key_size
    uint8_t item_count
    uint64_t namespace
    # The key follows, filled up to a multiple of 8 bytes, and then the payload.

cdef struct ProcessSlot:
    uint64_t pending_chain   # chain + 1 that is being changed, or 0
    uint64_t old_head        # its head as it was
    uint64_t new_head        # and as it becomes
    uint64_t was_used        # 1 since its first use
    uint64_t count_debt      # by how much `count` is too high, for what the slot was doing
    uint64_t count_debt_after  # and will be after the change
    uint32_t new_count
    uint32_t old_count
    uint32_t[RESERVE] new_blocks
    uint32_t[RESERVE] old_blocks
    uint32_t[CLASSES] free_counts
    uint32_t[CLASSES][FREE_CAPACITY] free_records

cdef struct Key:
    const char* data
    uint32_t size
    uint8_t kind
    uint64_t namespace

cdef struct ChainSnapshot:
    # A chain as it was at one moment, up to the key that was looked for.
    uint64_t chain
    uint64_t word
    int length               # records seen: up to the key, or all
    int found                # where in the chain the key is, or -1
    uint32_t next            # block behind the last one seen
    int item_count
    uint32_t[MAX_CHAIN_LENGTH] blocks
    double[MAX_PAYLOAD] payload


@cython.final
cdef class LockFreeTable:
    cdef Header* header
    cdef Counters* counters
    cdef object file
    cdef Memory _memory
    cdef char* _slots
    cdef ProcessSlot* _slot
    cdef uint64_t _slot_number
    cdef uint64_t* _heads
    cdef char* _arena
    cdef unsigned long _forks  # in the process's life, when it was opened; NEVER: it is closed
    cdef unsigned long _reattaching
    cdef object _reattaching_thread  # the thread that takes a slot in a forked child
    cdef uint64_t _sweep_position

    cdef int check(self) except -1
    cdef int find(self, Key* key, ChainSnapshot* snapshot) except -1
    cdef int find_overflow(self, Key* key, ChainSnapshot* snapshot) except -1
    cdef int snapshot_chain(self, uint64_t chain, ChainSnapshot* snapshot) except -1
    cdef uint64_t next_nonempty(self, uint64_t chain, uint64_t end) noexcept
    cdef bint is_current(self, ChainSnapshot* snapshot) noexcept
    cdef bint change(
        self, ChainSnapshot* snapshot, uint32_t removed, Key* key, int item_count, double* payload, int size_class
    ) except -1
    cdef bint _replace_first(self, ChainSnapshot* snapshot, Key* key, int item_count, double* payload) noexcept
    cdef bint change_overflow(self, ChainSnapshot* snapshot) except -1
    cdef int admit(self, int size_class) except -2
    cdef int ensure_free(self, int size_class) except -2
    cdef void cancel_admit(self) noexcept
    cdef uint64_t next_chain(self) noexcept
    cdef int _find(self, uint64_t chain, Key* key, ChainSnapshot* snapshot) except -1
    cdef int _raise_damaged(self, ChainSnapshot* snapshot) except -1
    cdef void _settle_count(self) noexcept
    cdef void _return_surplus(self) noexcept
    cdef void _keep_free(self, uint32_t block) noexcept
    cdef void _push(self, uint32_t block) noexcept
    cdef uint32_t _pop(self, int size_class) noexcept
    cdef uint32_t _carve(self, int size_class) except? 0
    cdef bint _commit_more(self) except -1
    cdef int _open(self, object path, bytes header, bytes blank, bint rebuild) except -1
    cdef str _map_file(self, object file, bytes header)
    cdef str _join(self)
    cdef int _reattach_after_fork(self) except -1
    cdef int _acquire_slot(self) except -1
    cdef bint _lay_out_slot(self) except -1
    cdef void _recover_slot(self) noexcept
    cdef str _repair(self)
    cdef str _check_chains(self, unsigned char[::1] starts)


cdef inline Record* record_at(LockFreeTable table, uint32_t block) noexcept:
    return <Record*>(table._arena + <uint64_t>block * BLOCK)


cdef inline char* key_in(Record* record) noexcept nogil:
    return <char*>(record + 1)


cdef inline uint32_t padded(uint32_t key_size) noexcept nogil:
    return (key_size + 7) & ~<uint32_t>7


cdef inline double* payload_in(Record* record) noexcept nogil:
    return <double*>(key_in(record) + padded(record.key_size))


cdef inline int payload_words(Header* header, int item_count) noexcept nogil:
    return <int>(header.base_words + item_count * header.item_words)


cdef inline int size_class_of(Header* header, uint32_t key_size, int item_count) noexcept nogil:
    """The smallest class of record for such a key and payload."""
    cdef uint64_t size = sizeof(Record) + padded(key_size) + 8 * payload_words(header, item_count)
    cdef int size_class = 0
    while (<uint64_t>BLOCK << size_class) < size:
        size_class += 1
    return size_class


cdef inline uint64_t hash_of(Header* header, Key* key) noexcept nogil:
    return salted_hash(key.data, key.size, key.namespace * 8 + key.kind, header.salt)

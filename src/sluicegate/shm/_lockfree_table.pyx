# cython: language_level=3, binding=False, cdivision=True
"""`LockFreeTable`: a chained hash table in shared memory, without locks.

The head of a chain is one word: its first record, and a tag. A record that is in a
chain never changes. A process that changes something, a value, a key added, keys taken
out, writes the new records of the chain beside the old ones and then swaps the chain's
head, if it still is the one it read, tag and all. So

- every change is done wholly or not at all, also when its process is killed at any
  instruction, and a process that is stopped stops no other;
- a reader reads the head, the records, and the head again: if the head is still the
  same, so were the records.

A change puts a record first in its chain, so only what was before it must be copied:
nothing, nearly always.

The records that a swap has put out of a chain belong to the process that swapped. It
keeps some *free records* to write its next change into: what an update takes, it gives
back. The rest goes to free lists in the shared memory, one for each size of record.

The free records of a process are listed in its *process slot*. When it dies, its lock on
the slot ends, and the next process that acquires the slot takes them over (`_recover_slot`).
`pending_chain` and what follows it tell how far a change had come. If the chain's head is
`new_head`, and leads to one of the new records, which no other process had, it was done:
the old records are free in place of the new. If the head is `old_head`, it was not done. If
it is neither, for others have changed it since, both are left alone. That, and a kill
in the few instructions in which a record goes from a free list to a slot, may lose a record,
some 64 bytes, or a place in the count of keys, until a process opens the memory alone:
it then looks at everything (`_repair`), and whatever is in no chain is free again. This is
also where a file that was torn (by a machine that lost its power) is found out.

A record stays as large as it was made. Each class of size has room in the arena for all
keys, so that keys which grow longer with time find their room; only what is used has
memory behind it. What slots are given first has room of its own: a process can always
be opened.

Whatever runs Python (memory is committed, a clock of the caller's is asked) may let
another thread in, which may close the memory. So `change` looks again, and nothing that
closes it takes the memory itself away, which goes with the object.

The tag has 36 bits. A process would have to sleep between its read and its swap for
exactly a multiple of 2^36 changes of one chain, an hour at full speed, to be fooled.
"""

import functools
import os
import threading
import time

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.math cimport INFINITY
from libc.string cimport memcmp, memcpy, memset

from sluicegate._clock cimport monotonic
from sluicegate._minmax cimport fast_max
from sluicegate.shm._atomic cimport (
    add, after_reads, before_writes, load, salted_hash, store, swap,
)
from sluicegate.shm._mapping cimport Memory

from sluicegate.errors import ConfigError
from sluicegate._validate import check_whole
from sluicegate.shm.file import MAGIC, SharedFile, is_foreign, wait_for

__all__ = []

cdef extern from *:
    """
    #include <pthread.h>
    static unsigned long sg_forks = 0;
    static void sg_forked(void) { sg_forks++; }
    static int sg_count_forks(void) { return pthread_atfork(NULL, NULL, sg_forked); }
    """
    unsigned long forks "sg_forks"
    int count_forks "sg_count_forks"() noexcept

# A child must not use its parent's slot. Counted in C, for servers that fork in C.
if count_forks() != 0:
    raise MemoryError("pthread_atfork")

cdef enum:
    VERSION = 1
    PROCESS_SLOTS = 512
    SLOT_BYTES = 640
    READY_SLOTS = 32         # that have memory from the start
    COUNTERS_AT = 4096
    SLOTS_AT = 8192
    HEADS_AT = SLOTS_AT + PROCESS_SLOTS * SLOT_BYTES
    OVERFLOW_CHAINS = 1024
    CHUNK = 4096             # blocks that get memory at once: 256 KB
    ROOM_TO_MISREAD = 16     # blocks behind the last record: one that changes may look longer
    MAX_FREE = FREE_CAPACITY - MAX_CHAIN_LENGTH
    SLOT_BLOCKS = RESERVE * ((1 << CLASSES) - 1)  # that a slot is given first
    MAX_ITEMS = 8

cdef uint64_t BLOCK_MASK = (<uint64_t>1 << BLOCK_BITS) - 1
cdef uint64_t TAG_STEP = <uint64_t>1 << BLOCK_BITS
cdef uint64_t NEVER = <uint64_t>-1

_REMEDY = "open it with rebuild=True to replace it, or remove it with unlink()"

assert sizeof(Header) <= COUNTERS_AT
assert COUNTERS_AT + sizeof(Counters) <= SLOTS_AT
assert sizeof(ProcessSlot) <= SLOT_BYTES


cdef class LockFreeTable:
    """The memory at one path, opened by one process.

    `purpose` is a text that all who open it must agree on. `blank` is the payload of a
    overflow record, as bytes; empty for a table that has none. `usual_items` is how many items
    every key may have at the same time. `start` is where on its clock the
    memory's own time begins, and `wall` the same in Unix time.
    """

    def __init__(
        self, path, purpose, max_keys, base_words, item_words, blank, rebuild, is_system_clock, start, wall,
        usual_items=0,
    ):
        cdef Header header
        cdef uint64_t blocks, others
        memset(&header, 0, sizeof(Header))
        memcpy(header.magic, <const char*>(<bytes>MAGIC), 8)
        header.version = VERSION
        header.base_words = base_words
        header.item_words = item_words
        header.max_keys = check_whole("max_keys", max_keys, 1)
        header.chains = 16
        while header.chains < 2 * header.max_keys:
            header.chains *= 2
        header.overflow_chains = OVERFLOW_CHAINS if blank else 0
        # One record of each class, up to that of the longest key that has `usual_items` items.
        blocks = (<uint64_t>2 << min(size_class_of(&header, MAX_KEY_BYTES, usual_items), CLASSES - 1)) - 1
        others = slot_blocks_at(&header) + PROCESS_SLOTS * SLOT_BLOCKS + ROOM_TO_MISREAD
        header.arena_blocks = others + header.max_keys * blocks
        if header.max_keys > BLOCK_MASK or header.arena_blocks > BLOCK_MASK:
            most = (BLOCK_MASK - others) // blocks
            raise ValueError(f"max_keys must be at most {most} for these limits, got {max_keys!r}")
        text = purpose.encode()
        if len(text) >= PURPOSE_BYTES:
            raise ValueError(f"{purpose!r} takes {len(text)} bytes; expected fewer than {PURPOSE_BYTES}")
        memcpy(header.purpose, <const char*>(<bytes>text), len(text))
        header.is_system_clock = is_system_clock
        header.start = start
        header.wall = wall
        self._sweep_position = int.from_bytes(os.urandom(4), "little")
        self._open(path, PyBytes_FromStringAndSize(<char*>&header, sizeof(Header)), blank, rebuild)

    def __cinit__(self, *_, **__):
        self._forks = self._reattaching = NEVER

    def close(self):
        """Release the process slot, with its free records, to the next process."""
        file, self.file = self.file, None
        self._forks = NEVER
        if file is not None:
            file.close()

    cdef int check(self) except -1:
        """Raise when it is closed; in a forked child, before its first call, acquire its own slot."""
        if self._forks != forks:
            self._reattach_after_fork()
        return 0

    cdef int find(self, Key* key, ChainSnapshot* snapshot) except -1:
        """Look for a key: `snapshot.found` and, where it is there, its payload."""
        self.check()
        return self._find(hash_of(self.header, key) & (self.header.chains - 1), key, snapshot)

    cdef int find_overflow(self, Key* key, ChainSnapshot* snapshot) except -1:
        """Look at the record that `key` shares with others when there is no room for it."""
        cdef Key overflow
        cdef uint64_t chain
        self.check()
        chain = self.header.chains + (hash_of(self.header, key) >> 40) % self.header.overflow_chains
        empty_key(&overflow, OVERFLOW)
        return self._find(chain, &overflow, snapshot)

    cdef bint change_overflow(self, ChainSnapshot* snapshot) except -1:
        """Write back the payload of an overflow record."""
        cdef Key overflow
        if snapshot.found < 0:
            self._raise_damaged(snapshot)
        empty_key(&overflow, OVERFLOW)
        return self.change(snapshot, <uint32_t>1 << snapshot.found, &overflow, 0, snapshot.payload, -1)

    cdef int snapshot_chain(self, uint64_t chain, ChainSnapshot* snapshot) except -1:
        """Look at all records of a chain; none is `found`."""
        cdef Key nobody
        self.check()
        empty_key(&nobody, 0)
        return self._find(chain, &nobody, snapshot)

    cdef uint64_t next_nonempty(self, uint64_t chain, uint64_t end) noexcept:
        """The first chain from here on that has records; `end` when there is none before it."""
        while chain < end and self._heads[chain] & BLOCK_MASK == 0:
            chain += 1
        return chain

    cdef bint is_current(self, ChainSnapshot* snapshot) noexcept:
        """What has been read from the records of `snapshot` until now is right."""
        after_reads()
        return load(&self._heads[snapshot.chain]) == snapshot.word

    cdef int _find(self, uint64_t chain, Key* key, ChainSnapshot* snapshot) except -1:
        cdef uint64_t* place = &self._heads[chain]
        cdef Record* record
        cdef uint32_t block
        cdef size_t size
        snapshot.chain = chain
        while True:
            snapshot.word = load(place)
            snapshot.found = -1
            snapshot.length = 0
            block = <uint32_t>(snapshot.word & BLOCK_MASK)
            while block != 0 and snapshot.length < MAX_CHAIN_LENGTH and block < self.header.arena_blocks:
                record = record_at(self, block)
                snapshot.blocks[snapshot.length] = block
                snapshot.length += 1
                block = record.next
                if (
                    record.key_size == key.size
                    and record.kind == key.kind
                    and record.namespace == key.namespace
                    and memcmp(key_in(record), key.data, key.size) == 0
                ):
                    snapshot.item_count = record.item_count
                    if snapshot.item_count <= MAX_ITEMS:
                        size = 8 * payload_words(self.header, snapshot.item_count)
                        memcpy(snapshot.payload, payload_in(record), size)
                        snapshot.found = snapshot.length - 1
                    break
            snapshot.next = block
            after_reads()
            if load(place) == snapshot.word:
                break
        if block != 0 and snapshot.found < 0:
            self._raise_damaged(snapshot)
        return 0

    cdef int _raise_damaged(self, ChainSnapshot* snapshot) except -1:
        raise ConfigError(f"the shared memory is damaged at chain {snapshot.chain}: {_REMEDY}")

    cdef uint64_t next_chain(self) noexcept:
        """The next chain of a round over all but the overflow chains."""
        self._sweep_position = (self._sweep_position + 1) & (self.header.chains - 1)
        return self._sweep_position

    cdef bint change(
        self, ChainSnapshot* snapshot, uint32_t removed, Key* key, int item_count, double* payload, int size_class
    ) except -1:
        """Change the chain that `snapshot` saw; False when others have changed it since.

        Bits of `removed` tell which of the records seen leave it. `key`, unless it is NULL,
        comes first in it, with its payload, in a record of `size_class` (-1: as large as
        the last one that left).
        """
        cdef ProcessSlot* slot = self._slot
        cdef Record* record
        cdef uint32_t block, link
        cdef int last = snapshot.length - 1, i, k
        cdef int more = key != NULL
        cdef uint32_t[CLASSES] taken
        if self._forks != forks:  # closed by another thread since the look
            return False
        if removed == 1 and key != NULL and size_class < 0:
            return self._replace_first(snapshot, key, item_count, payload)
        while last >= 0 and not removed >> last & 1:
            last -= 1
        if last < 0:
            link = <uint32_t>(snapshot.word & BLOCK_MASK)
        elif last + 1 < snapshot.length:
            link = snapshot.blocks[last + 1]
        else:
            link = snapshot.next
        memset(taken, 0, sizeof(taken))
        slot.new_count = 0
        before_writes()  # the swap that gave us these records comes before what we write to them
        for i in range(last - 1, -1, -1):
            if not removed >> i & 1:
                k = record_at(self, snapshot.blocks[i]).size_class - 1
                taken[k] += 1
                block = slot.free_records[k][slot.free_counts[k] - taken[k]]
                record = record_at(self, block)
                # Others may be writing to it by now, all but its class; then the swap fails.
                memcpy(record, record_at(self, snapshot.blocks[i]), <uint64_t>BLOCK << k)
                record.next = link
                link = block
                slot.new_blocks[slot.new_count] = block
                slot.new_count += 1
        if key != NULL:
            k = size_class
            if k < 0:
                k = record_at(self, snapshot.blocks[last]).size_class - 1
            taken[k] += 1
            block = slot.free_records[k][slot.free_counts[k] - taken[k]]
            record = record_at(self, block)
            record.next = link
            record.kind = key.kind
            record.key_size = <uint8_t>key.size
            record.item_count = <uint8_t>item_count
            record.namespace = key.namespace
            memcpy(key_in(record), key.data, key.size)
            memcpy(payload_in(record), payload, 8 * payload_words(self.header, item_count))
            link = block
            slot.new_blocks[slot.new_count] = block
            slot.new_count += 1
        slot.old_count = last + 1
        for i in range(last + 1):
            slot.old_blocks[i] = snapshot.blocks[i]
            more -= removed >> i & 1
        slot.count_debt_after = slot.count_debt - more  # a new key was counted when it was admitted
        slot.old_head = snapshot.word
        slot.new_head = ((snapshot.word & ~BLOCK_MASK) + TAG_STEP) | link
        store(&slot.pending_chain, snapshot.chain + 1)
        if not swap(&self._heads[snapshot.chain], slot.old_head, slot.new_head):
            store(&slot.pending_chain, 0)
            return False
        for k in range(CLASSES):
            slot.free_counts[k] -= taken[k]
        for i in range(last + 1):
            self._keep_free(snapshot.blocks[i])
        slot.count_debt = slot.count_debt_after
        store(&slot.pending_chain, 0)
        if more < 0:
            self._settle_count()
        self._return_surplus()
        return True

    cdef bint _replace_first(self, ChainSnapshot* snapshot, Key* key, int item_count, double* payload) noexcept:
        """`change`, as nearly all changes are: the first record of a chain makes way for another."""
        cdef ProcessSlot* slot = self._slot
        cdef uint32_t old = snapshot.blocks[0]
        cdef int k = record_at(self, old).size_class - 1
        cdef uint32_t* last_free = &slot.free_records[k][slot.free_counts[k] - 1]
        cdef uint32_t block = last_free[0]
        cdef Record* record = record_at(self, block)
        before_writes()  # as in `change`
        record.next = snapshot.blocks[1] if snapshot.length > 1 else snapshot.next
        record.kind = key.kind
        record.key_size = <uint8_t>key.size
        record.item_count = <uint8_t>item_count
        record.namespace = key.namespace
        memcpy(key_in(record), key.data, key.size)
        memcpy(payload_in(record), payload, 8 * payload_words(self.header, item_count))
        slot.new_count = slot.old_count = 1
        slot.new_blocks[0] = block
        slot.old_blocks[0] = old
        slot.count_debt_after = slot.count_debt
        slot.old_head = snapshot.word
        slot.new_head = ((snapshot.word & ~BLOCK_MASK) + TAG_STEP) | block
        store(&slot.pending_chain, snapshot.chain + 1)
        if not swap(&self._heads[snapshot.chain], slot.old_head, slot.new_head):
            store(&slot.pending_chain, 0)
            return False
        last_free[0] = old
        store(&slot.pending_chain, 0)
        return True

    cdef int admit(self, int size_class) except -2:
        """Count one more key and have a record for it; return its class, or -1: no room."""
        cdef int admitted = -1
        cdef uint64_t before = add(&self.counters.count.word, 1)
        before_writes()
        self._slot.count_debt += 1
        try:
            if before < self.header.max_keys:
                admitted = self.ensure_free(size_class)
        finally:
            if admitted < 0:
                self.cancel_admit()
        return admitted

    cdef void cancel_admit(self) noexcept:
        """An admitted key was not added. If the slot has been left, its next owner settles the count."""
        if self._forks == forks:
            self._slot.count_debt -= 1
            before_writes()
            add(&self.counters.count.word, <uint64_t>-1)

    cdef void _settle_count(self) noexcept:
        """Take keys that have left the table out of the count."""
        cdef uint64_t count_debt = self._slot.count_debt
        self._slot.count_debt = 0
        before_writes()
        add(&self.counters.count.word, <uint64_t>-<int64_t>count_debt)

    cdef int ensure_free(self, int size_class) except -2:
        """Have a record beyond the reserve; return its class, this or a larger one, or -1."""
        cdef uint32_t block
        while size_class < CLASSES:
            if self._slot.free_counts[size_class] > RESERVE:
                return size_class
            block = self._pop(size_class)
            if block == 0:
                block = self._carve(size_class)
                if self._forks != forks:  # closed by another thread meanwhile
                    if block != 0:
                        self._push(block)
                    self.check()
            if block == 0:
                size_class += 1
            elif self._slot.free_counts[size_class] < MAX_FREE:
                self._keep_free(block)
            else:  # other threads had the same idea
                self._push(block)
        return -1

    cdef void _keep_free(self, uint32_t block) noexcept:
        cdef int k = record_at(self, block).size_class - 1
        self._slot.free_records[k][self._slot.free_counts[k]] = block
        before_writes()
        self._slot.free_counts[k] += 1

    cdef void _return_surplus(self) noexcept:
        """Give surplus free records to the free lists."""
        cdef ProcessSlot* slot = self._slot
        cdef int k
        for k in range(CLASSES):
            while slot.free_counts[k] > MAX_FREE:
                slot.free_counts[k] -= 1
                self._push(slot.free_records[k][slot.free_counts[k]])

    cdef void _push(self, uint32_t block) noexcept:
        cdef Record* record = record_at(self, block)
        cdef uint64_t* stack = &self.counters.free_lists[record.size_class - 1].word
        cdef uint64_t word
        before_writes()  # as in `change`
        while True:
            word = load(stack)
            record.next = <uint32_t>(word & BLOCK_MASK)
            if swap(stack, word, ((word & ~BLOCK_MASK) + TAG_STEP) | block):
                return

    cdef uint32_t _pop(self, int size_class) noexcept:
        """A record from the stack; 0 when there is none."""
        cdef uint64_t* stack = &self.counters.free_lists[size_class].word
        cdef uint64_t word
        cdef uint32_t block
        while True:
            word = load(stack)
            block = <uint32_t>(word & BLOCK_MASK)
            if block == 0 or block >= self.header.arena_blocks:
                return 0
            if swap(stack, word, ((word & ~BLOCK_MASK) + TAG_STEP) | record_at(self, block).next):
                return block

    cdef uint32_t _carve(self, int size_class) except? 0:
        """A record from memory that was never used; 0 when there is none left."""
        cdef uint64_t blocks = <uint64_t>1 << size_class
        cdef uint64_t used
        while True:
            used = load(&self.counters.used.word)
            if used + blocks > self.header.arena_blocks - ROOM_TO_MISREAD:
                return 0
            if used + blocks > load(&self.counters.committed.word):
                if not self._commit_more():
                    return 0
            elif swap(&self.counters.used.word, used, used + blocks):
                record_at(self, <uint32_t>used).size_class = size_class + 1
                return <uint32_t>used

    cdef bint _commit_more(self) except -1:
        cdef uint64_t committed = load(&self.counters.committed.word)
        cdef uint64_t wanted = min(committed + CHUNK, self.header.arena_blocks)
        cdef uint64_t start = arena_at(self.header)
        if self.file is None or not self.file.commit(start + committed * BLOCK, start + wanted * BLOCK):
            return False
        swap(&self.counters.committed.word, committed, wanted)
        return True

    cdef int _open(self, object path, bytes header, bytes blank, bint rebuild) except -1:
        cdef Header* wanted = <Header*><char*>header
        cdef uint64_t first = slot_blocks_at(wanted) + READY_SLOTS * SLOT_BLOCKS
        shape = (
            arena_at(wanted) + wanted.arena_blocks * BLOCK,
            arena_at(wanted) + first * BLOCK,
            functools.partial(_fill, header, blank),
        )
        while True:
            file = SharedFile.open(path, *shape)
            try:
                problem = self._map_file(file, header) or self._join()
                if not problem:
                    self._acquire_slot()
                    self.file = file
                    self._forks = forks
                    return 0
                if not rebuild:
                    raise ConfigError(f"{path} {problem}: {_REMEDY}")
                file.replace(*shape)
            except BaseException:
                file.close()
                raise
            file.close()

    cdef str _map_file(self, object file, bytes header):
        """Map the file and find its parts; why it cannot be used, or ""."""
        cdef char* memory
        if is_foreign(os.pread(file.descriptor, len(MAGIC), 0)):
            raise ConfigError(f"{file.path} is not a shared memory file of sluicegate: remove it, or use another name")
        if file.size < HEADS_AT:
            return "is damaged: the file is too small"
        own = file.open_unlocked()
        try:
            self._memory = Memory(own, file.size)
        finally:
            os.close(own)
        memory = self._memory.start
        self.file = file
        self.header = <Header*>memory
        problem = _find_mismatch(self.header, file.size, header)
        if not problem:
            self.counters = <Counters*>(memory + COUNTERS_AT)
            self._slots = memory + SLOTS_AT
            self._heads = <uint64_t*>(memory + HEADS_AT)
            self._arena = memory + arena_at(self.header)
        return problem

    cdef str _join(self):
        """Lock our presence; the first process repairs the table. The problem, or ""."""
        file = self.file
        problem = ""

        def has_joined():
            nonlocal problem
            if file.lock_exclusive():
                self.header.needs_repair = 1
                problem = self._repair()
                if not problem:
                    self.header.needs_repair = 0
                return file.lock_shared()
            if not file.lock_shared():
                return False
            if self.header.needs_repair:  # the process that repaired it died: perhaps we are alone now
                file.unlock()
                return False
            return True

        wait_for("another process to repair", file.path, has_joined)
        return problem

    cdef int _reattach_after_fork(self) except -1:
        """In a forked child, before its first call: acquire its own slot."""
        thread = threading.get_ident()
        if self.file is None:
            raise ValueError("the shared memory is closed")
        # Another thread is at it; but a signal handler of the one that is does not wait for it.
        while self._reattaching == forks and self._reattaching_thread != thread:
            time.sleep(0.0005)
        if self._forks == forks:
            return 0
        self._reattaching_thread = thread
        self._reattaching = forks
        try:
            self.file.reopen()
            wait_for("another process to repair", self.file.path, self.file.lock_shared)
            self._acquire_slot()
            self._forks = forks
        finally:
            self._reattaching = NEVER
        return 0

    cdef int _acquire_slot(self) except -1:
        """Acquire a process slot, recover what its last owner left, and fill up the reserve."""
        cdef int k
        cdef uint32_t block
        self._slot_number = self.file.lock_process_slot(PROCESS_SLOTS)
        self._slot = <ProcessSlot*>(self._slots + self._slot_number * SLOT_BYTES)
        if self._slot.was_used or not self._lay_out_slot():
            self._recover_slot()
        for k in range(CLASSES):
            while self._slot.free_counts[k] < RESERVE:
                block = self._pop(k)
                if block == 0:
                    block = self._carve(k)
                if block == 0:
                    raise ConfigError(f"{self.file.path} has no memory left for another process")
                self._keep_free(block)
        return 0

    cdef bint _lay_out_slot(self) except -1:
        """Lay out the records of a slot at its first use; False if there is no memory."""
        cdef uint64_t block = slot_blocks_at(self.header) + self._slot_number * SLOT_BLOCKS
        cdef uint64_t start = arena_at(self.header)
        cdef int k
        if self._slot_number >= READY_SLOTS:
            if not self.file.commit(start + block * BLOCK, start + (block + SLOT_BLOCKS) * BLOCK):
                return False
        memset(self._slot, 0, sizeof(ProcessSlot))
        for k in range(CLASSES):
            for _ in range(RESERVE):
                record_at(self, <uint32_t>block).size_class = k + 1
                self._keep_free(<uint32_t>block)
                block += <uint64_t>1 << k
        store(&self._slot.was_used, 1)
        return True

    cdef void _recover_slot(self) noexcept:
        """Finish or drop the change that the slot's last owner died over."""
        cdef ProcessSlot* slot = self._slot
        cdef uint64_t word
        cdef bint was_done, was_not_done
        cdef uint32_t[CLASSES][FREE_CAPACITY] blocks
        cdef uint32_t[CLASSES] free_counts
        cdef uint32_t block
        cdef int i, k
        if slot.pending_chain != 0:
            word = load(&self._heads[slot.pending_chain - 1])
            was_not_done = word == slot.old_head
            # A word that leads to no record of ours may be another's, who did the same.
            was_done = word == slot.new_head and is_among(
                <uint32_t>(word & BLOCK_MASK), slot.new_blocks, slot.new_count
            )
            memset(free_counts, 0, sizeof(free_counts))
            for k in range(CLASSES):
                for i in range(min(<int>slot.free_counts[k], FREE_CAPACITY)):
                    block = slot.free_records[k][i]
                    if not is_among(block, slot.old_blocks, slot.old_count) and (
                        was_not_done or not is_among(block, slot.new_blocks, slot.new_count)
                    ):
                        blocks[k][free_counts[k]] = block
                        free_counts[k] += 1
            if was_done:
                slot.count_debt = slot.count_debt_after
                for i in range(<int>slot.old_count):
                    k = record_at(self, slot.old_blocks[i]).size_class - 1
                    if free_counts[k] < FREE_CAPACITY:
                        blocks[k][free_counts[k]] = slot.old_blocks[i]
                        free_counts[k] += 1
            elif not was_not_done:
                slot.count_debt = 0
            # Killed in here, we would lose records, but never have one twice.
            memset(slot.free_counts, 0, sizeof(slot.free_counts))
            before_writes()
            memcpy(slot.free_records, blocks, sizeof(blocks))
            before_writes()
            memcpy(slot.free_counts, free_counts, sizeof(free_counts))
            store(&slot.pending_chain, 0)
        self._settle_count()
        self._return_surplus()

    cdef str _repair(self):
        """While no other process is here: check everything, free what is in no chain. The problem, or ""."""
        cdef uint64_t used = load(&self.counters.used.word)
        cdef uint64_t committed = load(&self.counters.committed.word)
        cdef uint64_t block, number
        cdef uint64_t slot_blocks = slot_blocks_at(self.header)
        cdef uint64_t was_used
        cdef Record* record
        cdef ProcessSlot* slot
        cdef unsigned char[::1] starts
        cdef int i
        if not slot_blocks + PROCESS_SLOTS * SLOT_BLOCKS <= used <= committed <= self.header.arena_blocks:
            return "is damaged: its counters are inconsistent"
        start = arena_at(self.header)
        if not (
            self.file.commit(0, start + (slot_blocks + READY_SLOTS * SLOT_BLOCKS) * BLOCK)
            and self.file.commit(start + (slot_blocks + PROCESS_SLOTS * SLOT_BLOCKS) * BLOCK, start + committed * BLOCK)
        ):
            raise ConfigError(f"{self.file.path} has holes, and there is no memory left to fill them")
        self._resume_by_wall_clock()
        starts = bytearray(used)
        block = 1
        while block < used:
            number = (block - slot_blocks) // SLOT_BLOCKS
            slot = <ProcessSlot*>(self._slots + number * SLOT_BYTES)
            if block >= slot_blocks and number < PROCESS_SLOTS and not slot.was_used:
                block += SLOT_BLOCKS
                continue
            record = record_at(self, <uint32_t>block)
            if record.size_class == 0:  # carved out, and then its process was killed
                record.size_class = 1
            if record.size_class > CLASSES:
                break
            starts[block] = record.size_class
            block += <uint64_t>1 << (record.size_class - 1)
        if block != used:
            return f"is damaged: its records end at block {block} of {used}"
        problem = self._check_chains(starts)
        if problem:
            return problem
        for number in range(<uint64_t>PROCESS_SLOTS):
            slot = <ProcessSlot*>(self._slots + number * SLOT_BYTES)
            was_used = slot.was_used
            memset(slot, 0, sizeof(ProcessSlot))
            slot.was_used = was_used
        for i in range(CLASSES):
            self.counters.free_lists[i].word &= ~BLOCK_MASK
        for block in range(used):
            if starts[block] != 0:
                self._push(<uint32_t>block)
        return ""

    def _resume_by_wall_clock(self):
        """After a restart of the machine, whose own clock began anew."""
        boot = _boot()
        if self.header.is_system_clock and bytes(self.header.boot) != boot:
            # Not to before a time at which keys were forgotten: they would be in doubt.
            now = fast_max(time.time() - self.header.wall, self.counters.last_eviction)
            self.header.start = monotonic() - now
            memset(self.header.boot, 0, sizeof(self.header.boot))
            memcpy(self.header.boot, <const char*>(<bytes>boot), len(boot))

    cdef str _check_chains(self, unsigned char[::1] starts):
        """Strike out of `starts` the records that are in chains, and count the keys."""
        cdef uint64_t chain, block, count = 0
        cdef uint64_t ordinary = self.header.chains
        cdef bint is_overflow
        cdef Record* record
        cdef ChainSnapshot snapshot
        cdef Key key
        cdef int i
        self._forks = forks  # so that `snapshot_chain` may be called
        try:
            for chain in range(ordinary + self.header.overflow_chains):
                is_overflow = chain >= ordinary
                self.snapshot_chain(chain, &snapshot)
                if is_overflow and snapshot.length != 1:
                    self._raise_damaged(&snapshot)
                for i in range(snapshot.length):
                    block = snapshot.blocks[i]
                    record = record_at(self, <uint32_t>block)
                    key.data = key_in(record)
                    key.size = record.key_size
                    key.kind = record.kind
                    key.namespace = record.namespace
                    if (
                        block >= <uint64_t>starts.shape[0]
                        or starts[block] == 0
                        or record.item_count > MAX_ITEMS
                        or size_class_of(self.header, record.key_size, record.item_count) >= record.size_class
                        or (record.kind == OVERFLOW) != is_overflow
                        or (not is_overflow and hash_of(self.header, &key) & (ordinary - 1) != chain)
                    ):
                        self._raise_damaged(&snapshot)
                    starts[block] = 0
                    count += not is_overflow
        except ConfigError:
            return f"is damaged at chain {chain}"
        finally:
            self._forks = NEVER
        self.counters.count.word = count
        return ""


cdef uint64_t arena_at(Header* header) noexcept:
    """Where in the file the arena begins."""
    return HEADS_AT + 8 * (header.chains + header.overflow_chains)


cdef uint64_t slot_blocks_at(Header* header) noexcept:
    """Where in the arena the first records of slots begin, behind those of the overflow chains."""
    return 1 + (header.overflow_chains << size_class_of(header, 0, 0))


cdef inline bint is_among(uint32_t block, uint32_t* blocks, uint32_t count) noexcept nogil:
    cdef uint32_t i
    for i in range(min(count, <uint32_t>RESERVE)):
        if blocks[i] == block:
            return True
    return False


cdef void empty_key(Key* key, uint8_t kind) noexcept nogil:
    key.data = ""
    key.size = 0
    key.kind = kind
    key.namespace = 0


cdef uint64_t checksum(Header* header) noexcept:
    cdef uint64_t[SALTS] salt
    cdef int i
    for i in range(SALTS):  # any numbers that are not 0, for a product with 0 forgets
        salt[i] = <uint64_t>0x9E3779B97F4A7C15 * <uint64_t>(i + 1)
    return salted_hash(<char*>header, <char*>&header.checksum - <char*>header, 0, salt)


def _fill(header, blank, descriptor):
    """Write a new file's first bytes."""
    cdef Header* new = <Header*><char*>(<bytes>header)
    cdef Memory memory = Memory(descriptor, arena_at(new) + new.arena_blocks * BLOCK)
    cdef Counters* counters = <Counters*>(memory.start + COUNTERS_AT)
    cdef uint64_t* overflow_heads = <uint64_t*>(memory.start + HEADS_AT) + new.chains
    cdef char* arena = memory.start + arena_at(new)
    cdef Record* record
    cdef int size_class = size_class_of(new, 0, 0)
    cdef uint64_t i, block = 1
    for i in range(new.overflow_chains):
        record = <Record*>(arena + block * BLOCK)
        record.size_class = size_class + 1
        record.kind = OVERFLOW
        memcpy(payload_in(record), <const char*>(<bytes>blank), len(blank))
        overflow_heads[i] = block
        block += <uint64_t>1 << size_class
    counters.used.word = counters.committed.word = block + PROCESS_SLOTS * SLOT_BLOCKS
    counters.last_eviction = -INFINITY
    memcpy(memory.start, new, sizeof(Header))
    new = <Header*>memory.start
    salt = os.urandom(sizeof(new.salt))
    memcpy(new.salt, <const char*>(<bytes>salt), sizeof(new.salt))
    boot = _boot()
    memcpy(new.boot, <const char*>(<bytes>boot), len(boot))
    new.checksum = checksum(new)


cdef str _find_mismatch(Header* header, size, bytes wanted_bytes):
    """Why a file cannot be used, or ""."""
    cdef Header* wanted = <Header*><char*>wanted_bytes
    if memcmp(header.magic, wanted.magic, 8) != 0:
        return "is damaged: its header is empty"
    if header.version != wanted.version:
        return f"has layout version {header.version}, expected {wanted.version}"
    if (
        header.checksum != checksum(header)
        or size != arena_at(header) + header.arena_blocks * BLOCK
    ):
        return "is damaged: the checksum or size in its header is wrong"
    theirs, ours = _text(header.purpose), _text(wanted.purpose)
    if theirs != ours:
        return f"holds {theirs}, expected {ours}"
    if header.max_keys != wanted.max_keys:
        return f"has max_keys={header.max_keys}, expected {wanted.max_keys}"
    if header.is_system_clock != wanted.is_system_clock:
        return "uses a different clock"
    if (
        header.base_words != wanted.base_words
        or header.item_words != wanted.item_words
        or header.overflow_chains != wanted.overflow_chains
        or header.arena_blocks != wanted.arena_blocks
    ):
        return "has a different layout"
    return ""


cdef str _text(char* text):
    return text.decode()


def _boot():
    """A name for the time since the machine was started."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read().strip()[:39]
    except OSError:
        return b""

# cython: language_level=3, binding=False, cdivision=True
"""A hash table in shared memory that nobody ever locks.

A bucket is one word: the first record of a chain, and a tag. A record that is in a
chain never changes. Whoever changes something, a value, a key added, keys taken out,
writes the new records of the chain beside the old ones and then swaps the bucket's
word, if it still is the one he looked at, tag and all. So

- every change is done wholly or not at all, also when its process is killed at any
  instruction, and a process that is stopped stops no other;
- who reads looks at the word, at the records, and at the word again: was it still the
  same, so were the records.

A change puts a record first in its chain, so only what was before it must be copied:
nothing, nearly always.

The records that a swap has put out of a chain belong to the process that swapped. It
keeps some *in hand* to write its next change into: what an update takes, it gives back.
The rest goes to stacks in the shared memory, one for each size of record.

What a process has in hand is noted on its *desk*. When it dies, its lock on the desk
ends, and the next process that sits down there takes over what lies on it (`_tidy`).
`busy` and what follows it tell how far a change had come. If the bucket's word is
`after`, and leads to one of the new records, which nobody else had, it was done: the old
records are in hand in place of the new. If the word is `before`, it was not done. If
nobody can tell, for others have been here since, both are left alone. That, and a kill
in the few instructions in which a record goes from a stack to a desk, may lose a record,
some 64 bytes, or a place in the count of keys, until a process opens the memory alone:
it then looks at everything (`_heal`), and whatever is in no chain is free again. This is
also where a file that was torn (by a machine that lost its power) is found out.

A record stays as large as it was made. Each class of size has room in the arena for all
keys, so that keys which grow longer with time find their room; only what is used has
memory behind it. What desks are given first has room of its own: a process can always
be opened.

Whatever runs Python (memory is committed, a clock of the caller's is asked) may let
another thread in, which may close the memory. So `change` looks again, and nothing that
closes it takes the memory itself away, which goes with the object.

The tag has 36 bits. A process would have to sleep between its look and its swap for
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
from sluicegate._minmax cimport larger
from sluicegate.shm._atomic cimport (
    add, after_reads, before_writes, load, salted_hash, store, swap,
)
from sluicegate.shm._mapping cimport Memory

from sluicegate.errors import ConfigError
from sluicegate._validate import whole
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

# A child must not sit at its parent's desk. Counted in C, for servers that fork in C.
if count_forks() != 0:
    raise MemoryError("pthread_atfork")

cdef enum:
    VERSION = 1
    DESKS = 512
    DESK_BYTES = 640
    READY_DESKS = 32         # that have memory from the start
    COUNTERS_AT = 4096
    DESKS_AT = 8192
    BUCKETS_AT = DESKS_AT + DESKS * DESK_BYTES
    SHARED_CELLS = 1024
    CHUNK = 4096             # units that get memory at once: 256 KB
    ROOM_TO_MISREAD = 16     # units behind the last record: one that changes may look longer
    MOST_IN_HAND = STOCK - LONGEST_CHAIN
    DESK_UNITS = RESERVE * ((1 << CLASSES) - 1)  # that a desk is given first
    MOST_LIMITS = 8

cdef uint64_t UNIT_MASK = (<uint64_t>1 << UNIT_BITS) - 1
cdef uint64_t TAG_STEP = <uint64_t>1 << UNIT_BITS
cdef uint64_t NEVER = <uint64_t>-1

_WHAT_TO_DO = "open it with rebuild=True to start anew, or remove it with unlink()"

assert sizeof(Header) <= COUNTERS_AT
assert COUNTERS_AT + sizeof(Counters) <= DESKS_AT
assert sizeof(Desk) <= DESK_BYTES


cdef class Chains:
    """The memory at one path, opened by one process.

    `purpose` is a text that all who open it must agree on. `blank` is the payload of a
    spare cell, as bytes; empty for a table that has none. `usual_limits` is how many limits of
    its own any key may have at the same time as all others. `start` is where on its clock the
    memory's own time begins, and `wall` the same in Unix time.
    """

    def __init__(
        self, path, purpose, max_keys, words, limit_words, blank, rebuild, is_system_clock, start, wall,
        usual_limits=0,
    ):
        cdef Header header
        cdef uint64_t units, others
        memset(&header, 0, sizeof(Header))
        memcpy(header.magic, <const char*>(<bytes>MAGIC), 8)
        header.version = VERSION
        header.words = words
        header.limit_words = limit_words
        header.max_keys = whole("max_keys", max_keys, 1)
        header.buckets = 16
        while header.buckets < 2 * header.max_keys:
            header.buckets *= 2
        header.spares = SHARED_CELLS if blank else 0
        # One record of each class, up to that of the longest key that has so many limits.
        units = (<uint64_t>2 << min(class_of(&header, LONGEST_KEY, usual_limits), CLASSES - 1)) - 1
        others = desk_units_at(&header) + DESKS * DESK_UNITS + ROOM_TO_MISREAD
        header.units = others + header.max_keys * units
        if header.max_keys > UNIT_MASK or header.units > UNIT_MASK:
            most = (UNIT_MASK - others) // units
            raise ValueError(f"max_keys must be at most {most} for these limits, got {max_keys!r}")
        text = purpose.encode()
        if len(text) >= PURPOSE:
            raise ValueError(f"{purpose!r} takes {len(text)} bytes; expected below {PURPOSE}")
        memcpy(header.purpose, <const char*>(<bytes>text), len(text))
        header.is_system_clock = is_system_clock
        header.start = start
        header.wall = wall
        self._hand = int.from_bytes(os.urandom(4), "little")
        self._open(path, PyBytes_FromStringAndSize(<char*>&header, sizeof(Header)), blank, rebuild)

    def __cinit__(self, *_, **__):
        self._forks = self._leaving = NEVER

    def close(self):
        """Leave the desk, with what lies on it for the next one who sits there."""
        file, self.file = self.file, None
        self._forks = NEVER
        if file is not None:
            file.close()

    cdef int check(self) except -1:
        """Raise when it is closed; in a child, before its first call, take a desk of our own."""
        if self._forks != forks:
            self._leave_parent()
        return 0

    cdef int find(self, Key* key, Look* look) except -1:
        """Look for a key: `look.found` and, where it is there, its payload."""
        self.check()
        return self._find(hash_of(self.header, key) & (self.header.buckets - 1), key, look)

    cdef int find_spare(self, Key* key, Look* look) except -1:
        """Look at the cell that `key` shares with others when there is no room for it."""
        cdef Key spare
        cdef uint64_t bucket
        self.check()
        bucket = self.header.buckets + (hash_of(self.header, key) >> 40) % self.header.spares
        empty_key(&spare, SPARE)
        return self._find(bucket, &spare, look)

    cdef bint change_spare(self, Look* look) except -1:
        """Put the payload of a look at a spare cell in its place."""
        cdef Key spare
        if look.found < 0:
            self._damaged(look)
        empty_key(&spare, SPARE)
        return self.change(look, <uint32_t>1 << look.found, &spare, 0, look.payload, -1)

    cdef int see(self, uint64_t bucket, Look* look) except -1:
        """Look at all records of a chain; none is `found`."""
        cdef Key nobody
        self.check()
        empty_key(&nobody, 0)
        return self._find(bucket, &nobody, look)

    cdef uint64_t next_used(self, uint64_t bucket, uint64_t end) noexcept:
        """The first bucket from here on that has records; `end` when there is none before it."""
        while bucket < end and self._buckets[bucket] & UNIT_MASK == 0:
            bucket += 1
        return bucket

    cdef bint is_current(self, Look* look) noexcept:
        """What has been read from the records of `look` until now is right."""
        after_reads()
        return load(&self._buckets[look.bucket]) == look.word

    cdef int _find(self, uint64_t bucket, Key* key, Look* look) except -1:
        cdef uint64_t* place = &self._buckets[bucket]
        cdef Record* record
        cdef uint32_t unit
        look.bucket = bucket
        while True:
            look.word = load(place)
            look.found = -1
            look.length = 0
            unit = <uint32_t>(look.word & UNIT_MASK)
            while unit != 0 and look.length < LONGEST_CHAIN and unit < self.header.units:
                record = record_at(self, unit)
                look.units[look.length] = unit
                look.length += 1
                unit = record.next
                if (
                    record.key_size == key.size
                    and record.kind == key.kind
                    and record.generation == key.generation
                    and memcmp(key_in(record), key.data, key.size) == 0
                ):
                    look.limits = record.limits
                    if look.limits <= MOST_LIMITS:
                        memcpy(look.payload, payload_in(record), 8 * payload_words(self.header, look.limits))
                        look.found = look.length - 1
                    break
            look.next = unit
            after_reads()
            if load(place) == look.word:
                break
        if unit != 0 and look.found < 0:
            self._damaged(look)
        return 0

    cdef int _damaged(self, Look* look) except -1:
        raise ConfigError(f"the shared memory is damaged at bucket {look.bucket}: {_WHAT_TO_DO}")

    cdef uint64_t next_bucket(self) noexcept:
        """The buckets in turn, of those that are not spare."""
        self._hand = (self._hand + 1) & (self.header.buckets - 1)
        return self._hand

    cdef bint change(
        self, Look* look, uint32_t gone, Key* key, int limits, double* payload, int size_class
    ) except -1:
        """Change the chain that `look` saw; False when others have changed it since.

        Bits of `gone` tell which of the records seen leave it. `key`, unless it is NULL,
        comes first in it, with its payload, in a record of `size_class` (-1: as large as
        the last one that left).
        """
        cdef Desk* desk = self._desk
        cdef Record* record
        cdef uint32_t unit, link
        cdef int last = look.length - 1, i, k
        cdef int more = key != NULL
        cdef uint32_t[CLASSES] taken
        if self._forks != forks:  # closed by another thread since the look
            return False
        if gone == 1 and key != NULL and size_class < 0:
            return self._replace_first(look, key, limits, payload)
        while last >= 0 and not gone >> last & 1:
            last -= 1
        if last < 0:
            link = <uint32_t>(look.word & UNIT_MASK)
        elif last + 1 < look.length:
            link = look.units[last + 1]
        else:
            link = look.next
        memset(taken, 0, sizeof(taken))
        desk.new_count = 0
        before_writes()  # the swap that gave us these records comes before what we write to them
        for i in range(last - 1, -1, -1):
            if not gone >> i & 1:
                k = record_at(self, look.units[i]).size_class - 1
                taken[k] += 1
                unit = desk.stock[k][desk.counts[k] - taken[k]]
                record = record_at(self, unit)
                # Others may be writing to it by now, all but its class; then the swap fails.
                memcpy(record, record_at(self, look.units[i]), <uint64_t>UNIT << k)
                record.next = link
                link = unit
                desk.new_units[desk.new_count] = unit
                desk.new_count += 1
        if key != NULL:
            k = size_class
            if k < 0:
                k = record_at(self, look.units[last]).size_class - 1
            taken[k] += 1
            unit = desk.stock[k][desk.counts[k] - taken[k]]
            record = record_at(self, unit)
            record.next = link
            record.kind = key.kind
            record.key_size = <uint8_t>key.size
            record.limits = <uint8_t>limits
            record.generation = key.generation
            memcpy(key_in(record), key.data, key.size)
            memcpy(payload_in(record), payload, 8 * payload_words(self.header, limits))
            link = unit
            desk.new_units[desk.new_count] = unit
            desk.new_count += 1
        desk.old_count = last + 1
        for i in range(last + 1):
            desk.old_units[i] = look.units[i]
            more -= gone >> i & 1
        desk.owed_after = desk.owed - more  # a new key was counted when it was admitted
        desk.before = look.word
        desk.after = ((look.word & ~UNIT_MASK) + TAG_STEP) | link
        store(&desk.busy, look.bucket + 1)
        if not swap(&self._buckets[look.bucket], desk.before, desk.after):
            store(&desk.busy, 0)
            return False
        for k in range(CLASSES):
            desk.counts[k] -= taken[k]
        for i in range(last + 1):
            self._put_in_hand(look.units[i])
        desk.owed = desk.owed_after
        store(&desk.busy, 0)
        if more < 0:
            self._pay()
        self._spill()
        return True

    cdef bint _replace_first(self, Look* look, Key* key, int limits, double* payload) noexcept:
        """`change`, as nearly all changes are: the first record of a chain makes way for another."""
        cdef Desk* desk = self._desk
        cdef uint32_t old = look.units[0]
        cdef int k = record_at(self, old).size_class - 1
        cdef uint32_t* in_hand = &desk.stock[k][desk.counts[k] - 1]
        cdef uint32_t unit = in_hand[0]
        cdef Record* record = record_at(self, unit)
        before_writes()  # as in `change`
        record.next = look.units[1] if look.length > 1 else look.next
        record.kind = key.kind
        record.key_size = <uint8_t>key.size
        record.limits = <uint8_t>limits
        record.generation = key.generation
        memcpy(key_in(record), key.data, key.size)
        memcpy(payload_in(record), payload, 8 * payload_words(self.header, limits))
        desk.new_count = desk.old_count = 1
        desk.new_units[0] = unit
        desk.old_units[0] = old
        desk.owed_after = desk.owed
        desk.before = look.word
        desk.after = ((look.word & ~UNIT_MASK) + TAG_STEP) | unit
        store(&desk.busy, look.bucket + 1)
        if not swap(&self._buckets[look.bucket], desk.before, desk.after):
            store(&desk.busy, 0)
            return False
        in_hand[0] = old
        store(&desk.busy, 0)
        return True

    cdef int admit(self, int size_class) except -2:
        """Count one more key and have a record for it; return its class, or -1: no room."""
        cdef int admitted = -1
        cdef uint64_t before = add(&self.counters.count.word, 1)
        before_writes()
        self._desk.owed += 1
        try:
            if before < self.header.max_keys:
                admitted = self.room_for(size_class)
        finally:
            if admitted < 0:
                self.dismiss()
        return admitted

    cdef void dismiss(self) noexcept:
        """One who was admitted did not come. Of a desk we have left, the next one pays."""
        if self._forks == forks:
            self._desk.owed -= 1
            before_writes()
            add(&self.counters.count.word, <uint64_t>-1)

    cdef void _pay(self) noexcept:
        """Count what has gone out of the table."""
        cdef uint64_t owed = self._desk.owed
        self._desk.owed = 0
        before_writes()
        add(&self.counters.count.word, <uint64_t>-<int64_t>owed)

    cdef int room_for(self, int size_class) except -2:
        """Have a record beyond the reserve; return its class, this or a larger one, or -1."""
        cdef uint32_t unit
        while size_class < CLASSES:
            if self._desk.counts[size_class] > RESERVE:
                return size_class
            unit = self._pop(size_class)
            if unit == 0:
                unit = self._carve(size_class)
                if self._forks != forks:  # closed by another thread meanwhile
                    if unit != 0:
                        self._push(unit)
                    self.check()
            if unit == 0:
                size_class += 1
            elif self._desk.counts[size_class] < MOST_IN_HAND:
                self._put_in_hand(unit)
            else:  # other threads had the same idea
                self._push(unit)
        return -1

    cdef void _put_in_hand(self, uint32_t unit) noexcept:
        cdef int k = record_at(self, unit).size_class - 1
        self._desk.stock[k][self._desk.counts[k]] = unit
        before_writes()
        self._desk.counts[k] += 1

    cdef void _spill(self) noexcept:
        """Give away what is too much in hand."""
        cdef Desk* desk = self._desk
        cdef int k
        for k in range(CLASSES):
            while desk.counts[k] > MOST_IN_HAND:
                desk.counts[k] -= 1
                self._push(desk.stock[k][desk.counts[k]])

    cdef void _push(self, uint32_t unit) noexcept:
        cdef Record* record = record_at(self, unit)
        cdef uint64_t* stack = &self.counters.free[record.size_class - 1].word
        cdef uint64_t word
        before_writes()  # as in `change`
        while True:
            word = load(stack)
            record.next = <uint32_t>(word & UNIT_MASK)
            if swap(stack, word, ((word & ~UNIT_MASK) + TAG_STEP) | unit):
                return

    cdef uint32_t _pop(self, int size_class) noexcept:
        """A record from the stack; 0 when there is none."""
        cdef uint64_t* stack = &self.counters.free[size_class].word
        cdef uint64_t word
        cdef uint32_t unit
        while True:
            word = load(stack)
            unit = <uint32_t>(word & UNIT_MASK)
            if unit == 0 or unit >= self.header.units:
                return 0
            if swap(stack, word, ((word & ~UNIT_MASK) + TAG_STEP) | record_at(self, unit).next):
                return unit

    cdef uint32_t _carve(self, int size_class) except? 0:
        """A record from memory that was never used; 0 when there is none left."""
        cdef uint64_t units = <uint64_t>1 << size_class
        cdef uint64_t used
        while True:
            used = load(&self.counters.used.word)
            if used + units > self.header.units - ROOM_TO_MISREAD:
                return 0
            if used + units > load(&self.counters.committed.word):
                if not self._commit_more():
                    return 0
            elif swap(&self.counters.used.word, used, used + units):
                record_at(self, <uint32_t>used).size_class = size_class + 1
                return <uint32_t>used

    cdef bint _commit_more(self) except -1:
        cdef uint64_t committed = load(&self.counters.committed.word)
        cdef uint64_t wanted = min(committed + CHUNK, self.header.units)
        cdef uint64_t start = arena_at(self.header)
        if self.file is None or not self.file.commit(start + committed * UNIT, start + wanted * UNIT):
            return False
        swap(&self.counters.committed.word, committed, wanted)
        return True

    cdef int _open(self, object path, bytes header, bytes blank, bint rebuild) except -1:
        cdef Header* wanted = <Header*><char*>header
        cdef uint64_t first = desk_units_at(wanted) + READY_DESKS * DESK_UNITS
        shape = (
            arena_at(wanted) + wanted.units * UNIT,
            arena_at(wanted) + first * UNIT,
            functools.partial(_fill, header, blank),
        )
        while True:
            file = SharedFile.open(path, *shape)
            try:
                trouble = self._attach(file, header) or self._enter()
                if not trouble:
                    self._sit_down()
                    self.file = file
                    self._forks = forks
                    return 0
                if not rebuild:
                    raise ConfigError(f"{path} {trouble}: {_WHAT_TO_DO}")
                file.replace(*shape)
            except BaseException:
                file.close()
                raise
            file.close()

    cdef str _attach(self, object file, bytes header):
        """Find the parts of a file; why it cannot be used, or nothing."""
        cdef char* memory
        if is_foreign(os.pread(file.descriptor, len(MAGIC), 0)):
            raise ConfigError(f"{file.path} is no shared memory of sluicegate's: remove it, or take another name")
        if file.size < BUCKETS_AT:
            return "is torn: it is too small"
        own = file.another()
        try:
            self._memory = Memory(own, file.size)
        finally:
            os.close(own)
        memory = self._memory.start
        self.file = file
        self.header = <Header*>memory
        trouble = _trouble(self.header, file.size, header)
        if not trouble:
            self.counters = <Counters*>(memory + COUNTERS_AT)
            self._desks = memory + DESKS_AT
            self._buckets = <uint64_t*>(memory + BUCKETS_AT)
            self._arena = memory + arena_at(self.header)
        return trouble

    cdef str _enter(self):
        """Be one of those who are here; the first looks through everything. What is wrong, or nothing."""
        file = self.file
        trouble = ""

        def is_in():
            nonlocal trouble
            if file.be_alone():
                self.header.is_unsure = 1
                trouble = self._heal()
                if not trouble:
                    self.header.is_unsure = 0
                return file.be_here()
            if not file.be_here():
                return False
            if self.header.is_unsure:  # who was alone died over it: perhaps we are alone now
                file.be_gone()
                return False
            return True

        wait_for("another to look through", file.path, is_in)
        return trouble

    cdef int _leave_parent(self) except -1:
        """In a forked child, before its first call: take a desk of our own."""
        thread = threading.get_ident()
        if self.file is None:
            raise ValueError("the shared memory has been closed")
        # Another thread is at it; but a signal handler of the one that is does not wait for it.
        while self._leaving == forks and self._leaver != thread:
            time.sleep(0.0005)
        if self._forks == forks:
            return 0
        self._leaver = thread
        self._leaving = forks
        try:
            self.file.reopen()
            wait_for("another to look through", self.file.path, self.file.be_here)
            self._sit_down()
            self._forks = forks
        finally:
            self._leaving = NEVER
        return 0

    cdef int _sit_down(self) except -1:
        """Take a desk, with what its last owner left on it, and fill up the reserve."""
        cdef int k
        cdef uint32_t unit
        self._desk_number = self.file.take_desk(DESKS)
        self._desk = <Desk*>(self._desks + self._desk_number * DESK_BYTES)
        if self._desk.was_used or not self._has_first_records():
            self._tidy()
        for k in range(CLASSES):
            while self._desk.counts[k] < RESERVE:
                unit = self._pop(k)
                if unit == 0:
                    unit = self._carve(k)
                if unit == 0:
                    raise ConfigError(f"{self.file.path} has no memory left for one more process")
                self._put_in_hand(unit)
        return 0

    cdef bint _has_first_records(self) except -1:
        """Lay out the records of a desk at which nobody sat before; False if there is no memory."""
        cdef uint64_t unit = desk_units_at(self.header) + self._desk_number * DESK_UNITS
        cdef uint64_t start = arena_at(self.header)
        cdef int k
        if self._desk_number >= READY_DESKS:
            if not self.file.commit(start + unit * UNIT, start + (unit + DESK_UNITS) * UNIT):
                return False
        memset(self._desk, 0, sizeof(Desk))
        for k in range(CLASSES):
            for _ in range(RESERVE):
                record_at(self, <uint32_t>unit).size_class = k + 1
                self._put_in_hand(<uint32_t>unit)
                unit += <uint64_t>1 << k
        store(&self._desk.was_used, 1)
        return True

    cdef void _tidy(self) noexcept:
        """Bring the desk of a process that died into order."""
        cdef Desk* desk = self._desk
        cdef uint64_t word
        cdef bint was_done, was_not_done
        cdef uint32_t[CLASSES][STOCK] units
        cdef uint32_t[CLASSES] counts
        cdef uint32_t unit
        cdef int i, k
        if desk.busy != 0:
            word = load(&self._buckets[desk.busy - 1])
            was_not_done = word == desk.before
            # A word that leads to no record of ours may be another's, who did the same.
            was_done = word == desk.after and is_among(
                <uint32_t>(word & UNIT_MASK), desk.new_units, desk.new_count
            )
            memset(counts, 0, sizeof(counts))
            for k in range(CLASSES):
                for i in range(min(<int>desk.counts[k], STOCK)):
                    unit = desk.stock[k][i]
                    if not is_among(unit, desk.old_units, desk.old_count) and (
                        was_not_done or not is_among(unit, desk.new_units, desk.new_count)
                    ):
                        units[k][counts[k]] = unit
                        counts[k] += 1
            if was_done:
                desk.owed = desk.owed_after
                for i in range(<int>desk.old_count):
                    k = record_at(self, desk.old_units[i]).size_class - 1
                    if counts[k] < STOCK:
                        units[k][counts[k]] = desk.old_units[i]
                        counts[k] += 1
            elif not was_not_done:
                desk.owed = 0
            # Killed in here, we would lose records, but never have one twice.
            memset(desk.counts, 0, sizeof(desk.counts))
            before_writes()
            memcpy(desk.stock, units, sizeof(units))
            before_writes()
            memcpy(desk.counts, counts, sizeof(counts))
            store(&desk.busy, 0)
        self._pay()
        self._spill()

    cdef str _heal(self):
        """While alone: look at everything, and free whatever is in no chain. What is wrong, or nothing."""
        cdef uint64_t used = load(&self.counters.used.word)
        cdef uint64_t committed = load(&self.counters.committed.word)
        cdef uint64_t unit, number
        cdef uint64_t desk_units = desk_units_at(self.header)
        cdef uint64_t was_used
        cdef Record* record
        cdef Desk* desk
        cdef unsigned char[::1] starts
        cdef int i
        if not desk_units + DESKS * DESK_UNITS <= used <= committed <= self.header.units:
            return "is torn: its counters do not add up"
        start = arena_at(self.header)
        if not (
            self.file.commit(0, start + (desk_units + READY_DESKS * DESK_UNITS) * UNIT)
            and self.file.commit(start + (desk_units + DESKS * DESK_UNITS) * UNIT, start + committed * UNIT)
        ):
            raise ConfigError(f"{self.file.path} has holes, and no memory is left to fill them")
        self._go_on_by_wall_clock()
        starts = bytearray(used)
        unit = 1
        while unit < used:
            number = (unit - desk_units) // DESK_UNITS
            desk = <Desk*>(self._desks + number * DESK_BYTES)
            if unit >= desk_units and number < DESKS and not desk.was_used:
                unit += DESK_UNITS
                continue
            record = record_at(self, <uint32_t>unit)
            if record.size_class == 0:  # carved out, and then its process was killed
                record.size_class = 1
            if record.size_class > CLASSES:
                break
            starts[unit] = record.size_class
            unit += <uint64_t>1 << (record.size_class - 1)
        if unit != used:
            return f"is torn: its records end at {unit} of {used}"
        trouble = self._look_through_chains(starts)
        if trouble:
            return trouble
        for number in range(<uint64_t>DESKS):
            desk = <Desk*>(self._desks + number * DESK_BYTES)
            was_used = desk.was_used
            memset(desk, 0, sizeof(Desk))
            desk.was_used = was_used
        for i in range(CLASSES):
            self.counters.free[i].word &= ~UNIT_MASK
        for unit in range(used):
            if starts[unit] != 0:
                self._push(<uint32_t>unit)
        return ""

    def _go_on_by_wall_clock(self):
        """After a restart of the machine, whose own clock began anew."""
        boot = _boot()
        if self.header.is_system_clock and bytes(self.header.boot) != boot:
            # Not to before a time at which keys were forgotten: they would be in doubt.
            now = larger(time.time() - self.header.wall, self.counters.forgot_at)
            self.header.start = monotonic() - now
            memset(self.header.boot, 0, sizeof(self.header.boot))
            memcpy(self.header.boot, <const char*>(<bytes>boot), len(boot))

    cdef str _look_through_chains(self, unsigned char[::1] starts):
        """Strike out of `starts` the records that are in chains, and count the keys."""
        cdef uint64_t bucket, unit, count = 0
        cdef uint64_t ordinary = self.header.buckets
        cdef bint is_spare
        cdef Record* record
        cdef Look look
        cdef Key key
        cdef int i
        self._forks = forks  # so that we may look
        try:
            for bucket in range(ordinary + self.header.spares):
                is_spare = bucket >= ordinary
                self.see(bucket, &look)
                if is_spare and look.length != 1:
                    self._damaged(&look)
                for i in range(look.length):
                    unit = look.units[i]
                    record = record_at(self, <uint32_t>unit)
                    key.data = key_in(record)
                    key.size = record.key_size
                    key.kind = record.kind
                    key.generation = record.generation
                    if (
                        unit >= <uint64_t>starts.shape[0]
                        or starts[unit] == 0
                        or record.limits > MOST_LIMITS
                        or class_of(self.header, record.key_size, record.limits) >= record.size_class
                        or (record.kind == SPARE) != is_spare
                        or (not is_spare and hash_of(self.header, &key) & (ordinary - 1) != bucket)
                    ):
                        self._damaged(&look)
                    starts[unit] = 0
                    count += not is_spare
        except ConfigError:
            return f"is damaged at bucket {bucket}"
        finally:
            self._forks = NEVER
        self.counters.count.word = count
        return ""


cdef uint64_t arena_at(Header* header) noexcept:
    """Where in the file the arena begins."""
    return BUCKETS_AT + 8 * (header.buckets + header.spares)


cdef uint64_t desk_units_at(Header* header) noexcept:
    """Where in the arena the first records of desks begin, behind those of shared cells."""
    return 1 + (header.spares << class_of(header, 0, 0))


cdef inline bint is_among(uint32_t unit, uint32_t* units, uint32_t count) noexcept nogil:
    cdef uint32_t i
    for i in range(min(count, <uint32_t>RESERVE)):
        if units[i] == unit:
            return True
    return False


cdef void empty_key(Key* key, uint8_t kind) noexcept nogil:
    key.data = ""
    key.size = 0
    key.kind = kind
    key.generation = 0


cdef uint64_t checksum(Header* header) noexcept:
    cdef uint64_t[SALTS] salt
    cdef int i
    for i in range(SALTS):  # any numbers that are not 0, for a product with 0 forgets
        salt[i] = <uint64_t>0x9E3779B97F4A7C15 * <uint64_t>(i + 1)
    return salted_hash(<char*>header, <char*>&header.checksum - <char*>header, 0, salt)


def _fill(header, blank, descriptor):
    """Write a new file's first bytes."""
    cdef Header* new = <Header*><char*>(<bytes>header)
    cdef Memory memory = Memory(descriptor, arena_at(new) + new.units * UNIT)
    cdef Counters* counters = <Counters*>(memory.start + COUNTERS_AT)
    cdef uint64_t* spares = <uint64_t*>(memory.start + BUCKETS_AT) + new.buckets
    cdef char* arena = memory.start + arena_at(new)
    cdef Record* record
    cdef int size_class = class_of(new, 0, 0)
    cdef uint64_t i, unit = 1
    for i in range(new.spares):
        record = <Record*>(arena + unit * UNIT)
        record.size_class = size_class + 1
        record.kind = SPARE
        memcpy(payload_in(record), <const char*>(<bytes>blank), len(blank))
        spares[i] = unit
        unit += <uint64_t>1 << size_class
    counters.used.word = counters.committed.word = unit + DESKS * DESK_UNITS
    counters.forgot_at = -INFINITY
    memcpy(memory.start, new, sizeof(Header))
    new = <Header*>memory.start
    salt = os.urandom(sizeof(new.salt))
    memcpy(new.salt, <const char*>(<bytes>salt), sizeof(new.salt))
    boot = _boot()
    memcpy(new.boot, <const char*>(<bytes>boot), len(boot))
    new.checksum = checksum(new)


cdef str _trouble(Header* header, size, bytes wanted_bytes):
    """Why a file cannot be used, or nothing."""
    cdef Header* wanted = <Header*><char*>wanted_bytes
    if memcmp(header.magic, wanted.magic, 8) != 0:
        return "is torn: its header is empty"
    if header.version != wanted.version:
        return f"has layout {header.version}, and this is layout {wanted.version}"
    if (
        header.checksum != checksum(header)
        or size != arena_at(header) + header.units * UNIT
    ):
        return "is torn: its header does not add up"
    theirs, ours = _text(header.purpose), _text(wanted.purpose)
    if theirs != ours:
        return f"holds {theirs}, and {ours} was asked for"
    if header.max_keys != wanted.max_keys:
        return f"is for {header.max_keys} keys, and {wanted.max_keys} was asked for"
    if header.is_system_clock != wanted.is_system_clock:
        return "runs on another clock"
    if (
        header.words != wanted.words
        or header.limit_words != wanted.limit_words
        or header.spares != wanted.spares
        or header.units != wanted.units
    ):
        return "has another layout"
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

# cython: language_level=3, boundscheck=False, wraparound=False
"""The bulk of binary frames: entries, lines and shares, between bytes and values.

What stands around them (kinds, heads, names of services) is `frames`' matter. Every length is
checked against the bytes that are left before anything is made of it; numbers are finite, from 0
to 1e18; an entry is one that was introduced.

`Introduced` is the string table at the end that writes. A share that comes out of an assignment
(`PackedShares`) names its bucket by number, in rising order, and so does the list of the buckets
that the other end knows: to find the entries is one walk along both.
"""

from libc.limits cimport INT_MAX
from libc.math cimport floor
from libc.stdlib cimport free, malloc, qsort, realloc
from libc.string cimport memcpy, memset

from sluicegate.errors import ProtocolError
from sluicegate.quota.packed._shares cimport PackedShares, safe_of
from sluicegate.quota.packed._report_lines cimport PackedLine, PackedLines, StringTable
from sluicegate.quota.packed._bucket_ids cimport BucketIds
from sluicegate.quota.packed._gil cimport yield_gil_periodically
from sluicegate.quota.messages import Share
from sluicegate.quota.wire._buffer cimport Buffer, as_bytes, dispose, put, put_name, room_for

__all__ = ["Introduced", "read_entries", "read_lines", "read_shares"]

cdef extern from *:
    """
    /* A string table begins anew when it has so many entries for each one that is in use. */
    #define SPARSE 4
    #define FEW 1000
    /* Or when its entries are used in another order than they have, but not too often. */
    #define RAGGED 8
    #define RAGGED_FRAMES 60
    /* To introduce so many takes some milliseconds. */
    #define FRESH_AT_ONCE 5000
    """
    const Py_ssize_t SPARSE, FEW, RAGGED, RAGGED_FRAMES, FRESH_AT_ONCE

cdef enum:  # the form of an entry: else it has the service, the user of the entry before
    HAS_SERVICE = 1
    HAS_USER = 2

cdef enum:  # the form of a line
    HAS_NUMBER = 1
    CONSUMED_REAL = 2
    SETTLED_ALL = 4
    SETTLED_WHOLE = 8
    SETTLED_REAL = 12
    HAS_REJECTED = 16
    HAS_REQUESTS = 32
    HAS_HELD = 64
    MOST_FORM = 127

cdef double MOST = 1e18
cdef Py_ssize_t LONGEST_LINE = 1 + 4 + 8 + 8 + 4 + 4 + 8


# Reading

cdef int _cut(bytes frame) except -1:
    raise ProtocolError(f"the frame ends after {len(frame)} bytes, expected more")


cdef unsigned int _count(bytes frame, Py_ssize_t at, Py_ssize_t least, Py_ssize_t most, str what) except? 0:
    """The number of things of at least so many bytes that follow."""
    cdef unsigned int count
    cdef const char *data = frame
    if at + 4 > len(frame):
        _cut(frame)
    memcpy(&count, data + at, 4)
    if count > most:
        raise ProtocolError(f"the number of {what} is {count}, expected at most {most}")
    if count * least > len(frame) - at - 4:
        _cut(frame)
    return count


cdef str _name(bytes frame, Py_ssize_t at, Py_ssize_t most, str what):
    cdef const char *data = frame
    cdef Py_ssize_t size
    if at >= len(frame):
        _cut(frame)
    size = <unsigned char> data[at]
    if size > len(frame) - at - 1:
        _cut(frame)
    if not 0 < size <= most:
        raise ProtocolError(f"{what} has {size} bytes, expected a name of 1 to {most} bytes of UTF-8")
    try:
        return data[at + 1 : at + 1 + size].decode("utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError(f"{what} is {data[at + 1 : at + 1 + size]!r}, expected UTF-8") from error


def read_entries(bytes frame not None, Py_ssize_t at, StringTable string_table not None, bounds, Py_ssize_t most):
    """Add the new entries that stand at `at` to the string table, `most` of them; where they end."""
    cdef const char *data = frame
    cdef Py_ssize_t most_users = bounds.users, name_bytes = bounds.name_bytes
    cdef unsigned char form
    cdef str service = None, user = None, resource
    cdef unsigned int count = _count(
        frame, at, 3, min(most, bounds.entries - string_table.count), "new entries"
    )
    cdef unsigned int i
    resources = {}  # there are few of them: one string for each will do
    at += 4
    for i in range(count):
        yield_gil_periodically(i + 1)
        if at >= len(frame):
            _cut(frame)
        form = data[at]
        if form > (HAS_SERVICE | HAS_USER):
            raise ProtocolError(f"the form of an entry is {form}, expected 0 to 3")
        at += 1
        if form & HAS_SERVICE:
            service = _name(frame, at, bounds.service_bytes, "service")
            at += 1 + <unsigned char> data[at]
        if form & HAS_USER:
            user = _name(frame, at, name_bytes, "user")
            at += 1 + <unsigned char> data[at]
            string_table.user_count += 1
            if string_table.user_count > most_users:
                raise ProtocolError(f"there are {string_table.user_count} users, expected at most {most_users}")
        if service is None or user is None:
            raise ProtocolError("the first new entry of the frame has no service or no user, expected both")
        resource = _name(frame, at, name_bytes, "resource")
        at += 1 + <unsigned char> data[at]
        string_table.add(service, user, resources.setdefault(resource, resource))
    return at


def read_lines(bytes frame not None, Py_ssize_t at, StringTable string_table not None, Py_ssize_t most):
    """The lines that stand at `at`, at most so many, and where they end."""
    cdef const char *data = frame
    cdef const char *here
    cdef const char *end = data + len(frame)
    cdef unsigned int count = _count(frame, at, 5, min(most, string_table.count), "lines"), whole
    cdef long long number = -1
    cdef unsigned char form
    cdef PackedLines lines = PackedLines(string_table)
    cdef PackedLine *line
    cdef Py_ssize_t size
    lines.allocate(count)
    here = data + at + 4
    for _ in range(count):
        if here >= end:
            _cut(frame)
        form = here[0]
        if form > MOST_FORM:
            raise ProtocolError(f"the form of a line is {form}, expected at most {MOST_FORM}")
        size = _line_size(form)
        if size > end - here:
            _cut(frame)
        here += 1
        line = &lines.lines[lines.count]
        memset(line, 0, sizeof(PackedLine))
        number += 1
        if form & HAS_NUMBER:
            memcpy(&whole, here, 4)
            number = whole
            here += 4
        if number >= string_table.count:
            raise ProtocolError(f"a line is of entry {number}, expected a number below {string_table.count}")
        line.entry = <int> number
        if form & CONSUMED_REAL:
            memcpy(&line.consumed, here, 8)
            here += 8
        else:
            memcpy(&whole, here, 4)
            line.consumed = whole
            here += 4
        if form & SETTLED_REAL == SETTLED_ALL:
            line.settled = line.consumed
        elif form & SETTLED_REAL == SETTLED_WHOLE:
            memcpy(&whole, here, 4)
            line.settled = whole
            here += 4
        elif form & SETTLED_REAL == SETTLED_REAL:
            memcpy(&line.settled, here, 8)
            here += 8
        if form & HAS_REJECTED:
            memcpy(&line.rejected, here, 4)
            here += 4
        if form & HAS_REQUESTS:
            memcpy(&line.requests, here, 4)
            here += 4
        if form & HAS_HELD:
            memcpy(&line.held, here, 8)
            here += 8
        if not (0.0 <= line.settled <= line.consumed <= MOST and 0.0 <= line.held <= MOST):
            raise ProtocolError(
                f"a line of {string_table[line.entry]!r} has consumed {line.consumed!r}, settled {line.settled!r}, "
                f"held {line.held!r}: expected amounts from 0 to {MOST:g}, settled not above consumed"
            )
        lines.count += 1
    lines.group_by_service()
    return lines, here - data


cdef inline Py_ssize_t _line_size(unsigned char form) noexcept:
    return (
        5
        + 4 * (form & HAS_NUMBER)
        + 2 * (form & CONSUMED_REAL)
        + ((form & SETTLED_WHOLE) >> 1)
        + 4 * (form & SETTLED_REAL == SETTLED_REAL)
        + ((form & HAS_REJECTED) >> 2)
        + ((form & HAS_REQUESTS) >> 3)
        + ((form & HAS_HELD) >> 3)
    )


def read_shares(
    bytes frame not None, Py_ssize_t at, StringTable string_table not None, dict services not None, Py_ssize_t most
):
    """Put the shares that stand at `at` into the users of their services; where they end."""
    cdef const char *data = frame
    cdef unsigned int first, count, number, runs = _count(frame, at, 8, most, "runs")
    cdef float amount, safe
    cdef int service, last_service = -1
    cdef dict users = None, shares = None
    cdef dict made = {}  # most have the same as many others: one object for them
    cdef str last_user = None
    cdef unsigned long long both
    cdef Py_ssize_t done = 0
    at += 4
    for _ in range(runs):
        if at + 8 > len(frame):
            _cut(frame)
        memcpy(&first, data + at, 4)
        memcpy(&count, data + at + 4, 4)
        at += 8
        if count * <Py_ssize_t> 8 > len(frame) - at:
            _cut(frame)
        if first + <Py_ssize_t> count > string_table.count:
            raise ProtocolError(
                f"a share is of entry {first + <Py_ssize_t> count - 1}, expected a number below {string_table.count}"
            )
        for number in range(first, first + count):
            memcpy(&amount, data + at, 4)
            memcpy(&safe, data + at + 4, 4)
            memcpy(&both, data + at, 8)
            at += 8
            if not (0.0 <= amount <= <float> MOST and 0.0 <= safe <= <float> MOST):
                raise ProtocolError(f"a share is ({amount!r}, {safe!r}), expected amounts from 0 to {MOST:g}")
            service = string_table.refs[number].service
            if service != last_service:
                users = services.get(string_table.services[service])
                if users is None:
                    raise ProtocolError(
                        f"a share is of the service {string_table.services[service]!r}, expected one of this quota"
                    )
                last_service = service
                last_user = None
            user, resource = string_table.names[number]
            if user is not last_user:
                shares = users.get(user)
                if shares is None:
                    shares = users[user] = {}
                last_user = user
            share = made.get(both)
            if share is None:
                share = made[both] = Share(amount, safe)
            shares[resource] = share
            done += 1
            yield_gil_periodically(done)
    return at


# Writing

cdef struct Numbered:  # a line that is to be written
    int entry
    int at

cdef int _by_entry(const void *one, const void *other) noexcept nogil:
    return (<Numbered *> one).entry - (<Numbered *> other).entry


cdef class KnownBuckets:
    """The buckets of one book that the other end knows."""

    def __cinit__(self):
        self.known = NULL
        self.count = 0

    def __dealloc__(self):
        free(self.known)

    cdef Py_ssize_t place_of(self, int bucket) noexcept:
        cdef Py_ssize_t low = 0, high = self.count, middle
        while low < high:
            middle = (low + high) >> 1
            if self.known[middle].bucket < bucket:
                low = middle + 1
            else:
                high = middle
        return low

    cdef int learn(self, dict fresh) except -1:
        """Take in bucket -> (generation, entry); they replace what the numbers stood for before."""
        cdef Py_ssize_t i = 0, j = 0
        cdef int bucket
        cdef Known *merged
        if not fresh:
            return 0
        merged = <Known *> malloc((self.count + len(fresh)) * sizeof(Known))
        if merged == NULL:
            raise MemoryError
        for new_bucket, (generation, entry) in sorted(fresh.items()):
            bucket = new_bucket
            while i < self.count and self.known[i].bucket < bucket:
                merged[j] = self.known[i]
                i += 1
                j += 1
            if i < self.count and self.known[i].bucket == bucket:
                i += 1
            merged[j] = Known(bucket, generation, entry)
            j += 1
        while i < self.count:
            merged[j] = self.known[i]
            i += 1
            j += 1
        free(self.known)
        self.known = merged
        self.count = j
        return 0


cdef class Introduced:
    """The string table of one direction of a connection, at the end that writes."""

    def __cinit__(self):
        self.entries = self.packed_numbers = NULL
        self.entries_room = self.packed_room = 0
        memset(&self.fresh, 0, sizeof(Buffer))

    def __init__(self, bounds):
        self.most_entries = bounds.entries
        self.most_users = bounds.users
        self.most_lines = bounds.lines
        self.usual = 0
        self.forget()

    def __dealloc__(self):
        free(self.entries)
        free(self.packed_numbers)
        dispose(&self.fresh)

    cdef int forget(self) except -1:
        self.numbers = {}
        self.buckets = {}
        self.count = self.users = self.frames = 0
        self.is_ragged = False
        self.source_table = None
        self.packed_count = 0
        self.settle()
        return 0

    cdef int settle(self) except -1:
        """The frame is written: nothing is new any more."""
        self.fresh.size = 0
        self.fresh_count = 0
        self.last_service = self.last_user = None
        return 0

    cdef int introduce(self, str service, str user, str resource) except -1:
        """Write a new entry; its number."""
        cdef unsigned char form = 0
        if service != self.last_service:
            form = HAS_SERVICE | HAS_USER
        elif user != self.last_user:
            form = HAS_USER
        put(&self.fresh, &form, 1)
        if form & HAS_SERVICE:
            put_name(&self.fresh, service)
        if form & HAS_USER:
            put_name(&self.fresh, user)
            self.users += 1
        put_name(&self.fresh, resource)
        self.last_service = service
        self.last_user = user
        self.fresh_count += 1
        self.count += 1
        return <int> (self.count - 1)

    cdef bint is_outgrown(self, Py_ssize_t used):
        """Whether to begin anew before a frame with so many entries."""
        self.usual = max(used, self.usual - self.usual // 16)
        self.frames += 1
        if self.count > max(FEW, SPARSE * self.usual):
            return True
        return self.is_ragged and self.frames > RAGGED_FRAMES and 2 * used > self.usual

    cdef int number(self, str service, dict users, str user, str resource) except -1:
        """The entry of a name, which is introduced when it is new. `users` are those of the service."""
        cdef dict resources = users.get(user)
        if resources is None:
            resources = users[user] = {}
        found = resources.get(resource)
        if found is None:
            found = resources[resource] = self.introduce(service, user, resource)
        return found

    cdef int number_given(
        self, str service, PackedShares shares, int *entries, Py_ssize_t begin, Py_ssize_t end
    ) except -1:
        """Find the entries of the shares from `begin` to `end`; -1 where a bucket was forgotten since."""
        cdef KnownBuckets buckets = self.buckets.get(service)
        cdef BucketIds bucket_ids = shares.bucket_ids
        cdef Known *known
        cdef Py_ssize_t i, at = 0, count
        cdef int bucket, last = INT_MAX
        cdef unsigned int generation
        cdef dict fresh = {}
        if buckets is None or buckets.bucket_ids is not bucket_ids:
            buckets = self.buckets[service] = KnownBuckets()
            buckets.bucket_ids = bucket_ids
        known = buckets.known
        count = buckets.count
        for i in range(begin, end):
            bucket = shares.packed[i].bucket
            generation = bucket_ids.generations[bucket]
            if generation == 0 or <int> (generation - shares.last_generation) > 0:
                entries[i] = -1
                continue
            if bucket <= last:
                at = buckets.place_of(bucket)  # the first, or given to one who asked, after the others
            last = bucket
            while at < count and known[at].bucket < bucket:
                at += 1
            if at < count and known[at].bucket == bucket and known[at].generation == generation:
                entries[i] = known[at].entry
            elif bucket in fresh:
                entries[i] = fresh[bucket][1]
            else:
                user, resource = bucket_ids.names[bucket]
                entries[i] = self.introduce(service, user, resource)
                fresh[bucket] = (generation, entries[i])
        buckets.learn(fresh)
        return 0

    cdef bint has_room(self) noexcept:
        """Whether the other end will take what is new in this frame."""
        return self.count <= self.most_entries and self.users <= self.most_users

    def begin_shares(self, list parts not None):
        """Begin to write the new entries and shares of [(service, users), ...]; `number_shares` is next."""
        cdef Py_ssize_t used = 0
        cdef int *grown
        for _, users in parts:
            if type(users) is PackedShares:
                used += (<PackedShares> users).count
            else:
                used += sum(map(len, users.values()))
        if used > self.most_entries:
            raise ValueError(f"a frame may have {self.most_entries} shares, got {used}")
        if used > self.entries_room:
            grown = <int *> realloc(self.entries, used * sizeof(int))
            if grown == NULL:
                raise MemoryError
            self.entries = grown
            self.entries_room = used
        self.used = used
        self.anew = self.is_outgrown(used)
        if self.anew:
            self.forget()
        self.part = self.numbered = self.of_part = 0

    def number_shares(self, list parts not None):
        """Find the entries of some more shares, for some milliseconds; whether all have theirs."""
        cdef Py_ssize_t end, begun = self.fresh_count
        cdef PackedShares given
        while self.part < len(parts) and self.fresh_count - begun < FRESH_AT_ONCE:
            service, users = parts[self.part]
            if type(users) is PackedShares:
                given = users
                end = min(given.count, self.of_part + FRESH_AT_ONCE)
                self.number_given(service, given, self.entries + self.numbered, self.of_part, end)
                self.of_part = end
                if end < given.count:
                    continue
                self.numbered += given.count
            else:  # the answer to an ask: never many
                numbers = self.numbers.setdefault(service, {})
                for user, resources in users.items():
                    for resource in resources:
                        self.entries[self.numbered] = self.number(service, numbers, user, resource)
                        self.numbered += 1
            self.of_part = 0
            self.part += 1
        if self.has_room():
            return self.part == len(parts)
        if self.anew:
            self.forget()
            raise ValueError(
                f"a frame may have {self.most_entries} shares of {self.most_users} users, got more"
            )
        self.anew = True
        self.forget()
        self.part = self.numbered = self.of_part = 0
        return False

    def end_shares(self, list parts not None):
        """What was written; and whether the string table begins anew."""
        cdef Buffer buffer
        cdef unsigned int runs
        memset(&buffer, 0, sizeof(Buffer))
        try:
            self._write_fresh(<size_t> &buffer)
            runs = self._write_shares(<size_t> &buffer, parts)
            self.settle()
            self.is_ragged = runs > 64 and runs * RAGGED > self.used
            return self.anew, as_bytes(&buffer)
        finally:
            dispose(&buffer)

    def _write_fresh(self, size_t address):
        cdef Buffer *buffer = <Buffer *> address
        put(buffer, &self.fresh_count, 4)
        if self.fresh.size:
            put(buffer, self.fresh.data, self.fresh.size)

    def _write_shares(self, size_t address, list parts):
        """Returns the number of runs."""
        cdef Buffer *buffer = <Buffer *> address
        cdef Py_ssize_t begin = buffer.size, run = -1, at = 0, i
        cdef unsigned int runs = 0
        cdef int expected = -1
        cdef int *entries = self.entries
        cdef PackedShares given
        cdef float[2] share  # amount and safe
        put(buffer, &runs, 4)
        for _, users in parts:
            if type(users) is PackedShares:
                given = users
                room_for(buffer, 8 * given.count)
                for i in range(given.count):
                    if entries[at] >= 0:
                        if entries[at] != expected:
                            run = _begin_run(buffer, run, entries[at], 8 * (given.count - i))
                            runs += 1
                        share[0] = given.packed[i].amount
                        share[1] = safe_of(&given.packed[i])
                        memcpy(buffer.data + buffer.size, share, 8)
                        buffer.size += 8
                        expected = entries[at] + 1
                    at += 1
                continue
            for resources in users.values():
                for amount, safe in resources.values():
                    share[0] = amount
                    share[1] = safe
                    if entries[at] != expected:
                        run = _begin_run(buffer, run, entries[at], 8)
                        runs += 1
                    put(buffer, share, 8)
                    expected = entries[at] + 1
                    at += 1
        _end_run(buffer, run)
        memcpy(buffer.data + begin, &runs, 4)
        return runs

    def lines(self, lines not None):
        """Write new entries and lines of a report; and whether the string table begins anew."""
        cdef PackedLines packed
        cdef Py_ssize_t used, i
        cdef Buffer buffer
        cdef Numbered *order = NULL
        cdef unsigned int count
        cdef int expected = 0, last = -1
        cdef bint anew, is_sorted = True
        packed = lines if type(lines) is PackedLines else packed_lines(lines)
        used = packed.count
        if used > self.most_lines:
            raise ValueError(f"a report may have {self.most_lines} lines, got {used}")
        anew = self.is_outgrown(used)
        if anew:
            self.forget()
        self._number_lines(packed)
        if not self.has_room():
            anew = True
            self.forget()
            self._number_lines(packed)
            if not self.has_room():
                users_now = self.users
                self.forget()
                raise ValueError(
                    f"a report may have {self.most_entries} lines of {self.most_users} users, "
                    f"got {used} of {users_now}"
                )
        memset(&buffer, 0, sizeof(Buffer))
        order = <Numbered *> malloc(max(1, used) * sizeof(Numbered))
        try:
            if order == NULL:
                raise MemoryError
            for i in range(used):
                order[i] = Numbered(self.packed_numbers[packed.lines[i].entry], <int> i)
                is_sorted = is_sorted and order[i].entry > last
                last = order[i].entry
            if not is_sorted:
                qsort(order, used, sizeof(Numbered), _by_entry)
            self._write_fresh(<size_t> &buffer)
            count = <unsigned int> used
            put(&buffer, &count, 4)
            for i in range(used):
                _write_line(&buffer, order[i].entry, expected, &packed.lines[order[i].at])
                expected = order[i].entry + 1
            self.settle()
            self.is_ragged = False
            return anew, as_bytes(&buffer)
        finally:
            free(order)
            dispose(&buffer)

    cdef int _number_lines(self, PackedLines packed) except -1:
        """Find the entries here of all entries there, in `packed_numbers`."""
        cdef StringTable string_table = packed.string_table
        cdef Py_ssize_t i, room = len(string_table)
        cdef int *grown
        cdef int entry
        if self.source_table is not string_table:
            self.source_table = string_table
            self.packed_count = 0
        if room > self.packed_room:
            room += room // 2
            grown = <int *> realloc(self.packed_numbers, room * sizeof(int))
            if grown == NULL:
                raise MemoryError
            self.packed_numbers = grown
            self.packed_room = room
        while self.packed_count < len(string_table):
            self.packed_numbers[self.packed_count] = -1
            self.packed_count += 1
        for i in range(packed.count):
            yield_gil_periodically(i + 1)
            entry = packed.lines[i].entry
            if self.packed_numbers[entry] < 0:
                service = string_table.services[string_table.refs[entry].service]
                user, resource = string_table.names[entry]
                numbers = self.numbers.setdefault(service, {})
                self.packed_numbers[entry] = self.number(service, numbers, user, resource)
        return 0


cdef PackedLines packed_lines(lines):
    """Lines in dicts, with a string table of their own."""
    cdef StringTable string_table = StringTable()
    cdef PackedLines packed = PackedLines(string_table)
    cdef PackedLine *line
    packed.allocate(sum(len(resources) for users in lines.values() for resources in users.values()))
    for service, users in lines.items():
        for user, resources in users.items():
            for resource, (consumed, rejected, requests, settled, held) in resources.items():
                line = &packed.lines[packed.count]
                line.entry = <int> len(string_table)
                string_table.add(service, user, resource)
                line.consumed = consumed
                line.rejected = <unsigned int> (<unsigned long long> rejected)
                line.requests = <unsigned int> (<unsigned long long> requests)
                line.settled = settled
                line.held = held
                packed.count += 1
    return packed


cdef Py_ssize_t _begin_run(Buffer *buffer, Py_ssize_t run, int entry, Py_ssize_t more) except -1:
    """End the run at `run` and begin another one; where it stands."""
    cdef unsigned int first = <unsigned int> entry, length = 0
    _end_run(buffer, run)
    run = buffer.size
    room_for(buffer, 8 + more)
    put(buffer, &first, 4)
    put(buffer, &length, 4)
    return run


cdef void _end_run(Buffer *buffer, Py_ssize_t run) noexcept:
    cdef unsigned int length
    if run >= 0:
        length = <unsigned int> ((buffer.size - run - 8) // 8)
        memcpy(buffer.data + run + 4, &length, 4)


cdef inline bint _is_whole(double value) noexcept:
    return 0.0 <= value < 4294967296.0 and value == floor(value)


cdef int _write_line(Buffer *buffer, int entry, int expected, PackedLine *line) except -1:
    cdef double consumed = line.consumed, settled = line.settled, held = line.held
    cdef unsigned int number = <unsigned int> entry, whole, refused = line.rejected, served = line.requests
    cdef unsigned char form = 0
    cdef char *here = room_for(buffer, LONGEST_LINE)
    cdef char *begin = here
    if not (0.0 <= settled <= consumed <= MOST and 0.0 <= held <= MOST):
        raise ValueError(
            f"expected amounts from 0 to {MOST:g}, settled not above consumed, "
            f"got {(consumed, refused, served, settled, held)!r}"
        )
    here += 1
    if entry != expected:
        form |= HAS_NUMBER
        memcpy(here, &number, 4)
        here += 4
    if _is_whole(consumed):
        whole = <unsigned int> consumed
        memcpy(here, &whole, 4)
        here += 4
    else:
        form |= CONSUMED_REAL
        memcpy(here, &consumed, 8)
        here += 8
    if settled == 0.0:
        pass
    elif settled == consumed:
        form |= SETTLED_ALL
    elif _is_whole(settled):
        form |= SETTLED_WHOLE
        whole = <unsigned int> settled
        memcpy(here, &whole, 4)
        here += 4
    else:
        form |= SETTLED_REAL
        memcpy(here, &settled, 8)
        here += 8
    if refused:
        form |= HAS_REJECTED
        memcpy(here, &refused, 4)
        here += 4
    if served:
        form |= HAS_REQUESTS
        memcpy(here, &served, 4)
        here += 4
    if held > 0.0:
        form |= HAS_HELD
        memcpy(here, &held, 8)
        here += 8
    begin[0] = form
    buffer.size += here - begin
    return 0

# cython: language_level=3, boundscheck=False, wraparound=False
"""The bulk of binary frames: string table entries, report lines and shares, read and written.

The rest of a frame (kinds, heads, names of services) is in `binary.py`, asks and hints are in
`_asks.pyx`. Every length is checked against the bytes that are left before anything is allocated;
amounts are finite, from 0 to 1e18; an entry number is one that was introduced.

`StringTableWriter` is the string table of the writing end. Shares that come from an assignment
(`PackedShares`) refer to buckets by number, in rising order, and so do the buckets that the peer
knows (`KnownBuckets`): one walk along both finds the entries.
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
from sluicegate.quota.wire._named_tuple cimport new_pair

__all__ = ["StringTableWriter", "read_entries", "read_lines", "read_shares"]

cdef extern from *:
    """
    /* The string table is reset when it has this many entries for each one in use. */
    #define SPARSE_FACTOR 4
    #define MIN_ENTRIES 1000
    /* Or when its entries are used out of order (fragmented into many runs), but not too often. */
    #define FRAGMENTED_RUNS 8
    #define MIN_FRAMES_BETWEEN_RESETS 60
    /* To add this many takes a few milliseconds. */
    #define NEW_ENTRIES_PER_STEP 5000
    """
    const Py_ssize_t SPARSE_FACTOR, MIN_ENTRIES, FRAGMENTED_RUNS, MIN_FRAMES_BETWEEN_RESETS, NEW_ENTRIES_PER_STEP

cdef enum:  # the form of an entry; without a bit, that part is that of the entry before
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
    HAS_CREDIT = 128  # granted and returned

cdef double MAX_AMOUNT = 1e18
cdef Py_ssize_t MAX_LINE_BYTES = 1 + 4 + 8 + 8 + 4 + 4 + 8 + 16

cdef enum:
    SHARE_BYTES = 12  # a double and a float


# Reading

cdef int fail_truncated(bytes frame) except -1:
    raise ProtocolError(f"truncated frame: got {len(frame)} bytes, expected more")


cdef unsigned int read_count(bytes frame, Py_ssize_t at, Py_ssize_t least, Py_ssize_t most, str what) except? 0:
    """Read a count of items of at least `least` bytes each."""
    cdef unsigned int count
    cdef const char *data = frame
    if at + 4 > len(frame):
        fail_truncated(frame)
    memcpy(&count, data + at, 4)
    if count > most:
        raise ProtocolError(f"the number of {what} is {count}, expected at most {most}")
    if count * least > len(frame) - at - 4:
        fail_truncated(frame)
    return count


cdef str read_name(bytes frame, Py_ssize_t at, Py_ssize_t most, str what):
    cdef const char *data = frame
    cdef Py_ssize_t size
    if at >= len(frame):
        fail_truncated(frame)
    size = <unsigned char> data[at]
    if size > len(frame) - at - 1:
        fail_truncated(frame)
    if not 0 < size <= most:
        raise ProtocolError(f"{what} has {size} bytes, expected a name of 1 to {most} bytes of UTF-8")
    try:
        return data[at + 1 : at + 1 + size].decode("utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError(f"{what} is {data[at + 1 : at + 1 + size]!r}, expected UTF-8") from error


def read_entries(bytes frame not None, Py_ssize_t at, StringTable string_table not None, bounds, Py_ssize_t most):
    """Add the new entries at `at`, at most `most`, to the string table; returns where they end."""
    cdef const char *data = frame
    cdef Py_ssize_t max_users = bounds.users, name_bytes = bounds.name_bytes
    cdef unsigned char form
    cdef str service = None, user = None, resource
    cdef unsigned int count = read_count(
        frame, at, 3, min(most, bounds.entries - string_table.count), "new entries"
    )
    cdef unsigned int i
    resources = {}  # there are few of them: one string for each will do
    at += 4
    for i in range(count):
        yield_gil_periodically(i + 1)
        if at >= len(frame):
            fail_truncated(frame)
        form = data[at]
        if form > (HAS_SERVICE | HAS_USER):
            raise ProtocolError(f"the form of an entry is {form}, expected 0 to 3")
        at += 1
        if form & HAS_SERVICE:
            service = read_name(frame, at, bounds.service_bytes, "service")
            at += 1 + <unsigned char> data[at]
        if form & HAS_USER:
            user = read_name(frame, at, name_bytes, "user")
            at += 1 + <unsigned char> data[at]
            string_table.user_count += 1
            if string_table.user_count > max_users:
                raise ProtocolError(f"the number of users is {string_table.user_count}, expected at most {max_users}")
        if service is None or user is None:
            raise ProtocolError("the first new entry of the frame has no service or no user, expected both")
        resource = read_name(frame, at, name_bytes, "resource")
        at += 1 + <unsigned char> data[at]
        string_table.add(service, user, resources.setdefault(resource, resource))
    return at


def read_lines(bytes frame not None, Py_ssize_t at, StringTable string_table not None, Py_ssize_t most):
    """The lines at `at`, at most `most`, and where they end."""
    cdef const char *data = frame
    cdef const char *here
    cdef const char *end = data + len(frame)
    cdef unsigned int count = read_count(frame, at, 5, min(most, string_table.count), "lines"), whole
    cdef long long number = -1
    cdef unsigned char form
    cdef PackedLines lines = PackedLines(string_table)
    cdef PackedLine *line
    cdef Py_ssize_t size
    lines.allocate(count)
    here = data + at + 4
    for _ in range(count):
        if here >= end:
            fail_truncated(frame)
        form = here[0]
        size = _line_size(form)
        if size > end - here:
            fail_truncated(frame)
        here += 1
        line = &lines.lines[lines.count]
        number += 1
        if form & HAS_NUMBER:
            memcpy(&whole, here, 4)
            number = whole
            here += 4
        if number >= string_table.count:
            raise ProtocolError(f"the entry of a line is {number}, expected a number below {string_table.count}")
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
        if form & HAS_CREDIT:
            memcpy(&line.granted, here, 8)
            memcpy(&line.returned, here + 8, 8)
            here += 16
        if not _is_valid(line):
            raise ProtocolError(
                f"invalid line of {string_table[line.entry]!r}: consumed {line.consumed!r}, settled {line.settled!r}, "
                f"held {line.held!r}, granted {line.granted!r}, returned {line.returned!r}, expected amounts "
                f"from 0 to {MAX_AMOUNT:g}, settled not above consumed, returned not above granted"
            )
        lines.count += 1
    lines.group_by_service()
    return lines, here - data


cdef inline bint _is_valid(const PackedLine *line) noexcept:
    return (
        0.0 <= line.settled <= line.consumed <= MAX_AMOUNT
        and 0.0 <= line.held <= MAX_AMOUNT
        and 0.0 <= line.returned <= line.granted <= MAX_AMOUNT
    )


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
        + ((form & HAS_CREDIT) >> 3)
    )


def read_shares(
    bytes frame not None, Py_ssize_t at, StringTable string_table not None, dict services not None, Py_ssize_t most
):
    """Put the shares at `at` into the users of their services; returns where they end."""
    cdef const char *data = frame
    cdef unsigned int first, count, number, runs = read_count(frame, at, 8, most, "runs")
    cdef double granted
    cdef float safe
    cdef int service, last_service = -1
    cdef dict users = None, shares = None
    cdef str last_user = None
    cdef Py_ssize_t done = 0
    at += 4
    for _ in range(runs):
        if at + 8 > len(frame):
            fail_truncated(frame)
        memcpy(&first, data + at, 4)
        memcpy(&count, data + at + 4, 4)
        at += 8
        if count * <Py_ssize_t> SHARE_BYTES > len(frame) - at:
            fail_truncated(frame)
        if first + <Py_ssize_t> count > string_table.count:
            raise ProtocolError(
                f"the entry of a share is {first + <Py_ssize_t> count - 1}, "
                f"expected a number below {string_table.count}"
            )
        for number in range(first, first + count):
            memcpy(&granted, data + at, 8)
            memcpy(&safe, data + at + 8, 4)
            at += SHARE_BYTES
            if not (0.0 <= granted <= MAX_AMOUNT and 0.0 <= safe <= MAX_AMOUNT):
                raise ProtocolError(f"a share is ({granted!r}, {safe!r}), expected amounts from 0 to {MAX_AMOUNT:g}")
            service = string_table.refs[number].service
            if service != last_service:
                users = services.get(string_table.services[service])
                if users is None:
                    raise ProtocolError(
                        f"the service of a share is {string_table.services[service]!r}, expected one of this quota"
                    )
                last_service = service
                last_user = None
            user, resource = string_table.names[number]
            if user is not last_user:
                shares = users.get(user)
                if shares is None:
                    shares = users[user] = {}
                last_user = user
            shares[resource] = new_pair(Share, granted, safe)
            done += 1
            yield_gil_periodically(done)
    return at


# Writing

cdef struct LineOrder:  # the position of a line in the frame
    int entry
    int at

cdef int _by_entry(const void *one, const void *other) noexcept nogil:
    return (<LineOrder *> one).entry - (<LineOrder *> other).entry


cdef class KnownBuckets:
    """The buckets of one service ledger for which the peer has entries."""

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

    cdef int merge(self, dict added) except -1:
        """Merge in bucket -> (generation, entry); they replace older ones of the same number."""
        cdef Py_ssize_t i = 0, j = 0
        cdef int bucket
        cdef KnownBucket *merged
        if not added:
            return 0
        merged = <KnownBucket *> malloc((self.count + len(added)) * sizeof(KnownBucket))
        if merged == NULL:
            raise MemoryError
        for new_bucket, (generation, entry) in sorted(added.items()):
            bucket = new_bucket
            while i < self.count and self.known[i].bucket < bucket:
                merged[j] = self.known[i]
                i += 1
                j += 1
            if i < self.count and self.known[i].bucket == bucket:
                i += 1
            merged[j] = KnownBucket(bucket, generation, entry)
            j += 1
        while i < self.count:
            merged[j] = self.known[i]
            i += 1
            j += 1
        free(self.known)
        self.known = merged
        self.count = j
        return 0


cdef class StringTableWriter:
    """The string table of one direction of a connection, at the writing end.

    The shares of a quota are written in three steps: `start_shares`, `resolve_shares` until it returns
    True, `write_shares`; the lines of a report in one, `write_lines`; what a node asks for by `_asks`.

    Reports and whole quotas name all users that matter, so they decide when the table is reset because
    most of it is unused. Asks and answers, many in a slot, reset it only when it is full.
    """

    def __cinit__(self):
        self.share_entries = self.source_entries = NULL
        self.share_entries_room = self.source_room = 0
        memset(&self.new_entries, 0, sizeof(Buffer))

    def __init__(self, bounds):
        self.max_entries = bounds.entries
        self.max_users = bounds.users
        self.max_lines = bounds.lines
        self.typical_count = 0
        self.reset()

    def __dealloc__(self):
        free(self.share_entries)
        free(self.source_entries)
        dispose(&self.new_entries)

    cdef int reset(self) except -1:
        self.entries_by_name = {}
        self.known_buckets = {}
        self.count = self.user_count = self.frame_count = 0
        self.is_fragmented = False
        self.source_table = None
        self.source_count = 0
        self.end_frame()
        return 0

    cdef int end_frame(self) except -1:
        """Discard the new entries: their frame is written."""
        self.new_entries.size = 0
        self.new_count = 0
        self.last_service = self.last_user = None
        return 0

    cdef int add_entry(self, str service, str user, str resource) except -1:
        """Add an entry and encode it for this frame; returns its number."""
        cdef unsigned char form = 0
        if service != self.last_service:
            form = HAS_SERVICE | HAS_USER
        elif user != self.last_user:
            form = HAS_USER
        put(&self.new_entries, &form, 1)
        if form & HAS_SERVICE:
            put_name(&self.new_entries, service)
        if form & HAS_USER:
            put_name(&self.new_entries, user)
            self.user_count += 1
        put_name(&self.new_entries, resource)
        self.last_service = service
        self.last_user = user
        self.new_count += 1
        self.count += 1
        return <int> (self.count - 1)

    cdef bint needs_reset(self, Py_ssize_t used):
        """Whether to reset the table before a frame with `used` entries."""
        self.typical_count = max(used, self.typical_count - self.typical_count // 16)
        self.frame_count += 1
        if self.count > max(MIN_ENTRIES, SPARSE_FACTOR * self.typical_count):
            return True
        return self.is_fragmented and self.frame_count > MIN_FRAMES_BETWEEN_RESETS and 2 * used > self.typical_count

    cdef int find_or_add(self, str service, dict users, str user, str resource) except -1:
        """The entry of a name, added if it is new. `users` are those of the service."""
        cdef dict resources = users.get(user)
        if resources is None:
            resources = users[user] = {}
        found = resources.get(resource)
        if found is None:
            found = resources[resource] = self.add_entry(service, user, resource)
        return found

    cdef int resolve_packed(
        self, str service, PackedShares shares, int *entries, Py_ssize_t begin, Py_ssize_t end
    ) except -1:
        """Find the entries of the shares from `begin` to `end`; -1 where a bucket was forgotten since."""
        cdef KnownBuckets buckets = self.known_buckets.get(service)
        cdef BucketIds bucket_ids = shares.bucket_ids
        cdef KnownBucket *known
        cdef Py_ssize_t i, at = 0, count
        cdef int bucket, last = INT_MAX
        cdef unsigned int generation
        cdef dict added = {}
        if buckets is None or buckets.bucket_ids is not bucket_ids:
            buckets = self.known_buckets[service] = KnownBuckets()
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
                at = buckets.place_of(bucket)  # the first, or granted to an ask after the others
            last = bucket
            while at < count and known[at].bucket < bucket:
                at += 1
            if at < count and known[at].bucket == bucket and known[at].generation == generation:
                entries[i] = known[at].entry
            elif bucket in added:
                entries[i] = added[bucket][1]
            else:
                user, resource = bucket_ids.names[bucket]
                entries[i] = self.add_entry(service, user, resource)
                added[bucket] = (generation, entries[i])
        buckets.merge(added)
        return 0

    cdef bint is_within_bounds(self) noexcept:
        """Whether the peer accepts as many entries and users."""
        return self.count <= self.max_entries and self.user_count <= self.max_users

    def start_shares(self, list services not None, *, bint whole):
        """Start to write the shares of [(service, users), ...], those of a whole quota or of an answer."""
        cdef Py_ssize_t used = 0
        cdef int *grown
        for _, users in services:
            if type(users) is PackedShares:
                used += (<PackedShares> users).count
            else:
                used += sum(map(len, users.values()))
        if used > self.max_entries:
            raise ValueError(f"too many shares in a frame: got {used}, expected at most {self.max_entries}")
        if used > self.share_entries_room:
            grown = <int *> realloc(self.share_entries, used * sizeof(int))
            if grown == NULL:
                raise MemoryError
            self.share_entries = grown
            self.share_entries_room = used
        self.share_count = used
        self.is_whole = whole
        self.is_reset = whole and self.needs_reset(used)
        if self.is_reset:
            self.reset()
        self.next_service = self.next_share = self.next_in_service = 0

    def resolve_shares(self, list services not None):
        """Find or add the entries of more shares, for a few milliseconds; True when all have one."""
        cdef Py_ssize_t end, before = self.new_count
        cdef PackedShares packed
        while self.next_service < len(services) and self.new_count - before < NEW_ENTRIES_PER_STEP:
            service, users = services[self.next_service]
            if type(users) is PackedShares:
                packed = users
                end = min(packed.count, self.next_in_service + NEW_ENTRIES_PER_STEP)
                self.resolve_packed(service, packed, self.share_entries + self.next_share, self.next_in_service, end)
                self.next_in_service = end
                if end < packed.count:
                    continue
                self.next_share += packed.count
            else:  # the answer to an ask: never many
                numbers = self.entries_by_name.setdefault(service, {})
                for user, resources in users.items():
                    for resource in resources:
                        self.share_entries[self.next_share] = self.find_or_add(service, numbers, user, resource)
                        self.next_share += 1
            self.next_in_service = 0
            self.next_service += 1
        if self.is_within_bounds():
            return self.next_service == len(services)
        if self.is_reset:
            self.reset()
            raise ValueError(
                f"too many shares in a frame: expected at most {self.max_entries} of {self.max_users} users, got more"
            )
        self.is_reset = True
        self.reset()
        self.next_service = self.next_share = self.next_in_service = 0
        return False

    def write_shares(self, list services not None):
        """Encode the new entries and the shares: (whether the table is reset, bytes)."""
        cdef Buffer buffer
        cdef unsigned int runs
        memset(&buffer, 0, sizeof(Buffer))
        try:
            self.put_new_entries(&buffer)
            runs = self._write_runs(<size_t> &buffer, services)
            self.end_frame()
            if self.is_whole:
                self.is_fragmented = runs > 64 and runs * FRAGMENTED_RUNS > self.share_count
            return self.is_reset, as_bytes(&buffer)
        finally:
            dispose(&buffer)

    cdef int put_new_entries(self, Buffer *buffer) except -1:
        put(buffer, &self.new_count, 4)
        if self.new_entries.size:
            put(buffer, self.new_entries.data, self.new_entries.size)
        return 0

    def _write_runs(self, size_t address, list services):
        """Encode the shares as runs of consecutive entries; returns the number of runs."""
        cdef Buffer *buffer = <Buffer *> address
        cdef Py_ssize_t begin = buffer.size, run = -1, at = 0, i
        cdef unsigned int runs = 0
        cdef int expected = -1
        cdef int *entries = self.share_entries
        cdef PackedShares packed
        cdef double granted
        cdef float safe
        put(buffer, &runs, 4)
        for _, users in services:
            if type(users) is PackedShares:
                packed = users
                room_for(buffer, SHARE_BYTES * packed.count)
                for i in range(packed.count):
                    if entries[at] >= 0:
                        if entries[at] != expected:
                            run = _begin_run(buffer, run, entries[at], SHARE_BYTES * (packed.count - i))
                            runs += 1
                        _put_share(buffer, packed.packed[i].granted, safe_of(&packed.packed[i]))
                        expected = entries[at] + 1
                    at += 1
                continue
            for resources in users.values():
                for granted, safe in resources.values():
                    if entries[at] != expected:
                        run = _begin_run(buffer, run, entries[at], SHARE_BYTES)
                        runs += 1
                    room_for(buffer, SHARE_BYTES)
                    _put_share(buffer, granted, safe)
                    expected = entries[at] + 1
                    at += 1
        _end_run(buffer, run)
        memcpy(buffer.data + begin, &runs, 4)
        return runs

    def write_lines(self, lines not None):
        """Encode the new entries and lines of a report: (whether the table is reset, bytes)."""
        cdef PackedLines packed
        cdef Py_ssize_t used, i
        cdef Buffer buffer
        cdef LineOrder *order = NULL
        cdef unsigned int count
        cdef int expected = 0, last = -1
        cdef bint is_reset, is_sorted = True
        packed = lines if type(lines) is PackedLines else pack_lines(lines)
        used = packed.count
        if used > self.max_lines:
            raise ValueError(f"too many lines in a report: got {used}, expected at most {self.max_lines}")
        is_reset = self.needs_reset(used)
        if is_reset:
            self.reset()
        self._resolve_lines(packed)
        if not self.is_within_bounds():
            is_reset = True
            self.reset()
            self._resolve_lines(packed)
            if not self.is_within_bounds():
                user_count = self.user_count
                self.reset()
                raise ValueError(
                    f"too many lines in a report: expected at most {self.max_entries} of {self.max_users} users, "
                    f"got {used} of {user_count}"
                )
        memset(&buffer, 0, sizeof(Buffer))
        order = <LineOrder *> malloc(max(1, used) * sizeof(LineOrder))
        try:
            if order == NULL:
                raise MemoryError
            for i in range(used):
                order[i] = LineOrder(self.source_entries[packed.lines[i].entry], <int> i)
                is_sorted = is_sorted and order[i].entry > last
                last = order[i].entry
            if not is_sorted:
                qsort(order, used, sizeof(LineOrder), _by_entry)
            self.put_new_entries(&buffer)
            count = <unsigned int> used
            put(&buffer, &count, 4)
            for i in range(used):
                _write_line(&buffer, order[i].entry, expected, &packed.lines[order[i].at])
                expected = order[i].entry + 1
            self.end_frame()
            self.is_fragmented = False
            return is_reset, as_bytes(&buffer)
        finally:
            free(order)
            dispose(&buffer)

    cdef int _resolve_lines(self, PackedLines packed) except -1:
        """Find or add the entries of all lines, in `source_entries`."""
        cdef StringTable string_table = packed.string_table
        cdef Py_ssize_t i, room = len(string_table)
        cdef int *grown
        cdef int entry
        if self.source_table is not string_table:
            self.source_table = string_table
            self.source_count = 0
        if room > self.source_room:
            room += room // 2
            grown = <int *> realloc(self.source_entries, room * sizeof(int))
            if grown == NULL:
                raise MemoryError
            self.source_entries = grown
            self.source_room = room
        while self.source_count < len(string_table):
            self.source_entries[self.source_count] = -1
            self.source_count += 1
        for i in range(packed.count):
            yield_gil_periodically(i + 1)
            entry = packed.lines[i].entry
            if self.source_entries[entry] < 0:
                service = string_table.services[string_table.refs[entry].service]
                user, resource = string_table.names[entry]
                numbers = self.entries_by_name.setdefault(service, {})
                self.source_entries[entry] = self.find_or_add(service, numbers, user, resource)
        return 0


cdef PackedLines pack_lines(lines):
    """Pack lines that are in dicts, with an own string table."""
    cdef StringTable string_table = StringTable()
    cdef PackedLines packed = PackedLines(string_table)
    cdef PackedLine *line
    packed.allocate(sum(len(resources) for users in lines.values() for resources in users.values()))
    for service, users in lines.items():
        for user, resources in users.items():
            for resource, (consumed, rejected, requests, settled, held, granted, returned) in resources.items():
                line = &packed.lines[packed.count]
                line.entry = <int> len(string_table)
                string_table.add(service, user, resource)
                line.consumed = consumed
                line.rejected = <unsigned int> (<unsigned long long> rejected)
                line.requests = <unsigned int> (<unsigned long long> requests)
                line.settled = settled
                line.held = held
                line.granted = granted
                line.returned = returned
                packed.count += 1
    return packed


cdef Py_ssize_t _begin_run(Buffer *buffer, Py_ssize_t run, int entry, Py_ssize_t more) except -1:
    """End the run at `run` and begin another one; returns where it is."""
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
        length = <unsigned int> ((buffer.size - run - 8) // SHARE_BYTES)
        memcpy(buffer.data + run + 4, &length, 4)


cdef inline void _put_share(Buffer *buffer, double granted, float safe) noexcept:
    """The caller has made room for it."""
    memcpy(buffer.data + buffer.size, &granted, 8)
    memcpy(buffer.data + buffer.size + 8, &safe, 4)
    buffer.size += SHARE_BYTES


cdef inline bint _is_whole(double value) noexcept:
    return 0.0 <= value < 4294967296.0 and value == floor(value)


cdef int _write_line(Buffer *buffer, int entry, int expected, PackedLine *line) except -1:
    cdef double consumed = line.consumed, settled = line.settled, held = line.held
    cdef unsigned int number = <unsigned int> entry, whole, refused = line.rejected, served = line.requests
    cdef unsigned char form = 0
    cdef char *here = room_for(buffer, MAX_LINE_BYTES)
    cdef char *begin = here
    if not _is_valid(line):
        raise ValueError(
            f"invalid line: expected amounts from 0 to {MAX_AMOUNT:g}, settled not above consumed, returned not "
            f"above granted, got {(consumed, refused, served, settled, held, line.granted, line.returned)!r}"
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
    if line.granted > 0.0:  # what was not granted cannot be returned
        form |= HAS_CREDIT
        memcpy(here, &line.granted, 8)
        memcpy(here + 8, &line.returned, 8)
        here += 16
    begin[0] = form
    buffer.size += here - begin
    return 0

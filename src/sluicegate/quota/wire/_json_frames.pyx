# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The bulk of JSON frames: report lines parsed from JSON, asks checked, and shares written as JSON.

`JsonLineReader` keeps the string table of a connection, so that lines of JSON frames are booked as
those of binary frames: a name is looked up in the ledger once. Its memory is bounded as theirs is:
the table is reset when most of it is unused.

Totals of grants are written to the last bit: a node tells them to the leader, which believes it. Other
amounts have six digits after the point, and nine where they are below one.
"""

import json

from cpython.mem cimport PyMem_Free
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.math cimport floor
from libc.stdio cimport snprintf
from libc.string cimport memcmp, memcpy, memset, strcpy, strlen

from sluicegate.errors import ProtocolError
from sluicegate.quota.messages import Credit, UserAsk
from sluicegate.quota.packed._shares cimport PackedShare, PackedShares, pack_share, safe_of
from sluicegate.quota.packed._report_lines cimport PackedLine, PackedLines, StringTable
from sluicegate.quota.wire._buffer cimport Buffer, PyUnicode_AsUTF8AndSize, as_bytes, dispose, put, room_for
from sluicegate.quota.wire._named_tuple cimport new_quad, new_triple
from sluicegate.quota.wire.validation import amount, fail, name, whole

__all__ = ["JsonLineReader", "find_lines_value", "read_user_asks", "write_packed_shares"]

cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)
    char *PyOS_double_to_string(double value, char form, int precision, int flags, int *kind) except NULL

cdef extern from *:
    """
    /* The string table is reset when it has this many entries for each one in use. */
    #define SPARSE_FACTOR 4
    #define MIN_ENTRIES 1000
    """
    const Py_ssize_t SPARSE_FACTOR, MIN_ENTRIES

cdef double MAX_AMOUNT = 1e18
_MAX_REQUESTS = 1_000_000_000  # that a node asks for
_LINE = "[consumed, rejected, requests, settled, held, granted, returned], the last two or none of them left out"


cdef inline int _check_name(what, value, Py_ssize_t most) except -1:
    # Most names are short and of ASCII: no need to look closer.
    if type(value) is not str or not PyUnicode_IS_ASCII(value) or not 0 < PyUnicode_GET_LENGTH(value) <= most:
        name(what, value, most)
    return 0


cdef inline double _amount(what, value) except? -1.0:
    cdef double number
    if type(value) is float or type(value) is int:
        number = value
        if 0.0 <= number <= MAX_AMOUNT:
            return number
    return amount(what, value)


cdef inline unsigned int _requests(what, value) except? 0xFFFFFFFF:
    """A number of requests; it wraps at 2**32."""
    if type(value) is not int:
        value = whole(what, value, 0, 1 << 63)
    elif value < 0:
        fail(what, value, "a whole number from 0 up")
    return <unsigned int> (<unsigned long long> value)


cdef class JsonLineReader:
    """Reads the report lines of one connection's JSON frames into its string table."""

    cdef StringTable string_table
    cdef dict entries_by_name  # service -> user -> resource -> entry

    def __cinit__(self):
        self._reset_table()

    def __reduce__(self):
        raise TypeError("a JsonLineReader belongs to one connection: it cannot be copied or pickled")

    cdef int _reset_table(self) except -1:
        self.string_table = StringTable()
        self.entries_by_name = {}
        return 0

    def __len__(self):
        return self.string_table.count

    def pack(self, lines, bounds):
        """Check what stood under `lines` in a report, and pack it."""
        cdef Py_ssize_t name_bytes = bounds.name_bytes, most = bounds.resources
        cdef Py_ssize_t count = 0, left = bounds.users
        cdef PackedLines packed
        cdef PackedLine *line
        cdef dict resources, numbers, user_entries
        if type(lines) is not dict or len(lines) > bounds.services:
            fail("lines", lines, f"an object of at most {bounds.services} services")
        for service, users in lines.items():
            _check_name("service", service, bounds.service_bytes)
            if type(users) is not dict or len(users) > left:
                fail("users", users, f"an object of at most {left} users")
            left -= len(users)
            for resources_of_user in (<dict> users).values():
                if type(resources_of_user) is not dict or len(resources_of_user) > most:
                    fail("resources", resources_of_user, f"an object of at most {most} resources")
                count += len(<dict> resources_of_user)
        if count > bounds.lines:
            fail("the number of lines", count, f"at most {bounds.lines}")
        if self.string_table.count > max(MIN_ENTRIES, SPARSE_FACTOR * count):
            self._reset_table()
        packed = PackedLines(self.string_table)
        packed.allocate(count)
        for service, users in lines.items():
            user_entries = self.entries_by_name.setdefault(service, {})
            for user, resources_of_user in (<dict> users).items():
                resources = <dict> resources_of_user
                found = user_entries.get(user)
                if found is None:
                    _check_name("user", user, name_bytes)
                    found = user_entries[user] = {}
                numbers = <dict> found
                for resource, values in resources.items():
                    entry = numbers.get(resource)
                    if entry is None:
                        _check_name("resource", resource, name_bytes)
                        entry = numbers[resource] = self.string_table.count
                        self.string_table.add(service, user, resource)
                    line = &packed.lines[packed.count]
                    line.entry = entry
                    self._line(line, values)
                    packed.count += 1
        packed.group_by_service()
        return packed

    def parse(self, bytes frame not None, Py_ssize_t begin, bounds):
        """As `pack`, straight from the bytes of a frame, from `begin` on; and where the lines end.

        A report names its users in about the order of the one before: the entry that is next in
        the string table is tried first, and only if it is another one the name is looked up.
        """
        cdef Cursor cursor
        cdef Py_ssize_t most = 0, i, users_left = bounds.users, entry = -1
        cdef const char *data = frame
        cdef const char *name_at
        cdef PackedLines packed
        cdef str service
        cdef dict users
        cdef bint is_plain
        if not 0 <= begin <= len(frame):
            raise ValueError(f"begin must be from 0 to {len(frame)}, got {begin}")
        cursor.here = data + begin
        cursor.end = data + len(frame)
        for i in range(begin, len(frame)):
            most += data[i] == 91
        if most > bounds.lines:
            raise ProtocolError(f"the number of lines is {most}, expected at most {bounds.lines}")
        if self.string_table.count > max(MIN_ENTRIES, SPARSE_FACTOR * most):
            self._reset_table()
        packed = PackedLines(self.string_table)
        packed.allocate(most)
        has_more = _open_object(&cursor, "an object of services")
        while has_more:
            _skip_blanks(&cursor)
            name_at = cursor.here
            is_plain = _skip_string(&cursor, "a service")
            service = _decoded(name_at, cursor.here, is_plain)
            _check_name("service", service, bounds.service_bytes)
            users = self.entries_by_name.setdefault(service, {})
            _expect_byte(&cursor, 58, "a colon")
            has_more_users = _open_object(&cursor, "an object of users")
            while has_more_users:
                users_left -= 1
                if users_left < 0:
                    raise ProtocolError(f"too many users in the report, expected at most {bounds.users}")
                entry = self._parse_user(&cursor, packed, service, users, entry, bounds)
                has_more_users = _has_next(&cursor, 125)
            has_more = _has_next(&cursor, 125)
        packed.group_by_service()
        return packed, cursor.here - data

    cdef Py_ssize_t _parse_user(
        self, Cursor *cursor, PackedLines packed, str service, dict users, Py_ssize_t entry, bounds
    ) except -2:
        """Parse one user and its resources. `entry` is the last one seen; returns the new last one."""
        cdef const char *name_at
        cdef StringTable string_table = self.string_table
        cdef PackedLine *line
        cdef str user = None, resource
        cdef tuple expected
        cdef dict numbers = None
        cdef Py_ssize_t size
        cdef bint is_plain, has_more
        cdef int service_number = string_table.service_numbers.get(service, -1)
        _skip_blanks(cursor)
        name_at = cursor.here
        is_plain = _skip_string(cursor, "a user")
        size = cursor.here - name_at - 2
        if is_plain and entry + 1 < string_table.count and string_table.refs[entry + 1].service == service_number:
            expected = <tuple> string_table.names[entry + 1]
            if _equals(<str> expected[0], name_at + 1, size):
                user = <str> expected[0]
        if user is None:
            user = _decoded(name_at, cursor.here, is_plain)
            _check_name("user", user, bounds.name_bytes)
        _expect_byte(cursor, 58, "a colon")
        has_more = _open_object(cursor, "an object of resources")
        while has_more:
            _skip_blanks(cursor)
            name_at = cursor.here
            is_plain = _skip_string(cursor, "a resource")
            size = cursor.here - name_at - 2
            entry += 1
            if is_plain and entry < string_table.count and string_table.refs[entry].service == service_number:
                expected = <tuple> string_table.names[entry]
                if not (_equals(<str> expected[1], name_at + 1, size) and (expected[0] is user or expected[0] == user)):
                    expected = None
            else:
                expected = None
            if expected is None:
                resource = _decoded(name_at, cursor.here, is_plain)
                if numbers is None:
                    found = users.get(user)
                    if found is None:
                        found = users[user] = {}
                    numbers = <dict> found
                number = numbers.get(resource)
                if number is None:
                    _check_name("resource", resource, bounds.name_bytes)
                    if string_table.count >= 2 * bounds.entries:
                        raise ProtocolError(f"too many entries on the connection, expected at most {bounds.entries}")
                    number = numbers[resource] = string_table.count
                    string_table.add(service, user, resource)
                    service_number = string_table.service_numbers[service]
                entry = number
            _expect_byte(cursor, 58, "a colon")
            _expect_byte(cursor, 91, _LINE)
            line = &packed.lines[packed.count]  # there is room for as many as there are brackets
            line.entry = <int> entry
            line.consumed = _real(cursor)
            _expect_byte(cursor, 44, "a comma")
            line.rejected = _whole(cursor)
            _expect_byte(cursor, 44, "a comma")
            line.requests = _whole(cursor)
            _expect_byte(cursor, 44, "a comma")
            line.settled = _real(cursor)
            _expect_byte(cursor, 44, "a comma")
            line.held = _real(cursor)
            if _has_next(cursor, 93):
                line.granted = _real(cursor)
                _expect_byte(cursor, 44, "a comma")
                line.returned = _real(cursor)
                _expect_byte(cursor, 93, "the end of a line of seven numbers")
            _check_totals(line)
            packed.count += 1
            has_more = _has_next(cursor, 125)
        return entry

    cdef int _line(self, PackedLine *line, values) except -1:
        cdef list numbers
        if type(values) is not list or len(<list> values) not in (5, 7):
            fail("a line", values, _LINE)
        numbers = <list> values
        line.consumed = _amount("consumed", numbers[0])
        line.rejected = _requests("rejected", numbers[1])
        line.requests = _requests("requests", numbers[2])
        line.settled = _amount("settled", numbers[3])
        line.held = _amount("held", numbers[4])
        if len(numbers) == 7:
            line.granted = _amount("granted", numbers[5])
            line.returned = _amount("returned", numbers[6])
        return _check_totals(line)


cdef int _check_totals(const PackedLine *line) except -1:
    if line.settled > line.consumed:
        fail("settled", line.settled, f"at most consumed, which is {line.consumed!r}")
    if line.returned > line.granted:
        fail("returned", line.returned, f"at most granted, which is {line.granted!r}")
    return 0


def read_user_asks(services, bounds):
    """Check what stood under `users` in an ask; returns service -> user -> UserAsk."""
    cdef Py_ssize_t name_bytes = bounds.name_bytes, users_left = bounds.asked, rows_left = bounds.lines
    cdef dict read = {}, read_users, credits
    if type(services) is not dict or len(services) > bounds.services:
        fail("users", services, f"an object of at most {bounds.services} services")
    for service, users in (<dict> services).items():
        _check_name("service", service, bounds.service_bytes)
        if type(users) is not dict or len(<dict> users) > users_left:
            fail("users", users, f"an object of at most {users_left} users")
        users_left -= len(<dict> users)
        read_users = read[service] = {}
        for user, user_ask in (<dict> users).items():
            _check_name("user", user, name_bytes)
            if type(user_ask) is not dict:
                fail("a user", user_ask, "an object with the keys requests and resources")
            resources = (<dict> user_ask).get("resources", {})
            if type(resources) is not dict or len(<dict> resources) > min(bounds.resources, rows_left):
                fail("resources", resources, f"an object of at most {min(bounds.resources, rows_left)} resources")
            rows_left -= len(<dict> resources)
            credits = {}
            for resource, credit in (<dict> resources).items():
                _check_name("resource", resource, name_bytes)
                credits[resource] = _credit(credit)
            requests = whole("requests", (<dict> user_ask).get("requests"), 0, _MAX_REQUESTS + 1)
            waits = (<dict> user_ask).get("waits", False)
            if type(waits) is not bool:
                fail("waits", waits, "true or false")
            read_users[user] = new_triple(UserAsk, requests, credits, waits)
    return read


cdef object _credit(values):
    cdef double granted, returned, used, cost
    cdef list numbers
    if type(values) is not list or len(<list> values) != 4:
        fail("a credit", values, "[granted, returned, used, cost]")
    numbers = <list> values
    granted = _amount("granted", numbers[0])
    returned = _amount("returned", numbers[1])
    used = _amount("used", numbers[2])
    cost = _amount("cost", numbers[3])
    if returned > granted:
        fail("returned", returned, f"at most granted, which is {granted!r}")
    return new_quad(Credit, granted, returned, used, cost)


# Reading JSON

cdef extern from "Python.h":
    const char *PyUnicode_DATA(object text)

cdef struct Cursor:
    const char *here
    const char *end


cdef int _fail_at(Cursor *cursor, str expected) except -1:
    shown = cursor.here[: min(20, cursor.end - cursor.here)]
    raise ProtocolError(f"invalid JSON in the lines: got {shown!r}, expected {expected}")


cdef inline char _skip_blanks(Cursor *cursor) noexcept:
    """The next byte that is no blank; 0: there is none."""
    while cursor.here < cursor.end and cursor.here[0] in (32, 10, 13, 9):
        cursor.here += 1
    return cursor.here[0] if cursor.here < cursor.end else 0


cdef inline int _expect_byte(Cursor *cursor, char byte, str expected) except -1:
    if _skip_blanks(cursor) != byte:
        _fail_at(cursor, expected)
    cursor.here += 1
    return 0


cdef inline bint _has_next(Cursor *cursor, char close) except -1:
    """After an item: a comma, or the end of it all."""
    cdef char byte = _skip_blanks(cursor)
    if byte == 44:
        cursor.here += 1
        return True
    if byte != close:
        _fail_at(cursor, "a comma or the end")
    cursor.here += 1
    return False


cdef bint _open_object(Cursor *cursor, str expected) except -1:
    """Read the start of an object; False if it is empty, whose end is read too."""
    _expect_byte(cursor, 123, expected)
    if _skip_blanks(cursor) == 125:
        cursor.here += 1
        return False
    return True


cdef inline bint _skip_string(Cursor *cursor, str expected) except -1:
    """From the quote to the one that ends it: `here` is after it. Whether nothing is escaped."""
    cdef const char *here
    cdef const char *end = cursor.end
    cdef bint is_plain = True
    _expect_byte(cursor, 34, expected)
    here = cursor.here
    while here < end and here[0] != 34:
        if here[0] == 92:
            is_plain = False
            here += 1
        here += 1
    if here >= end:
        _fail_at(cursor, "the end of a name")
    cursor.here = here + 1
    return is_plain


cdef inline bint _equals(str text, const char *data, Py_ssize_t size) noexcept:
    """Whether these bytes are a name; False also when that is not easily seen."""
    return (
        PyUnicode_IS_ASCII(text)
        and PyUnicode_GET_LENGTH(text) == size
        and memcmp(PyUnicode_DATA(text), data, size) == 0
    )


cdef str _decoded(const char *begin, const char *end, bint is_plain):
    """A string with its quotes; `is_plain`: nothing in it is escaped."""
    cdef const char *here = begin
    while is_plain and here < end:
        is_plain = <unsigned char> here[0] >= 32  # JSON has its own word for what is below
        here += 1
    try:
        if is_plain:
            return PyUnicode_DecodeUTF8(begin + 1, end - begin - 2, NULL)
        return json.loads(begin[: end - begin])
    except ValueError as error:
        raise ProtocolError(f"invalid JSON string {begin[: end - begin]!r}: {error}") from error


cdef inline double _real(Cursor *cursor) except? -1.0:
    """A number from 0 to 1e18."""
    cdef const char *here = cursor.here
    cdef const char *begin
    cdef const char *fraction = NULL
    cdef unsigned long long digits = 0
    cdef double value
    while here < cursor.end and here[0] == 32:
        here += 1
    begin = here
    while here < cursor.end and here - begin < 16:
        if 48 <= here[0] <= 57:
            digits = 10 * digits + <unsigned int> (here[0] - 48)
        elif here[0] == 46 and fraction == NULL and here > begin:
            fraction = here + 1
        else:
            break
        here += 1
    if here == begin or here == fraction or (here < cursor.end and (here[0] in (46, 69, 101) or 48 <= here[0] <= 57)):
        return _long_real(cursor)
    cursor.here = here
    value = <double> digits
    if fraction != NULL:
        value /= _TENS[here - fraction]
    return value


cdef double _long_real(Cursor *cursor) except? -1.0:
    """A number that is longer, or has an exponent, or is invalid."""
    cdef const char *begin
    _skip_blanks(cursor)
    begin = cursor.here
    while cursor.here < cursor.end and cursor.here[0] not in (44, 93, 125):
        cursor.here += 1
    number = begin[: min(64, cursor.here - begin)]
    try:
        return amount("a number of a line", json.loads(number))
    except ValueError as error:
        raise ProtocolError(f"invalid number {number!r} in a line: {error}") from error


cdef inline unsigned int _whole(Cursor *cursor) except? 0xFFFFFFFF:
    """A number of requests; it wraps at 2**32."""
    cdef double value = _real(cursor)
    if value != floor(value):
        _fail_at(cursor, "a whole number before it")
    return <unsigned int> (<unsigned long long> value)


cdef double[17] _TENS
_TENS = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16,
]


cdef int _skip(Cursor *cursor, str expected) except -1:
    """Skip any value. What is wrong inside of it is found by whoever reads it."""
    cdef Py_ssize_t depth = 0
    cdef char byte
    while True:
        byte = _skip_blanks(cursor)
        if byte == 0:
            _fail_at(cursor, expected)
        if byte == 34:
            _skip_string(cursor, expected)
        else:
            if byte == 123 or byte == 91:
                depth += 1
            elif byte == 125 or byte == 93:
                depth -= 1
            if depth < 0:
                _fail_at(cursor, expected)
            cursor.here += 1
            if byte in (44, 58) and depth == 0:
                cursor.here -= 1
                return 0
        if depth == 0 and (byte in (34, 125, 93) or _skip_blanks(cursor) in (44, 125, 93)):
            return 0


def find_lines_value(bytes frame not None):
    """Where the value of "lines" begins in {"report": {...}}; -1: it is not there, or well hidden."""
    cdef Cursor cursor
    cdef const char *begin = frame
    cdef const char *key
    cursor.here = begin
    cursor.end = begin + len(frame)
    try:
        for wanted in (b"\"report\"", b"\"lines\""):
            _expect_byte(&cursor, 123, "an object")
            while True:
                _skip_blanks(&cursor)
                key = cursor.here
                _skip_string(&cursor, "a key")
                is_wanted = key[: cursor.here - key] == wanted
                _expect_byte(&cursor, 58, "a colon")
                if is_wanted:
                    break
                _skip(&cursor, "a value")
                _expect_byte(&cursor, 44, "a comma")
    except ProtocolError:
        return -1
    return cursor.here - begin


# Writing

cdef const char *_PAIRS = (
    b"00010203040506070809101112131415161718192021222324252627282930313233343536373839"
    b"40414243444546474849505152535455565758596061626364656667686970717273747576777879"
    b"8081828384858687888990919293949596979899"
)


cdef inline char *_whole_number(char *here, unsigned long long value) noexcept nogil:
    cdef char[20] digits
    cdef int at = 20, pair
    while value >= 100:
        pair = <int> (value % 100)
        value //= 100
        at -= 2
        memcpy(&digits[at], _PAIRS + 2 * pair, 2)
    if value >= 10:
        at -= 2
        memcpy(&digits[at], _PAIRS + 2 * value, 2)
    else:
        at -= 1
        digits[at] = <char> (48 + value)
    memcpy(here, &digits[at], 20 - at)
    return here + 20 - at


cdef inline char *_number(char *here, double value) noexcept nogil:
    """At most 24 characters."""
    cdef double rest, scale
    cdef unsigned long long first
    cdef int last
    if value < 1e15 and value == floor(value):
        return _whole_number(here, <unsigned long long> value)
    if not 0.001 <= value < 1e6:
        return here + snprintf(here, 24, "%.9g", value)
    first = <unsigned long long> value
    last = 6 if first else 9
    scale = 1e6 if first else 1e9
    rest = floor((value - first) * scale + 0.5)
    if rest >= scale:
        return _whole_number(here, first + 1)
    here = _whole_number(here, first)
    # The digits after the dot: a whole number with a one in front, which the dot replaces.
    here = _whole_number(here, <unsigned long long> (rest + scale)) - last - 1
    here[0] = 46
    while here[last] == 48:
        last -= 1
    return here + last + (last > 0)


cdef char *_exact_number(char *here, double value) except NULL:
    """As few digits as name the very same number, at most 24 characters."""
    cdef char *digits
    if value < 1e15 and value == floor(value):
        return _whole_number(here, <unsigned long long> value)
    digits = PyOS_double_to_string(value, b"r", 0, 0, NULL)
    strcpy(here, digits)
    PyMem_Free(digits)
    return here + strlen(here)


cdef int _put_text(Buffer *buffer, str text) except -1:
    """A name in quotes."""
    cdef Py_ssize_t size, i
    cdef const char *data = PyUnicode_AsUTF8AndSize(text, &size)
    cdef char *here = room_for(buffer, 6 * size + 2)
    cdef char *begin = here
    cdef unsigned char byte
    here[0] = 34
    here += 1
    for i in range(size):
        byte = <unsigned char> data[i]
        if byte < 32 or byte == 34 or byte == 92:
            here += snprintf(here, 7, "\\u%04x", <unsigned int> byte)
        else:
            here[0] = <char> byte
            here += 1
    here[0] = 34
    buffer.size += here + 1 - begin
    return 0


cdef int _put_share(Buffer *buffer, str resource, const PackedShare *share, bint is_classic) except -1:
    """A resource and its share, and a comma."""
    cdef char *here
    cdef char *begin
    _put_text(buffer, resource)
    here = begin = room_for(buffer, 64)
    if is_classic:
        here[0] = 58
        here = _number(here + 1, share.granted)
        if share.granted < 1e15 and share.granted == floor(share.granted):
            memcpy(here, b".0", 2)  # as the classic central writes its floats
            here += 2
    else:
        memcpy(here, b":[", 2)
        here = _exact_number(here + 2, share.granted)
        here[0] = 44
        here = _number(here + 1, safe_of(share))
        here[0] = 93
        here += 1
    here[0] = 44
    buffer.size += here + 1 - begin
    return 0


def write_packed_shares(PackedShares shares not None, *, bint is_classic=False):
    """The object of user -> resource -> [granted, safe]; of `granted` alone, if it is classic."""
    cdef Buffer buffer
    cdef Py_ssize_t i, count = shares.count
    cdef PackedShare *packed = shares.packed
    cdef PackedShare one
    cdef unsigned int *generations = shares.bucket_ids.generations
    cdef list names = shares.bucket_ids.names
    cdef set seen = set()
    cdef dict repeated = {}
    cdef str last = None, user
    cdef tuple entry
    # A user whose shares are not contiguous got some in answer to an ask: the later ones count.
    for i in range(count):
        if generations[packed[i].bucket] == 0 or <int> (generations[packed[i].bucket] - shares.last_generation) > 0:
            continue
        user = <str> (<tuple> names[packed[i].bucket])[0]
        if user is not last:
            if user in seen:
                repeated.setdefault(user, {})
            else:
                seen.add(user)
            last = user
    if repeated:
        for i in range(count):
            if generations[packed[i].bucket] == 0 or <int> (generations[packed[i].bucket] - shares.last_generation) > 0:
                continue
            entry = <tuple> names[packed[i].bucket]
            if entry[0] in repeated:
                repeated[entry[0]][entry[1]] = (packed[i].granted, safe_of(&packed[i]))
    memset(&buffer, 0, sizeof(Buffer))
    last = None
    try:
        room_for(&buffer, 64 * count + 2)
        put(&buffer, b"{", 1)
        for i in range(count):
            if generations[packed[i].bucket] == 0 or <int> (generations[packed[i].bucket] - shares.last_generation) > 0:
                continue
            entry = <tuple> names[packed[i].bucket]
            user = <str> entry[0]
            if repeated and user in repeated:
                continue
            if user is not last:
                if last is not None:
                    buffer.size -= 1
                    put(&buffer, b"},", 2)
                _put_text(&buffer, user)
                put(&buffer, b":{", 2)
                last = user
            _put_share(&buffer, <str> entry[1], &packed[i], is_classic)
        if last is not None:
            buffer.size -= 1
            put(&buffer, b"},", 2)
        for user, resources in repeated.items():
            _put_text(&buffer, user)
            put(&buffer, b":{", 2)
            for resource, (granted, safe) in resources.items():
                one = pack_share(0, granted, safe)
                _put_share(&buffer, resource, &one, is_classic)
            buffer.size -= 1
            put(&buffer, b"},", 2)
        if buffer.size > 1:
            buffer.size -= 1
        put(&buffer, b"}", 1)
        return as_bytes(&buffer)
    finally:
        dispose(&buffer)

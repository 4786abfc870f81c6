# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The bulk of text frames: lines out of what was JSON, and shares into JSON.

`TextEntries` gives the names of a connection's lines their numbers, so that lines of text are booked
as those of binary frames are: a name is looked up in the book once. Its memory is bounded as
theirs is: it begins anew when it has outgrown what is in use.

Amounts are written with the nine digits that a 32-bit float has.
"""

from libc.math cimport floor
from libc.stdio cimport snprintf
from libc.string cimport memcpy, memset

from headgate.quota._given cimport Given, GivenShares
from headgate.quota._lines cimport Dictionary, Packed, PackedLines
from headgate.quota.wire._buffer cimport Buffer, PyUnicode_AsUTF8AndSize, as_bytes, dispose, put, room_for
from headgate.quota.wire.checks import amount, fail, name, whole

__all__ = ["TextEntries", "write_users"]

cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)

cdef extern from *:
    """
    /* The dictionary begins anew when it has so many entries for each one that is in use. */
    #define SPARSE 4
    #define FEW 1000
    """
    const Py_ssize_t SPARSE, FEW

cdef double MOST = 1e18


cdef inline int _check_name(what, value, Py_ssize_t most) except -1:
    # Most names are short and of ASCII: no need to look closer.
    if type(value) is not str or not PyUnicode_IS_ASCII(value) or not 0 < PyUnicode_GET_LENGTH(value) <= most:
        name(what, value, most)
    return 0


cdef inline double _amount(what, value) except? -1.0:
    cdef double number
    if type(value) is float or type(value) is int:
        number = value
        if 0.0 <= number <= MOST:
            return number
    return amount(what, value)


cdef inline unsigned int _requests(what, value) except? 0xFFFFFFFF:
    """A number of requests; it wraps at 2**32."""
    if type(value) is not int:
        value = whole(what, value, 0, 1 << 63)
    elif value < 0:
        fail(what, value, "a whole number from 0 up")
    return <unsigned int> (<unsigned long long> value)


cdef class TextEntries:
    """The entries of one connection's text frames."""

    cdef Dictionary dictionary
    cdef dict numbers  # service -> user -> resource -> entry

    def __init__(self):
        self.dictionary = Dictionary()
        self.numbers = {}

    def __len__(self):
        return self.dictionary.count

    def pack(self, lines, bounds):
        """Check what stood under `lines` in a report, and pack it."""
        cdef Py_ssize_t name_bytes = bounds.name_bytes, most = bounds.resources
        cdef Py_ssize_t count = 0, left = bounds.users
        cdef PackedLines packed
        cdef Packed *line
        cdef dict resources, numbers, users_numbers
        if type(lines) is not dict or len(lines) > bounds.services:
            fail("lines", lines, f"an object of at most {bounds.services} services")
        for service, users in lines.items():
            _check_name("service", service, bounds.service_bytes)
            if type(users) is not dict or len(users) > left:
                fail("users", users, f"an object of at most {left} users")
            left -= len(users)
            for of_user in (<dict> users).values():
                if type(of_user) is not dict or len(of_user) > most:
                    fail("resources", of_user, f"an object of at most {most} resources")
                count += len(<dict> of_user)
        if count > bounds.entries:
            fail("the number of lines", count, f"at most {bounds.entries}")
        if self.dictionary.count > max(FEW, SPARSE * count):
            self.__init__()
        packed = PackedLines(self.dictionary)
        packed.reserve(count)
        for service, users in lines.items():
            users_numbers = self.numbers.setdefault(service, {})
            for user, of_user in (<dict> users).items():
                resources = <dict> of_user
                found = users_numbers.get(user)
                if found is None:
                    _check_name("user", user, name_bytes)
                    found = users_numbers[user] = {}
                numbers = <dict> found
                for resource, values in resources.items():
                    entry = numbers.get(resource)
                    if entry is None:
                        _check_name("resource", resource, name_bytes)
                        entry = numbers[resource] = self.dictionary.count
                        self.dictionary.add(service, user, resource)
                    line = &packed.lines[packed.count]
                    line.entry = entry
                    self._line(line, values)
                    packed.count += 1
        packed.arrange()
        return packed

    cdef int _line(self, Packed *line, values) except -1:
        cdef list numbers
        if type(values) is not list or len(<list> values) < 5:
            fail("a line", values, "[consumed, rejected, requests, settled, held]")
        numbers = <list> values
        line.consumed = _amount("consumed", numbers[0])
        line.rejected = _requests("rejected", numbers[1])
        line.requests = _requests("requests", numbers[2])
        line.settled = _amount("settled", numbers[3])
        line.held = _amount("held", numbers[4])
        if line.settled > line.consumed:
            fail("settled", line.settled, f"at most consumed, which is {line.consumed!r}")
        return 0


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
    cdef double rest
    cdef unsigned long long first
    cdef int last
    if value < 1e15 and value == floor(value):
        return _whole_number(here, <unsigned long long> value)
    if not 0.001 <= value < 1e6:
        return here + snprintf(here, 24, "%.9g", value)
    first = <unsigned long long> value
    rest = floor((value - first) * 1e9 + 0.5)
    if rest >= 1e9:
        return _whole_number(here, first + 1)
    here = _whole_number(here, first)
    here[0] = 46  # a dot, and nine digits: written as a whole number with a one in front
    here = _whole_number(here, <unsigned long long> rest + 1000000000) - 10
    here[0] = 46
    last = 9
    while here[last] == 48:
        last -= 1
    return here + last + 1


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


cdef int _put_share(Buffer *buffer, str resource, const Given *given, bint is_classic) except -1:
    """A resource and its share, and a comma."""
    cdef char *here
    cdef char *begin
    _put_text(buffer, resource)
    here = begin = room_for(buffer, 64)
    if is_classic:
        here[0] = 58
        here = _number(here + 1, given.amount)
    else:
        memcpy(here, b":[", 2)
        here = _number(here + 2, given.amount)
        here[0] = 44
        here = _number(here + 1, given.safe)
        here[0] = 93
        here += 1
    here[0] = 44
    buffer.size += here + 1 - begin
    return 0


def write_users(GivenShares shares not None, *, bint is_classic=False):
    """The object of user -> resource -> [amount, safe]; of the amount alone, if it is classic."""
    cdef Buffer buffer
    cdef Py_ssize_t i, count = shares.count
    cdef Given *given = shares.given
    cdef Given one
    cdef unsigned int *serials = shares.register.serials
    cdef list names = shares.register.names
    cdef set seen = set()
    cdef dict late = {}
    cdef str last = None, user
    cdef tuple entry
    # A user whose shares do not stand together got some after he had asked: the later ones count.
    for i in range(count):
        if serials[given[i].bucket] == 0 or <int> (serials[given[i].bucket] - shares.last) > 0:
            continue
        user = <str> (<tuple> names[given[i].bucket])[0]
        if user is not last:
            if user in seen:
                late.setdefault(user, {})
            else:
                seen.add(user)
            last = user
    if late:
        for i in range(count):
            if serials[given[i].bucket] == 0 or <int> (serials[given[i].bucket] - shares.last) > 0:
                continue
            entry = <tuple> names[given[i].bucket]
            if entry[0] in late:
                late[entry[0]][entry[1]] = (given[i].amount, given[i].safe)
    memset(&buffer, 0, sizeof(Buffer))
    memset(&one, 0, sizeof(Given))
    last = None
    try:
        room_for(&buffer, 64 * count + 2)
        put(&buffer, b"{", 1)
        for i in range(count):
            if serials[given[i].bucket] == 0 or <int> (serials[given[i].bucket] - shares.last) > 0:
                continue
            entry = <tuple> names[given[i].bucket]
            user = <str> entry[0]
            if late and user in late:
                continue
            if user is not last:
                if last is not None:
                    buffer.size -= 1
                    put(&buffer, b"},", 2)
                _put_text(&buffer, user)
                put(&buffer, b":{", 2)
                last = user
            _put_share(&buffer, <str> entry[1], &given[i], is_classic)
        if last is not None:
            buffer.size -= 1
            put(&buffer, b"},", 2)
        for user, resources in late.items():
            _put_text(&buffer, user)
            put(&buffer, b":{", 2)
            for resource, (given_amount, safe) in resources.items():
                one.amount = given_amount
                one.safe = safe
                _put_share(&buffer, resource, &one, is_classic)
            buffer.size -= 1
            put(&buffer, b"},", 2)
        if buffer.size > 1:
            buffer.size -= 1
        put(&buffer, b"}", 1)
        return as_bytes(&buffer)
    finally:
        dispose(&buffer)

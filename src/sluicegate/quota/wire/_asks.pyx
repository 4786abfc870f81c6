# cython: language_level=3, boundscheck=False, wraparound=False
"""The bulk of an Ask in a binary frame, and the hints in the answer to it, read and written.

A node asks up to twenty times a second. A row is one user and resource, and names its entry in the
string table as the lines of a report do; a user of whom the node knows no limited resource yet has no
entry, and is named in full.
"""

from libc.string cimport memcpy, memset

from sluicegate.errors import ProtocolError
from sluicegate.quota.messages import Credit, Hint, UserAsk
from sluicegate.quota.packed._gil cimport yield_gil_periodically
from sluicegate.quota.packed._report_lines cimport StringTable
from sluicegate.quota.wire._binary cimport StringTableWriter, fail_truncated, read_count, read_name
from sluicegate.quota.wire._buffer cimport Buffer, as_bytes, dispose, put, put_name, room_for
from sluicegate.quota.wire._named_tuple cimport new_quad, new_triple

__all__ = ["read_hints", "read_user_asks", "write_hints", "write_user_asks"]

cdef enum:  # the form of a row
    HAS_NUMBER = 1
    HAS_REQUESTS = 2
    HAS_GRANTED = 4
    HAS_RETURNED = 8
    HAS_USED = 16
    HAS_COST = 32  # without it, it is 1
    WAITS = 64  # a request of the user waits
    MAX_ROW_FORM = 127

cdef enum:  # the form of a user without rows
    HAS_SERVICE = 1
    USER_WAITS = 2
    MAX_USER_FORM = 3

cdef enum:  # the form of a hint
    RECALL = 1
    MAY_FLOAT = 2
    HAS_WAIT = 4
    MAX_HINT_FORM = 7

cdef enum:
    MAX_REQUESTS = 1_000_000_000

cdef Py_ssize_t MAX_ROW_BYTES = 1 + 4 + 4 + 4 * 8
cdef double MAX_AMOUNT = 1e18
cdef double MAX_WAIT = 3600.0

cdef struct Row:  # one user and resource of an ask
    double granted, returned, used, cost
    unsigned int requests
    bint waits


# Reading

def read_user_asks(bytes frame not None, Py_ssize_t at, StringTable string_table not None, bounds):
    """The users at `at` as service -> user -> UserAsk, and where they end."""
    cdef const char *data = frame
    cdef const char *here
    cdef const char *end = data + len(frame)
    cdef unsigned int i, number, count = read_count(frame, at, 1, min(bounds.lines, string_table.count), "rows")
    cdef long long entry = -1
    cdef unsigned char form
    cdef Py_ssize_t user_count = 0, max_users = bounds.asked
    cdef int last_service = -1
    cdef Row row
    cdef dict services = {}, users = None, resources = None
    cdef str last_user = None
    cdef tuple names
    here = data + at + 4
    for i in range(count):
        yield_gil_periodically(i + 1)
        if here >= end:
            fail_truncated(frame)
        form = here[0]
        if form > MAX_ROW_FORM:
            raise ProtocolError(f"the form of a row is {form}, expected at most {MAX_ROW_FORM}")
        if _row_size(form) > end - here:
            fail_truncated(frame)
        here += 1
        entry += 1
        if form & HAS_NUMBER:
            memcpy(&number, here, 4)
            entry = number
            here += 4
        if entry >= string_table.count:
            raise ProtocolError(f"the entry of a row is {entry}, expected a number below {string_table.count}")
        here = _read_row(here, form, &row)
        if not _is_valid(&row):
            raise ProtocolError(
                f"invalid row of {string_table[entry]!r}: granted {row.granted!r}, returned {row.returned!r}, used "
                f"{row.used!r}, cost {row.cost!r}, requests {row.requests}, expected amounts from 0 to "
                f"{MAX_AMOUNT:g}, returned not above granted, requests not above {MAX_REQUESTS}"
            )
        if string_table.refs[entry].service != last_service:
            last_service = string_table.refs[entry].service
            last_user = None
            service = string_table.services[last_service]
            users = services.get(service)
            if users is None:
                users = services[service] = {}
        names = <tuple> string_table.names[entry]
        user = names[0]
        if user is not last_user:
            last_user = <str> user
            user_ask = users.get(user)
            if user_ask is None:
                user_count += 1
                if user_count > max_users:
                    raise ProtocolError(f"the number of users is {user_count}, expected at most {max_users}")
                resources = {}
                user_ask = users[user] = new_triple(UserAsk, row.requests, resources, (form & WAITS) != 0)
                form = 0
            else:
                resources = <dict> (<tuple> user_ask)[1]
        if form & (HAS_REQUESTS | WAITS):
            asked, _, waits = <tuple> user_ask
            user_ask = users[user] = new_triple(
                UserAsk, row.requests if form & HAS_REQUESTS else asked, resources, waits or (form & WAITS) != 0
            )
        resources[names[1]] = new_quad(Credit, row.granted, row.returned, row.used, row.cost)
    return services, _read_users_without_rows(frame, here - data, services, max_users - user_count, bounds)


cdef Py_ssize_t _read_users_without_rows(
    bytes frame, Py_ssize_t at, dict services, Py_ssize_t most, bounds
) except -1:
    """Read the users of whom no limited resource is known; returns where they end."""
    cdef const char *data = frame
    cdef unsigned int requests, count = read_count(frame, at, 7, most, "users without rows")
    cdef Py_ssize_t service_bytes = bounds.service_bytes, name_bytes = bounds.name_bytes
    cdef unsigned char form
    cdef dict users = None
    at += 4
    for _ in range(count):
        if at >= len(frame):
            fail_truncated(frame)
        form = data[at]
        at += 1
        if form > MAX_USER_FORM:
            raise ProtocolError(f"the form of a user without rows is {form}, expected at most {MAX_USER_FORM}")
        if form & HAS_SERVICE:
            service = read_name(frame, at, service_bytes, "service")
            at += 1 + <unsigned char> data[at]
            users = services.get(service)
            if users is None:
                users = services[service] = {}
        if users is None:
            raise ProtocolError("the first user without rows has no service, expected one")
        user = read_name(frame, at, name_bytes, "user")
        at += 1 + <unsigned char> data[at]
        if at + 4 > len(frame):
            fail_truncated(frame)
        memcpy(&requests, data + at, 4)
        at += 4
        if requests > MAX_REQUESTS:
            raise ProtocolError(f"the requests of {user!r} are {requests}, expected at most {MAX_REQUESTS}")
        users[user] = new_triple(UserAsk, requests, {}, (form & USER_WAITS) != 0)
    return at


cdef inline Py_ssize_t _row_size(unsigned char form) noexcept:
    return (
        1
        + 4 * (form & HAS_NUMBER)
        + 2 * (form & HAS_REQUESTS)
        + 2 * (form & HAS_GRANTED)
        + (form & HAS_RETURNED)
        + ((form & HAS_USED) >> 1)
        + ((form & HAS_COST) >> 2)
    )


cdef inline const char *_read_row(const char *here, unsigned char form, Row *row) noexcept:
    """Read what follows the number of the entry; returns where it ends."""
    row.requests = 0
    row.granted = row.returned = row.used = 0.0
    row.cost = 1.0
    if form & HAS_REQUESTS:
        memcpy(&row.requests, here, 4)
        here += 4
    if form & HAS_GRANTED:
        memcpy(&row.granted, here, 8)
        here += 8
    if form & HAS_RETURNED:
        memcpy(&row.returned, here, 8)
        here += 8
    if form & HAS_USED:
        memcpy(&row.used, here, 8)
        here += 8
    if form & HAS_COST:
        memcpy(&row.cost, here, 8)
        here += 8
    return here


cdef inline bint _is_valid(const Row *row) noexcept:
    return (
        0.0 <= row.returned <= row.granted <= MAX_AMOUNT
        and 0.0 <= row.used <= MAX_AMOUNT
        and 0.0 <= row.cost <= MAX_AMOUNT
        and row.requests <= MAX_REQUESTS
    )


def read_hints(bytes frame not None, Py_ssize_t at, list services not None, bounds):
    """The hints at `at` as service -> user -> Hint, and where they end. `services` are those of the frame."""
    cdef const char *data = frame
    cdef unsigned int count = read_count(frame, at, 5, bounds.users, "hints")
    cdef Py_ssize_t name_bytes = bounds.name_bytes
    cdef unsigned short number
    cdef unsigned char form
    cdef double wait
    cdef dict hints = {}, of_service
    at += 4
    for _ in range(count):
        if at + 2 > len(frame):
            fail_truncated(frame)
        memcpy(&number, data + at, 2)
        at += 2
        if number >= len(services):
            raise ProtocolError(f"the service of a hint is {number}, expected a number below {len(services)}")
        user = read_name(frame, at, name_bytes, "user")
        at += 1 + <unsigned char> data[at]
        if at >= len(frame):
            fail_truncated(frame)
        form = data[at]
        at += 1
        if form > MAX_HINT_FORM:
            raise ProtocolError(f"the form of a hint is {form}, expected at most {MAX_HINT_FORM}")
        wait = 0.0
        if form & HAS_WAIT:
            if at + 8 > len(frame):
                fail_truncated(frame)
            memcpy(&wait, data + at, 8)
            at += 8
            if not 0.0 <= wait <= MAX_WAIT:
                raise ProtocolError(f"the wait of {user!r} is {wait!r}, expected seconds from 0 to {MAX_WAIT:g}")
        of_service = hints.setdefault(services[number], {})
        of_service[user] = Hint(wait, (form & RECALL) != 0, (form & MAY_FLOAT) != 0)
    return hints, at


# Writing

def write_user_asks(StringTableWriter table not None, dict services not None, bounds):
    """Encode the new entries and the users of an ask: (whether the table is reset, bytes)."""
    cdef Buffer rows, frame
    cdef bint is_reset = False
    users = sum([len(users) for users in services.values()])
    if users > bounds.asked:
        raise ValueError(f"too many users in an ask: got {users}, expected at most {bounds.asked}")
    memset(&rows, 0, sizeof(Buffer))
    memset(&frame, 0, sizeof(Buffer))
    try:
        _put_rows(&rows, table, services)
        if not table.is_within_bounds():
            is_reset = True
            table.reset()
            rows.size = 0
            _put_rows(&rows, table, services)
            if not table.is_within_bounds():
                table.reset()
                raise ValueError(
                    f"too many users in an ask: got {users}, expected at most {table.max_entries} entries "
                    f"of {table.max_users} users"
                )
        _put_users_without_rows(&rows, services)
        table.put_new_entries(&frame)
        put(&frame, rows.data, rows.size)
        table.end_frame()
        return is_reset, as_bytes(&frame)
    finally:
        dispose(&rows)
        dispose(&frame)


cdef int _put_rows(Buffer *buffer, StringTableWriter table, dict services) except -1:
    cdef unsigned int count = 0
    cdef int entry, expected = 0
    cdef Row row
    cdef dict numbers
    put(buffer, &count, 4)
    for service, users in services.items():
        numbers = table.entries_by_name.setdefault(service, {})
        for user, (requests, resources, waits) in (<dict> users).items():
            row.requests = _checked_requests(user, requests)
            row.waits = waits
            for resource, (granted, returned, used, cost) in (<dict> resources).items():
                row.granted = granted
                row.returned = returned
                row.used = used
                row.cost = cost
                if not _is_valid(&row):
                    raise ValueError(
                        f"invalid credit of {user!r}: expected amounts from 0 to {MAX_AMOUNT:g}, returned not above "
                        f"granted, got {(granted, returned, used, cost)!r}"
                    )
                entry = table.find_or_add(service, numbers, user, resource)
                _put_row(buffer, entry, expected, &row)
                row.requests = 0  # they are those of the user, told with its first resource
                row.waits = False
                expected = entry + 1
                count += 1
                yield_gil_periodically(count)
    if count > table.max_lines:
        raise ValueError(f"too many rows in an ask: got {count}, expected at most {table.max_lines}")
    memcpy(buffer.data, &count, 4)
    return 0


cdef unsigned int _checked_requests(user, requests) except? 0xFFFFFFFF:
    if not 0 <= requests <= MAX_REQUESTS:
        raise ValueError(f"invalid requests of {user!r}: expected 0 to {MAX_REQUESTS}, got {requests!r}")
    return requests


cdef int _put_row(Buffer *buffer, int entry, int expected, const Row *row) except -1:
    cdef char *here = room_for(buffer, MAX_ROW_BYTES)
    cdef char *begin = here
    cdef unsigned char form = WAITS if row.waits else 0
    here += 1
    if entry != expected:
        form |= HAS_NUMBER
        memcpy(here, &entry, 4)
        here += 4
    if row.requests:
        form |= HAS_REQUESTS
        memcpy(here, &row.requests, 4)
        here += 4
    if row.granted > 0.0:
        form |= HAS_GRANTED
        memcpy(here, &row.granted, 8)
        here += 8
    if row.returned > 0.0:
        form |= HAS_RETURNED
        memcpy(here, &row.returned, 8)
        here += 8
    if row.used > 0.0:
        form |= HAS_USED
        memcpy(here, &row.used, 8)
        here += 8
    if row.cost != 1.0:
        form |= HAS_COST
        memcpy(here, &row.cost, 8)
        here += 8
    begin[0] = form
    buffer.size += here - begin
    return 0


cdef int _put_users_without_rows(Buffer *buffer, dict services) except -1:
    cdef unsigned int requests, count = 0
    cdef Py_ssize_t begin = buffer.size
    cdef unsigned char form
    put(buffer, &count, 4)
    for service, users in services.items():
        form = HAS_SERVICE
        for user, (asked, resources, waits) in (<dict> users).items():
            if resources:
                continue
            if waits:
                form |= USER_WAITS
            put(buffer, &form, 1)
            if form & HAS_SERVICE:
                put_name(buffer, service)
            form = 0
            put_name(buffer, user)
            requests = _checked_requests(user, asked)
            put(buffer, &requests, 4)
            count += 1
    memcpy(buffer.data + begin, &count, 4)
    return 0


def write_hints(list hints not None):
    """Encode the hints of each service of a quota, in the order of its services."""
    cdef Buffer buffer
    cdef unsigned int count = sum(map(len, hints))
    cdef unsigned short number
    cdef unsigned char form
    cdef double wait
    memset(&buffer, 0, sizeof(Buffer))
    try:
        put(&buffer, &count, 4)
        for number in range(len(hints)):
            for user, (seconds, recall, may_float) in (<dict> hints[number]).items():
                wait = seconds
                if not 0.0 <= wait <= MAX_WAIT:
                    raise ValueError(
                        f"invalid wait of {user!r}: expected seconds from 0 to {MAX_WAIT:g}, got {seconds!r}"
                    )
                form = (RECALL if recall else 0) | (MAY_FLOAT if may_float else 0) | (HAS_WAIT if wait > 0.0 else 0)
                put(&buffer, &number, 2)
                put_name(&buffer, user)
                put(&buffer, &form, 1)
                if form & HAS_WAIT:
                    put(&buffer, &wait, 8)
        return as_bytes(&buffer)
    finally:
        dispose(&buffer)

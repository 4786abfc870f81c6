# cython: language_level=3, binding=False, cdivision=True
"""Writes the reporter's changes into the users' records, and reads what it tells the leader.

- The grants and hints of a leader's Quota (`put_quota`).
- What a user's credit is, and how much more it needs (`read_credit`); what no request has needed for
  a while is given back (`return_credit`).
- How much of the consumption is settled, that is, acknowledged by a leader, for the next reporter
  (`put_settled`).
- Removes a record that has been idle for long, if that forgets nothing (`forget`).

Requests go on meanwhile in all processes: a record that changed since it was read is read again.
Other threads of this process have their turn after every part of them (`_gil.pxd`).
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.math cimport INFINITY, ceil
from libc.stdint cimport uint32_t

from sluicegate.shm._lockfree_table cimport BYTES, TEXT, Key, ChainSnapshot
from sluicegate.quota.node.core._shared_header cimport service_number
from sluicegate.quota.node.core._user_table cimport AGAIN, UserTable, set_time
from sluicegate.quota.node.core._user_keys cimport is_overflow_name, make_user_key
from sluicegate.quota.node.core._report_tracker cimport ReportTracker, UserTotals, acknowledge_user
from sluicegate.quota.packed._gil cimport yield_gil_periodically
from sluicegate.quota.node.core._admission cimport (
    HAS_ALLOWANCE, IS_CHEAPER, IS_TOLD, MAX_TOTAL, MEAN_IS_TOLD, REQUEST_STARTS, USER_WORDS, ResourceCell, UserRecord,
    WindowInfo, ask_cost, balance_of, coming_requests, find_cell, get_or_add_cell, give_back, give_back_parts,
    guess_of, has_allowance, has_cheaper, init_record, kept_part, knows_mean, must_keep, reserved_of,
)

from sluicegate.quota.messages import Credit, UserAsk

__all__ = ["forget", "put_quota", "put_settled", "read_credit", "return_credit"]


def put_quota(UserTable user_table not None, double time, service, users, hints, *, double said_at, version, whole):
    """Write the shares and hints of a Quota into the records of a service's users.

    A user without shares is free as long as the limits have this version. A Quota that is not whole
    names all limited resources of its users. `said_at` is the Quota's time on this host's clock.
    """
    cdef Key key
    cdef Py_ssize_t done = 0
    if not user_table.header.has_service(service):
        return  # it is not served here
    number = user_table.header.known_service(service)
    for user, shares in users.items():
        key_owner = make_user_key(user, number, &key)
        hint = hints.get(user) if hints else None
        _put_quota(user_table, time, service, &key, key_owner, shares, hint, said_at, version, whole)
        if is_overflow_name(user):  # a user may have that name, too
            key.kind = BYTES
            if _has_record(user_table, &key):
                _put_quota(user_table, time, service, &key, key_owner, shares, hint, said_at, version, whole)
        done += 1
        yield_gil_periodically(done)


cdef bint _has_record(UserTable user_table, Key *key) except -1:
    cdef ChainSnapshot snapshot
    user_table.table.find(key, &snapshot)
    return snapshot.found >= 0


cdef int _put_quota(
    UserTable user_table, double time, object service, Key *key, object key_owner, object shares, object hint,
    double said_at, object version, bint whole,
) except -1:
    cdef ChainSnapshot snapshot
    cdef WindowInfo window
    cdef UserRecord *record = <UserRecord *> snapshot.payload
    cdef ResourceCell *cells = <ResourceCell *> (snapshot.payload + USER_WORDS)
    cdef ResourceCell *cell
    cdef int i, count, number
    cdef double granted, covered
    cdef bint is_more
    set_time(&window, time)
    while True:
        key_owner = user_table.find(key, &snapshot, &window, service, key_owner)
        if snapshot.found < 0 and (key.kind == BYTES or whole):
            return 0  # there is no record to bring up to date
        if snapshot.found < 0:  # not a newcomer
            snapshot.item_count = 0
            init_record(record, &window)
        count = snapshot.item_count
        if not shares:
            # Free users leave room for those with a limit.
            if key.kind == BYTES or (snapshot.found < 0 and len(user_table) > <Py_ssize_t> user_table.max_users // 2):
                return 0
            record.free_version = version
        else:
            is_more = False
            record.free_version = 0
            if not record.is_known:
                # What a newcomer has left is not for the time in which no leader will be heard.
                for i in range(count):
                    cells[i].flags &= ~HAS_ALLOWANCE
                    cells[i].allowance = min(<float> 0.0, cells[i].allowance)
            record.is_known = 1
            for i in range(0 if whole else count):
                cells[i].flags &= ~IS_TOLD
            record.lacks_cell = 0
            for resource, share in shares.items():
                number = user_table.header.resource_or_none(resource)
                cell = get_or_add_cell(cells, &count, number) if number >= 0 else NULL
                if cell == NULL:
                    record.lacks_cell = 1
                    continue
                cell.flags |= IS_TOLD
                cell.share = <float> share[1]
                granted = share[0]
                if granted > cell.granted:
                    covered = cell.consumed + min(reserved_of(cell), <double> record.guess_told)
                    covered = max(cell.granted, cell.returned + covered)
                    if not whole and not knows_mean(cell) and granted - covered > 1e-9 * granted:
                        # The node has asked for one request, and did not know what it costs. What covers
                        # the requests that the leader was told of says nothing of it.
                        cell.mean = cell.peak = <float> (granted - covered)
                        cell.flags |= MEAN_IS_TOLD
                    cell.granted = granted
                    is_more = True
            if is_more:
                record.changed_window = window.number
            if is_more and not whole:
                record.is_asking = 0
                record.empty_until = -1e300
        if hint is not None:
            record.may_float = hint[2]
            if hint[0] > 0.0:
                record.is_asking = 0
                if not has_cheaper(cells, count):  # or there may be enough for that one
                    record.empty_until = said_at + <double> hint[0]
                    record.empty_for_all = record.asked_waiting
        record.generation = window.generation - 1  # to be refreshed at the next request
        if user_table.put(key, &snapshot, count) != AGAIN:
            return 0  # written, or the user shares an overflow record


def read_credit(UserTable user_table not None, double time, service, user):
    """The user's credit as a `UserAsk`, with how many more requests it needs; None: there is no record.

    Credit that does not cover a single request, of all resources, is of no use here: it is given back.
    """
    cdef Key key
    cdef ChainSnapshot snapshot
    cdef WindowInfo window
    cdef UserRecord *record = <UserRecord *> snapshot.payload
    cdef ResourceCell *cells = <ResourceCell *> (snapshot.payload + USER_WORDS)
    cdef float guess
    cdef bint is_changed
    cdef int i
    set_time(&window, time)
    key_owner = make_user_key(user, service_number(user_table.header, service), &key)
    while True:
        key_owner = user_table.find(&key, &snapshot, &window, service, key_owner)
        if snapshot.found < 0:
            return None
        waits = record.has_waiting
        guess = guess_of(record, cells, snapshot.item_count)
        is_changed = give_back_parts(record, cells, snapshot.item_count)
        ask = _ask_of(user_table, record, cells, snapshot.item_count, &window, True)
        for i in range(snapshot.item_count):
            is_changed = is_changed or cells[i].flags & IS_CHEAPER
            cells[i].flags &= ~IS_CHEAPER
        if not is_changed and not waits and not record.asked_waiting and guess == record.guess_told:
            break
        record.guess_told = guess
        record.has_waiting = 0
        record.asked_waiting = waits
        record.changed_window = window.number
        if user_table.put(&key, &snapshot, snapshot.item_count) != AGAIN:
            break
    return ask._replace(waits=bool(waits))


cdef object _ask_of(
    UserTable user_table, UserRecord *record, ResourceCell *cells, int count, WindowInfo *window, bint wants
):
    cdef int i
    cdef double coming = 1.0 + ceil(coming_requests(record, 2.0 * window.lead_seconds))
    cdef double missing = 0.0, fewest = INFINITY, wanted, cost
    cdef ResourceCell *cell
    cdef bint is_unknown = not record.is_known, is_cheap = False
    resources = {}
    for i in range(count):
        cell = &cells[i]
        if not (record.is_known and cell.flags & IS_TOLD and cell.resource != REQUEST_STARTS):
            continue
        cost = ask_cost(cell) if wants else cell.mean
        if wants and cost > 0.0:
            wanted = (coming - 1.0) * cell.mean + max(cell.peak, cell.least) - balance_of(cell)
            if cost > cell.mean and cost > balance_of(cell) > 1e-6 * cost:
                cost -= balance_of(cell)  # the rest of a large request
            missing = max(missing, wanted / cost)
            fewest = min(fewest, wanted / cost)
            is_cheap = is_cheap or cost < cell.mean * (1.0 - 1e-6)
        resources[user_table.header.resource_name(cell.resource)] = Credit(
            cell.granted,
            cell.returned,
            max(0.0, min(cell.consumed + reserved_of(cell), MAX_TOTAL)),
            cost if knows_mean(cell) else 0.0,
        )
        is_unknown = is_unknown or not knows_mean(cell)
    if is_cheap:
        # Requests' worth of a large one may be far more of a resource that it does not need.
        missing = min(missing, max(coming, fewest))
    if wants and is_unknown and (missing > 0.0 or not record.is_known):
        missing = 1.0  # the leader knows what one costs
    return UserAsk(<long long> min(ceil(missing - 1e-6), 1e9), resources)


def return_credit(UserTable user_table not None, double time, service, user, *, double idle_seconds, keeps=True):
    """Give back the credit of a user without a request for `idle_seconds`; with `keeps`, but for a small part.

    A number: when to look again, as there was a request; None: there is nothing to give back; or what to tell
    the leader, a `UserAsk`.
    """
    cdef Key key
    cdef ChainSnapshot snapshot
    cdef WindowInfo window
    cdef UserRecord *record = <UserRecord *> snapshot.payload
    cdef ResourceCell *cells = <ResourceCell *> (snapshot.payload + USER_WORDS)
    cdef double least
    set_time(&window, time)
    key_owner = make_user_key(user, service_number(user_table.header, service), &key)
    while True:
        key_owner = user_table.find(&key, &snapshot, &window, service, key_owner)
        if snapshot.found < 0 or not record.is_known:
            return None
        if record.requested_at + idle_seconds > time:
            return record.requested_at + idle_seconds
        least = 1.0 + coming_requests(record, window.lead_seconds)
        if not give_back(cells, snapshot.item_count, kept_part(&window) if keeps else -1.0, least):
            return None
        record.guess_told = <float> guess_of(record, cells, snapshot.item_count)
        record.changed_window = window.number
        if user_table.put(&key, &snapshot, snapshot.item_count) != AGAIN:
            return _ask_of(user_table, record, cells, snapshot.item_count, &window, False)


def put_settled(UserTable user_table not None, ReportTracker tracker not None):
    """Write into the records what a leader has acknowledged."""
    cdef UserTotals user
    cdef Py_ssize_t done = 0
    for user in list(tracker.unsettled):
        if acknowledge_user(user, tracker.settled):
            _put_settled(user_table, user)
        if user.changed_sequence <= tracker.settled:
            del tracker.unsettled[user]
        done += 1
        yield_gil_periodically(done)


cdef int _put_settled(UserTable user_table, UserTotals user) except -1:
    cdef Key key
    cdef ChainSnapshot snapshot
    cdef ResourceCell *cell
    cdef int i
    key.data = PyBytes_AS_STRING(user.key)
    key.size = <uint32_t> PyBytes_GET_SIZE(user.key)
    key.kind = TEXT
    key.namespace = user.service_number
    while True:
        user_table.table.find(&key, &snapshot)
        if snapshot.found < 0:
            return 0
        for i in range(user.count):
            cell = find_cell(
                <ResourceCell *> (snapshot.payload + USER_WORDS), snapshot.item_count, user.totals[i].resource
            )
            if cell != NULL:
                cell.settled = min(user.totals[i].settled, cell.consumed)
        if user_table.put(&key, &snapshot, snapshot.item_count) != AGAIN:
            break
    for i in range(user.count):
        user.totals[i].stored_settled = user.totals[i].settled
    return 0


def forget(UserTable user_table not None, double time, service, user, uint32_t since):
    """Remove a record without a change since a window, if that forgives nothing. Whether it is gone."""
    cdef Key key
    cdef ChainSnapshot snapshot
    cdef WindowInfo window
    cdef UserRecord *record = <UserRecord *> snapshot.payload
    cdef ResourceCell *cells = <ResourceCell *> (snapshot.payload + USER_WORDS)
    set_time(&window, time)
    key_owner = make_user_key(user, service_number(user_table.header, service), &key)
    while True:
        user_table.table.find(&key, &snapshot)
        if snapshot.found < 0:
            return True
        if record.changed_window >= since:
            return False
        key_owner = user_table.find(&key, &snapshot, &window, service, key_owner)
        if snapshot.found < 0:
            return True
        if has_allowance(record.state):
            user_table._accrue(record, cells, snapshot.item_count, &window, service, &key)
        if record.changed_window >= since or must_keep(record, cells, snapshot.item_count):
            return False
        if user_table.table.change(&snapshot, <uint32_t> 1 << snapshot.found, NULL, 0, NULL, -1):
            return True

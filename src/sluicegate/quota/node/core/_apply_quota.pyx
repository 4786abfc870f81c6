# cython: language_level=3, binding=False, cdivision=True
"""Writes the reporter's changes into the users' records.

- The shares of a leader's Quota (`put_shares`).
- How much of the consumption is settled, that is, acknowledged by a leader, for the next reporter
  (`put_settled`).
- Removes a record that has been idle for long, if that forgives nothing (`forget`).

Requests go on meanwhile in all processes: a record that changed since it was read is read again.
Other threads of this process have their turn after every part of them (`_gil.pxd`).
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint32_t

from sluicegate.shm._lockfree_table cimport BYTES, TEXT, Key, ChainSnapshot
from sluicegate.quota.node.core._shared_header cimport service_number
from sluicegate.quota.node.core._user_table cimport AGAIN, UserTable, set_time
from sluicegate.quota.node.core._user_keys cimport is_overflow_name, make_user_key
from sluicegate.quota.node.core._report_tracker cimport ReportTracker, UserTotals, acknowledge_user
from sluicegate.quota.packed._gil cimport yield_gil_periodically
from sluicegate.quota.node.core._admission cimport (
    USER_WORDS, ResourceCell, UserRecord, WindowInfo, find_cell, get_or_add_cell, init_record, must_keep,
)

__all__ = ["forget", "put_settled", "put_shares"]

cdef enum:
    MAX_SLOTS_AHEAD = 8  # a quota for a later slot is not kept


def put_shares(UserTable user_table not None, double time, service, users, *, long long slot, version):
    """Write the shares of a Quota for `slot` into the records of a service's users.

    A user without shares is free as long as the limits have this version. None instead of
    shares removes those of the slot.
    """
    cdef Key key
    cdef Py_ssize_t done = 0
    if not user_table.header.has_service(service):
        return  # it is not served here
    number = user_table.header.known_service(service)
    for user, shares in users.items():
        key_owner = make_user_key(user, number, &key)
        _put_shares(user_table, time, service, &key, key_owner, shares, slot, version)
        if is_overflow_name(user):  # a user may have that name, too
            key.kind = BYTES
            if _has_record(user_table, &key):
                _put_shares(user_table, time, service, &key, key_owner, shares, slot, version)
        done += 1
        yield_gil_periodically(done)


cdef bint _has_record(UserTable user_table, Key *key) except -1:
    cdef ChainSnapshot snapshot
    user_table.table.find(key, &snapshot)
    return snapshot.found >= 0


cdef int _put_shares(
    UserTable user_table, double time, object service, Key *key, object key_owner, object shares, long long slot,
    object version,
) except -1:
    cdef ChainSnapshot snapshot
    cdef WindowInfo window
    cdef UserRecord *record = <UserRecord *> snapshot.payload
    cdef ResourceCell *cells = <ResourceCell *> (snapshot.payload + USER_WORDS)
    cdef ResourceCell *cell
    cdef int i, place, count, number
    set_time(&window, time)
    while True:
        key_owner = user_table.find(key, &snapshot, &window, service, key_owner)
        if key.kind == BYTES and snapshot.found < 0:
            return 0  # the overflow record is not in use
        if snapshot.found < 0:  # not a newcomer
            snapshot.item_count = 0
            init_record(record, &window)
        count = snapshot.item_count
        if shares is None:
            for place in range(2):
                if record.quota_slot[place] == slot:
                    record.quota_slot[place] = -1
        elif not shares:
            # Free users leave room for those with a limit.
            if key.kind == BYTES or (snapshot.found < 0 and len(user_table) > <Py_ssize_t> user_table.max_users // 2):
                return 0
            record.free_version = version
        else:
            record.free_version = 0
            place = _quota_place(record, slot, window.slot)
            record.quota_slot[place] = slot
            for i in range(count):
                cells[i].amount[place] = -1.0
                cells[i].is_limited = 0
            record.lacks_cell = 0
            for resource, share in shares.items():
                number = user_table.header.resource_or_none(resource)
                cell = get_or_add_cell(cells, &count, number) if number >= 0 else NULL
                if cell == NULL:
                    record.lacks_cell = 1
                else:
                    cell.amount[place] = <float> share[0]
                    cell.safe = <float> share[1]
        record.generation = window.generation - 1  # to be refreshed at the next request
        if user_table.put(key, &snapshot, count) != AGAIN:
            return 0  # written, or the user shares an overflow record


cdef int _quota_place(UserRecord *record, long long slot, long long current_slot) noexcept:
    """Which of the two quotas to replace by one for `slot`: not the one in effect."""
    cdef int i
    for i in range(2):
        if record.quota_slot[i] == slot:
            return i
    for i in range(2):
        if record.quota_slot[i] > current_slot + MAX_SLOTS_AHEAD:
            return i
    return 0 if record.quota_slot[0] <= record.quota_slot[1] else 1


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
        if record.changed_window >= since or must_keep(record, cells, snapshot.item_count, &window):
            return False
        if user_table.table.change(&snapshot, <uint32_t> 1 << snapshot.found, NULL, 0, NULL, -1):
            return True

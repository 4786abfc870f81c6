# cython: language_level=3, binding=False, cdivision=True
"""What the reporter writes into the records of a host's users.

- The shares that a leader's Quota gives them (`put_shares`).
- How much of what they consumed a leader has acknowledged, for a reporter that comes later
  (`put_settled`).
- That they are forgotten, when they have not come for long and nothing is forgiven by it (`forget`).

Requests go on meanwhile in all processes: a record that changed since it was looked at is looked at
again. Other threads of this process have their turn after every part of them (`_gil.pxd`).
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint32_t

from sluicegate.shm._lockfree_table cimport BYTES, TEXT, Key, Look
from sluicegate.quota.node.core._shared_header cimport service_number
from sluicegate.quota.node.core._user_table cimport AGAIN, Host, set_time
from sluicegate.quota.node.core._user_keys cimport is_name_of_spare, key_of_user
from sluicegate.quota.node.core._report_tracker cimport Account, ReportBook, has_settled
from sluicegate.quota.packed._gil cimport take_turns
from sluicegate.quota.node.core._admission cimport USER_WORDS, Cell, Now, User, add_cell, blank, cell_of, is_spent

__all__ = ["forget", "put_settled", "put_shares"]

cdef enum:
    AHEAD = 8  # slots; a quota for a later one is not kept


def put_shares(Host host not None, double time, service, users, *, long long slot, version):
    """Put what a Quota for `slot` gives to the users of a service into their records.

    A user without shares is free as long as the limits have this version. None instead of
    shares takes away what was said of the slot.
    """
    cdef Key key
    cdef Py_ssize_t done = 0
    if not host.head.has_service(service):
        return  # nobody here has a user of it
    number = host.head.known_service(service)
    for user, shares in users.items():
        kept = key_of_user(user, number, &key)
        _put_shares(host, time, service, &key, kept, shares, slot, version)
        if is_name_of_spare(user):  # a user may be called so, and those who came too late are
            key.kind = BYTES
            if _has(host, &key):
                _put_shares(host, time, service, &key, kept, shares, slot, version)
        done += 1
        take_turns(done)


cdef bint _has(Host host, Key *key) except -1:
    cdef Look look
    host.chains.find(key, &look)
    return look.found >= 0


cdef int _put_shares(
    Host host, double time, object service, Key *key, object kept, object shares, long long slot, object version
) except -1:
    cdef Look look
    cdef Now now
    cdef User *record = <User *> look.payload
    cdef Cell *cells = <Cell *> (look.payload + USER_WORDS)
    cdef Cell *cell
    cdef int i, place, count, number
    set_time(&now, time)
    while True:
        kept = host.find(key, &look, &now, service, kept)
        if key.kind == BYTES and look.found < 0:
            return 0  # there is no room for him, and he has not come
        if look.found < 0:  # he is no newcomer
            look.limits = 0
            blank(record, &now)
        count = look.limits
        if shares is None:
            for place in range(2):
                if record.quota_slot[place] == slot:
                    record.quota_slot[place] = -1
        elif not shares:
            # Users who are free leave room for those who have a limit.
            if key.kind == BYTES or (look.found < 0 and len(host) > <Py_ssize_t> host.max_users // 2):
                return 0
            record.free_version = version
        else:
            record.free_version = 0
            place = _place_for(record, slot, now.slot)
            record.quota_slot[place] = slot
            for i in range(count):
                cells[i].amount[place] = -1.0
                cells[i].is_limited = 0
            record.lacks_cell = 0
            for resource, share in shares.items():
                number = host.head.resource_or_none(resource)
                cell = add_cell(cells, &count, number) if number >= 0 else NULL
                if cell == NULL:
                    record.lacks_cell = 1
                else:
                    cell.amount[place] = <float> share[0]
                    cell.safe = <float> share[1]
        record.generation = now.generation - 1  # to be looked up anew
        if host.put(key, &look, count) != AGAIN:
            return 0  # or he is one of those who share


cdef int _place_for(User *record, long long slot, long long now) noexcept:
    """Which of the two quotas makes room for one for `slot`: not the one that holds now."""
    cdef int i
    for i in range(2):
        if record.quota_slot[i] == slot:
            return i
    for i in range(2):
        if record.quota_slot[i] > now + AHEAD:
            return i
    return 0 if record.quota_slot[0] <= record.quota_slot[1] else 1


def put_settled(Host host not None, ReportBook book not None):
    """Note in the records what a leader has acknowledged."""
    cdef Account account
    cdef Py_ssize_t done = 0
    for account in list(book.unsettled):
        if has_settled(account, book.settled):
            _put_settled(host, account)
        if account.changed <= book.settled:
            del book.unsettled[account]
        done += 1
        take_turns(done)


cdef int _put_settled(Host host, Account account) except -1:
    cdef Key key
    cdef Look look
    cdef Cell *cell
    cdef int i
    key.data = PyBytes_AS_STRING(account.key)
    key.size = <uint32_t> PyBytes_GET_SIZE(account.key)
    key.kind = TEXT
    key.generation = account.service_number
    while True:
        host.chains.find(&key, &look)
        if look.found < 0:
            return 0
        for i in range(account.count):
            cell = cell_of(<Cell *> (look.payload + USER_WORDS), look.limits, account.totals[i].resource)
            if cell != NULL:
                cell.settled = min(account.totals[i].settled, cell.consumed)
        if host.put(&key, &look, look.limits) != AGAIN:
            break
    for i in range(account.count):
        account.totals[i].noted = account.totals[i].settled
    return 0


def forget(Host host not None, double time, service, user, uint32_t since):
    """Forget a user without a change since a window, if nothing is forgiven by it. Whether he is gone."""
    cdef Key key
    cdef Look look
    cdef Now now
    cdef User *record = <User *> look.payload
    cdef Cell *cells = <Cell *> (look.payload + USER_WORDS)
    set_time(&now, time)
    kept = key_of_user(user, service_number(host.head, service), &key)
    while True:
        host.chains.find(&key, &look)
        if look.found < 0:
            return True
        if record.changed >= since:
            return False
        kept = host.find(&key, &look, &now, service, kept)
        if look.found < 0:
            return True
        if record.changed >= since or is_spent(record, cells, look.limits, &now):
            return False
        if host.chains.change(&look, <uint32_t> 1 << look.found, NULL, 0, NULL, -1):
            return True

# cython: language_level=3, binding=False, cdivision=True
"""Scans the records of all users of a host, while requests go on changing them.

What is of interest in a chain of the table is copied, and used only if the chain was unchanged
after that. No process is stopped, and other threads have their turn after every part.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy, memset

from sluicegate.shm._lockfree_table cimport (
    BYTES, CLASSES, MAX_CHAIN_LENGTH, TEXT, BLOCK, ChainSnapshot, Record, key_in, payload_in, record_at,
)
from sluicegate.quota.node.core._shared_header cimport MAX_SERVICES, read_defaults
from sluicegate.quota.node.core._user_table cimport UserTable, set_time, state_name
from sluicegate.quota.node.core._report_tracker cimport ReportTracker
from sluicegate.quota.packed._gil cimport USERS_PER_YIELD, yield_gil
from sluicegate.quota.node.core._admission cimport (
    MAX_CELLS, STATE_COUNT, USER_WORDS, ResourceCell, UserRecord, WindowInfo, state_of,
)

__all__ = ["collect", "count_states"]


def collect(UserTable user_table not None, ReportTracker tracker not None, uint32_t window, uint32_t since):
    """Update the tracker to the records as of the begin of `window`, for all users whose records
    changed in window `since` or later."""
    cdef uint64_t chain = 0
    user_table.table.check()
    while chain < user_table.table.header.chains:
        chain = _collect(user_table, chain, tracker, window, since)
        yield_gil()


cdef uint64_t _collect(
    UserTable user_table, uint64_t chain, ReportTracker tracker, uint32_t window, uint32_t since
) except? 0:
    """Go on from a chain; where to go on next."""
    cdef ChainSnapshot snapshot
    cdef Record *record
    cdef char[MAX_CHAIN_LENGTH][1 << (5 + CLASSES)] copies
    cdef bint[MAX_CHAIN_LENGTH] is_changed
    cdef uint64_t end = user_table.table.header.chains
    cdef int i, collected = 0
    while collected < USERS_PER_YIELD:
        chain = user_table.table.next_nonempty(chain, end)
        if chain == end:
            break
        user_table.table.snapshot_chain(chain, &snapshot)
        for i in range(snapshot.length):
            record = record_at(user_table.table, snapshot.blocks[i])
            # A record that was read at the very end of a window may be written late.
            is_changed[i] = (
                (record.kind == TEXT or record.kind == BYTES)
                and record.item_count <= MAX_CELLS
                and (<UserRecord *> payload_in(record)).changed_window + 2 >= since
            )
            if is_changed[i]:
                memcpy(copies[i], record, <size_t> BLOCK << min(<int> record.size_class - 1, CLASSES - 1))
        if not user_table.table.is_current(&snapshot):
            continue
        for i in range(snapshot.length):
            if is_changed[i]:
                record = <Record *> copies[i]
                tracker.update(
                    record.namespace,
                    PyBytes_FromStringAndSize(key_in(record), record.key_size),
                    <UserRecord *> payload_in(record),
                    <ResourceCell *> (payload_in(record) + USER_WORDS),
                    record.item_count,
                    window,
                    user_table.reservation_windows,
                )
                collected += 1
        chain += 1
    return chain


def count_states(UserTable user_table not None, double time):
    """How many users are in each state, by service."""
    cdef int[MAX_SERVICES * STATE_COUNT] counts
    cdef uint64_t chain = 0
    cdef int service, state
    memset(counts, 0, sizeof(counts))
    user_table.table.check()
    while chain < user_table.table.header.chains:
        chain = _count(user_table, chain, time, counts)
        yield_gil()
    found = {}
    for service in range(MAX_SERVICES):
        for state in range(<int> STATE_COUNT):
            count = counts[service * STATE_COUNT + state]
            if count:
                found.setdefault(user_table.header.service_name(service), {})[state_name(state)] = count
    return found


cdef uint64_t _count(UserTable user_table, uint64_t chain, double time, int *counts) except? 0:
    """Go on from a chain; where to go on next."""
    cdef ChainSnapshot snapshot
    cdef WindowInfo window
    cdef Record *record
    cdef UserRecord[MAX_CHAIN_LENGTH] users
    cdef uint64_t[MAX_CHAIN_LENGTH] services
    cdef uint64_t end = user_table.table.header.chains, service = MAX_SERVICES  # the one that `window` is of
    cdef int i, counted = 0
    set_time(&window, time)
    window.lease = user_table.lease
    while counted < USERS_PER_YIELD:
        chain = user_table.table.next_nonempty(chain, end)
        if chain == end:
            break
        user_table.table.snapshot_chain(chain, &snapshot)
        for i in range(snapshot.length):
            record = record_at(user_table.table, snapshot.blocks[i])
            services[i] = record.namespace
            users[i] = (<UserRecord *> payload_in(record))[0]
        if not user_table.table.is_current(&snapshot):
            continue
        for i in range(snapshot.length):
            if services[i] >= MAX_SERVICES:
                continue
            if services[i] != service:
                service = services[i]
                read_defaults(user_table.header, <int> service, &window)
            counts[service * STATE_COUNT + state_of(&users[i], &window)] += 1
        counted += snapshot.length
        chain += 1
    return chain

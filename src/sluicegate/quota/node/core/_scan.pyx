# cython: language_level=3, binding=False, cdivision=True
"""Scans the records of all users of a host, while requests go on changing them.

What is of interest in a chain of the table is copied, and used only if the chain was unchanged
after that. No process is stopped, and other threads have their turn after every part.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy, memset

from sluicegate.shm._lockfree_table cimport (
    BYTES, CLASSES, LONGEST_CHAIN, TEXT, UNIT, Look, Record, key_in, payload_in, record_at,
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
    cdef uint64_t bucket = 0
    user_table.chains.check()
    while bucket < user_table.chains.header.buckets:
        bucket = _collect(user_table, bucket, tracker, window, since)
        yield_gil()


cdef uint64_t _collect(
    UserTable user_table, uint64_t bucket, ReportTracker tracker, uint32_t window, uint32_t since
) except? 0:
    """Go on from a bucket; where to go on next."""
    cdef Look look
    cdef Record *record
    cdef char[LONGEST_CHAIN][1 << (5 + CLASSES)] copies
    cdef bint[LONGEST_CHAIN] is_changed
    cdef uint64_t end = user_table.chains.header.buckets
    cdef int i, collected = 0
    while collected < USERS_PER_YIELD:
        bucket = user_table.chains.next_used(bucket, end)
        if bucket == end:
            break
        user_table.chains.see(bucket, &look)
        for i in range(look.length):
            record = record_at(user_table.chains, look.units[i])
            # A record that was read at the very end of a window may be written late.
            is_changed[i] = (
                (record.kind == TEXT or record.kind == BYTES)
                and record.limits <= MAX_CELLS
                and (<UserRecord *> payload_in(record)).changed_window + 2 >= since
            )
            if is_changed[i]:
                memcpy(copies[i], record, <size_t> UNIT << min(<int> record.size_class - 1, CLASSES - 1))
        if not user_table.chains.is_current(&look):
            continue
        for i in range(look.length):
            if is_changed[i]:
                record = <Record *> copies[i]
                tracker.update(
                    record.generation,
                    PyBytes_FromStringAndSize(key_in(record), record.key_size),
                    <UserRecord *> payload_in(record),
                    <ResourceCell *> (payload_in(record) + USER_WORDS),
                    record.limits,
                    window,
                    user_table.reservation_windows,
                )
                collected += 1
        bucket += 1
    return bucket


def count_states(UserTable user_table not None, double time):
    """How many users are in each state, by service."""
    cdef int[MAX_SERVICES * STATE_COUNT] counts
    cdef uint64_t bucket = 0
    cdef int service, state
    memset(counts, 0, sizeof(counts))
    user_table.chains.check()
    while bucket < user_table.chains.header.buckets:
        bucket = _count(user_table, bucket, time, counts)
        yield_gil()
    found = {}
    for service in range(MAX_SERVICES):
        for state in range(<int> STATE_COUNT):
            count = counts[service * STATE_COUNT + state]
            if count:
                found.setdefault(user_table.header.service_name(service), {})[state_name(state)] = count
    return found


cdef uint64_t _count(UserTable user_table, uint64_t bucket, double time, int *counts) except? 0:
    """Go on from a bucket; where to go on next."""
    cdef Look look
    cdef WindowInfo window
    cdef Record *record
    cdef UserRecord[LONGEST_CHAIN] users
    cdef uint64_t[LONGEST_CHAIN] services
    cdef uint64_t end = user_table.chains.header.buckets, service = MAX_SERVICES  # the one that `window` is of
    cdef int i, counted = 0
    set_time(&window, time)
    window.lease = user_table.lease
    while counted < USERS_PER_YIELD:
        bucket = user_table.chains.next_used(bucket, end)
        if bucket == end:
            break
        user_table.chains.see(bucket, &look)
        for i in range(look.length):
            record = record_at(user_table.chains, look.units[i])
            services[i] = record.generation
            users[i] = (<UserRecord *> payload_in(record))[0]
        if not user_table.chains.is_current(&look):
            continue
        for i in range(look.length):
            if services[i] >= MAX_SERVICES:
                continue
            if services[i] != service:
                service = services[i]
                read_defaults(user_table.header, <int> service, &window)
            counts[service * STATE_COUNT + state_of(&users[i], &window)] += 1
        counted += look.length
        bucket += 1
    return bucket

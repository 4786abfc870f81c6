# cython: language_level=3, binding=False, cdivision=True
"""Reads the records of all users of a host, while requests go on changing them.

Of each chain of the table what is of interest is copied, and taken only if the chain was still the
same after that. Nobody is stopped, and other threads have their turn after every part.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy, memset

from sluicegate.shm._lockfree_table cimport (
    BYTES, CLASSES, LONGEST_CHAIN, TEXT, UNIT, Look, Record, key_in, payload_in, record_at,
)
from sluicegate.quota.node.core._shared_header cimport SERVICES, read_terms
from sluicegate.quota.node.core._user_table cimport Host, name_of_state, set_time
from sluicegate.quota.node.core._report_tracker cimport ReportBook
from sluicegate.quota.packed._gil cimport USERS_AT_ONCE, let_others_run
from sluicegate.quota.node.core._admission cimport MOST_CELLS, STATES, USER_WORDS, Cell, Now, User, state_of

__all__ = ["collect", "count_states"]


def collect(Host host not None, ReportBook book not None, uint32_t window, uint32_t since):
    """Bring the accounts of a book to what the records held when `window` began, of all users
    whose records changed in window `since` or later."""
    cdef uint64_t bucket = 0
    host.chains.check()
    while bucket < host.chains.header.buckets:
        bucket = _collect(host, bucket, book, window, since)
        let_others_run()


cdef uint64_t _collect(Host host, uint64_t bucket, ReportBook book, uint32_t window, uint32_t since) except? 0:
    """Go on from a bucket; where to go on next."""
    cdef Look look
    cdef Record *record
    cdef char[LONGEST_CHAIN][1 << (5 + CLASSES)] copies
    cdef bint[LONGEST_CHAIN] is_told
    cdef uint64_t end = host.chains.header.buckets
    cdef int i, told = 0
    while told < USERS_AT_ONCE:
        bucket = host.chains.next_used(bucket, end)
        if bucket == end:
            break
        host.chains.see(bucket, &look)
        for i in range(look.length):
            record = record_at(host.chains, look.units[i])
            # One who was looked at at the very end of a window may be noted late.
            is_told[i] = (
                (record.kind == TEXT or record.kind == BYTES)
                and record.limits <= MOST_CELLS
                and (<User *> payload_in(record)).changed + 2 >= since
            )
            if is_told[i]:
                memcpy(copies[i], record, <size_t> UNIT << min(<int> record.size_class - 1, CLASSES - 1))
        if not host.chains.is_current(&look):
            continue
        for i in range(look.length):
            if is_told[i]:
                record = <Record *> copies[i]
                book.enter(
                    record.generation,
                    PyBytes_FromStringAndSize(key_in(record), record.key_size),
                    <User *> payload_in(record),
                    <Cell *> (payload_in(record) + USER_WORDS),
                    record.limits,
                    window,
                    host.reservation_windows,
                )
                told += 1
        bucket += 1
    return bucket


def count_states(Host host not None, double time):
    """How many users are in each state, by service."""
    cdef int[SERVICES * STATES] counts
    cdef uint64_t bucket = 0
    cdef int service, state
    memset(counts, 0, sizeof(counts))
    host.chains.check()
    while bucket < host.chains.header.buckets:
        bucket = _count(host, bucket, time, counts)
        let_others_run()
    found = {}
    for service in range(SERVICES):
        for state in range(<int> STATES):
            count = counts[service * STATES + state]
            if count:
                found.setdefault(host.head.service_name(service), {})[name_of_state(state)] = count
    return found


cdef uint64_t _count(Host host, uint64_t bucket, double time, int *counts) except? 0:
    """Go on from a bucket; where to go on next."""
    cdef Look look
    cdef Now now
    cdef Record *record
    cdef User[LONGEST_CHAIN] users
    cdef uint64_t[LONGEST_CHAIN] services
    cdef uint64_t end = host.chains.header.buckets, service = SERVICES  # the one that `now` is of
    cdef int i, counted = 0
    set_time(&now, time)
    now.lease = host.lease
    while counted < USERS_AT_ONCE:
        bucket = host.chains.next_used(bucket, end)
        if bucket == end:
            break
        host.chains.see(bucket, &look)
        for i in range(look.length):
            record = record_at(host.chains, look.units[i])
            services[i] = record.generation
            users[i] = (<User *> payload_in(record))[0]
        if not host.chains.is_current(&look):
            continue
        for i in range(look.length):
            if services[i] >= SERVICES:
                continue
            if services[i] != service:
                service = services[i]
                read_terms(host.head, <int> service, &now)
            counts[service * STATES + state_of(&users[i], &now)] += 1
        counted += look.length
        bucket += 1
    return bucket

# cython: language_level=3, cdivision=True
"""`SharedHeader`: the state that all processes of a host share, beside the users' records.

- The slot, and what holds for all users (`Published`). One process, the reporter, publishes it,
  double-buffered: the new version is written to the inactive buffer, then published by one atomic
  store. So a reporter that is killed over it leaves the old version, and no process ever waits.
  Windows go on by themselves while nothing is published.
- The names of services and resources, by number. A name is added under a lock of the kernel's,
  which ends with the process that holds it, and stays for the life of the file.
- The asks: users that some process has met and the leader should know of, in a ring. One that is
  overwritten or left half written is lost; its user is asked for again in the next window.
- The life of the counters (`boot`) and how many reports were made, so that a new reporter goes on
  where the last one stopped.

Times are seconds of the host's monotonic clock.
"""

import fcntl
import os
from pathlib import Path

from libc.math cimport floor
from libc.string cimport memcpy

from sluicegate.shm._atomic cimport add, after_reads, before_writes, load, store
from sluicegate.shm._futex cimport futex_wait, futex_wake, futex_wake_if
from sluicegate.quota.node.core._admission cimport MAX_CELLS, REQUEST_STARTS

from sluicegate.errors import ConfigError
from sluicegate._validate import encode_utf8
from sluicegate.shm.file import MAGIC, SharedFile, is_foreign

__all__ = ["SharedHeader"]

cdef enum:
    VERSION = 6
    MAX_ASK_RETRIES = 3  # looks at an ask that is half written, before it is given up


cdef class SharedHeader:
    """The header file at `path`, created if there is none."""

    def __init__(self, path, str node_id not None, double slot_seconds, *, double now, double wall):
        self.slot_seconds = slot_seconds
        self._service_numbers = {}
        self._resource_numbers = {}
        self._recent = [None] * RECENT_RESOURCES
        fingerprint = f"node {node_id!r} with slots of {slot_seconds:g} s".encode("utf-8", "surrogatepass")
        if len(fingerprint) >= FINGERPRINT_SIZE:
            raise ValueError(f"node_id must have at most 200 bytes, got {node_id!r}")
        boot_id = _boot_id()

        def fill(descriptor):
            _fill(descriptor, fingerprint, boot_id, now, wall, slot_seconds)

        shape = (sizeof(HeaderLayout), sizeof(HeaderLayout), fill)
        while True:
            file = SharedFile.open(Path(path), *shape)
            try:
                if self._is_compatible(file, fingerprint, boot_id):
                    self.file = file
                    return
                file.replace(*shape)
            except BaseException:
                file.close()
                raise
            file.close()

    cdef bint _is_compatible(self, object file, bytes fingerprint, bytes boot_id) except -1:
        """Map the file; whether it can be used as it is. ConfigError if it belongs to another node."""
        if is_foreign(os.pread(file.descriptor, len(MAGIC), 0)):
            raise ConfigError(
                f"{file.path} is not a shared memory file of sluicegate: remove it, or choose another `shared` name"
            )
        if file.size != sizeof(HeaderLayout):
            return False
        self._memory = Memory(file.descriptor, file.size)
        self.memory = <HeaderLayout *> self._memory.start
        if self.memory.version != VERSION or bytes(self.memory.boot_id) != boot_id:
            return False
        found = bytes(self.memory.fingerprint)
        if found != fingerprint:
            raise ConfigError(
                f"shared memory {file.path} belongs to {found.decode('utf-8', 'replace')}, "
                f"expected {fingerprint.decode('utf-8', 'replace')}: "
                f"give each node its own `shared`, or remove the file when no process uses it"
            )
        return True

    def close(self):
        self.file.close()

    @property
    def boot(self):
        return self.memory.boot

    # Names

    cdef int number_of_service(self, object name) except -1:
        """The number of a service."""
        if name is self._last_service:
            return self._last_number
        found = self._service_numbers.get(name)
        if found is None:
            found = self._add_name(
                name, "service", <char *> self.memory.service_names, &self.memory.services, MAX_SERVICES, 50
            )
            self._service_numbers[name] = found
        self._last_service = name
        self._last_number = found
        return found

    cdef int number_of_resource(self, object name) except -1:
        """The number of a resource."""
        found = self._resource_numbers.get(name)
        if found is None:
            found = self._add_name(
                name, "resource", <char *> self.memory.resource_names, &self.memory.resources,
                MAX_RESOURCES, MAX_NAME_BYTES,
            )
            self._resource_numbers[name] = found
        return found

    cdef int _remember_resource(self, object name, int place) except -1:
        cdef int found = self.number_of_resource(name)
        if place < RECENT_RESOURCES:
            self._recent[place] = name  # so that no other object can have its address
            self._recent_names[place] = <PyObject *> name
            self._recent_numbers[place] = found
        return found

    cdef int known_service(self, object name) except -2:
        """The number of a service that some process of this host has named; -1: none has."""
        cdef uint64_t i
        found = self._service_numbers.get(name)
        if found is None and load(&self.memory.services) > <uint64_t> len(self._service_numbers):
            for i in range(load(&self.memory.services)):
                self._service_numbers[self.service_name(<int> i)] = <int> i
            found = self._service_numbers.get(name)
        return -1 if found is None else found

    def add_service(self, name):
        """Name a service that is served here."""
        self.number_of_service(name)

    def has_service(self, name):
        """Whether some process of this host has named a service."""
        return self.known_service(name) >= 0

    cdef int resource_or_none(self, object name) except -2:
        """The number of a resource; -1 when there is no room for one more name."""
        try:
            return self.number_of_resource(name)
        except ValueError:
            return -1

    cpdef str resource_name(self, int number):
        if number == REQUEST_STARTS:
            return "requests"
        return _name_at(<char *> self.memory.resource_names, number)

    def service_name(self, int number):
        return _name_at(<char *> self.memory.service_names, number)

    cdef int _add_name(self, name, str what, char *names, uint64_t *count, int most, int longest) except -1:
        cdef uint64_t i
        encoded = encode_utf8(what, name)
        if len(encoded) > longest:
            raise ValueError(f"{what} must have at most {longest} bytes, got {name!r}")
        descriptor = self.file.open_unlocked()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            for i in range(load(count)):
                if _name_at(names, i) == name:
                    return i
            i = load(count)
            if i >= <uint64_t> most:
                raise ValueError(f"too many {what} names: a node has at most {most}, got one more: {name!r}")
            names[i * NAME_SIZE] = <char> len(encoded)
            memcpy(names + i * NAME_SIZE + 1, <const char *> (<bytes> encoded), len(encoded))
            store(count, i + 1)
            return i
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child that was forked just now has it too
            os.close(descriptor)

    # What holds for all users

    def publish(
        self, *, version, begin, end, slot, epoch, window, generation, slot_frozen, nodes, alone_since, lead_seconds,
        wait_seconds, retry_seconds, newcomers, alone_services
    ):
        """Publish what holds for all users from now on.

        By service: `newcomers` are their shares; `alone_services`, where another time than `alone_since` holds.
        """
        cdef uint64_t publications = load(&self.memory.publications) + 1
        cdef Published *published = &self.memory.published[publications & 1]
        cdef int service
        published.version = version
        published.begin = begin
        published.end = end
        published.slot = slot
        published.epoch = epoch
        published.window = window
        published.generation = generation
        published.slot_frozen = slot_frozen
        published.nodes = nodes
        published.lead_seconds = lead_seconds
        published.wait_seconds = wait_seconds
        published.retry_seconds = retry_seconds
        published.known_services = 0
        for name, shares in newcomers.items():
            service = self.known_service(name)
            if shares and service >= 0:  # the others are not served here
                published.known_services |= <uint64_t> 1 << service
                self.fill_defaults(&published.newcomers[service], shares)
        for service in range(MAX_SERVICES):
            published.alone_since[service] = alone_since
        for name, since in alone_services.items():
            service = self.known_service(name)
            if service >= 0:
                published.alone_since[service] = since
        before_writes()
        store(&self.memory.publications, publications)

    cdef int fill_defaults(self, DefaultShares *defaults, shares) except -1:
        defaults.count = 0
        for resource, share in shares.items():
            number = self.resource_or_none(resource)
            if defaults.count < MAX_CELLS and number >= 0:
                defaults.resource[defaults.count] = <uint8_t> number
                defaults.share[defaults.count] = share
                defaults.count += 1
        return 0

    def last_published(self):
        """What was published last, as a dict."""
        cdef Published *published = &self.memory.published[load(&self.memory.publications) & 1]
        return {
            "version": published.version,
            "begin": published.begin,
            "end": published.end,
            "slot": published.slot,
            "epoch": published.epoch,
            "window": published.window,
            "generation": published.generation,
            "nodes": published.nodes,
            "newcomers": {
                self.service_name(service): self._default_shares(&published.newcomers[service])
                for service in range(MAX_SERVICES)
                if published.known_services >> service & 1
            },
        }

    cdef dict _default_shares(self, const DefaultShares *defaults):
        cdef int i
        return {self.resource_name(defaults.resource[i]): defaults.share[i] for i in range(defaults.count)}

    @property
    def wait_seconds(self):
        """How long a request may wait for an answer of the leader; 0 while none is heard."""
        cdef Published *published = &self.memory.published[load(&self.memory.publications) & 1]
        return 0.0 if published.epoch < 0 else published.wait_seconds

    # Requests that wait

    def count_answer(self):
        """A Quota has been written into the records."""
        add(&self.memory.answers, 1)

    @property
    def news(self):
        """Changes whenever a request that waits may find what it waits for."""
        return load(&self.memory.answers) + load(&self.memory.publications)

    def count_wait(self, double seconds):
        """A request of some process of this host has waited."""
        add(&self.memory.waits, 1)
        add(&self.memory.waited_microseconds, <uint64_t> (max(seconds, 0.0) * 1e6))

    @property
    def waits(self):
        """How many requests have waited since the memory was made, and how many seconds in sum."""
        return load(&self.memory.waits), load(&self.memory.waited_microseconds) / 1e6

    # Reports

    def next_sequence(self):
        """The number of a report that is made now."""
        return add(&self.memory.sequence, 1) + 1

    @property
    def sequence(self):
        return load(&self.memory.sequence)

    @property
    def settled_slot(self):
        """Up to which a leader has acknowledged everything; -1: none has."""
        return self.memory.settled_slot

    @settled_slot.setter
    def settled_slot(self, int64_t slot):
        self.memory.settled_slot = slot

    # Asks

    cdef void push_ask(self, int service, const char *user, uint32_t size) noexcept:
        """Have the reporter introduce a user to the leader."""
        cdef uint64_t ticket = add(&self.memory.ask_tickets, 1)
        cdef AskEntry *place = &self.memory.ask_ring[ticket % ASK_RING_SIZE]
        store(&place.ticket, 0)
        before_writes()
        place.service = <uint8_t> service
        place.size = <uint8_t> size
        memcpy(place.user, user, size)
        store(&place.ticket, ticket + 1)
        futex_wake_if(&self.memory.ask_tickets, &self.memory.asks_awaited)

    @property
    def has_asks(self):
        return load(&self.memory.ask_tickets) != self._next_ask

    def wait_for_asks(self, double seconds):
        """Sleep until there are asks, `wake_reporter` is called, or the seconds are over; whether there are."""
        cdef uint64_t seen = self._next_ask
        with nogil:
            futex_wait(&self.memory.ask_tickets, seen, &self.memory.asks_awaited, seconds)
        return self.has_asks

    def wake_reporter(self):
        """End a `wait_for_asks` that has begun."""
        futex_wake(&self.memory.ask_tickets)

    def take_asks(self):
        """(service, user) of all asks since the last call."""
        cdef uint64_t end = load(&self.memory.ask_tickets)
        cdef AskEntry *place
        cdef AskEntry one
        asks = []
        if end - self._next_ask > ASK_RING_SIZE:
            self._next_ask = end - ASK_RING_SIZE
        while self._next_ask < end:
            place = &self.memory.ask_ring[self._next_ask % ASK_RING_SIZE]
            if load(&place.ticket) < self._next_ask + 1 and self._ask_retries < MAX_ASK_RETRIES:
                self._ask_retries += 1
                break
            memcpy(&one, place, sizeof(AskEntry))
            after_reads()
            is_whole = one.ticket == load(&place.ticket) == self._next_ask + 1
            self._ask_retries = 0
            self._next_ask += 1
            if is_whole and one.size <= MAX_USER_BYTES and one.service < load(&self.memory.services):
                user = one.user[: one.size].decode("utf-8", "replace")
                asks.append((self.service_name(one.service), user))
        return asks

    @property
    def asks_waiting(self):
        """How many asks have come in since the last `take_asks`."""
        return min(load(&self.memory.ask_tickets) - self._next_ask, <uint64_t> ASK_RING_SIZE)


cdef str _name_at(char *names, uint64_t number):
    cdef unsigned char size = <unsigned char> names[number * NAME_SIZE]
    return names[number * NAME_SIZE + 1: number * NAME_SIZE + 1 + size].decode("utf-8", "surrogatepass")


def _fill(descriptor, fingerprint, boot_id, double now, double wall, double slot_seconds):
    """The first bytes of a new file: no reporter yet, slots by the wall clock."""
    cdef bytes packed = bytes(sizeof(HeaderLayout))
    cdef HeaderLayout *memory = <HeaderLayout *> <char *> packed
    cdef Published *published = &memory.published[0]
    cdef int service
    memcpy(memory.magic, <const char *> (<bytes> MAGIC), 8)
    memory.version = VERSION
    memory.boot = max(1, int(wall * 1000))
    memcpy(memory.fingerprint, <const char *> (<bytes> fingerprint), len(fingerprint))
    memcpy(memory.boot_id, <const char *> (<bytes> boot_id), len(boot_id))
    published.slot = <int64_t> floor(wall / slot_seconds)
    published.begin = published.slot * slot_seconds - (wall - now)
    published.end = (published.slot + 1) * slot_seconds - (wall - now)
    published.epoch = memory.settled_slot = -1
    published.window = 2
    published.generation = 1
    for service in range(MAX_SERVICES):
        published.alone_since[service] = now
    published.retry_seconds = 0.3
    published.lead_seconds = 0.1
    memory.resources = 1  # number 0 is the beginnings of requests
    os.pwrite(descriptor, packed, 0)


def _boot_id():
    """Identifies the boot of the machine: its monotonic clock starts again with each."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()[:39]
    except OSError:
        return b"unknown"

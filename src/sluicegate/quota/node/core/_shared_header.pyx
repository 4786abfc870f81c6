# cython: language_level=3, cdivision=True
"""The head file of a host: what its processes must agree on beside the users' records.

- Which slot it is, and what is in hand for everybody. One process, the reporter, tells it; it is
  written beside what held before, and then one word says that it holds. So a reporter that is
  killed over it leaves what was, and nobody ever waits. Windows go on by themselves when
  nobody tells anything.
- The names of services and resources, by number. A name is added under a lock of the kernel's,
  which ends with the process that holds it, and stays for the life of the file.
- The asks: users whom some process has met and the leader should know of, in a ring. One that is
  overwritten or left half done is lost; its user is asked for again in the next window.
- The life of the counters (`boot`) and how many reports were made, so that a new reporter goes on
  where the last one stopped.

Times are seconds of the host's monotonic clock.
"""

import fcntl
import os
from pathlib import Path

from libc.math cimport floor
from libc.string cimport memcpy, memset

from sluicegate.shm._atomic cimport add, after_reads, before_writes, load, store
from sluicegate.quota.node.core._admission cimport MOST_CELLS, STARTS

from sluicegate.errors import ConfigError
from sluicegate._validate import utf8
from sluicegate.shm.file import MAGIC, SharedFile, is_foreign

__all__ = ["Head"]

cdef enum:
    VERSION = 4
    PATIENCE = 3  # looks at an ask that is half written, before it is given up


cdef class Head:
    """The head file at `path`, made where there is none."""

    def __init__(self, path, str node_id not None, double slot_seconds, *, double now, double wall):
        self.slot_seconds = slot_seconds
        self._numbers = {}
        self._resources = {}
        self._recent = [None] * RECENT
        purpose = f"node {node_id!r} with slots of {slot_seconds:g} s".encode("utf-8", "surrogatepass")
        if len(purpose) >= PURPOSE:
            raise ValueError(f"node_id must have at most 200 bytes, got {node_id!r}")
        machine = _machine()

        def fill(descriptor):
            _fill(descriptor, purpose, machine, now, wall, slot_seconds)

        shape = (sizeof(HeadMemory), sizeof(HeadMemory), fill)
        while True:
            file = SharedFile.open(Path(path), *shape)
            try:
                if self._is_ours(file, purpose, machine):
                    self.file = file
                    return
                file.replace(*shape)
            except BaseException:
                file.close()
                raise
            file.close()

    cdef bint _is_ours(self, object file, bytes purpose, bytes machine) except -1:
        """Map the file; whether it can be used as it is. One of another node is not for us to replace."""
        if is_foreign(os.pread(file.descriptor, len(MAGIC), 0)):
            raise ConfigError(f"{file.path} is no shared memory of sluicegate's: remove it, or take another name")
        if file.size != sizeof(HeadMemory):
            return False
        self._memory = Memory(file.descriptor, file.size)
        self.memory = <HeadMemory *> self._memory.start
        if self.memory.version != VERSION or bytes(self.memory.machine) != machine:
            return False
        held = bytes(self.memory.purpose)
        if held != purpose:
            raise ConfigError(
                f"{file.path} holds {held.decode('utf-8', 'replace')}, and {purpose.decode('utf-8', 'replace')} was "
                f"asked for: give each node a `shared` of its own, or remove the file when nobody uses it"
            )
        return True

    def close(self):
        self.file.close()

    @property
    def boot(self):
        return self.memory.boot

    # Names

    cdef int service(self, object name) except -1:
        """The number of a service."""
        if name is self._last_service:
            return self._last_number
        found = self._numbers.get(name)
        if found is None:
            found = self._add(name, "service", <char *> self.memory.service_names, &self.memory.services, SERVICES, 50)
            self._numbers[name] = found
        self._last_service = name
        self._last_number = found
        return found

    cdef int resource(self, object name) except -1:
        """The number of a resource."""
        found = self._resources.get(name)
        if found is None:
            found = self._add(
                name, "resource", <char *> self.memory.resource_names, &self.memory.resources, RESOURCES, LONGEST_NAME
            )
            self._resources[name] = found
        return found

    cdef int _resource_at(self, object name, int place) except -1:
        cdef int found = self.resource(name)
        if place < RECENT:
            self._recent[place] = name  # so that no other object can have its address
            self._recent_names[place] = <PyObject *> name
            self._recent_numbers[place] = found
        return found

    cdef int known_service(self, object name) except -2:
        """The number of a service that some process of this host has named; -1: none has."""
        cdef uint64_t i
        found = self._numbers.get(name)
        if found is None and load(&self.memory.services) > <uint64_t> len(self._numbers):
            for i in range(load(&self.memory.services)):
                self._numbers[self.service_name(<int> i)] = <int> i
            found = self._numbers.get(name)
        return -1 if found is None else found

    def add_service(self, name):
        """Name a service that is served here."""
        self.service(name)

    def has_service(self, name):
        """Whether some process of this host has named a service."""
        return self.known_service(name) >= 0

    cdef int resource_or_none(self, object name) except -2:
        """The number of a resource; -1 when there is no room for one more name."""
        try:
            return self.resource(name)
        except ValueError:
            return -1

    cpdef str resource_name(self, int number):
        if number == STARTS:
            return "requests"
        return _name_at(<char *> self.memory.resource_names, number)

    def service_name(self, int number):
        return _name_at(<char *> self.memory.service_names, number)

    cdef int _add(self, name, str what, char *names, uint64_t *count, int most, int longest) except -1:
        cdef uint64_t i
        encoded = utf8(what, name)
        if len(encoded) > longest:
            raise ValueError(f"{what} must have at most {longest} bytes, got {name!r}")
        descriptor = self.file.another()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            for i in range(load(count)):
                if _name_at(names, i) == name:
                    return i
            i = load(count)
            if i >= <uint64_t> most:
                raise ValueError(f"a host has at most {most} names of a {what}, got one more: {name!r}")
            names[i * NAME] = <char> len(encoded)
            memcpy(names + i * NAME + 1, <const char *> (<bytes> encoded), len(encoded))
            store(count, i + 1)
            return i
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child that was forked just now has it too
            os.close(descriptor)

    # What holds for everybody

    def publish(self, *, version, begin, turn_at, slot, held, epoch, window, generation, slot_holds, nodes, views):
        """Tell what holds from now on. `views` are (slot of the whole Quota or -1, newcomers by service) of
        the slot, and of those after it."""
        cdef uint64_t published = load(&self.memory.published) + 1
        cdef Base *base = &self.memory.bases[published & 1]
        cdef View *view
        cdef int i, service
        base.version = version
        base.begin = begin
        base.turn_at = turn_at
        base.slot = slot
        base.held = held
        base.epoch = epoch
        base.window = window
        base.generation = generation
        base.slot_holds = slot_holds
        base.nodes = nodes
        for i, (whole, newcomers) in enumerate(views):
            view = &base.views[i]
            memset(view, 0, sizeof(View))
            view.whole = whole
            for name, shares in newcomers.items():
                service = self.known_service(name)
                if shares and service >= 0:  # of the others nobody here has a user
                    view.known |= <uint64_t> 1 << service
                    self.fill_terms(&view.newcomers[service], shares)
        before_writes()
        store(&self.memory.published, published)

    cdef int fill_terms(self, Terms *terms, shares) except -1:
        terms.count = 0
        for resource, share in shares.items():
            number = self.resource_or_none(resource)
            if terms.count < MOST_CELLS and number >= 0:
                terms.resource[terms.count] = <uint8_t> number
                terms.share[terms.count] = share
                terms.count += 1
        return 0

    def base(self):
        """What was told last, as a dict."""
        cdef Base *base = &self.memory.bases[load(&self.memory.published) & 1]
        return {
            "version": base.version,
            "begin": base.begin,
            "turn_at": base.turn_at,
            "slot": base.slot,
            "held": base.held,
            "epoch": base.epoch,
            "window": base.window,
            "generation": base.generation,
            "nodes": base.nodes,
        }

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

    cdef void ask(self, int service, const char *user, uint32_t size) noexcept:
        """Have the reporter introduce a user to the leader."""
        cdef uint64_t ticket = add(&self.memory.asks, 1)
        cdef Ask *place = &self.memory.ring[ticket % ASKS]
        store(&place.ticket, 0)
        before_writes()
        place.service = <uint8_t> service
        place.size = <uint8_t> size
        memcpy(place.user, user, size)
        store(&place.ticket, ticket + 1)

    @property
    def has_asks(self):
        return load(&self.memory.asks) != self._next_ask

    def take_asks(self):
        """(service, user) of all who were asked for since the last time."""
        cdef uint64_t end = load(&self.memory.asks)
        cdef Ask *place
        cdef Ask one
        asks = []
        if end - self._next_ask > ASKS:
            self._next_ask = end - ASKS
        while self._next_ask < end:
            place = &self.memory.ring[self._next_ask % ASKS]
            if load(&place.ticket) < self._next_ask + 1 and self._waits < PATIENCE:
                self._waits += 1
                break
            memcpy(&one, place, sizeof(Ask))
            after_reads()
            is_whole = one.ticket == load(&place.ticket) == self._next_ask + 1
            self._waits = 0
            self._next_ask += 1
            if is_whole and one.size <= LONGEST_USER and one.service < load(&self.memory.services):
                user = one.user[: one.size].decode("utf-8", "replace")
                asks.append((self.service_name(one.service), user))
        return asks

    @property
    def asks_waiting(self):
        """How many asks have come in since the last time."""
        return min(load(&self.memory.asks) - self._next_ask, <uint64_t> ASKS)


cdef str _name_at(char *names, uint64_t number):
    cdef unsigned char size = <unsigned char> names[number * NAME]
    return names[number * NAME + 1: number * NAME + 1 + size].decode("utf-8", "surrogatepass")


def _fill(descriptor, purpose, machine, double now, double wall, double slot_seconds):
    """The first bytes of a new file: no reporter yet, slots by the wall clock."""
    cdef bytes packed = bytes(sizeof(HeadMemory))
    cdef HeadMemory *memory = <HeadMemory *> <char *> packed
    cdef Base *base = &memory.bases[0]
    memcpy(memory.magic, <const char *> (<bytes> MAGIC), 8)
    memory.version = VERSION
    memory.boot = max(1, int(wall * 1000))
    memcpy(memory.purpose, <const char *> (<bytes> purpose), len(purpose))
    memcpy(memory.machine, <const char *> (<bytes> machine), len(machine))
    base.slot = <int64_t> floor(wall / slot_seconds)
    base.begin = base.slot * slot_seconds - (wall - now)
    base.turn_at = (base.slot + 1) * slot_seconds - (wall - now)
    base.epoch = memory.settled_slot = -1
    base.window = 2
    base.generation = 1
    base.views[0].whole = base.views[1].whole = -1
    memory.resources = 1  # number 0 is the beginnings of requests
    os.pwrite(descriptor, packed, 0)


def _machine():
    """Which life of the machine this is: its monotonic clock begins anew with each."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()[:39]
    except OSError:
        return b"unknown"

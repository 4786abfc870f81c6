# cython: language_level=3, boundscheck=False, wraparound=False
"""The lines of a report as numbers, and the dictionary that tells whose they are.

A `Dictionary` belongs to one direction of one connection: its entries, (service, user, resource),
are numbered in the order in which they came. A book that books lines notes with each entry the
bucket it has found for it, so that a name is looked up once and not in every slot.

`PackedLines` reads as the dict of service -> user -> resource -> Line that it stands for, which is
made when somebody looks into it.
"""

from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memset

from sluicegate.quota.messages import Line

__all__ = ["Dictionary", "PackedLines"]


cdef class Dictionary:
    def __cinit__(self):
        self.services = []
        self.registers = []
        self.service_numbers = {}
        self.names = []
        self.found = NULL
        self.count = self.room = self.users = 0

    def __dealloc__(self):
        free(self.found)

    def __len__(self):
        return self.count

    def __getitem__(self, Py_ssize_t entry):
        """(service, user, resource)"""
        if not 0 <= entry < self.count:
            raise IndexError(f"expected an entry below {self.count}, got {entry}")
        return self.services[self.found[entry].service], *self.names[entry]

    cdef int add(self, str service, str user, str resource) except -1:
        cdef Py_ssize_t room
        cdef Found *grown
        if self.count == self.room:
            room = max(16, self.room + self.room // 2)
            grown = <Found *> realloc(self.found, room * sizeof(Found))
            if grown == NULL:
                raise MemoryError
            self.found = grown
            self.room = room
        number = self.service_numbers.get(service)
        if number is None:
            number = self.service_numbers[service] = len(self.services)
            self.services.append(service)
            self.registers.append(None)
        memset(&self.found[self.count], 0, sizeof(Found))
        self.found[self.count].service = number
        self.names.append((user, resource))
        self.count += 1
        return 0


cdef class PackedLines:
    def __cinit__(self):
        self.lines = NULL
        self.count = 0
        self.parts = []

    def __init__(self, Dictionary dictionary not None):
        self.dictionary = dictionary

    def __dealloc__(self):
        free(self.lines)

    cdef int reserve(self, Py_ssize_t count) except -1:
        self.lines = <Packed *> malloc(max(1, count) * sizeof(Packed))
        if self.lines == NULL:
            raise MemoryError
        return 0

    cdef int arrange(self) except -1:
        """Bring the lines of each service together, in the order they stand in."""
        cdef Found *found = self.dictionary.found
        cdef Py_ssize_t i, begin = 0, count = len(self.dictionary.services)
        cdef Py_ssize_t *ends
        cdef Packed *arranged
        cdef int service, last
        self.parts = []
        if not self.count:
            return 0
        last = found[self.lines[0].entry].service
        seen = {last}
        for i in range(1, self.count):
            service = found[self.lines[i].entry].service
            if service != last:
                if service in seen:
                    break
                seen.add(service)
                self.parts.append((self.dictionary.services[last], begin, i))
                begin = i
                last = service
        else:
            self.parts.append((self.dictionary.services[last], begin, self.count))
            return 0
        self.parts = []
        ends = <Py_ssize_t *> malloc(count * sizeof(Py_ssize_t))
        arranged = <Packed *> malloc(self.count * sizeof(Packed))
        if ends == NULL or arranged == NULL:
            free(ends)
            free(arranged)
            raise MemoryError
        memset(ends, 0, count * sizeof(Py_ssize_t))
        for i in range(self.count):
            ends[found[self.lines[i].entry].service] += 1
        begin = 0
        for i in range(count):
            if ends[i]:
                self.parts.append((self.dictionary.services[i], begin, begin + ends[i]))
            begin, ends[i] = begin + ends[i], begin
        for i in range(self.count):
            service = found[self.lines[i].entry].service
            arranged[ends[service]] = self.lines[i]
            ends[service] += 1
        free(ends)
        free(self.lines)
        self.lines = arranged
        return 0

    cdef dict as_dict(self):
        cdef Py_ssize_t i
        cdef Packed *line
        if self.lines_dict is None:
            self.lines_dict = {}
            for i in range(self.count):
                line = &self.lines[i]
                service, user, resource = self.dictionary[line.entry]
                users = self.lines_dict.setdefault(service, {})
                users.setdefault(user, {})[resource] = Line(
                    line.consumed, line.rejected, line.requests, line.settled, line.held
                )
        return self.lines_dict

    def __getitem__(self, service):
        return self.as_dict()[service]

    def __iter__(self):
        return iter(self.as_dict())

    def __len__(self):
        """How many services have lines."""
        return len(self.parts)

    def __contains__(self, service):
        return service in self.as_dict()

    def __eq__(self, other):
        if isinstance(other, PackedLines):
            other = (<PackedLines> other).as_dict()
        return self.as_dict() == other

    __hash__ = None

    def __repr__(self):
        return repr(self.as_dict())

    def keys(self):
        return self.as_dict().keys()

    def values(self):
        return self.as_dict().values()

    def items(self):
        return self.as_dict().items()

    def get(self, service, default=None):
        return self.as_dict().get(service, default)

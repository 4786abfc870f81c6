# cython: language_level=3, boundscheck=False, wraparound=False
"""The lines of a report as a C array, and the string table that their entries refer to.

A `StringTable` belongs to one direction of one connection: its entries, (service, user, resource),
are numbered in order of arrival. A service ledger that books lines caches a `BucketRef` with each
entry, so that a name is looked up once and not in every slot.

`PackedLines` reads as a dict of service -> user -> resource -> Line, which is built on first access.
"""

from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memset

from sluicegate.quota.messages import Line

__all__ = ["PackedLines", "StringTable"]


cdef class StringTable:
    def __cinit__(self):
        self.services = []
        self.bucket_ids_by_service = []
        self.service_numbers = {}
        self.names = []
        self.refs = NULL
        self.count = self.room = self.user_count = 0

    def __dealloc__(self):
        free(self.refs)

    def __len__(self):
        return self.count

    def __getitem__(self, Py_ssize_t entry):
        """(service, user, resource)"""
        if not 0 <= entry < self.count:
            raise IndexError(f"entry must be below {self.count}, got {entry}")
        return self.services[self.refs[entry].service], *self.names[entry]

    cdef int add(self, str service, str user, str resource) except -1:
        cdef Py_ssize_t room
        cdef BucketRef *grown
        if self.count == self.room:
            room = max(16, self.room + self.room // 2)
            grown = <BucketRef *> realloc(self.refs, room * sizeof(BucketRef))
            if grown == NULL:
                raise MemoryError
            self.refs = grown
            self.room = room
        number = self.service_numbers.get(service)
        if number is None:
            number = self.service_numbers[service] = len(self.services)
            self.services.append(service)
            self.bucket_ids_by_service.append(None)
        memset(&self.refs[self.count], 0, sizeof(BucketRef))
        self.refs[self.count].service = number
        self.names.append((user, resource))
        self.count += 1
        return 0


cdef class PackedLines:
    def __cinit__(self):
        self.lines = NULL
        self.count = 0
        self.ranges = []

    def __init__(self, StringTable string_table not None):
        self.string_table = string_table

    def __dealloc__(self):
        free(self.lines)

    cdef int allocate(self, Py_ssize_t count) except -1:
        """Make room for `count` lines, all zero."""
        self.lines = <PackedLine *> calloc(max(1, count), sizeof(PackedLine))
        if self.lines == NULL:
            raise MemoryError
        return 0

    cdef int group_by_service(self) except -1:
        """Make the lines of each service contiguous, in stable order, and set `ranges`."""
        cdef BucketRef *refs = self.string_table.refs
        cdef Py_ssize_t i, begin = 0, count = len(self.string_table.services)
        cdef Py_ssize_t *ends
        cdef PackedLine *grouped
        cdef int service, last
        self.ranges = []
        if not self.count:
            return 0
        last = refs[self.lines[0].entry].service
        seen = {last}
        for i in range(1, self.count):
            service = refs[self.lines[i].entry].service
            if service != last:
                if service in seen:
                    break
                seen.add(service)
                self.ranges.append((self.string_table.services[last], begin, i))
                begin = i
                last = service
        else:
            self.ranges.append((self.string_table.services[last], begin, self.count))
            return 0
        self.ranges = []
        ends = <Py_ssize_t *> malloc(count * sizeof(Py_ssize_t))
        grouped = <PackedLine *> malloc(self.count * sizeof(PackedLine))
        if ends == NULL or grouped == NULL:
            free(ends)
            free(grouped)
            raise MemoryError
        memset(ends, 0, count * sizeof(Py_ssize_t))
        for i in range(self.count):
            ends[refs[self.lines[i].entry].service] += 1
        begin = 0
        for i in range(count):
            if ends[i]:
                self.ranges.append((self.string_table.services[i], begin, begin + ends[i]))
            begin, ends[i] = begin + ends[i], begin
        for i in range(self.count):
            service = refs[self.lines[i].entry].service
            grouped[ends[service]] = self.lines[i]
            ends[service] += 1
        free(ends)
        free(self.lines)
        self.lines = grouped
        return 0

    cdef dict as_dict(self):
        cdef Py_ssize_t i
        cdef PackedLine *line
        if self.lines_dict is None:
            self.lines_dict = {}
            for i in range(self.count):
                line = &self.lines[i]
                service, user, resource = self.string_table[line.entry]
                users = self.lines_dict.setdefault(service, {})
                users.setdefault(user, {})[resource] = Line(
                    line.consumed,
                    line.rejected,
                    line.requests,
                    line.settled,
                    line.held,
                    line.granted,
                    line.returned,
                )
        return self.lines_dict

    def __getitem__(self, service):
        return self.as_dict()[service]

    def __iter__(self):
        return iter(self.as_dict())

    def __len__(self):
        """How many services have lines."""
        return len(self.ranges)

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

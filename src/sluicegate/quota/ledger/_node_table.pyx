# cython: language_level=3, boundscheck=False, wraparound=False
"""The nodes of a ledger by number, how far each has reported, and who is taken to be on his own.

A cell of a book names its node by number, and an assignment looks at every cell, so what it
needs of a node stands in plain arrays. A number is given again only after `remove`, and the
ledger removes a node only when no book holds a cell of it.
"""

from libc.stdlib cimport free, realloc

__all__ = ["COLD_NODES", "Nodes"]

cdef enum:
    FEWEST = 16  # are taken to be there before all had the time to come

COLD_NODES = FEWEST


cdef class Nodes:
    def __cinit__(self):
        self.reported = NULL
        self.lead = NULL
        self.alone = NULL
        self.room = self.back = self.awaited_until = 0
        self.numbers = {}
        self.names = []
        self.free = []

    def __dealloc__(self):
        free(self.reported)
        free(self.lead)
        free(self.alone)

    def add(self, str node_id not None, long long reported, int lead=1):
        """The number of a node, new or known; `reported` and `lead` are set."""
        cdef Py_ssize_t number
        cdef void *grown
        if lead < 1 or lead > 2:
            raise ValueError(f"lead must be 1 or 2, got {lead!r}")
        found = self.numbers.get(node_id)
        if found is not None:
            number = found
            if reported >= self.back - 1:
                self.alone[number] = 0
        elif self.free:
            number = self.free.pop()
            self.names[number] = node_id
            self.alone[number] = 0
        else:
            number = len(self.names)
            if number == self.room:
                grown = realloc(self.reported, max(16, 2 * self.room) * sizeof(long long))
                if grown == NULL:
                    raise MemoryError
                self.reported = <long long *> grown
                grown = realloc(self.lead, max(16, 2 * self.room) * sizeof(int))
                if grown == NULL:
                    raise MemoryError
                self.lead = <int *> grown
                grown = realloc(self.alone, max(16, 2 * self.room) * sizeof(long long))
                if grown == NULL:
                    raise MemoryError
                self.alone = <long long *> grown
                self.room = max(16, 2 * self.room)
            self.names.append(node_id)
            self.alone[number] = 0
        self.numbers[node_id] = number
        self.reported[number] = reported
        self.lead[number] = lead
        return number

    def remove(self, str node_id not None):
        number = self.numbers.pop(node_id)
        self.names[number] = None
        self.free.append(number)

    cdef int number_of(self, str node_id):
        """The number of a node, or -1."""
        found = self.numbers.get(node_id)
        return -1 if found is None else <int> found

    cdef int guess(self, long long slot) noexcept:
        """How many there are, for an even part: those we know; at first there may be more."""
        cdef int known = <int> len(self.numbers)
        return max(FEWEST if slot < self.awaited_until else 1, known)

    def reported_of(self, str node_id not None):
        return self.reported[<int> self.numbers[node_id]]

    def numbers_of(self, str node_id not None):
        """A node's (number, reported, lead)."""
        cdef int number = self.numbers[node_id]
        return number, self.reported[number], self.lead[number]

    def come_back(self, long long since, long long slot, long long until):
        """We were away, and it is `slot` now. Who has reported since `since` is taken to live on his own.

        So it is until he reports of the time since, but not beyond the slot `until`.
        """
        cdef Py_ssize_t number
        self.back = slot
        for number in range(len(self.names)):
            self.alone[number] = until if self.reported[number] >= since else 0

    def is_alone(self, str node_id not None, long long slot):
        """Whether a node that we do not hear is taken to live on its own."""
        return self.alone[<int> self.numbers[node_id]] >= slot

    def rebase(self, long long slot):
        """No node has reported more than `slot`: the clock has gone back."""
        cdef Py_ssize_t number
        self.back = 0
        self.awaited_until = min(self.awaited_until, 1)
        for number in range(len(self.names)):
            self.reported[number] = min(self.reported[number], slot)
            self.alone[number] = 0

    def __contains__(self, node_id):
        return node_id in self.numbers

    def __len__(self):
        return len(self.numbers)

# cython: language_level=3, boundscheck=False, wraparound=False
"""The nodes of a ledger by number: how far each has reported, and which are autonomous.

A cell names its node by number, and an assignment visits every cell, so what it needs to know
of a node is in plain arrays. A number is reused only after `remove`, and the ledger removes a
node only when no service ledger has a cell of it.
"""

from libc.stdlib cimport free, realloc

__all__ = ["COLD_START_NODES", "NODE_TIMEOUT_SLOTS", "NodeTable"]

cdef enum:
    COLD_START_ESTIMATE = 16  # nodes, at least, while some may still be connecting

COLD_START_NODES = COLD_START_ESTIMATE
NODE_TIMEOUT_SLOTS = NODE_TIMEOUT


cdef class NodeTable:
    def __cinit__(self):
        self.reported = NULL
        self.lead_slots = NULL
        self.autonomous_until = NULL
        self.room = self.resumed_at = self.led_until = self.warmup_until = 0
        self.numbers = {}
        self.names = []
        self.free = []

    def __dealloc__(self):
        free(self.reported)
        free(self.lead_slots)
        free(self.autonomous_until)

    def add(self, str node_id not None, long long reported, int lead_slots=1):
        """The number of a node, new or known; `reported` and `lead_slots` are set."""
        cdef Py_ssize_t number
        cdef void *grown
        if lead_slots < 1 or lead_slots > 2:
            raise ValueError(f"lead_slots must be 1 or 2, got {lead_slots!r}")
        found = self.numbers.get(node_id)
        if found is not None:
            number = found
            if reported >= self.resumed_at - 1:
                self.autonomous_until[number] = 0
        elif self.free:
            number = self.free.pop()
            self.names[number] = node_id
            self.autonomous_until[number] = 0
        else:
            number = len(self.names)
            if number == self.room:
                grown = realloc(self.reported, max(16, 2 * self.room) * sizeof(long long))
                if grown == NULL:
                    raise MemoryError
                self.reported = <long long *> grown
                grown = realloc(self.lead_slots, max(16, 2 * self.room) * sizeof(int))
                if grown == NULL:
                    raise MemoryError
                self.lead_slots = <int *> grown
                grown = realloc(self.autonomous_until, max(16, 2 * self.room) * sizeof(long long))
                if grown == NULL:
                    raise MemoryError
                self.autonomous_until = <long long *> grown
                self.room = max(16, 2 * self.room)
            self.names.append(node_id)
            self.autonomous_until[number] = 0
        self.numbers[node_id] = number
        self.reported[number] = reported
        self.lead_slots[number] = lead_slots
        return number

    def remove(self, str node_id not None):
        number = self.numbers.pop(node_id)
        self.names[number] = None
        self.free.append(number)

    cdef int number_of(self, str node_id):
        """The number of a node, or -1."""
        found = self.numbers.get(node_id)
        return -1 if found is None else <int> found

    cdef int estimated_count(self, long long slot) noexcept:
        """The number of nodes, for an even part: those known; during warm-up there may be more."""
        cdef int known = <int> len(self.numbers)
        return max(COLD_START_ESTIMATE if slot < self.warmup_until else 1, known)

    def reported_of(self, str node_id not None):
        return self.reported[<int> self.numbers[node_id]]

    def row_of(self, str node_id not None):
        """A node's (number, reported, lead_slots)."""
        cdef int number = self.numbers[node_id]
        return number, self.reported[number], self.lead_slots[number]

    def takes_credit(self, str node_id not None):
        """Whether it is one of our own, which is granted credit."""
        return not self.is_classic(self.numbers[node_id])

    def resume(self, long long since, long long slot, long long until):
        """Resume in `slot` after an outage, or take over: nodes that have reported since `since` are autonomous.

        A node stays so until it reports on the time since, but not beyond the slot `until`.
        """
        cdef Py_ssize_t number
        self.resumed_at = slot
        self.led_until = 0
        for number in range(len(self.names)):
            self.autonomous_until[number] = until if self.reported[number] >= since else 0

    def silence_of(self, str node_id not None, long long slot):
        """Since when a node is silent, and up to when it is taken to live on its safe share, in slots; or (-1, -1)."""
        cdef int number = self.numbers.get(node_id, -1)
        if number < 0 or not self.is_silent(number, slot):
            return -1.0, -1.0
        return self.reported[number] + 1.0, self.autonomous_until[number] + 1.0

    def is_autonomous(self, str node_id not None, long long slot):
        """Whether a silent node is assumed to consume its safe share in `slot`."""
        return self.autonomous_until[<int> self.numbers[node_id]] >= slot

    def rebase(self, long long slot):
        """No node has reported more than `slot`: the clock has gone back."""
        cdef Py_ssize_t number
        self.resumed_at = self.led_until = 0
        self.warmup_until = min(self.warmup_until, 1)
        for number in range(len(self.names)):
            self.reported[number] = min(self.reported[number], slot)
            self.autonomous_until[number] = 0

    def __contains__(self, node_id):
        return node_id in self.numbers

    def __len__(self):
        return len(self.numbers)

# cython: language_level=3, cdivision=True
"""The shape of a host's head file. See `_shared_header.pyx`."""

cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from sluicegate.shm._atomic cimport after_reads, load
from sluicegate.shm._mapping cimport Memory
from sluicegate.quota.node.core._admission cimport Now, Terms

cdef enum:
    SERVICES = 64             # no more than bits in a View
    RESOURCES = 256
    NAME = 208               # bytes that a name and its size take
    LONGEST_NAME = 200
    LONGEST_USER = 160
    ASKS = 512
    PURPOSE = 512
    RECENT = 8

cdef struct View:
    # What is known of a slot: the newest whole Quota up to it, and what newcomers have.
    int64_t whole
    uint64_t known           # bit n: service n stands in it
    Terms[SERVICES] newcomers

cdef struct Base:
    # What holds for all users, as the reporter last told it.
    uint64_t version         # of the limits
    double begin             # of the window
    double turn_at           # when the next one begins
    int64_t slot
    int64_t held
    int64_t epoch
    uint32_t window
    uint32_t generation
    uint32_t slot_holds      # windows go on, but the slot does not: the leader's clock went back
    uint32_t nodes
    View[2] views            # of this slot, and of those after it

cdef struct Ask:
    uint64_t ticket          # its number + 1 when it is complete
    uint8_t service
    uint8_t size
    char[LONGEST_USER] user

cdef struct HeadMemory:
    char[8] magic
    uint64_t version
    uint64_t boot            # the life of the counters
    char[PURPOSE] purpose    # what all who open it must agree on
    char[40] machine         # the life of the machine, whose clock begins anew with each
    uint64_t published       # how often; the last one stands in bases[published & 1]
    uint64_t sequence        # of the last report that was made
    int64_t settled_slot     # up to which a leader has acknowledged everything; -1: none has
    uint64_t services
    uint64_t resources
    uint64_t[3] _alone
    uint64_t asks            # tickets that were given out
    uint64_t[7] _alone_too
    Base[2] bases
    char[SERVICES][NAME] service_names
    char[RESOURCES][NAME] resource_names
    Ask[ASKS] ring


@cython.final
cdef class Head:
    cdef object file
    cdef Memory _memory
    cdef HeadMemory *memory
    cdef readonly double slot_seconds
    cdef dict _numbers       # of services
    cdef dict _resources     # numbers by name
    cdef object _last_service  # the one asked for last, and its number
    cdef int _last_number
    cdef list _recent          # resources that last stood first, second, ... in what a caller gave
    cdef PyObject *_recent_names[RECENT]  # the same
    cdef int[RECENT] _recent_numbers
    cdef uint64_t _next_ask
    cdef int _waits

    cdef bint _is_ours(self, object file, bytes purpose, bytes machine) except -1
    cdef int service(self, object name) except -1
    cdef int fill_terms(self, Terms *terms, object shares) except -1
    cdef int _add(self, object name, str what, char *names, uint64_t *count, int most, int longest) except -1
    cdef int resource(self, object name) except -1
    cdef int _resource_at(self, object name, int place) except -1
    cpdef str resource_name(self, int number)
    cdef int known_service(self, object name) except -2
    cdef int resource_or_none(self, object name) except -2
    cdef void ask(self, int service, const char *user, uint32_t size) noexcept


cdef inline int service_number(Head head, object name) except -1:
    """The number of a service; most often it is the one that was asked for last."""
    return head._last_number if name is head._last_service else head.service(name)


cdef inline int resource_number(Head head, object name, int place) except -1:
    """The number of a resource that stands at `place` in what a caller gave: as the time before."""
    if place < RECENT and <PyObject *> name == head._recent_names[place]:
        return head._recent_numbers[place]
    return head._resource_at(name, place)


cdef inline void read_window(Head head, Now *now) noexcept:
    """Which window and slot it is at `now.time`, and of what what is in hand is: generation, version."""
    read(head, 0, now, False)


cdef inline void read_terms(Head head, int service, Now *now) noexcept:
    """The same, and all else that holds for a service; without the user's fraction and the node's
    own terms (lease, reservations, fallback)."""
    read(head, service, now, True)


cdef inline void read(Head head, int service, Now *now, bint with_terms) noexcept:
    cdef uint64_t published
    cdef Base *base
    cdef View *view
    cdef int64_t more, slot
    while True:
        published = load(&head.memory.published)
        base = &head.memory.bases[published & 1]
        more = 0
        now.begin = base.begin
        now.end = base.turn_at
        if now.time >= base.turn_at:
            # Nobody has told of this window yet: it follows from the last one that was told.
            more = <int64_t> min((now.time - base.turn_at) / head.slot_seconds, 1e9)
            now.begin = base.turn_at + <double> more * head.slot_seconds
            now.end = now.begin + head.slot_seconds
            more += 1
        slot = base.slot if base.slot_holds else base.slot + more
        now.slot = slot
        now.window = base.window + <uint32_t> more
        now.generation = base.generation
        now.version = base.version
        if with_terms:
            view = &base.views[slot > base.slot]
            now.held = base.held + more if base.slot_holds else (base.held if more == 0 else 0)
            now.whole = view.whole
            now.is_told = view.known >> service & 1
            now.terms = view.newcomers[service]
        after_reads()
        if load(&head.memory.published) == published:
            break
    now.slot_seconds = head.slot_seconds

# cython: language_level=3, cdivision=True
"""The memory layout of `SharedHeader`, and how it is read. See `_shared_header.pyx`."""

cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from sluicegate.shm._atomic cimport after_reads, load
from sluicegate.shm._mapping cimport Memory
from sluicegate.quota.node.core._admission cimport DefaultShares, WindowInfo

cdef enum:
    MAX_SERVICES = 64        # no more than bits in `known_services`
    MAX_RESOURCES = 256
    NAME_SIZE = 208          # bytes that a name and its size take
    MAX_NAME_BYTES = 200
    MAX_USER_BYTES = 160
    ASK_RING_SIZE = 512
    FINGERPRINT_SIZE = 512
    RECENT_RESOURCES = 8
    SILENT_WINDOWS = 2       # a reporter publishes each window; after so many without it, it stands still

cdef struct Published:
    # What holds for all users, as the reporter last published it.
    uint64_t version         # of the limits
    double begin             # of the window
    double end               # when the next one begins
    int64_t slot
    int64_t epoch
    uint32_t window
    uint32_t generation
    uint32_t slot_frozen     # windows go on, but the slot does not: the leader's clock went back
    uint32_t nodes
    double lead_seconds      # how long credit takes to come: a round trip and a frame interval
    double wait_seconds      # how long a request may wait for an answer of the leader
    double retry_seconds     # after which an ask is made again
    uint64_t known_services  # bit n: `newcomers[n]` is set
    DefaultShares[MAX_SERVICES] newcomers
    double[MAX_SERVICES] alone_since  # the service's leader is not heard since then; below 0: it is

cdef struct AskEntry:
    uint64_t ticket          # its number + 1 when it is complete
    uint8_t service
    uint8_t size
    char[MAX_USER_BYTES] user

cdef struct HeaderLayout:
    char[8] magic
    uint64_t version
    uint64_t boot            # the life of the counters
    char[FINGERPRINT_SIZE] fingerprint  # node and slot length: equal for all that open the file
    char[40] boot_id         # of the machine: its monotonic clock starts again with each boot
    uint64_t publications    # how many; the last one is published[publications & 1]
    uint64_t sequence        # of the last report that was made
    int64_t settled_slot     # up to which a leader has acknowledged everything; -1: none has
    uint64_t services
    uint64_t resources
    uint64_t answers         # Quotas that were written into records
    uint64_t waits           # requests that have waited for one
    uint64_t waited_microseconds  # for how long, in sum
    uint64_t ask_tickets     # that were given out
    uint64_t asks_awaited    # the reporter sleeps until one more is
    uint64_t[6] _padding
    Published[2] published
    char[MAX_SERVICES][NAME_SIZE] service_names
    char[MAX_RESOURCES][NAME_SIZE] resource_names
    AskEntry[ASK_RING_SIZE] ask_ring


@cython.final
cdef class SharedHeader:
    cdef object file
    cdef Memory _memory
    cdef HeaderLayout *memory
    cdef readonly double slot_seconds
    cdef dict _service_numbers   # by name
    cdef dict _resource_numbers  # by name
    cdef object _last_service  # the one asked for last, and its number
    cdef int _last_number
    cdef list _recent          # resources that last stood first, second, ... in what a caller gave
    cdef PyObject *_recent_names[RECENT_RESOURCES]  # the same
    cdef int[RECENT_RESOURCES] _recent_numbers
    cdef uint64_t _next_ask
    cdef int _ask_retries

    cdef bint _is_compatible(self, object file, bytes fingerprint, bytes boot_id) except -1
    cdef int number_of_service(self, object name) except -1
    cdef int fill_defaults(self, DefaultShares *defaults, object shares) except -1
    cdef dict _default_shares(self, const DefaultShares *defaults)
    cdef int _add_name(self, object name, str what, char *names, uint64_t *count, int most, int longest) except -1
    cdef int number_of_resource(self, object name) except -1
    cdef int _remember_resource(self, object name, int place) except -1
    cpdef str resource_name(self, int number)
    cdef int known_service(self, object name) except -2
    cdef int resource_or_none(self, object name) except -2
    cdef void push_ask(self, int service, const char *user, uint32_t size) noexcept


cdef inline int service_number(SharedHeader header, object name) except -1:
    """The number of a service; most often it is the one that was asked for last."""
    return header._last_number if name is header._last_service else header.number_of_service(name)


cdef inline int resource_number(SharedHeader header, object name, int place) except -1:
    """The number of a resource at `place` in a caller's amounts; most often the same as in the last call."""
    if place < RECENT_RESOURCES and <PyObject *> name == header._recent_names[place]:
        return header._recent_numbers[place]
    return header._remember_resource(name, place)


cdef inline void read_window(SharedHeader header, int service, WindowInfo *window) noexcept:
    """Fill in what is in effect for a service at `window.time`, but for its `defaults`."""
    read(header, service, window, False)


cdef inline void read_defaults(SharedHeader header, int service, WindowInfo *window) noexcept:
    """The same, and a service's `defaults`; the caller adds what the header does not know (user
    fraction, lease, reservation windows, fallback)."""
    read(header, service, window, True)


cdef inline void read(SharedHeader header, int service, WindowInfo *window, bint with_defaults) noexcept:
    cdef uint64_t publications
    cdef Published *published
    cdef int64_t more
    while True:
        publications = load(&header.memory.publications)
        published = &header.memory.published[publications & 1]
        more = 0
        window.begin = published.begin
        window.end = published.end
        if window.time >= published.end:
            # This window is not published yet: it follows from the last one that was.
            more = <int64_t> min((window.time - published.end) / header.slot_seconds, 1e9)
            window.begin = published.end + <double> more * header.slot_seconds
            window.end = window.begin + header.slot_seconds
            more += 1
        window.slot = published.slot if published.slot_frozen else published.slot + more
        window.number = published.window + <uint32_t> more
        window.generation = published.generation
        window.version = published.version
        window.epoch = published.epoch
        window.alone_since = published.alone_since[service]
        if more > SILENT_WINDOWS and window.alone_since < 0.0:
            window.alone_since = published.end  # the reporter stands still, and with it all news of the leader
        window.lead_seconds = published.lead_seconds
        window.retry_seconds = published.retry_seconds
        if with_defaults:
            window.has_defaults = published.known_services >> service & 1
            window.defaults = published.newcomers[service]
        after_reads()
        if load(&header.memory.publications) == publications:
            break
    window.slot_seconds = header.slot_seconds

from headgate.limits._cells cimport Rule

cdef enum:
    MOST_RULES = 8

cdef struct Rules:
    int count
    int words           # doubles of state per key
    double most         # the largest cost that could ever pass
    Rule[MOST_RULES] rule

cdef struct Segment:
    char* slots
    size_t size         # a power of two, or 0
    size_t count

cdef class CellTable:
    cdef Rules rules
    cdef size_t count
    cdef double forgot_at
    cdef double* shared    # NULL until it is needed
    cdef Segment* _segments
    cdef size_t _segment_count
    cdef int _shift
    cdef size_t _stride
    cdef size_t _hand_segment
    cdef size_t _hand_slot

    cdef void set_rules(self, Rules* rules) noexcept
    cdef double* find(self, object key, Py_hash_t key_hash) except? NULL
    cdef double* add(self, object key, Py_hash_t key_hash, double now) except NULL
    cdef int remove(self, object key, Py_hash_t key_hash) except -1
    cdef int make_shared(self) except -1
    cdef double* shared_state(self, Py_hash_t key_hash) noexcept
    cdef void sweep(self, double now, int steps) noexcept
    cdef Segment* _segment(self, Py_hash_t key_hash) noexcept
    cdef char* _lookup(self, Segment* segment, object key, Py_hash_t key_hash) except? NULL
    cdef void _purge(self, Segment* segment, double now) noexcept
    cdef int _resize(self, Segment* segment, size_t size) noexcept
    cdef void _delete(self, Segment* segment, size_t slot) noexcept


cdef void state_clear(Rules* rules, double* state) noexcept
cdef void state_free(Rules* rules, double* state) noexcept
cdef bint state_is_idle(Rules* rules, double* state, double now) noexcept

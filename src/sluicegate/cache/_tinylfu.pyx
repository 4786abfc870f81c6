# cython: language_level=3, binding=False, embedsignature=True, embedsignature.format=clinic, cdivision=True
# cython: auto_pickle=False
"""`TinyLfu`: a new entry stays only if its key was seen more often than the one it would force out.

W-TinyLFU (Einziger, Friedman, Manes: TinyLFU: a highly efficient cache admission policy, 2017)
as in the Java library Caffeine. A new entry begins in the window, an LRU queue of a hundredth
of the cache at first, where it can gather uses. What the window has no room for is the
candidate for the main part, and competes with the entry that would go there: the sketch
(`_sketch.pxd`) says which of the two keys was seen more often lately, and the other one is
evicted.

The main part has two LRU queues. A candidate that is let in is on probation; used there, it
is protected. Protected ones have four fifths of the main part, and are on probation again
when it gets more.

Which size of the window is best depends on the traffic: where keys are used some times soon
after they came and then no more, a hundredth is far too small. So the window climbs, as in
Caffeine: after ten times as many requests as the cache has room for, its size changes by a
step, in the same direction as long as that brings more hits. The steps get smaller while the
share of hits is steady, and begin anew when it is not. Caffeine's step is 6.25 % of the cache;
4 % cost less where the window is right already (0.4 points of 39 % with scans; 1.4 with 6.25 %)
and gain nearly as much where it is not (47 % instead of 12 % of hits; 49 % with 6.25 %).

The sketch may take one key for another. So that nobody can pin an entry by keys that share
its counters, one in 128 candidates that are warm and lose is let in all the same.
"""

from libc.math cimport copysign, fabs
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free

from sluicegate.cache._cache cimport Cache
from sluicegate.cache._entry cimport Entry, Queue, queue_back, queue_refresh, queue_remove
from sluicegate.cache._sketch cimport Sketch, sketch_add, sketch_double, sketch_frequency, sketch_start

__all__ = ["TinyLfu"]

cdef enum:  # places
    WINDOW
    PROBATION
    PROTECTED

cdef enum:
    FEWEST_WORDS = 64       # of the sketch, which has one per entry and grows with the cache
    SAMPLES_PER_ENTRY = 10  # until the counters are halved
    WARM = 6                # a frequency that an innocent key seldom has by chance
    WARM_PER_ADMITTED = 128
    REQUESTS_PER_STEP = 10  # of the climb, for each entry that the cache has room for

cdef double FIRST_STEP = 0.04       # of the capacity
cdef double STEP_DECAY = 0.98
cdef double RESTART_CHANGE = 0.05   # of the hit ratio: the traffic is another now


cdef class TinyLfu(Cache):
    """Keeps what is used most often lately, by the frequencies of all keys, cached or not.

    To put a key counts as seeing it, to replace an entry as using it.
    """

    cdef Sketch sketch
    cdef int64_t window_limit
    cdef int64_t protected_limit
    cdef int turned_away        # warm candidates since one was let in
    cdef int64_t requests       # since the last step of the climb
    cdef int64_t recent_hits    # of these
    cdef double last_ratio      # of hits, before the last step
    cdef double step

    def __cinit__(self, *_, **__):
        if not sketch_start(&self.sketch, FEWEST_WORDS):
            raise MemoryError

    def __dealloc__(self):
        free(self.sketch.words)

    cdef void reset(self) noexcept:
        Cache.reset(self)
        sketch_start(&self.sketch, FEWEST_WORDS)
        self.size_sketch()
        self.set_window_limit(0)
        self.turned_away = 0
        self.requests = self.recent_hits = 0
        self.last_ratio = 0.0
        self.step = -FIRST_STEP * self.limit  # more hits at first are due to the cache filling up

    cdef void on_hit(self, Entry* entry) noexcept:
        sketch_add(&self.sketch, entry.hash)
        self.recent_hits += 1
        self.count_request()
        if entry.place != PROBATION:
            queue_refresh(&self.queues[entry.place], entry)
            return
        self.move_to(PROTECTED, entry)
        while self.queues[PROTECTED].weight > self.protected_limit:
            self.move_to(PROBATION, queue_back(&self.queues[PROTECTED]))

    cdef void prepare(self, Entry* incoming) noexcept:
        if <uint64_t>self.size >= self.sketch.word_count:
            sketch_double(&self.sketch)  # without memory for it, keys share more counters
            self.size_sketch()
        sketch_add(&self.sketch, incoming.hash)
        self.count_request()

    cdef Entry* victim(self, Entry* incoming) noexcept:
        """The loser of a candidate and the main part's least recently used entry.

        An entry that would fill more than the window is the candidate itself, and may lose.
        """
        cdef Queue* window = &self.queues[WINDOW]
        cdef int64_t weight = incoming.weight if incoming != NULL else 1
        cdef Entry* candidate = NULL
        cdef Entry* resident = queue_back(&self.queues[PROBATION])
        if resident == NULL:
            resident = queue_back(&self.queues[PROTECTED])
        if weight > self.window_limit:
            candidate = incoming
        elif window.weight + weight > self.window_limit:
            candidate = queue_back(window)
        if resident == NULL:
            resident = queue_back(window)
        elif candidate != NULL:
            if not self.admits(candidate, resident):
                resident = candidate
            elif candidate != incoming:
                self.move_to(PROBATION, candidate)
        if resident != incoming:
            queue_remove(&self.queues[resident.place], resident)
        return resident

    cdef bint admits(self, Entry* candidate, Entry* resident) noexcept:
        cdef int frequency = sketch_frequency(&self.sketch, candidate.hash)
        if frequency > sketch_frequency(&self.sketch, resident.hash):
            return True
        if frequency >= WARM:
            self.turned_away += 1
            if self.turned_away == WARM_PER_ADMITTED:
                self.turned_away = 0
                return True
        return False

    cdef void insert(self, Entry* entry) noexcept:
        cdef Queue* window = &self.queues[WINDOW]
        if entry.weight > self.window_limit:
            self.add_to(PROBATION, entry)
            return
        self.add_to(WINDOW, entry)
        while window.weight > self.window_limit:  # there is room for all: no competition
            self.move_to(PROBATION, queue_back(window))

    cdef void count_request(self) noexcept:
        self.requests += 1
        if self.requests >= REQUESTS_PER_STEP * self.limit:
            self.climb()

    cdef void climb(self) noexcept:
        cdef double ratio = <double>self.recent_hits / <double>self.requests
        cdef double change = ratio - self.last_ratio
        if change < 0.0:
            self.step = -self.step
        self.set_window_limit(self.window_limit + <int64_t>self.step)
        if fabs(change) >= RESTART_CHANGE:
            self.step = copysign(FIRST_STEP * self.limit, self.step)
        else:
            self.step *= STEP_DECAY
        self.last_ratio = ratio
        self.requests = self.recent_hits = 0

    cdef void set_window_limit(self, int64_t limit) noexcept:
        """Between a hundredth and four fifths of the cache; the queues follow as entries come."""
        self.window_limit = max(min(limit, self.limit * 4 // 5), self.limit // 100, <int64_t>1)
        self.protected_limit = (self.limit - self.window_limit) * 4 // 5

    cdef void size_sketch(self) noexcept:
        self.sketch.sample_limit = SAMPLES_PER_ENTRY * max(
            min(self.sketch.word_count, <uint64_t>self.limit), <uint64_t>1
        )

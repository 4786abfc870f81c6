# cython: language_level=3, cdivision=True
"""The rate limiting algorithms, as functions of parameters, a state and the time.

`Params` is the configured limit; a *state* is what one key has used of it: one to three
doubles. A state of zero use is the same as no state, so the owner may drop it. Each
algorithm has the same functions, and `state_*` calls those of `params.algorithm`:

    wait(params, state, now, cost)    seconds until `cost` could be taken; 0: now. Changes nothing
    charge(params, state, now, cost)  take it, whether or not it fits
    refund(params, state, now, cost, since)
                                      give back what was taken at the mark `since`: the time,
                                      or for a bucket the arrival after it was taken. Nothing
                                      comes back of a window that has passed, or of tokens
                                      that have been refilled
    mark(params, state, now)          that mark, just after a charge
    used(params, state, now)          units in use now
    idle_after(params, state, now)    seconds until the state is the same as no state

Times are seconds since the owner's start; they may go back, and that mints nothing.

- Token bucket (GCRA): state[0] is the theoretical arrival in *units*: where the
  stream of `rate` units per second would be had it never been idle. Units, not
  seconds as usual: whole costs then add up exactly, as long as rate * time stays
  below 2^53 (at a million per second, for 285 years).
- Fixed window: state[0] is where the window ends, counted in windows; state[1] what
  was used in it.
- Sliding counter: the same, and state[2] is what was used in the window before; of
  this counts the part of the window that still overlaps the last `span` seconds.
- Sliding window (exact log): state[0] points to a ring of (time, total) entries.

Slack: a bucket refilled at 10/s must have one token after 0.1 s although 0.1 is
not a binary fraction. So a decision may come early by `slack` units (`clock_epsilon`
seconds for windows): about a nanosecond, or two steps of a coarser clock. It is
a constant and does not add up.
"""

from libc.math cimport INFINITY, floor
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from sluicegate._minmax cimport fast_max, fast_min


cdef enum:
    TOKEN_BUCKET = 0
    FIXED_WINDOW = 1
    SLIDING_COUNTER = 2
    SLIDING_WINDOW = 3
    MAX_WORDS = 3  # doubles of the largest state


cdef struct Params:
    int algorithm
    double limit          # units that fit: the burst of a bucket, the amount of a window
    double rate           # units per second, in the long run
    double span           # seconds: the window; for a bucket, from empty to full
    double inverse_span   # windows per second: 1 / span, because a division takes 3 ns
    double per            # seconds, of the limit as it was written
    double phase          # seconds into its window at time 0
    double slack          # units
    double clock_epsilon  # seconds


cdef inline int words_of(int algorithm) noexcept nogil:
    if algorithm == FIXED_WINDOW:
        return 2
    if algorithm == SLIDING_COUNTER:
        return 3
    return 1


# --- token bucket

cdef inline double bucket_wait(Params* params, double* state, double now, double cost) noexcept nogil:
    cdef double arrival = now * params.rate
    cdef double missing = fast_max(state[0] - arrival, 0.0) + (cost - params.limit)
    return missing / params.rate if missing > params.slack else 0.0


cdef inline void bucket_charge(Params* params, double* state, double now, double cost) noexcept nogil:
    state[0] = fast_max(state[0], now * params.rate) + cost


cdef inline double bucket_used(Params* params, double* state, double now) noexcept nogil:
    return fast_max(state[0] - now * params.rate, 0.0)


cdef inline double bucket_unpaid(Params* params, double now, double cost, double since) noexcept nogil:
    """What of a cost that brought the arrival to `since` has not been refilled yet.

    Refill pays off the oldest use first. What is paid off would have been lost to a
    full bucket had it not been taken; to give it back would mint it.
    """
    return fast_min(cost, fast_max(since - now * params.rate, 0.0))


# --- windows

cdef inline double window_number(Params* params, double now) noexcept nogil:
    return floor((now + params.phase + params.clock_epsilon) / params.span)


cdef inline double window_end(Params* params, double* state, double now) noexcept nogil:
    """Seconds until the state's window ends."""
    return state[0] * params.span - params.phase - now


cdef inline void window_turn(Params* params, double* state, double now) noexcept nogil:
    """Bring the state to the window of `now`. A clock that went back stays in its window."""
    cdef double end
    if window_end(params, state, now) > params.clock_epsilon:
        return
    end = window_number(params, now) + 1.0
    if end <= state[0]:  # within rounding of the edge, seen from the two sides of it
        return
    if params.algorithm == SLIDING_COUNTER:
        state[2] = state[1] if end - state[0] == 1.0 else 0.0
    state[1] = 0.0
    state[0] = end


cdef inline double* window_at(Params* params, double* state, double now, double* room) noexcept nogil:
    """The state as it is at `now`: itself, or in another window a copy in `room`. A look changes nothing."""
    if window_end(params, state, now) > params.clock_epsilon:
        return state
    room[0] = state[0]
    room[1] = state[1]
    room[2] = 0.0
    window_turn(params, room, now)
    return room


cdef inline double fixed_wait(Params* params, double* state, double now, double cost) noexcept nogil:
    cdef double[MAX_WORDS] room
    cdef double* view = window_at(params, state, now, room)
    if view[1] + cost <= params.limit + params.slack:
        return 0.0
    return fast_max(window_end(params, view, now), params.clock_epsilon)


cdef inline double counter_before(Params* params, double* view, double now) noexcept nogil:
    """What still counts of the window before: all of it as a window starts, nothing as it ends."""
    if view[2] == 0.0:
        return 0.0
    return view[2] * fast_min(fast_max(window_end(params, view, now) * params.inverse_span, 0.0), 1.0)


cdef inline double counter_wait(Params* params, double* state, double now, double cost) noexcept nogil:
    cdef double[MAX_WORDS] room
    cdef double* view = window_at(params, state, now, room)
    cdef double left = params.limit - cost - view[1]
    cdef double overlap
    if counter_before(params, view, now) <= left + params.slack:
        return 0.0
    if left >= 0.0:
        # view[2] > 0 here, and shrinks to what is left within this window.
        overlap = left / view[2]
        return fast_max(window_end(params, view, now) - overlap * params.span, params.clock_epsilon)
    # In the next window this one's use is the one that shrinks.
    overlap = (params.limit - cost) / view[1]
    return fast_max(window_end(params, view, now) + (1.0 - overlap) * params.span, params.clock_epsilon)


cdef inline void window_charge(Params* params, double* state, double now, double cost) noexcept nogil:
    window_turn(params, state, now)
    state[1] += cost


cdef inline void window_refund(
    Params* params, double* state, double now, double cost, double since
) noexcept nogil:
    cdef double ago, here
    window_turn(params, state, now)
    ago = state[0] - 1.0 - window_number(params, since)
    if ago <= 0.0:
        here = fast_min(state[1], cost)
        state[1] -= here
        cost -= here
    if ago <= 1.0 and params.algorithm == SLIDING_COUNTER:
        state[2] = fast_max(state[2] - cost, 0.0)


cdef inline double window_used(Params* params, double* state, double now) noexcept nogil:
    cdef double[MAX_WORDS] room
    cdef double* view = window_at(params, state, now, room)
    if params.algorithm == SLIDING_COUNTER:
        return view[1] + counter_before(params, view, now)
    return view[1]


cdef inline double window_idle_after(Params* params, double* state, double now) noexcept nogil:
    cdef double[MAX_WORDS] room
    cdef double* view = window_at(params, state, now, room)
    cdef double end = window_end(params, view, now)
    if view[1] > 0.0:
        return end + params.span if params.algorithm == SLIDING_COUNTER else end
    return end if params.algorithm == SLIDING_COUNTER and view[2] > 0.0 else 0.0


# --- exact log

cdef struct LogEntry:
    double at
    double total   # of all that was ever charged, this entry included


cdef struct Log:
    LogEntry* ring
    int64_t size     # of the ring; it doubles as needed, up to the limit
    int64_t first    # the oldest entry
    int64_t count
    double total
    double expired   # the total before the oldest entry


cdef inline Log* log_of(double* state) noexcept nogil:
    return (<Log**>state)[0]


cdef inline LogEntry* log_entry(Log* log, int64_t index) noexcept nogil:
    index += log.first
    return &log.ring[index if index < log.size else index - log.size]


cdef inline double log_time(Log* log, double now) noexcept nogil:
    """Entries stay in order of time: a clock that went back stays at the newest."""
    return fast_max(now, log_entry(log, log.count - 1).at) if log.count else now


cdef inline int64_t log_expired(Params* params, Log* log, double now) noexcept nogil:
    """How many entries are older than the window. By halves, for an idle time may expire many."""
    cdef int64_t low = 0, high = log.count, middle
    now = log_time(log, now) + params.clock_epsilon - params.span
    if high == 0 or log_entry(log, 0).at > now:
        return 0
    while low < high:
        middle = (low + high) // 2
        if log_entry(log, middle).at <= now:
            low = middle + 1
        else:
            high = middle
    return low


cdef inline double log_total_before(Log* log, int64_t index) noexcept nogil:
    return log_entry(log, index - 1).total if index else log.expired


cdef inline void log_drop(Log* log, int64_t count) noexcept nogil:
    """Forget the oldest entries."""
    if count:
        log.expired = log_total_before(log, count)
        log.first = (log.first + count) % log.size
        log.count -= count
        if log.count == 0:  # start anew, while doubles still count one by one
            log.total = log.expired = 0.0


cdef inline double log_wait(Params* params, double* state, double now, double cost) noexcept nogil:
    cdef Log* log = log_of(state)
    cdef double must_expire
    cdef int64_t low, high, middle
    if log == NULL:
        return 0.0
    low = log_expired(params, log, now)
    must_expire = log.total + cost - params.limit
    if must_expire <= log_total_before(log, low):
        return 0.0
    high = log.count - 1
    while low < high:
        middle = (low + high) // 2
        if log_entry(log, middle).total >= must_expire:
            high = middle
        else:
            low = middle + 1
    return fast_max(log_entry(log, low).at + params.span - now, params.clock_epsilon)


cdef inline int log_prepare(Params* params, double* state) noexcept nogil:
    """Make room for one more entry; -1 when there is no memory. Changes nothing that counts."""
    cdef Log* log = log_of(state)
    cdef LogEntry* ring
    cdef int64_t i, size
    if log == NULL:
        log = <Log*>malloc(sizeof(Log))
        if log == NULL:
            return -1
        log.ring = NULL
        log.size = log.first = log.count = 0
        log.total = log.expired = 0.0
        (<Log**>state)[0] = log
    if log.count < log.size or log.size >= params.limit:
        return 0
    size = <int64_t>fast_min(fast_max(log.size * 2.0, 4.0), params.limit)
    ring = <LogEntry*>malloc(size * sizeof(LogEntry))
    if ring == NULL:
        return -1
    for i in range(log.count):
        ring[i] = log_entry(log, i)[0]
    free(log.ring)
    log.ring = ring
    log.size = size
    log.first = 0
    return 0


cdef inline void log_charge(Params* params, double* state, double now, double cost) noexcept nogil:
    """`log_prepare` has been called."""
    cdef Log* log = log_of(state)
    cdef LogEntry* newest
    now = log_time(log, now)
    log_drop(log, log_expired(params, log, now))
    log.total += cost
    # Whole costs that fit never fill the ring; a debt (`settle`) counts as of the newest entry.
    if log.count and (log_entry(log, log.count - 1).at == now or log.count == log.size):
        newest = log_entry(log, log.count - 1)
    else:
        newest = log_entry(log, log.count)
        log.count += 1
    newest.at = now
    newest.total = log.total


cdef inline void log_refund(
    Params* params, double* state, double now, double cost, double since
) noexcept nogil:
    """From the oldest entries: so nothing that was taken later expires any earlier for it."""
    cdef Log* log = log_of(state)
    if log == NULL or since + params.span <= now + params.clock_epsilon:
        return
    log_drop(log, log_expired(params, log, now))
    if log.count:
        log.expired = fast_min(log.expired + cost, log.total)
    while log.count and log_entry(log, 0).total <= log.expired:
        cost = log.expired
        log_drop(log, 1)
        log.expired = fast_max(log.expired, cost) if log.count else 0.0


cdef inline double log_used(Params* params, double* state, double now) noexcept nogil:
    cdef Log* log = log_of(state)
    return log.total - log_total_before(log, log_expired(params, log, now)) if log != NULL else 0.0


cdef inline double log_idle_after(Params* params, double* state, double now) noexcept nogil:
    cdef Log* log = log_of(state)
    cdef double left
    if log == NULL or log.count == 0:
        return 0.0
    left = log_entry(log, log.count - 1).at + params.span - now
    return left if left > params.clock_epsilon else 0.0


cdef inline int log_copy(Log* log, double* state) noexcept nogil:
    """Make `state`, which is clear, a copy of `log`; -1 when there is no memory."""
    cdef Log* copy
    if log == NULL:
        return 0
    copy = <Log*>malloc(sizeof(Log))
    if copy == NULL:
        return -1
    copy[0] = log[0]
    copy.ring = <LogEntry*>malloc((log.size if log.size else 1) * sizeof(LogEntry))
    if copy.ring == NULL:
        free(copy)
        return -1
    memcpy(copy.ring, log.ring, log.size * sizeof(LogEntry))
    (<Log**>state)[0] = copy
    return 0


# --- any of them

cdef inline void state_clear(int algorithm, double* state) noexcept nogil:
    """Make it a state of zero use. What it held must have been freed."""
    if algorithm == SLIDING_WINDOW:
        (<Log**>state)[0] = NULL
        return
    state[0] = -INFINITY
    if algorithm != TOKEN_BUCKET:
        state[1] = 0.0
    if algorithm == SLIDING_COUNTER:
        state[2] = 0.0


cdef inline void state_free(int algorithm, double* state) noexcept nogil:
    cdef Log* log
    if algorithm == SLIDING_WINDOW:
        log = log_of(state)
        if log != NULL:
            free(log.ring)
            free(log)


cdef inline bint state_copy(Params* old_params, double* old, Params* params, double* state) noexcept nogil:
    """Take over a state of the same algorithm and window as it is; False where it must be charged."""
    cdef int i
    if params.algorithm == TOKEN_BUCKET and old_params.rate != params.rate:
        return False
    if params.algorithm == SLIDING_WINDOW:
        return log_copy(log_of(old), state) == 0
    for i in range(words_of(params.algorithm)):
        state[i] = old[i]
    return True


cdef inline int state_prepare(Params* params, double* state) noexcept nogil:
    return log_prepare(params, state) if params.algorithm == SLIDING_WINDOW else 0


cdef inline double state_wait(Params* params, double* state, double now, double cost) noexcept nogil:
    if params.algorithm == TOKEN_BUCKET:
        return bucket_wait(params, state, now, cost)
    if params.algorithm == FIXED_WINDOW:
        return fixed_wait(params, state, now, cost)
    if params.algorithm == SLIDING_COUNTER:
        return counter_wait(params, state, now, cost)
    return log_wait(params, state, now, cost)


cdef inline void state_charge(Params* params, double* state, double now, double cost) noexcept nogil:
    if params.algorithm == TOKEN_BUCKET:
        bucket_charge(params, state, now, cost)
    elif params.algorithm == SLIDING_WINDOW:
        log_charge(params, state, now, cost)
    else:
        window_charge(params, state, now, cost)


cdef inline void state_refund(
    Params* params, double* state, double now, double cost, double since
) noexcept nogil:
    if params.algorithm == TOKEN_BUCKET:
        state[0] -= bucket_unpaid(params, now, cost, since)
    elif params.algorithm == SLIDING_WINDOW:
        log_refund(params, state, now, cost, since)
    else:
        window_refund(params, state, now, cost, since)


cdef inline double state_mark(Params* params, double* state, double now) noexcept nogil:
    return state[0] if params.algorithm == TOKEN_BUCKET else now


cdef inline double state_used(Params* params, double* state, double now) noexcept nogil:
    if params.algorithm == TOKEN_BUCKET:
        return bucket_used(params, state, now)
    if params.algorithm == SLIDING_WINDOW:
        return log_used(params, state, now)
    return window_used(params, state, now)


cdef inline double state_idle_after(Params* params, double* state, double now) noexcept nogil:
    if params.algorithm == TOKEN_BUCKET:
        return bucket_used(params, state, now) / params.rate
    if params.algorithm == SLIDING_WINDOW:
        return log_idle_after(params, state, now)
    return window_idle_after(params, state, now)

# cython: language_level=3, cdivision=True
"""The algorithms, as plain functions on a few numbers: a rule, a cell, the time.

A *rule* is what was configured; a *cell* is what one key has used: one to three
doubles. A cell of zero use is the same as no cell, so the owner may forget it.
Each algorithm is the same few functions, and `cell_*` picks by the rule:

    wait(rule, cell, now, cost)    seconds until `cost` could be taken; 0: now. Changes nothing
    charge(rule, cell, now, cost)  take it, whether or not it fits
    refund(rule, cell, now, cost, since)
                                   give back what was taken at the mark `since`: the time,
                                   or for a bucket the arrival after it was taken. Nothing
                                   comes back of a window that has passed, or of tokens
                                   that have been refilled
    mark(rule, cell, now)          that mark, just after a charge
    used(rule, cell, now)          units in use now
    idle_after(rule, cell, now)    seconds until the cell is as good as none

Times are seconds since the owner's start; they may go back, and that mints nothing.

- Token bucket (GCRA): cell[0] is the theoretical arrival in *units*: where the
  stream of `rate` units per second would be had it never been idle. Units, not
  seconds as usual: whole costs then add up exactly, as long as rate * time stays
  below 2^53 (at a million per second, for 285 years).
- Fixed window: cell[0] is where the window ends, counted in windows; cell[1] what
  was used in it.
- Sliding counter: the same, and cell[2] is what was used in the window before; of
  this counts the part of the window that still overlaps the last `span` seconds.
- Sliding window (exact log): cell[0] points to a ring of (time, total) entries.

Slack: a bucket refilled at 10/s must have one token after 0.1 s although 0.1 is
not a binary fraction. So a decision may come early by `slack` units (`tick`
seconds for windows): about a nanosecond, or two steps of a coarser clock. It is
a constant and does not add up.
"""

from libc.math cimport INFINITY, floor
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from sluicegate._minmax cimport larger, smaller


cdef enum:
    TOKEN_BUCKET = 0
    FIXED_WINDOW = 1
    SLIDING_COUNTER = 2
    SLIDING_WINDOW = 3
    WORDS = 3  # doubles of the largest cell


cdef struct Rule:
    int algorithm
    double limit   # units that fit: the burst of a bucket, the amount of a window
    double rate    # units per second, in the long run
    double span    # seconds: the window; for a bucket, from empty to full
    double turns   # windows per second: 1 / span, for a division takes 3 ns
    double per     # seconds, of the limit as it was written
    double phase   # seconds into its window at time 0
    double slack   # units
    double tick    # seconds


cdef inline int words_of(int algorithm) noexcept nogil:
    if algorithm == FIXED_WINDOW:
        return 2
    if algorithm == SLIDING_COUNTER:
        return 3
    return 1


# --- token bucket

cdef inline double bucket_wait(Rule* rule, double* cell, double now, double cost) noexcept nogil:
    cdef double arrival = now * rule.rate
    cdef double missing = larger(cell[0] - arrival, 0.0) + (cost - rule.limit)
    return missing / rule.rate if missing > rule.slack else 0.0


cdef inline void bucket_charge(Rule* rule, double* cell, double now, double cost) noexcept nogil:
    cell[0] = larger(cell[0], now * rule.rate) + cost


cdef inline double bucket_used(Rule* rule, double* cell, double now) noexcept nogil:
    return larger(cell[0] - now * rule.rate, 0.0)


cdef inline double bucket_unpaid(Rule* rule, double now, double cost, double since) noexcept nogil:
    """What of a cost that brought the arrival to `since` has not been refilled yet.

    Refill pays off the oldest use first. What is paid off would have been lost to a
    full bucket had it not been taken; to give it back would mint it.
    """
    return smaller(cost, larger(since - now * rule.rate, 0.0))


# --- windows

cdef inline double window_number(Rule* rule, double now) noexcept nogil:
    return floor((now + rule.phase + rule.tick) / rule.span)


cdef inline double window_end(Rule* rule, double* cell, double now) noexcept nogil:
    """Seconds until the cell's window ends."""
    return cell[0] * rule.span - rule.phase - now


cdef inline void window_turn(Rule* rule, double* cell, double now) noexcept nogil:
    """Bring the cell to the window of `now`. A clock that went back stays in its window."""
    cdef double end
    if window_end(rule, cell, now) > rule.tick:
        return
    end = window_number(rule, now) + 1.0
    if end <= cell[0]:  # within rounding of the edge, seen from the two sides of it
        return
    if rule.algorithm == SLIDING_COUNTER:
        cell[2] = cell[1] if end - cell[0] == 1.0 else 0.0
    cell[1] = 0.0
    cell[0] = end


cdef inline double* window_at(Rule* rule, double* cell, double now, double* room) noexcept nogil:
    """The cell as it is at `now`: itself, or in another window a copy in `room`. A look changes nothing."""
    if window_end(rule, cell, now) > rule.tick:
        return cell
    room[0] = cell[0]
    room[1] = cell[1]
    room[2] = 0.0
    window_turn(rule, room, now)
    return room


cdef inline double fixed_wait(Rule* rule, double* cell, double now, double cost) noexcept nogil:
    cdef double[WORDS] room
    cdef double* view = window_at(rule, cell, now, room)
    if view[1] + cost <= rule.limit + rule.slack:
        return 0.0
    return larger(window_end(rule, view, now), rule.tick)


cdef inline double counter_before(Rule* rule, double* view, double now) noexcept nogil:
    """What still counts of the window before: all of it as a window starts, nothing as it ends."""
    if view[2] == 0.0:
        return 0.0
    return view[2] * smaller(larger(window_end(rule, view, now) * rule.turns, 0.0), 1.0)


cdef inline double counter_wait(Rule* rule, double* cell, double now, double cost) noexcept nogil:
    cdef double[WORDS] room
    cdef double* view = window_at(rule, cell, now, room)
    cdef double left = rule.limit - cost - view[1]
    cdef double overlap
    if counter_before(rule, view, now) <= left + rule.slack:
        return 0.0
    if left >= 0.0:
        # view[2] > 0 here, and shrinks to what is left within this window.
        overlap = left / view[2]
        return larger(window_end(rule, view, now) - overlap * rule.span, rule.tick)
    # In the next window this one's use is the one that shrinks.
    overlap = (rule.limit - cost) / view[1]
    return larger(window_end(rule, view, now) + (1.0 - overlap) * rule.span, rule.tick)


cdef inline void window_charge(Rule* rule, double* cell, double now, double cost) noexcept nogil:
    window_turn(rule, cell, now)
    cell[1] += cost


cdef inline void window_refund(
    Rule* rule, double* cell, double now, double cost, double since
) noexcept nogil:
    cdef double ago, here
    window_turn(rule, cell, now)
    ago = cell[0] - 1.0 - window_number(rule, since)
    if ago <= 0.0:
        here = smaller(cell[1], cost)
        cell[1] -= here
        cost -= here
    if ago <= 1.0 and rule.algorithm == SLIDING_COUNTER:
        cell[2] = larger(cell[2] - cost, 0.0)


cdef inline double window_used(Rule* rule, double* cell, double now) noexcept nogil:
    cdef double[WORDS] room
    cdef double* view = window_at(rule, cell, now, room)
    if rule.algorithm == SLIDING_COUNTER:
        return view[1] + counter_before(rule, view, now)
    return view[1]


cdef inline double window_idle_after(Rule* rule, double* cell, double now) noexcept nogil:
    cdef double[WORDS] room
    cdef double* view = window_at(rule, cell, now, room)
    cdef double end = window_end(rule, view, now)
    if view[1] > 0.0:
        return end + rule.span if rule.algorithm == SLIDING_COUNTER else end
    return end if rule.algorithm == SLIDING_COUNTER and view[2] > 0.0 else 0.0


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


cdef inline Log* log_of(double* cell) noexcept nogil:
    return (<Log**>cell)[0]


cdef inline LogEntry* log_entry(Log* log, int64_t index) noexcept nogil:
    index += log.first
    return &log.ring[index if index < log.size else index - log.size]


cdef inline double log_time(Log* log, double now) noexcept nogil:
    """Entries stay in order of time: a clock that went back stays at the newest."""
    return larger(now, log_entry(log, log.count - 1).at) if log.count else now


cdef inline int64_t log_expired(Rule* rule, Log* log, double now) noexcept nogil:
    """How many entries are older than the window. By halves, for an idle time may expire many."""
    cdef int64_t low = 0, high = log.count, middle
    now = log_time(log, now) + rule.tick - rule.span
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


cdef inline double log_wait(Rule* rule, double* cell, double now, double cost) noexcept nogil:
    cdef Log* log = log_of(cell)
    cdef double must_expire
    cdef int64_t low, high, middle
    if log == NULL:
        return 0.0
    low = log_expired(rule, log, now)
    must_expire = log.total + cost - rule.limit
    if must_expire <= log_total_before(log, low):
        return 0.0
    high = log.count - 1
    while low < high:
        middle = (low + high) // 2
        if log_entry(log, middle).total >= must_expire:
            high = middle
        else:
            low = middle + 1
    return larger(log_entry(log, low).at + rule.span - now, rule.tick)


cdef inline int log_prepare(Rule* rule, double* cell) noexcept nogil:
    """Make room for one more entry; -1 when there is no memory. Changes nothing that counts."""
    cdef Log* log = log_of(cell)
    cdef LogEntry* ring
    cdef int64_t i, size
    if log == NULL:
        log = <Log*>malloc(sizeof(Log))
        if log == NULL:
            return -1
        log.ring = NULL
        log.size = log.first = log.count = 0
        log.total = log.expired = 0.0
        (<Log**>cell)[0] = log
    if log.count < log.size or log.size >= rule.limit:
        return 0
    size = <int64_t>smaller(larger(log.size * 2.0, 4.0), rule.limit)
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


cdef inline void log_charge(Rule* rule, double* cell, double now, double cost) noexcept nogil:
    """`log_prepare` has been called."""
    cdef Log* log = log_of(cell)
    cdef LogEntry* newest
    now = log_time(log, now)
    log_drop(log, log_expired(rule, log, now))
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
    Rule* rule, double* cell, double now, double cost, double since
) noexcept nogil:
    """From the oldest entries: so nothing that was taken later expires any earlier for it."""
    cdef Log* log = log_of(cell)
    if log == NULL or since + rule.span <= now + rule.tick:
        return
    log_drop(log, log_expired(rule, log, now))
    if log.count:
        log.expired = smaller(log.expired + cost, log.total)
    while log.count and log_entry(log, 0).total <= log.expired:
        cost = log.expired
        log_drop(log, 1)
        log.expired = larger(log.expired, cost) if log.count else 0.0


cdef inline double log_used(Rule* rule, double* cell, double now) noexcept nogil:
    cdef Log* log = log_of(cell)
    return log.total - log_total_before(log, log_expired(rule, log, now)) if log != NULL else 0.0


cdef inline double log_idle_after(Rule* rule, double* cell, double now) noexcept nogil:
    cdef Log* log = log_of(cell)
    cdef double left
    if log == NULL or log.count == 0:
        return 0.0
    left = log_entry(log, log.count - 1).at + rule.span - now
    return left if left > rule.tick else 0.0


cdef inline int log_copy(Log* log, double* cell) noexcept nogil:
    """Make `cell`, which is clear, a copy of `log`; -1 when there is no memory."""
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
    (<Log**>cell)[0] = copy
    return 0


# --- any of them

cdef inline void cell_clear(int algorithm, double* cell) noexcept nogil:
    """Make it a cell of zero use. What it held must have been freed."""
    if algorithm == SLIDING_WINDOW:
        (<Log**>cell)[0] = NULL
        return
    cell[0] = -INFINITY
    if algorithm != TOKEN_BUCKET:
        cell[1] = 0.0
    if algorithm == SLIDING_COUNTER:
        cell[2] = 0.0


cdef inline void cell_free(int algorithm, double* cell) noexcept nogil:
    cdef Log* log
    if algorithm == SLIDING_WINDOW:
        log = log_of(cell)
        if log != NULL:
            free(log.ring)
            free(log)


cdef inline bint cell_copy(Rule* old_rule, double* old, Rule* rule, double* cell) noexcept nogil:
    """Take over a cell of the same algorithm and window as it is; False where it must be charged."""
    cdef int i
    if rule.algorithm == TOKEN_BUCKET and old_rule.rate != rule.rate:
        return False
    if rule.algorithm == SLIDING_WINDOW:
        return log_copy(log_of(old), cell) == 0
    for i in range(words_of(rule.algorithm)):
        cell[i] = old[i]
    return True


cdef inline int cell_prepare(Rule* rule, double* cell) noexcept nogil:
    return log_prepare(rule, cell) if rule.algorithm == SLIDING_WINDOW else 0


cdef inline double cell_wait(Rule* rule, double* cell, double now, double cost) noexcept nogil:
    if rule.algorithm == TOKEN_BUCKET:
        return bucket_wait(rule, cell, now, cost)
    if rule.algorithm == FIXED_WINDOW:
        return fixed_wait(rule, cell, now, cost)
    if rule.algorithm == SLIDING_COUNTER:
        return counter_wait(rule, cell, now, cost)
    return log_wait(rule, cell, now, cost)


cdef inline void cell_charge(Rule* rule, double* cell, double now, double cost) noexcept nogil:
    if rule.algorithm == TOKEN_BUCKET:
        bucket_charge(rule, cell, now, cost)
    elif rule.algorithm == SLIDING_WINDOW:
        log_charge(rule, cell, now, cost)
    else:
        window_charge(rule, cell, now, cost)


cdef inline void cell_refund(
    Rule* rule, double* cell, double now, double cost, double since
) noexcept nogil:
    if rule.algorithm == TOKEN_BUCKET:
        cell[0] -= bucket_unpaid(rule, now, cost, since)
    elif rule.algorithm == SLIDING_WINDOW:
        log_refund(rule, cell, now, cost, since)
    else:
        window_refund(rule, cell, now, cost, since)


cdef inline double cell_mark(Rule* rule, double* cell, double now) noexcept nogil:
    return cell[0] if rule.algorithm == TOKEN_BUCKET else now


cdef inline double cell_used(Rule* rule, double* cell, double now) noexcept nogil:
    if rule.algorithm == TOKEN_BUCKET:
        return bucket_used(rule, cell, now)
    if rule.algorithm == SLIDING_WINDOW:
        return log_used(rule, cell, now)
    return window_used(rule, cell, now)


cdef inline double cell_idle_after(Rule* rule, double* cell, double now) noexcept nogil:
    if rule.algorithm == TOKEN_BUCKET:
        return bucket_used(rule, cell, now) / rule.rate
    if rule.algorithm == SLIDING_WINDOW:
        return log_idle_after(rule, cell, now)
    return window_idle_after(rule, cell, now)

# cython: language_level=3, cdivision=True
"""The record of a user in a host's shared memory, and the admission rules of docs/node.md.

A record is a `UserRecord` and up to MAX_CELLS `ResourceCell`s, one for each resource that the user
consumed or is limited in. The functions here change a copy of a record and touch nothing else; the
caller writes the whole copy back in one step, or reads the record again.

A *window* is a slot as this host lived it. `WindowInfo` is what holds for all users in it,
`DefaultShares` the shares of a service's newcomers. Amounts are doubles in the resource's unit,
shares are units per slot, times are seconds of the host's monotonic clock.

Single reservations are not kept, or memory would grow with the traffic. There are two sums: those
of this window (`running`, `reserved`) and those of the windows before (`old_running`,
`old_reserved`). `consume` releases a mean request of the older sum first.
"""

from libc.math cimport floor, pow
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset

cdef extern from *:
    """
    /* Sums and shares are off by rounding; a request is not refused for less than this part. */
    #define SG_SLACK 2e-7
    /* A mean over about eight requests follows a user whose costs change. */
    #define SG_MEAN_WEIGHT 0.125
    /* A user refused in this last part of a slot has demand all through it, and is paced. */
    #define SG_LATE_PART 0.2
    #define SG_HEAD_START 0.1
    /* Without a central and without `fallback`: requests per second for each user. */
    #define SG_FALLBACK_REQUESTS 10.0
    /* Totals are capped here: a report cannot carry a larger one. */
    #define SG_MAX_TOTAL 1e18
    """
    const double SLACK "SG_SLACK"
    const double MEAN_WEIGHT "SG_MEAN_WEIGHT"
    const double LATE_PART "SG_LATE_PART"
    const double HEAD_START "SG_HEAD_START"
    const double FALLBACK_REQUESTS "SG_FALLBACK_REQUESTS"
    const double MAX_TOTAL "SG_MAX_TOTAL"

cdef enum:
    MAX_CELLS = 8
    USER_WORDS = 8   # doubles of a UserRecord
    CELL_WORDS = 12  # of a ResourceCell
    REQUEST_STARTS = 0  # the resource that counts the beginnings of requests; in no report

cdef enum State:
    FALLBACK = 0
    FRESH = 1
    REUSED = 2
    SAFE = 3
    NEWCOMER = 4
    FREE = 5
    STATE_COUNT = 6

cdef struct UserRecord:
    uint32_t window          # in which the record was last refreshed
    uint32_t changed_window  # in which its totals or reservations last changed
    uint32_t generation      # of the header, when the shares were looked up
    uint32_t asked_window    # in which it was last introduced to the leader
    int64_t[2] quota_slot    # the slots of the two quotas in the cells; -1: none
    uint64_t free_version    # of the limits under which the user is free
    double refused_at
    float running            # running requests that began in this window
    float old_running        # and before it
    uint8_t state
    uint8_t is_paced
    uint8_t was_idle         # no request in the window before
    uint8_t was_refused      # in this window
    uint8_t reserved_from_credit  # the reservations of `running` were taken from credit
    uint8_t lacks_cell       # a share has no cell: no request may pass
    uint8_t[2] _unused

cdef struct ResourceCell:
    double consumed          # since the record was made
    double consumed_before   # the same at the beginning of the window
    double settled           # the part of it that a leader has acknowledged
    double taken             # of this window's share
    double credit
    double reserved          # reserved by requests that began in this window
    double old_reserved      # and before it
    uint32_t rejected
    uint32_t requests
    uint32_t rejected_before
    uint32_t requests_before
    float[2] amount          # of the two quotas; below 0: it has none of this resource
    float safe
    float mean               # of what requests cost; while unknown, 1
    float share              # that holds now
    uint8_t resource
    uint8_t has_mean
    uint8_t has_credit
    uint8_t is_limited       # by what holds now

cdef struct DefaultShares:
    # The shares of a service's newcomers, or the node's fallback while no central has sent any.
    int count
    int _unused
    uint8_t[MAX_CELLS] resource
    double[MAX_CELLS] share

cdef struct WindowInfo:
    double time
    bint is_coarse           # the time is of the coarse clock: some milliseconds behind
    double begin             # of the window
    double end
    double slot_seconds
    double user_fraction     # the user's hash fraction, in [0, 1); below 0: not known
    int64_t slot
    int64_t frozen_windows   # windows for which the slot has been the same
    int64_t whole_slot       # the slot of the newest whole Quota up to this one; -1: none
    int64_t lease
    uint64_t version
    uint32_t number          # of the window
    uint32_t generation
    uint32_t reservation_windows
    bint has_defaults        # the central has sent newcomers' shares; else the node's fallback applies
    DefaultShares defaults   # filled in by `read_defaults`

cdef struct Costs:
    # What a caller expects or reports: amounts of `count` resources.
    int count
    uint8_t[64] resource
    double[64] amount


cdef inline bint uses_credit(int state) noexcept nogil:
    return state == SAFE or state == NEWCOMER or state == FALLBACK


cdef inline bint has_running_requests(UserRecord *user) noexcept nogil:
    return user.running > 0.0 or user.old_running > 0.0


cdef inline bint is_free(UserRecord *user, WindowInfo *window) noexcept nogil:
    """Whether the user has no limit in this version of the limits."""
    return user.free_version != 0 and user.free_version == window.version


cdef inline ResourceCell *find_cell(ResourceCell *cells, int count, int resource) noexcept nogil:
    cdef int i
    for i in range(count):
        if cells[i].resource == resource:
            return &cells[i]
    return NULL


cdef inline ResourceCell *reusable_cell(ResourceCell *cells, int count) noexcept nogil:
    """A cell that may be overwritten: that of REQUEST_STARTS, which is in no report, or one of a former
    newcomer without consumption."""
    cdef int i
    cdef ResourceCell *cell
    for i in range(count):
        cell = &cells[i]
        if not cell.is_limited and (
            cell.resource == REQUEST_STARTS
            or (
                cell.amount[0] < 0.0 and cell.amount[1] < 0.0 and cell.consumed == 0.0 and cell.rejected == 0
                and cell.requests == 0 and cell.reserved == 0.0 and cell.old_reserved == 0.0
            )
        ):
            return cell
    return NULL


cdef inline ResourceCell *get_or_add_cell(ResourceCell *cells, int *count, int resource) noexcept nogil:
    """The cell of a resource, added if there is none; NULL when the record is full."""
    cdef ResourceCell *cell = find_cell(cells, count[0], resource)
    if cell != NULL:
        return cell
    if count[0] < MAX_CELLS:
        cell = &cells[count[0]]
        count[0] += 1
    else:
        cell = reusable_cell(cells, count[0])
        if cell == NULL:
            return NULL
    memset(cell, 0, sizeof(ResourceCell))
    cell.resource = <uint8_t> resource
    cell.amount[0] = cell.amount[1] = -1.0
    cell.mean = 1.0
    return cell


cdef inline void init_record(UserRecord *user, WindowInfo *window) noexcept nogil:
    """The record of a user that was never seen before."""
    memset(user, 0, sizeof(UserRecord))
    user.window = window.number - 2  # no request in the window before
    user.quota_slot[0] = user.quota_slot[1] = -1
    user.refused_at = -1e300
    user.was_idle = 1
    user.state = FALLBACK
    user.generation = window.generation - 1
    user.changed_window = window.number


cdef inline int current_quota(UserRecord *user, WindowInfo *window) noexcept nogil:
    """Index of the quota in effect, or -1: the newest up to this slot that no whole Quota voids."""
    cdef int i, best = -1
    for i in range(2):
        if user.quota_slot[i] >= 0 and window.whole_slot <= user.quota_slot[i] <= window.slot:
            if best < 0 or user.quota_slot[i] > user.quota_slot[best]:
                best = i
    return best


cdef inline int state_of(UserRecord *user, WindowInfo *window) noexcept nogil:
    """The state of the user's quota in this slot."""
    cdef int quota = current_quota(user, window)
    cdef int64_t age
    if is_free(user, window):
        return FREE
    if quota < 0:
        return NEWCOMER if window.has_defaults else FALLBACK
    age = window.slot + window.frozen_windows - user.quota_slot[quota]
    return FRESH if age == 0 else REUSED if age <= window.lease else SAFE


cdef inline void begin_window(UserRecord *user, ResourceCell *cells, int count, WindowInfo *window) noexcept nogil:
    cdef uint32_t elapsed = window.number - user.window
    cdef double kept = 1.0 - 1.0 / max(1.0, <double> window.reservation_windows)
    cdef int i
    cdef ResourceCell *cell
    user.was_idle = elapsed > 1
    user.was_refused = 0
    user.is_paced = elapsed == 1 and user.refused_at >= window.begin - LATE_PART * window.slot_seconds
    user.window = window.number
    # Requests that died are never finished: others finish in their place, so that with traffic it
    # is always the newest that seem to run. A part is released in each window.
    if elapsed > window.reservation_windows:
        user.old_running = user.running = 0.0
    user.old_running = <float> (user.old_running * kept) + user.running
    user.running = 0.0
    if user.old_running < 0.01:
        user.old_running = 0.0
    for i in range(count):
        cell = &cells[i]
        cell.taken = 0.0
        cell.consumed_before = cell.consumed
        cell.rejected_before = cell.rejected
        cell.requests_before = cell.requests
        cell.old_reserved = cell.old_reserved * kept + cell.reserved if user.old_running > 0.0 else 0.0
        cell.reserved = 0.0


cdef inline bint add_credit(
    UserRecord *user, ResourceCell *cells, int count, uint32_t slots, bint begins, double user_fraction
) noexcept nogil:
    """Add the shares of `slots` slots; see docs/node.md, "Credit". False: `user_fraction` must be known first."""
    cdef int i
    cdef ResourceCell *cell
    cdef double most, left
    for i in range(count):
        cell = &cells[i]
        if not cell.is_limited:
            continue
        most = max(<double> cell.share, <double> cell.mean)
        if not cell.has_credit:
            if user_fraction < 0.0:
                return False
            cell.has_credit = 1
            cell.credit = min(user_fraction * cell.mean + cell.share, most)
        elif slots:
            left = cell.credit + cell.share * <double> (slots - 1)
            cell.credit = left + cell.share if left < cell.mean else most
        if begins:
            cell.credit = min(cell.credit, max(0.0, most - cell.taken))
    return True


cdef inline bint refresh_record(UserRecord *user, ResourceCell *cells, int *count, WindowInfo *window) noexcept nogil:
    """Bring a record to this window and to the quotas in effect.

    False: `window.user_fraction` must be known for that; the copy is invalid then.
    """
    cdef uint32_t elapsed = 0
    cdef int i, quota, state = state_of(user, window), before = user.state
    cdef ResourceCell *cell
    if window.number > user.window:
        elapsed = window.number - user.window
        begin_window(user, cells, count[0], window)
    user.generation = window.generation
    for i in range(count[0]):
        cells[i].is_limited = 0
    user.state = <uint8_t> state
    if state == FREE:
        return True
    quota = current_quota(user, window)
    if quota >= 0:
        for i in range(count[0]):
            cell = &cells[i]
            if cell.amount[quota] >= 0.0:
                cell.is_limited = 1
                cell.share = cell.safe if state == SAFE else cell.amount[quota]
    else:
        user.lacks_cell = 0
        for i in range(window.defaults.count):
            cell = get_or_add_cell(cells, count, window.defaults.resource[i])
            if cell == NULL:
                user.lacks_cell = 1
            else:
                cell.is_limited = 1
                cell.share = <float> window.defaults.share[i]
    if uses_credit(state):
        if not uses_credit(before):
            elapsed = min(elapsed, 1)
        return add_credit(user, cells, count[0], elapsed, state != before, window.user_fraction)
    return True


cdef inline double paced_fraction(UserRecord *user, WindowInfo *window) noexcept nogil:
    """The part of a share that may be taken by now: all of it, unless demand is steady."""
    if not user.is_paced or uses_credit(user.state):
        return 1.0
    return (window.time - window.begin) / window.slot_seconds + HEAD_START


cdef inline double cost_of(ResourceCell *cell, Costs *expect) noexcept nogil:
    cdef int i
    if cell.resource == REQUEST_STARTS:
        return 1.0
    if expect == NULL:
        return cell.mean
    for i in range(expect.count):
        if expect.resource[i] == cell.resource:
            return expect.amount[i]
    return 0.0


cdef inline bint has_room(UserRecord *user, ResourceCell *cell, double cost, double part) noexcept nogil:
    """Whether there is room for a cost above 0."""
    cdef double needed, line, slack
    if cell.share <= 0.0:
        return False
    if uses_credit(user.state):
        # A request larger than credit can ever be passes when credit is full.
        needed = min(cost, max(<double> cell.share, <double> cell.mean))
        return cell.credit >= needed - needed * SLACK
    slack = cell.share * SLACK
    line = cell.share if part >= 1.0 else min(<double> cell.share, part * cell.share + cost)
    # The first may be larger than the share, or it could never pass.
    return cell.taken + cost <= line + slack or cell.taken <= slack


cdef inline int first_short(
    UserRecord *user, ResourceCell *cells, int count, Costs *expect, WindowInfo *window
) noexcept nogil:
    """The first cell that a request is short of, or -1."""
    cdef double part = paced_fraction(user, window), cost
    cdef int i
    if user.lacks_cell and count:
        return 0
    for i in range(count):
        if cells[i].is_limited:
            cost = cost_of(&cells[i], expect)
            if cost > 0.0 and not has_room(user, &cells[i], cost, part):
                return i
    return -1


cdef inline void begin_request(UserRecord *user, ResourceCell *cells, int count, Costs *expect) noexcept nogil:
    """A request begins: take and reserve its cost of each limited resource."""
    cdef bint credit = uses_credit(user.state)
    cdef int i
    cdef double cost
    cdef ResourceCell *cell
    if user.running > 0.0 and user.reserved_from_credit != credit:
        # Credit and shares do not mix: treat the running ones as those of the windows before.
        user.old_running += user.running
        user.running = 0.0
        for i in range(count):
            cells[i].old_reserved += cells[i].reserved
            cells[i].reserved = 0.0
    user.reserved_from_credit = credit
    user.running += 1.0
    for i in range(count):
        cell = &cells[i]
        if cell.is_limited:
            cost = cost_of(cell, expect)
            if cost > 0.0:
                cell.taken += cost
                if credit:
                    cell.credit -= cost
                if cell.resource != REQUEST_STARTS:
                    cell.reserved += cost
    user.changed_window = user.window


cdef inline void count_refusal(
    UserRecord *user, ResourceCell *cells, int count, Costs *expect, uint32_t times, WindowInfo *window
) noexcept nogil:
    """Count a refusal for every limited resource that the request would have used.

    If only those that were short counted, a node that lacks one resource would show no demand for the
    others, lose its share of them, and in the end no node would have a share of all.
    """
    cdef int i
    for i in range(count):
        if cells[i].is_limited and cost_of(&cells[i], expect) > 0.0:
            cells[i].rejected += times
    user.refused_at = window.time
    user.changed_window = user.window


cdef inline void update_mean(ResourceCell *cell, double amount, double times) noexcept nogil:
    if not cell.has_mean:
        cell.has_mean = 1
        cell.mean = <float> amount
    elif times == 1.0:
        cell.mean += <float> ((amount - cell.mean) * MEAN_WEIGHT)
    else:
        cell.mean = <float> (amount + (cell.mean - amount) * pow(1.0 - MEAN_WEIGHT, times))


cdef inline void finish_request(UserRecord *user, ResourceCell *cells, int *count, Costs *amounts) noexcept nogil:
    """A request ends: count what it cost, and take that instead of what was reserved."""
    cdef bint credit = uses_credit(user.state), is_same = False, is_same_credit, is_old = False
    cdef double one = 0.0, expected, difference, amount
    cdef int i, k
    cdef ResourceCell *cell
    cdef bint[MAX_CELLS] is_done
    if user.old_running > 0.0:
        is_old = True
        one = 1.0 / user.old_running if user.old_running > 1.0 else 1.0
        user.old_running = user.old_running - 1.0 if user.old_running > 1.01 else 0.0
    elif user.running > 0.0:
        is_same = True
        one = 1.0 / user.running if user.running > 1.0 else 1.0
        user.running = user.running - 1.0 if user.running > 1.01 else 0.0
    # A surplus reservation is released in the slot it was taken from, not later: that slot is
    # over, and its share with it.
    is_same_credit = is_same and user.reserved_from_credit
    memset(is_done, 0, sizeof(is_done))
    for i in range(amounts.count):
        cell = get_or_add_cell(cells, count, amounts.resource[i])
        if cell == NULL:
            continue
        amount = amounts.amount[i]
        expected = 0.0
        if is_old:
            expected = cell.old_reserved * one
            cell.old_reserved -= expected
        elif is_same:
            expected = cell.reserved * one
            cell.reserved -= expected
        is_done[cell - cells] = True
        cell.consumed = min(cell.consumed + amount, MAX_TOTAL)
        if amount > 0.0:
            cell.requests += 1
            update_mean(cell, amount, 1.0)
        difference = amount - expected
        if difference > 0.0 or is_same:
            cell.taken += difference
        if credit and cell.is_limited and (difference > 0.0 or is_same_credit):
            cell.credit -= difference
    for k in range(count[0]):
        cell = &cells[k]
        if is_done[k]:
            continue
        if is_old:
            cell.old_reserved -= cell.old_reserved * one
        elif is_same:
            expected = cell.reserved * one
            cell.reserved -= expected
            cell.taken -= expected
            if is_same_credit and credit and cell.is_limited:
                cell.credit += expected
    if user.running == 0.0 or user.old_running == 0.0:
        for k in range(count[0]):
            if user.running == 0.0:
                cells[k].reserved = 0.0
            if user.old_running == 0.0:
                cells[k].old_reserved = 0.0
    user.changed_window = user.window


cdef inline uint32_t admit_many(
    UserRecord *user, ResourceCell *cells, int *count, Costs *amounts, uint32_t most, WindowInfo *window
) noexcept nogil:
    """Begin and finish at once the equal requests that would pass, up to `most`.

    A request larger than its share is not among them: `first_short` decides on it.
    """
    cdef double part = paced_fraction(user, window), times = most, cost, line, room
    cdef bint credit = uses_credit(user.state)
    cdef uint32_t many
    cdef int i
    cdef ResourceCell *cell
    if user.lacks_cell:
        return 0
    for i in range(count[0]):
        cell = &cells[i]
        if not cell.is_limited:
            continue
        cost = cost_of(cell, amounts)
        if cost > 0.0:
            if cell.share <= 0.0:
                return 0
            if credit:
                room = cell.credit + cost * SLACK
            else:
                line = cell.share if part >= 1.0 else min(<double> cell.share, part * cell.share + cost)
                room = line - cell.taken + cell.share * SLACK
            if room < cost * times:
                times = room / cost
    if times < 1.0:
        return 0
    many = <uint32_t> floor(times)
    for i in range(count[0]):
        cell = &cells[i]
        if credit and cell.is_limited:
            cell.credit -= cost_of(cell, amounts) * many
        if cell.resource == REQUEST_STARTS and cell.is_limited:
            cell.taken += many
    for i in range(amounts.count):
        cell = get_or_add_cell(cells, count, amounts.resource[i])
        if cell == NULL:
            continue
        cell.consumed = min(cell.consumed + amounts.amount[i] * many, MAX_TOTAL)
        cell.taken += amounts.amount[i] * many
        if amounts.amount[i] > 0.0:
            cell.requests += many
            update_mean(cell, amounts.amount[i], many)
    user.changed_window = user.window
    return many


cdef inline bint must_keep(UserRecord *user, ResourceCell *cells, int count, WindowInfo *window) noexcept nogil:
    """Whether dropping the record, refreshed just now, would forgive spent credit or a reservation."""
    cdef int i
    if has_running_requests(user):
        return True
    if not uses_credit(user.state):
        return False
    for i in range(count):
        if (
            cells[i].is_limited and cells[i].share > 0.0 and cells[i].has_credit
            and cells[i].credit < max(<double> cells[i].share, <double> cells[i].mean)
        ):
            return True
    return False

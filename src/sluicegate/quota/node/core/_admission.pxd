# cython: language_level=3, cdivision=True
"""The record of a user in a host's shared memory, and the admission rules of docs/node.md.

A record is a `UserRecord` and up to MAX_CELLS `ResourceCell`s, one for each resource that the user
consumed or is limited in. The functions here change a copy of a record and touch nothing else; the
caller writes the whole copy back in one step, or reads the record again.

A *window* is a slot as this host lived it. `WindowInfo` is what holds for all users in it,
`DefaultShares` the shares of a service's newcomers. Amounts are doubles in the resource's unit,
shares are units per slot, times are seconds of the host's monotonic clock.

What a user may spend is its *balance* of every limited resource: what the leader has granted, less
what was given back, consumed and reserved. While no leader is heard, and for a user that no leader
has told of, there is an *allowance* besides: a share per slot, which accrues by the time. What was
spent of it makes the balance negative, and the leader covers that when it hears of it.

Single reservations are not kept, or memory would grow with the traffic. What a request with a ticket
has reserved is part of the sum of its period (`ticketed`), from which the ticket releases it; what is
left when the period after it is over is of requests that died. Of those without a ticket there are
two sums: of this window (`running`, `reserved`) and of the windows before (`old_running`,
`old_reserved`). `consume` releases a mean request of the older sum first.
"""

from libc.math cimport floor, pow, sqrt
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset

cdef extern from *:
    """
    /* Sums are off by rounding; a request is not refused for less than this part of its cost. */
    #define SG_SLACK 2e-7
    /* A mean over about eight requests follows a user whose costs change. */
    #define SG_MEAN_WEIGHT 0.125
    /* Large requests may be rare: what they cost is remembered for longer. */
    #define SG_PEAK_WEIGHT 0.015625
    /* The rate of requests is measured over about this many seconds. */
    #define SG_RATE_SECONDS 0.2
    /* Without a central and without `fallback`: requests per second for each user. */
    #define SG_FALLBACK_REQUESTS 10.0
    /* Totals are capped here: a report cannot carry a larger one. */
    #define SG_MAX_TOTAL 1e18
    /* A request without an expected cost is cheaper than what was asked for if the mean is less than this part. */
    #define SG_CHEAPER_MEAN 0.5
    """
    const double SLACK "SG_SLACK"
    const double MEAN_WEIGHT "SG_MEAN_WEIGHT"
    const double PEAK_WEIGHT "SG_PEAK_WEIGHT"
    const double RATE_SECONDS "SG_RATE_SECONDS"
    const double FALLBACK_REQUESTS "SG_FALLBACK_REQUESTS"
    const double MAX_TOTAL "SG_MAX_TOTAL"
    const double CHEAPER_MEAN "SG_CHEAPER_MEAN"

cdef enum:
    MAX_CELLS = 8
    USER_WORDS = 10  # doubles of a UserRecord
    CELL_WORDS = 12  # of a ResourceCell
    REQUEST_STARTS = 0  # the resource that counts the beginnings of requests; in no report

cdef enum:  # flags of a ResourceCell
    HAS_MEAN = 1  # of requests that have ended here, or are expected to cost it
    HAS_ALLOWANCE = 2
    IS_TOLD = 4  # a leader has told that the resource is limited
    MEAN_IS_TOLD = 8  # the mean is what the leader takes a request to cost
    IS_CHEAPER = 16  # `least` is less than what the last ask was for

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
    uint32_t generation      # of the header, when the state was looked up
    uint32_t period          # in which the record was last refreshed: spans of `reservation_seconds`
    uint64_t free_version    # of the limits under which the user is free
    double requested_at      # the last request, admitted or not
    double asked_at          # when the reporter was last told to ask for credit
    double empty_until       # until then the leader has nothing for the user
    double accrued_at        # up to which the allowance has accrued
    float rate               # requests per second, lately
    float running            # running requests that began in this window
    float old_running        # and before it
    uint8_t state
    uint8_t is_known         # a leader has told which resources are limited
    uint8_t is_asking        # the leader has not answered yet
    uint8_t may_float        # one request may pass ahead of its grant
    uint8_t lacks_cell       # a share has no cell: no request may pass
    uint8_t has_waiting      # a request waits for the answer to the next ask
    uint8_t asked_waiting    # one waited for the answer to the last ask
    uint8_t empty_for_all    # `empty_until` was said though a request waited
    float guess_told         # the most, in the last ask, that is reserved of a resource of unknown cost

cdef struct ResourceCell:
    double consumed          # since the record was made
    double consumed_before   # the same at the beginning of the window
    double settled           # the part of it that a leader has acknowledged
    double granted           # the highest total that a leader has told
    double returned          # of it, what was given back
    float reserved           # reserved by requests without a ticket that began in this window
    float old_reserved       # and before it
    float[2] ticketed        # reserved by requests with a ticket, by the parity of their period
    uint32_t rejected
    uint32_t requests
    uint32_t rejected_before
    uint32_t requests_before
    float allowance          # what may be spent without a grant
    float share              # units per slot, at which the allowance accrues
    float mean               # of what requests cost; while unknown, 1
    float peak               # the mean, but at least what one that was short has cost lately
    float least              # the cheapest request that credit is asked for, or for which there is none; 0: a mean one
    uint8_t resource
    uint8_t flags            # HAS_MEAN, HAS_ALLOWANCE, IS_TOLD, MEAN_IS_TOLD
    uint8_t is_limited       # by what holds now
    uint8_t _unused

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
    int64_t lease
    uint64_t version
    uint32_t number          # of the window
    uint32_t generation
    uint32_t reservation_windows
    uint32_t period          # of tickets
    double alone_since       # no leader is heard since then; below 0: one is
    double lead_seconds      # how long credit takes to come: a round trip and a frame interval
    double retry_seconds     # after which an ask is made again
    double retry_after       # of a refusal: seconds until more may be there
    int64_t epoch            # the highest seen; -1: none
    bint has_defaults        # the central has sent newcomers' shares; else the node's fallback applies
    DefaultShares defaults   # filled in by `read_defaults`

cdef struct TicketCosts:
    # What a ticket has reserved.
    uint32_t period
    int count
    uint8_t[MAX_CELLS] resource
    double[MAX_CELLS] amount

cdef struct Costs:
    # What a caller expects or reports: amounts of `count` resources.
    int count
    uint8_t[64] resource
    double[64] amount


cdef inline bint has_allowance(int state) noexcept nogil:
    return state != FRESH and state != FREE


cdef inline bint has_running_requests(UserRecord *user) noexcept nogil:
    """Whether requests without a ticket are running."""
    return user.running > 0.0 or user.old_running > 0.0


cdef inline double reserved_of(ResourceCell *cell) noexcept nogil:
    """What running requests have reserved."""
    return min(<double> cell.reserved + cell.old_reserved + cell.ticketed[0] + cell.ticketed[1], MAX_TOTAL)


cdef inline bint has_reservations(UserRecord *user, ResourceCell *cells, int count) noexcept nogil:
    """Whether requests are running, with a ticket or without."""
    cdef int i
    for i in range(count):
        if reserved_of(&cells[i]) > 0.0:
            return True
    return has_running_requests(user)


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
                not cell.flags & IS_TOLD and cell.granted == 0.0 and cell.consumed == 0.0 and cell.rejected == 0
                and cell.requests == 0 and reserved_of(cell) == 0.0
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
    cell.mean = cell.peak = 1.0
    return cell


cdef inline void init_record(UserRecord *user, WindowInfo *window) noexcept nogil:
    """The record of a user that was never seen before."""
    memset(user, 0, sizeof(UserRecord))
    user.window = window.number
    user.period = window.period
    user.requested_at = user.asked_at = user.empty_until = -1e300
    user.accrued_at = window.time
    user.state = FALLBACK
    user.generation = window.generation - 1
    user.changed_window = window.number


cdef inline int state_of(UserRecord *user, WindowInfo *window) noexcept nogil:
    """The state of the user's credit."""
    if is_free(user, window):
        return FREE
    if not user.is_known:
        return NEWCOMER if window.has_defaults else FALLBACK
    if window.alone_since < 0.0:
        return FRESH
    return REUSED if window.time - window.alone_since < window.lease * window.slot_seconds else SAFE


cdef inline void begin_window(UserRecord *user, ResourceCell *cells, int count, WindowInfo *window) noexcept nogil:
    cdef uint32_t elapsed = window.number - user.window
    cdef double kept = 1.0 - 1.0 / max(1.0, <double> window.reservation_windows)
    cdef int i
    cdef ResourceCell *cell
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
        cell.consumed_before = cell.consumed
        cell.rejected_before = cell.rejected
        cell.requests_before = cell.requests
        cell.old_reserved = <float> (cell.old_reserved * kept) + cell.reserved if user.old_running > 0.0 else 0.0
        cell.reserved = 0.0
        if window.period != user.period:
            cell.ticketed[window.period & 1] = 0.0
            if window.period != user.period + 1:
                cell.ticketed[(window.period & 1) ^ 1] = 0.0
    user.period = window.period


cdef inline void refresh_record(UserRecord *user, ResourceCell *cells, int *count, WindowInfo *window) noexcept nogil:
    """Bring a record to this window, and to what holds in it."""
    cdef int i
    cdef ResourceCell *cell
    if window.number > user.window:
        begin_window(user, cells, count[0], window)
    user.generation = window.generation
    user.state = <uint8_t> state_of(user, window)
    for i in range(count[0]):
        cell = &cells[i]
        cell.is_limited = user.is_known and user.state != FREE and cell.flags & IS_TOLD
    if user.is_known or user.state == FREE:
        return
    user.lacks_cell = 0
    for i in range(window.defaults.count):
        cell = get_or_add_cell(cells, count, window.defaults.resource[i])
        if cell == NULL:
            user.lacks_cell = 1
        else:
            cell.is_limited = 1
            cell.share = <float> window.defaults.share[i]


cdef inline bint accrue_allowance(UserRecord *user, ResourceCell *cells, int count, WindowInfo *window) noexcept nogil:
    """Add the shares since the last time; see docs/node.md, "Allowance". False: `user_fraction` must be known first."""
    cdef int i
    cdef ResourceCell *cell
    cdef double most, since = user.accrued_at, slots
    if user.is_known and window.alone_since > since:
        since = window.alone_since
    slots = max(0.0, (window.time - since) / window.slot_seconds)
    for i in range(count):
        cell = &cells[i]
        if not cell.is_limited:
            continue
        most = max(<double> cell.share, <double> cell.peak)
        if not cell.flags & HAS_ALLOWANCE:
            if window.user_fraction < 0.0:
                return False
            cell.flags |= HAS_ALLOWANCE
            cell.allowance += <float> (window.user_fraction * cell.peak)  # it may have a debt already
            if not user.is_known:
                cell.allowance += cell.share
        cell.allowance = <float> min(cell.allowance + cell.share * slots, most)
    user.accrued_at = max(user.accrued_at, window.time)
    return True


cdef inline double balance_of(ResourceCell *cell) noexcept nogil:
    """What may be spent of the leader's grants; below 0: more was spent."""
    return cell.granted - cell.returned - cell.consumed - reserved_of(cell)


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


cdef inline bint is_covered(ResourceCell *cell, double cost) noexcept nogil:
    """Whether the leader's grants cover a cost."""
    return balance_of(cell) >= cost - max(cost, cell.granted * 1e-9) * SLACK


cdef inline bint has_room(UserRecord *user, ResourceCell *cell, double cost) noexcept nogil:
    """Whether there is room for a cost above 0."""
    cdef double needed
    if user.is_known and is_covered(cell, cost):
        return True
    if not has_allowance(user.state) or cell.share <= 0.0:
        return False
    # A request larger than the allowance can ever be passes when that is full.
    needed = min(cost, max(<double> cell.share, <double> cell.peak))
    return cell.allowance >= needed - needed * SLACK


cdef inline int scarcest_short(UserRecord *user, ResourceCell *cells, int count, Costs *expect) noexcept nogil:
    """The cell that a request is short of, or -1. Of several, the one whose share is worth the fewest requests.

    Credit comes in whole requests, so all resources run out together; a user wants to know which one to raise.
    """
    cdef double cost, worth, least = 0.0
    cdef int i, short = -1
    if user.lacks_cell and count:
        return 0
    for i in range(count):
        if cells[i].is_limited:
            cost = cost_of(&cells[i], expect)
            if cost > 0.0 and not has_room(user, &cells[i], cost):
                worth = cells[i].share / cost
                if short < 0 or worth < least:
                    short, least = i, worth
    return short


cdef inline bint can_float(UserRecord *user, ResourceCell *cells, int count, Costs *expect) noexcept nogil:
    """Whether a request may pass ahead of its grant: no other one has, of any resource it needs."""
    cdef int i
    if user.state != FRESH or not user.may_float or user.lacks_cell:
        return False
    for i in range(count):
        if cells[i].is_limited and cost_of(&cells[i], expect) > 0.0 and not is_covered(&cells[i], 0.0):
            return False
    return True


cdef inline void count_arrivals(UserRecord *user, double many, WindowInfo *window) noexcept nogil:
    """Requests have come: update their rate."""
    cdef double elapsed = max(0.0, window.time - user.requested_at) / RATE_SECONDS
    user.rate = <float> (user.rate / (1.0 + elapsed + 0.5 * elapsed * elapsed) + many / RATE_SECONDS)
    user.requested_at = window.time


cdef inline double coming_requests(UserRecord *user, double seconds) noexcept nogil:
    """How many more requests may come within some seconds; the last one says nothing of the next."""
    cdef double mean = max(0.0, user.rate - 1.0 / RATE_SECONDS) * seconds
    return 1.25 * mean + 3.0 * sqrt(mean)


cdef inline double ask_cost(ResourceCell *cell) noexcept nogil:
    """What a request costs for which credit is asked."""
    return cell.least if cell.least > 0.0 else cell.mean


cdef inline bint costs_less(ResourceCell *cell, Costs *expect) noexcept nogil:
    """Whether a request costs less of a resource than what the leader was asked for."""
    cdef double cost = cost_of(cell, expect)
    if expect == NULL:  # the mean moves from request to request
        return 0.0 < cost < CHEAPER_MEAN * cell.least
    return 0.0 < cost < (1.0 - 1e-6) * ask_cost(cell)


cdef inline bint is_cheaper(ResourceCell *cells, int count, Costs *expect) noexcept nogil:
    """Whether a request costs less than what the leader has not: there may be enough for it."""
    cdef int i
    for i in range(count):
        if cells[i].is_limited and costs_less(&cells[i], expect):
            return True
    return False


cdef inline bint is_empty(
    UserRecord *user, ResourceCell *cells, int count, Costs *expect, bint can_wait, WindowInfo *window
) noexcept nogil:
    """Whether the leader has nothing for a request. For one that can wait it may recall some, if it is asked."""
    return (
        window.time < user.empty_until
        and (user.empty_for_all or not can_wait)
        and not is_cheaper(cells, count, expect)
    )


cdef inline bint needs_credit(
    UserRecord *user, ResourceCell *cells, int count, Costs *expect, bint is_short, bint can_wait, WindowInfo *window
) noexcept nogil:
    """Whether to ask the leader now: the credit is used up, or would be before more can come."""
    cdef double coming, cost
    cdef int i
    if is_empty(user, cells, count, expect, is_short and can_wait, window):
        return False
    if user.is_asking and window.time < user.asked_at + window.retry_seconds:
        return False
    if is_short or not user.is_known:
        return True
    coming = max(1.0, coming_requests(user, window.lead_seconds))
    for i in range(count):
        if cells[i].is_limited:
            cost = cost_of(&cells[i], expect)
            if cost > 0.0 and not is_covered(&cells[i], coming * cost):
                return True
    return False


cdef inline void begin_request(
    UserRecord *user, ResourceCell *cells, int count, Costs *expect, TicketCosts *ticket
) noexcept nogil:
    """A request begins: reserve its cost of each limited resource, on a ticket if there is one."""
    cdef int i
    cdef double cost
    cdef ResourceCell *cell
    if ticket == NULL:
        user.running += 1.0
    else:
        ticket.period = user.period
        ticket.count = 0
    for i in range(count):
        cell = &cells[i]
        if cell.is_limited:
            cost = cost_of(cell, expect)
            if cost > 0.0:
                if has_allowance(user.state) and not (user.is_known and is_covered(cell, cost)):
                    cell.allowance -= <float> cost
                if cell.resource == REQUEST_STARTS:
                    continue
                if ticket == NULL:
                    cell.reserved += <float> cost
                else:
                    cell.ticketed[user.period & 1] += <float> cost
                    ticket.resource[ticket.count] = cell.resource
                    ticket.amount[ticket.count] = cost
                    ticket.count += 1
    user.changed_window = user.window


cdef inline void update_mean(ResourceCell *cell, double amount, double times) noexcept nogil:
    cdef bint has_peak = cell.peak != cell.mean
    amount = min(amount, MAX_TOTAL)
    if not cell.flags & HAS_MEAN:
        cell.flags |= HAS_MEAN
        cell.mean = cell.peak = <float> amount
        return
    if times == 1.0:
        cell.mean += <float> ((amount - cell.mean) * MEAN_WEIGHT)
        if has_peak:
            cell.peak += <float> ((amount - cell.peak) * PEAK_WEIGHT)
    else:
        cell.mean = <float> (amount + (cell.mean - amount) * pow(1.0 - MEAN_WEIGHT, times))
        if has_peak:
            cell.peak = <float> (amount + (cell.peak - amount) * pow(1.0 - PEAK_WEIGHT, times))
    if not has_peak or cell.peak < cell.mean * (1.0 + 1e-3):
        cell.peak = cell.mean


cdef inline bint note_least(
    UserRecord *user, ResourceCell *cells, int count, Costs *expect, WindowInfo *window
) noexcept nogil:
    """Credit is needed for a request: the next ask is for the cheapest of those. Whether anything has changed."""
    cdef bint is_first = not user.is_asking and window.time >= user.empty_until, is_changed = False
    cdef float least
    cdef int i
    for i in range(count):
        if not cells[i].is_limited:
            continue
        least = cells[i].least
        if is_first:
            cells[i].flags &= ~IS_CHEAPER
            cells[i].least = 0.0 if expect == NULL else <float> min(cost_of(&cells[i], expect), MAX_TOTAL)
        elif costs_less(&cells[i], expect):
            cells[i].flags |= IS_CHEAPER
            cells[i].least = <float> min(cost_of(&cells[i], expect), MAX_TOTAL)
        is_changed = is_changed or least != cells[i].least
    return is_changed


cdef inline bint has_cheaper(ResourceCell *cells, int count) noexcept nogil:
    """Whether a request is short that costs less than what the last ask was for."""
    cdef int i
    for i in range(count):
        if cells[i].is_limited and cells[i].flags & IS_CHEAPER:
            return True
    return False


cdef inline void learn_costs(ResourceCell *cells, int count, Costs *expect, uint32_t many) noexcept nogil:
    """Requests are short: what is asked for must follow what they are expected to cost."""
    cdef int i
    cdef double cost
    if expect == NULL:
        return
    for i in range(count):
        if cells[i].is_limited:
            cost = cost_of(&cells[i], expect)
            if cost > 0.0 and (cost != cells[i].mean or not cells[i].flags & HAS_MEAN):
                update_mean(&cells[i], cost, many)
                cells[i].peak = max(cells[i].peak, <float> min(cost, MAX_TOTAL))


cdef inline void count_refusals(
    UserRecord *user, ResourceCell *cells, int count, Costs *expect, uint32_t many
) noexcept nogil:
    """Count refusals, for every resource that the requests would have used: all of them are wanted."""
    cdef int i
    for i in range(count):
        if cells[i].is_limited and cost_of(&cells[i], expect) > 0.0:
            cells[i].rejected += many
    user.changed_window = user.window


cdef inline void release_mean(UserRecord *user, ResourceCell *cells, int count, double *released) noexcept nogil:
    """A request without a ticket ends: release a mean one, of the older ones first."""
    cdef bint is_old = user.old_running > 0.0
    cdef double part = 0.0
    cdef int i
    if is_old:
        part = 1.0 / user.old_running if user.old_running > 1.0 else 1.0
        user.old_running = user.old_running - 1.0 if user.old_running > 1.01 else 0.0
    elif user.running > 0.0:
        part = 1.0 / user.running if user.running > 1.0 else 1.0
        user.running = user.running - 1.0 if user.running > 1.01 else 0.0
    for i in range(count):
        if is_old:
            released[i] = cells[i].old_reserved * part
            cells[i].old_reserved = 0.0 if user.old_running == 0.0 else cells[i].old_reserved - <float> released[i]
        else:
            released[i] = cells[i].reserved * part
            cells[i].reserved = 0.0 if user.running == 0.0 else cells[i].reserved - <float> released[i]


cdef inline void release_ticket(
    UserRecord *user, ResourceCell *cells, int count, TicketCosts *ticket, double *released
) noexcept nogil:
    """A request ends: release what its ticket has reserved, unless the ticket has expired."""
    cdef int i, k
    if user.period != ticket.period and user.period != ticket.period + 1:
        return
    for k in range(ticket.count):
        for i in range(count):
            if cells[i].resource == ticket.resource[k]:
                released[i] = min(ticket.amount[k], <double> cells[i].ticketed[ticket.period & 1])
                cells[i].ticketed[ticket.period & 1] -= <float> released[i]


cdef inline void finish_request(
    UserRecord *user, ResourceCell *cells, int *count, Costs *amounts, TicketCosts *ticket
) noexcept nogil:
    """A request ends: count what it cost, and release what was reserved."""
    cdef double amount
    cdef double[MAX_CELLS] difference
    cdef int i
    cdef ResourceCell *cell
    memset(difference, 0, sizeof(difference))
    if ticket == NULL:
        release_mean(user, cells, count[0], difference)
    else:
        release_ticket(user, cells, count[0], ticket, difference)
    for i in range(count[0]):
        difference[i] = -difference[i]
    for i in range(amounts.count):
        cell = get_or_add_cell(cells, count, amounts.resource[i])
        if cell == NULL:
            continue
        amount = amounts.amount[i]
        difference[cell - cells] += amount
        cell.consumed = min(cell.consumed + amount, MAX_TOTAL)
        if amount > 0.0:
            cell.requests += 1
            update_mean(cell, amount, 1.0)
    if has_allowance(user.state):
        for i in range(count[0]):
            if cells[i].is_limited:
                cells[i].allowance -= <float> difference[i]
    user.changed_window = user.window


cdef inline uint32_t admit_many(
    UserRecord *user, ResourceCell *cells, int *count, Costs *amounts, uint32_t most
) noexcept nogil:
    """Begin and finish at once the equal requests that would pass, up to `most`.

    One that is larger than the allowance is not among them, nor any that would change the most that the
    allowance can be: `scarcest_short` decides on them one by one.
    """
    cdef double times = most, cost, room, covered
    cdef bint uses_allowance = has_allowance(user.state)
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
            if uses_allowance and cell.peak > cell.share and not (cell.flags & HAS_MEAN and cell.peak == <float> cost):
                return 0
            room = max(0.0, balance_of(cell)) if user.is_known else 0.0
            if uses_allowance and room < cost and cell.share > 0.0:
                room = cell.allowance
            room += cost * SLACK
            if room < cost * times:
                times = room / cost
    if times < 1.0:
        return 0
    many = <uint32_t> floor(times)
    for i in range(count[0]):
        cell = &cells[i]
        if uses_allowance and cell.is_limited:
            cost = cost_of(cell, amounts)
            covered = balance_of(cell) if user.is_known else 0.0
            if covered < cost * many * (1.0 - SLACK):
                cell.allowance -= <float> (cost * many)
    for i in range(amounts.count):
        cell = get_or_add_cell(cells, count, amounts.resource[i])
        if cell == NULL:
            continue
        cell.consumed = min(cell.consumed + amounts.amount[i] * many, MAX_TOTAL)
        if amounts.amount[i] > 0.0:
            cell.requests += many
            update_mean(cell, amounts.amount[i], many)
    user.changed_window = user.window
    return many


cdef inline void return_units(ResourceCell *cell, double amount) noexcept nogil:
    """Sums are off by rounding, but no more is given back than was granted: no frame could tell it."""
    cell.returned = min(cell.returned + amount, cell.granted)


cdef inline bint give_back_parts(UserRecord *user, ResourceCell *cells, int count) noexcept nogil:
    """Give back all credit if it does not cover even a cheap request; whether there was any."""
    cdef bint is_short = False, has_credit = False
    cdef double balance
    cdef int i
    if not user.is_known:
        return False
    for i in range(count):
        if cells[i].is_limited:
            is_short = is_short or not is_covered(&cells[i], min(ask_cost(&cells[i]), <double> cells[i].mean))
            has_credit = has_credit or balance_of(&cells[i]) > 1e-9 * cells[i].mean
    if not (is_short and has_credit):
        return False
    for i in range(count):
        balance = balance_of(&cells[i])
        if cells[i].is_limited and balance > 0.0:
            return_units(&cells[i], balance)
    return True


cdef inline bint knows_mean(ResourceCell *cell) noexcept nogil:
    return cell.flags & (HAS_MEAN | MEAN_IS_TOLD) != 0


cdef inline double guess_of(UserRecord *user, ResourceCell *cells, int count) noexcept nogil:
    """The most that is reserved of a resource whose cost is not known; the leader covers what it is told of it."""
    cdef double guess = 0.0
    cdef int i
    if user.is_known:
        for i in range(count):
            if cells[i].flags & IS_TOLD and not knows_mean(&cells[i]):
                guess = max(guess, reserved_of(&cells[i]))
    return guess


cdef inline double kept_part(WindowInfo *window) noexcept nogil:
    """The part of a slot's share that an idle user keeps: what may be needed before more can come."""
    return max(0.4, window.lead_seconds / window.slot_seconds)


cdef inline double kept_credit(ResourceCell *cell, double part, double least) noexcept nogil:
    """What an idle user keeps: whole requests' worth, as no request can use the rest, and enough for a large one."""
    if part < 0.0:
        return 0.0
    return cell.peak + (max(1.0, floor(max(least, part * cell.share / cell.mean) + 0.5)) - 1.0) * cell.mean


cdef inline bint give_back(ResourceCell *cells, int count, double part, double least) noexcept nogil:
    """Give back all credit but for a part of a slot's share, or `least` requests; all of it if `part` is below 0.

    Returns whether it was a request's worth; of all of it, whether there was any.
    """
    cdef double requests = -1.0, kept, spare
    cdef int i
    for i in range(count):
        if cells[i].is_limited and cells[i].mean > 0.0:
            kept = kept_credit(&cells[i], part, least)
            spare = (balance_of(&cells[i]) - kept) / cells[i].mean
            if requests < 0.0 or (spare < requests if part >= 0.0 else spare > requests):
                requests = max(0.0, spare)
    if requests < (1.0 if part >= 0.0 else 1e-6):
        return False
    for i in range(count):
        if cells[i].is_limited:
            kept = kept_credit(&cells[i], part, least)
            return_units(&cells[i], max(0.0, balance_of(&cells[i]) - kept))
    return True


cdef inline bint must_keep(UserRecord *user, ResourceCell *cells, int count) noexcept nogil:
    """Whether dropping the record, which is up to date, would forget credit, a debt or a reservation."""
    cdef int i
    if has_reservations(user, cells, count):
        return True
    for i in range(count):
        if not cells[i].is_limited:
            continue
        if user.is_known and not -1e-6 * cells[i].mean <= balance_of(&cells[i]) <= 1e-6 * cells[i].mean:
            return True
        if (
            has_allowance(user.state) and cells[i].share > 0.0
            and cells[i].allowance < max(<double> cells[i].share, <double> cells[i].peak)
        ):
            return True
    return False

# cython: language_level=3, cdivision=True
"""A user of a service as he stands in the shared memory of a host, and the rules of docs/node.md.

A record is a `User` and up to MOST_CELLS `Cell`s, one for each resource that he consumed or is
limited in. Everything here is given a record that was copied out of the memory, changes the copy,
and touches nothing else; whoever calls puts the whole of it back in one step, or looks again.

A *window* is a slot as this host lived it. `Now` is what holds for all users in it, `Terms` what
a service's newcomers have. Amounts are doubles in the resource's unit, shares are units per slot,
times are seconds of the host's monotonic clock.

Reservations are not told apart, and memory must not follow the traffic: those of this window are
one lot (`count`, `held`), those of the windows before another (`old_count`, `old_held`). `consume`
settles a mean request of the older one first.
"""

from libc.math cimport floor, pow
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset

cdef extern from *:
    """
    /* Sums and shares are off by rounding; a request is not refused for less than this part. */
    #define HG_SLACK 2e-7
    /* A mean over about eight requests follows a user who changes. */
    #define HG_MEAN_WEIGHT 0.125
    /* Who was refused in this last part of a slot has demand all through it, and is paced. */
    #define HG_LATE 0.2
    #define HG_HEAD_START 0.1
    /* Without a central and without `fallback`: requests per second for each user. */
    #define HG_FALLBACK_REQUESTS 10.0
    /* No total is larger: a report could not tell it. */
    #define HG_LARGEST 1e18
    """
    const double SLACK "HG_SLACK"
    const double MEAN_WEIGHT "HG_MEAN_WEIGHT"
    const double LATE "HG_LATE"
    const double HEAD_START "HG_HEAD_START"
    const double FALLBACK_REQUESTS "HG_FALLBACK_REQUESTS"
    const double LARGEST "HG_LARGEST"

cdef enum:
    MOST_CELLS = 8
    USER_WORDS = 8   # doubles that a User takes
    CELL_WORDS = 12  # and a Cell
    STARTS = 0       # the resource that counts the beginnings of requests; in no report

cdef enum State:
    FALLBACK = 0
    FRESH = 1
    REUSED = 2
    SAFE = 3
    NEWCOMER = 4
    FREE = 5
    STATES = 6       # so many

cdef struct User:
    uint32_t window          # in which he was last looked at
    uint32_t changed         # in which his totals or reservations last changed
    uint32_t generation      # of what is in hand, when his shares were looked up
    uint32_t asked           # the window in which he was last introduced to the leader
    int64_t[2] quota_slot    # the slots of the two quotas in his cells; -1: none
    uint64_t free_version    # of the limits under which he is free
    double refused_at
    float count              # running requests that began in this window
    float old_count          # and before it
    uint8_t state
    uint8_t is_paced
    uint8_t was_idle         # no request in the window before
    uint8_t was_refused      # in this window
    uint8_t lot_is_credit    # what `count` has reserved was taken from credit
    uint8_t lacks_cell       # he has a share of a resource that there is no cell for: he gets nothing
    uint8_t[2] _unused

cdef struct Cell:
    double consumed          # since the record was made
    double before            # the same at the beginning of the window
    double settled           # the part of it that a leader has acknowledged
    double taken             # of this window's share
    double credit
    double held              # reserved by requests that began in this window
    double old_held          # and before it
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

cdef struct Terms:
    # What newcomers of a service have, or what the node gives when nobody has told anything.
    int count
    int _unused
    uint8_t[MOST_CELLS] resource
    double[MOST_CELLS] share

cdef struct Now:
    double time
    bint is_rough            # the time is of the coarse clock: some milliseconds behind
    double begin             # of the window
    double end
    double slot_seconds
    double start             # the user's fraction, in [0, 1); below 0: not known
    int64_t slot
    int64_t held             # windows for which the slot has been the same
    int64_t whole            # the slot of the newest whole Quota up to this one; -1: none
    int64_t lease
    uint64_t version
    uint32_t window
    uint32_t generation
    uint32_t reservation_windows
    bint is_told             # the terms are what newcomers have; else the node's fallback
    Terms terms              # set where they are asked for

cdef struct Costs:
    # What a caller expects or reports: so many resources.
    int count
    uint8_t[64] resource
    double[64] amount


cdef inline bint is_credit(int state) noexcept nogil:
    return state == SAFE or state == NEWCOMER or state == FALLBACK


cdef inline bint is_holding(User *user) noexcept nogil:
    return user.count > 0.0 or user.old_count > 0.0


cdef inline bint is_free(User *user, Now *now) noexcept nogil:
    """Whether the limits as they stand have none for him."""
    return user.free_version != 0 and user.free_version == now.version


cdef inline Cell *cell_of(Cell *cells, int count, int resource) noexcept nogil:
    cdef int i
    for i in range(count):
        if cells[i].resource == resource:
            return &cells[i]
    return NULL


cdef inline Cell *idle_cell(Cell *cells, int count) noexcept nogil:
    """A cell that nobody would miss: of the beginnings of requests, which are in no report, or one that
    was a newcomer's and of which nothing was ever consumed."""
    cdef int i
    cdef Cell *cell
    for i in range(count):
        cell = &cells[i]
        if not cell.is_limited and (
            cell.resource == STARTS
            or (
                cell.amount[0] < 0.0 and cell.amount[1] < 0.0 and cell.consumed == 0.0 and cell.rejected == 0
                and cell.requests == 0 and cell.held == 0.0 and cell.old_held == 0.0
            )
        ):
            return cell
    return NULL


cdef inline Cell *add_cell(Cell *cells, int *count, int resource) noexcept nogil:
    """The cell of a resource, made when there is none; NULL when there are too many."""
    cdef Cell *cell = cell_of(cells, count[0], resource)
    if cell != NULL:
        return cell
    if count[0] < MOST_CELLS:
        cell = &cells[count[0]]
        count[0] += 1
    else:
        cell = idle_cell(cells, count[0])
        if cell == NULL:
            return NULL
    memset(cell, 0, sizeof(Cell))
    cell.resource = <uint8_t> resource
    cell.amount[0] = cell.amount[1] = -1.0
    cell.mean = 1.0
    return cell


cdef inline void blank(User *user, Now *now) noexcept nogil:
    """Somebody who was never here before."""
    memset(user, 0, sizeof(User))
    user.window = now.window - 2  # no request in the window before
    user.quota_slot[0] = user.quota_slot[1] = -1
    user.refused_at = -1e300
    user.was_idle = 1
    user.state = FALLBACK
    user.generation = now.generation - 1
    user.changed = now.window


cdef inline int newest_quota(User *user, Now *now) noexcept nogil:
    """Which of his quotas holds, or -1: the newest up to this slot that no whole Quota voids."""
    cdef int i, best = -1
    for i in range(2):
        if user.quota_slot[i] >= 0 and now.whole <= user.quota_slot[i] <= now.slot:
            if best < 0 or user.quota_slot[i] > user.quota_slot[best]:
                best = i
    return best


cdef inline int state_of(User *user, Now *now) noexcept nogil:
    """What a user has in this slot."""
    cdef int quota = newest_quota(user, now)
    cdef int64_t age
    if is_free(user, now):
        return FREE
    if quota < 0:
        return NEWCOMER if now.is_told else FALLBACK
    age = now.slot + now.held - user.quota_slot[quota]
    return FRESH if age == 0 else REUSED if age <= now.lease else SAFE


cdef inline void turn_window(User *user, Cell *cells, int count, Now *now) noexcept nogil:
    cdef uint32_t elapsed = now.window - user.window
    cdef double kept = 1.0 - 1.0 / max(1.0, <double> now.reservation_windows)
    cdef int i
    cdef Cell *cell
    user.was_idle = elapsed > 1
    user.was_refused = 0
    user.is_paced = elapsed == 1 and user.refused_at >= now.begin - LATE * now.slot_seconds
    user.window = now.window
    # Requests that died are never settled: others settle theirs in their place, so that with
    # traffic it is always the newest that seem to run. A part is given back in each window.
    if elapsed > now.reservation_windows:
        user.old_count = user.count = 0.0
    user.old_count = <float> (user.old_count * kept) + user.count
    user.count = 0.0
    if user.old_count < 0.01:
        user.old_count = 0.0
    for i in range(count):
        cell = &cells[i]
        cell.taken = 0.0
        cell.before = cell.consumed
        cell.rejected_before = cell.rejected
        cell.requests_before = cell.requests
        cell.old_held = cell.old_held * kept + cell.held if user.old_count > 0.0 else 0.0
        cell.held = 0.0


cdef inline bint grow_credit(
    User *user, Cell *cells, int count, uint32_t slots, bint begins, double start
) noexcept nogil:
    """Add the shares of `slots` slots; see docs/node.md, "Credit". False: `start` must be known first."""
    cdef int i
    cdef Cell *cell
    cdef double most, left
    for i in range(count):
        cell = &cells[i]
        if not cell.is_limited:
            continue
        most = max(<double> cell.share, <double> cell.mean)
        if not cell.has_credit:
            if start < 0.0:
                return False
            cell.has_credit = 1
            cell.credit = min(start * cell.mean + cell.share, most)
        elif slots:
            left = cell.credit + cell.share * <double> (slots - 1)
            cell.credit = left + cell.share if left < cell.mean else most
        if begins:
            cell.credit = min(cell.credit, max(0.0, most - cell.taken))
    return True


cdef inline bint look_up(User *user, Cell *cells, int *count, Now *now) noexcept nogil:
    """Bring a user to this window and to what is in hand.

    False: his fraction, `now.start`, must be known for that; the copy is of no use any more.
    """
    cdef uint32_t elapsed = 0
    cdef int i, quota, state = state_of(user, now), before = user.state
    cdef Cell *cell
    if now.window > user.window:
        elapsed = now.window - user.window
        turn_window(user, cells, count[0], now)
    user.generation = now.generation
    for i in range(count[0]):
        cells[i].is_limited = 0
    user.state = <uint8_t> state
    if state == FREE:
        return True
    quota = newest_quota(user, now)
    if quota >= 0:
        for i in range(count[0]):
            cell = &cells[i]
            if cell.amount[quota] >= 0.0:
                cell.is_limited = 1
                cell.share = cell.safe if state == SAFE else cell.amount[quota]
    else:
        user.lacks_cell = 0
        for i in range(now.terms.count):
            cell = add_cell(cells, count, now.terms.resource[i])
            if cell == NULL:
                user.lacks_cell = 1
            else:
                cell.is_limited = 1
                cell.share = <float> now.terms.share[i]
    if is_credit(state):
        if not is_credit(before):
            elapsed = min(elapsed, 1)
        return grow_credit(user, cells, count[0], elapsed, state != before, now.start)
    return True


cdef inline double part_by_now(User *user, Now *now) noexcept nogil:
    """The part of a share that may be taken by now: all of it, unless demand is steady."""
    if not user.is_paced or is_credit(user.state):
        return 1.0
    return (now.time - now.begin) / now.slot_seconds + HEAD_START


cdef inline double cost_of(Cell *cell, Costs *expect) noexcept nogil:
    cdef int i
    if cell.resource == STARTS:
        return 1.0
    if expect == NULL:
        return cell.mean
    for i in range(expect.count):
        if expect.resource[i] == cell.resource:
            return expect.amount[i]
    return 0.0


cdef inline bint agrees(User *user, Cell *cell, double cost, double part) noexcept nogil:
    """Whether there is room for a cost above 0."""
    cdef double needed, line, slack
    if cell.share <= 0.0:
        return False
    if is_credit(user.state):
        # A request larger than credit can ever be passes when credit is full.
        needed = min(cost, max(<double> cell.share, <double> cell.mean))
        return cell.credit >= needed - needed * SLACK
    slack = cell.share * SLACK
    line = cell.share if part >= 1.0 else min(<double> cell.share, part * cell.share + cost)
    # The first may be larger than the share, or it could never pass.
    return cell.taken + cost <= line + slack or cell.taken <= slack


cdef inline int first_short(User *user, Cell *cells, int count, Costs *expect, Now *now) noexcept nogil:
    """The first cell that a request is short of, or -1."""
    cdef double part = part_by_now(user, now), cost
    cdef int i
    if user.lacks_cell and count:
        return 0
    for i in range(count):
        if cells[i].is_limited:
            cost = cost_of(&cells[i], expect)
            if cost > 0.0 and not agrees(user, &cells[i], cost, part):
                return i
    return -1


cdef inline void charge(User *user, Cell *cells, int count, Costs *expect) noexcept nogil:
    """A request begins: take and reserve its cost of each limited resource."""
    cdef bint credit = is_credit(user.state)
    cdef int i
    cdef double cost
    cdef Cell *cell
    if user.count > 0.0 and user.lot_is_credit != credit:
        # Of another kind: it is settled with those of the windows before.
        user.old_count += user.count
        user.count = 0.0
        for i in range(count):
            cells[i].old_held += cells[i].held
            cells[i].held = 0.0
    user.lot_is_credit = credit
    user.count += 1.0
    for i in range(count):
        cell = &cells[i]
        if cell.is_limited:
            cost = cost_of(cell, expect)
            if cost > 0.0:
                cell.taken += cost
                if credit:
                    cell.credit -= cost
                if cell.resource != STARTS:
                    cell.held += cost
    user.changed = user.window


cdef inline void refuse(
    User *user, Cell *cells, int count, Costs *expect, uint32_t times, Now *now
) noexcept nogil:
    """Count a refusal for each resource that was short."""
    cdef double part = part_by_now(user, now), cost
    cdef int i
    for i in range(count):
        if cells[i].is_limited:
            cost = cost_of(&cells[i], expect)
            if cost > 0.0 and not agrees(user, &cells[i], cost, part):
                cells[i].rejected += times
    user.refused_at = now.time
    user.changed = user.window


cdef inline void learn(Cell *cell, double amount, double times) noexcept nogil:
    if not cell.has_mean:
        cell.has_mean = 1
        cell.mean = <float> amount
    elif times == 1.0:
        cell.mean += <float> ((amount - cell.mean) * MEAN_WEIGHT)
    else:
        cell.mean = <float> (amount + (cell.mean - amount) * pow(1.0 - MEAN_WEIGHT, times))


cdef inline void settle(User *user, Cell *cells, int *count, Costs *amounts) noexcept nogil:
    """A request ends: count what it cost, and take that instead of what was reserved."""
    cdef bint credit = is_credit(user.state), is_same = False, is_same_credit, is_old = False
    cdef double one = 0.0, expected, difference, amount
    cdef int i, k
    cdef Cell *cell
    cdef bint[MOST_CELLS] is_done
    if user.old_count > 0.0:
        is_old = True
        one = 1.0 / user.old_count if user.old_count > 1.0 else 1.0
        user.old_count = user.old_count - 1.0 if user.old_count > 1.01 else 0.0
    elif user.count > 0.0:
        is_same = True
        one = 1.0 / user.count if user.count > 1.0 else 1.0
        user.count = user.count - 1.0 if user.count > 1.01 else 0.0
    # What was reserved too much is given back in the slot it was taken from, not later:
    # that slot is over, and its share with it.
    is_same_credit = is_same and user.lot_is_credit
    memset(is_done, 0, sizeof(is_done))
    for i in range(amounts.count):
        cell = add_cell(cells, count, amounts.resource[i])
        if cell == NULL:
            continue
        amount = amounts.amount[i]
        expected = 0.0
        if is_old:
            expected = cell.old_held * one
            cell.old_held -= expected
        elif is_same:
            expected = cell.held * one
            cell.held -= expected
        is_done[cell - cells] = True
        cell.consumed = min(cell.consumed + amount, LARGEST)
        if amount > 0.0:
            cell.requests += 1
            learn(cell, amount, 1.0)
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
            cell.old_held -= cell.old_held * one
        elif is_same:
            expected = cell.held * one
            cell.held -= expected
            cell.taken -= expected
            if is_same_credit and credit and cell.is_limited:
                cell.credit += expected
    if user.count == 0.0 or user.old_count == 0.0:
        for k in range(count[0]):
            if user.count == 0.0:
                cells[k].held = 0.0
            if user.old_count == 0.0:
                cells[k].old_held = 0.0
    user.changed = user.window


cdef inline uint32_t admit_many(
    User *user, Cell *cells, int *count, Costs *amounts, uint32_t most, Now *now
) noexcept nogil:
    """Charge and settle at once the equal requests that would pass, up to `most`.

    Not the one that is larger than its share: that is left to `first_short`.
    """
    cdef double part = part_by_now(user, now), times = most, cost, line, room
    cdef bint credit = is_credit(user.state)
    cdef uint32_t many
    cdef int i
    cdef Cell *cell
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
        if cell.resource == STARTS and cell.is_limited:
            cell.taken += many
    for i in range(amounts.count):
        cell = add_cell(cells, count, amounts.resource[i])
        if cell == NULL:
            continue
        cell.consumed = min(cell.consumed + amounts.amount[i] * many, LARGEST)
        cell.taken += amounts.amount[i] * many
        if amounts.amount[i] > 0.0:
            cell.requests += many
            learn(cell, amounts.amount[i], many)
    user.changed = user.window
    return many


cdef inline bint is_spent(User *user, Cell *cells, int count, Now *now) noexcept nogil:
    """Whether something would be forgiven if the user, looked up just now, were forgotten."""
    cdef int i
    if is_holding(user):
        return True
    if not is_credit(user.state):
        return False
    for i in range(count):
        if (
            cells[i].is_limited and cells[i].share > 0.0 and cells[i].has_credit
            and cells[i].credit < max(<double> cells[i].share, <double> cells[i].mean)
        ):
            return True
    return False

"""A bucket and its cells, and what can be said and done with one of them alone.

A *bucket* belongs to one user and resource, a *cell* to one bucket on one node. Amounts are in the
resource's unit; slots in a cell are numbered from the book's first slot on, beginning with 1, so
that they fit, and 0 is never.
"""

from libc.math cimport INFINITY, floor

from sluicegate.quota.packed._report_lines cimport PackedLine

cdef extern from *:
    """
    /* Shares of fewer requests than this are given in whole requests. */
    #define WHOLE_REQUESTS 256
    /* Beside its burst, a bucket may hold one request and what comes in while a promise that
       was not used is on its way back. */
    #define ROUND_TRIP_SLOTS 3
    /* What no report has mentioned for so many slots is forgotten. */
    #define FORGET_SLOTS 60
    /* Until all nodes had the time to come, nobody gets more than so much of what he lived on. */
    #define MOST_GROWTH 1.1
    /* So long other nodes may take to tell of the time before a bucket was made. */
    #define WAIT_SLOTS 10
    /* Sums of fractions may fall short of a whole by so little. */
    #define SLACK 1e-5
    """
    const int WAIT_SLOTS
    const int ROUND_TRIP_SLOTS, FORGET_SLOTS
    const double WHOLE_REQUESTS, SLACK, MOST_GROWTH

cdef struct Cell:
    double consumed  # the node's total, as far as it is booked
    unsigned int rejected, requests  # likewise
    float promised[4]  # for the slots the node has not reported yet, at slot % 4
    float demand  # per slot, smoothed; infinite: not known yet
    float held  # what running requests are expected to consume
    float carry  # the fraction, in requests, that shares have fallen short of
    float safe  # the share of a slot in which the node is on its own
    float last_consumed, last_rejected  # in the last report that had any
    int node
    int listed  # the slot of the last report with a line of it (from 1 on); 0: none yet
    int until  # the last slot of which something is promised (from 1 on)
    float lapsed  # what was promised by a clock that has gone back since, until it reports
    unsigned int sequence  # of the last report with a line of it; 0: none yet
    int asked  # the slot in which the node asked for it (from 1 on)

cdef struct Bucket:
    double level  # what may be spent, after all that is booked; below 0: debt
    double rate  # refill per slot; below 0: no limit
    double capacity
    double held  # by running requests, at the last assignment
    double spilled  # refill that found the bucket full while some node was still to report
    double recorded  # all that was ever booked
    double cost  # the mean cost of a request; 0: not known
    long long slot  # up to which it is refilled
    long long spilled_at  # the last slot whose refill spilled; of what spilled unseen, until when it counts
    long long born  # the slot in which it was made; before that it was full
    double unseen  # what was taken to have spilled before it was made
    Cell *cells  # by node number, rising
    int count, room


cdef inline int position_of(Bucket *bucket, int node) noexcept nogil:
    """Where the cell of a node stands, or would stand."""
    cdef int low = 0, high = bucket.count, middle
    while low < high:
        middle = (low + high) >> 1
        if bucket.cells[middle].node < node:
            low = middle + 1
        else:
            high = middle
    return low


cdef inline double cost_of_request(Bucket *bucket) noexcept nogil:
    """What a request costs, as far as is known."""
    return bucket.cost if bucket.cost > 0.0 else 1.0


cdef inline double ceiling_of(Bucket *bucket) noexcept nogil:
    """The most a bucket can hold: its capacity, but enough for a slot and for one request.

    A limit of less than a request per slot goes on filling for a while beside the one it holds.
    """
    cdef double request = cost_of_request(bucket)
    if bucket.rate <= 0.0:
        return 0.0
    return max(bucket.capacity, max(bucket.rate, request + min(ROUND_TRIP_SLOTS * bucket.rate, request)))


cdef inline void refill(Bucket *bucket, long long slot) noexcept nogil:
    """Bring the level up to a slot. What running requests hold is as good as spent: not full yet."""
    cdef double ceiling, refilled
    if slot > bucket.slot:
        ceiling = ceiling_of(bucket) + bucket.held
        refilled = bucket.level + bucket.rate * (slot - bucket.slot)
        if refilled > ceiling:
            bucket.spilled += refilled - ceiling
            bucket.spilled_at = max(bucket.spilled_at, slot)
            refilled = ceiling
        bucket.level = refilled
        bucket.slot = slot


cdef inline double promised_after(Cell *cell, long long first, long long reported) noexcept nogil:
    """The sum of what is promised for the slots after the one that was reported."""
    cdef long long last = first + cell.until - 1, slot = max(reported + 1, last - 3)
    cdef double promised = 0.0
    while slot <= last:
        promised += cell.promised[slot & 3]
        slot += 1
    return promised


cdef inline void promise(Cell *cell, long long first, long long slot, float amount) noexcept nogil:
    """Promise an amount for a slot. In those that were left out before it, the node lives on its safe share, if any."""
    cdef long long left_out = max(first + cell.until, slot - 3)
    while left_out < slot:
        cell.promised[left_out & 3] = cell.safe if cell.until else 0.0
        left_out += 1
    cell.promised[slot & 3] = amount
    cell.until = <int> (slot - first + 1)


cdef inline bint is_reported(Bucket *bucket) noexcept nogil:
    """Whether any node has told of it yet."""
    cdef int i
    for i in range(bucket.count):
        if bucket.cells[i].listed:
            return True
    return False


cdef inline double part_for_asker(
    double available, double rate, double request, int nodes, bint is_scarce
) noexcept nogil:
    """What a node that asks gets of what is free: up to a slot's refill, or half of more.

    Where that would be all there is, and the user may be about to come to all `nodes`, it is half, or
    an even part.
    """
    cdef double amount
    if available <= 0.0:
        return 0.0
    if is_scarce:
        amount = min(available, max(rate / nodes, 0.5 * available))
    else:
        amount = min(available, max(rate, 0.5 * available))
    if amount < request:
        return request if available >= request * (1.0 - SLACK) else 0.0
    if amount < WHOLE_REQUESTS * request:
        amount = request * floor(amount / request + SLACK)
    return amount


cdef struct Booking:  # what holds for all lines of a report
    long long slot
    int day  # the slot as it stands in a cell
    int slots  # that it covers
    unsigned int sequence, since
    bint is_known, is_reborn
    bint is_from_before  # the first of a node that has lived under another leader

cdef struct News:  # what is new in a line
    double consumed
    unsigned int rejected, requests


cdef inline void enter(
    const Booking *booking, Bucket *bucket, Cell *cell, const News *news, double held
) noexcept nogil:
    """Note what is new of a cell: the mean cost, the demand, the refill of its time."""
    cdef double cost, demand, distance, recovered, request, unseen, new = news.consumed
    cdef int older
    cell.listed = max(cell.listed, booking.day)
    if news.requests and new > 0.0:
        cost = new / news.requests
        if bucket.cost == 0.0:
            bucket.cost = cost
        elif cost != bucket.cost:
            bucket.cost += (cost - bucket.cost) * news.requests / (news.requests + 32.0)
    request = cost_of_request(bucket)
    demand = new + max(0.0, held - cell.held) + news.rejected * request
    if booking.slots > 1:
        demand /= booking.slots
    if news.rejected and bucket.cost == 0.0:
        # Refusals of unknown cost: the node wants more than it had, say as much again.
        demand += new / booking.slots
    cell.held = <float> held
    # Within chance the mean is the better guess; a jump beyond it is believed at once. A fall
    # is taken to go on: traffic that left within the slot has left by the time of the quota.
    distance = demand - cell.demand
    if demand == 0.0 or cell.demand == <float> INFINITY:
        cell.demand = <float> demand
    elif distance * distance <= 9.0 * request * max(demand, <double> cell.demand):
        cell.demand += <float> (0.3 * distance)
    elif distance > 0.0:
        cell.demand = <float> demand
    else:
        cell.demand = <float> max(0.1 * demand, demand + distance)
    if bucket.rate >= 0.0:
        refill(bucket, booking.slot)
    if booking.slots > 1 and bucket.rate > 0.0:
        # Before the bucket was made it was full, or its books are lost: nodes lived on their shares,
        # which the refill of that time has covered.
        unseen = bucket.rate * (bucket.born - 1 - (booking.slot - booking.slots))
        if unseen > bucket.unseen:
            bucket.spilled += unseen - bucket.unseen
            bucket.unseen = unseen
            bucket.spilled_at = max(bucket.spilled_at, booking.slot + WAIT_SLOTS)
    # All but the last slot of it is old; and that too, if the bucket has had a later refill.
    older = booking.slots - 1 + (bucket.slot > booking.slot)
    if older > 0 and bucket.rate > 0.0 and bucket.spilled_at > booking.slot - booking.slots:
        # The older part was consumed while refill spilled over that should have covered it.
        recovered = min(bucket.spilled, new * older / booking.slots)
        recovered = min(recovered, bucket.rate * (booking.slots - 1 + bucket.slot - booking.slot))
        bucket.spilled -= recovered
        bucket.level += recovered
    if new > 0.0 or news.rejected:
        cell.last_consumed = <float> new
        cell.last_rejected = <float> news.rejected
        bucket.recorded += new


cdef inline News book_line(const Booking *booking, Bucket *bucket, Cell *cell, const PackedLine *line) noexcept nogil:
    """Bring a cell up to the totals of a line, and tell what is new."""
    cdef News news
    if cell.sequence == 0 or (
        booking.since >= cell.sequence and booking.sequence - cell.sequence > <unsigned int> FORGET_SLOTS
    ):
        news.consumed = line.consumed if booking.is_reborn else line.consumed - line.settled
        news.rejected = line.rejected if booking.is_known or booking.is_reborn else 0
        news.requests = line.requests if booking.is_known or booking.is_reborn else 0
        if booking.is_from_before:
            cell.safe = <float> (news.consumed / booking.slots)  # for all we know, it lives on that
    else:
        news.consumed = max(0.0, line.consumed - cell.consumed)
        news.rejected = line.rejected - cell.rejected
        news.requests = line.requests - cell.requests
    cell.consumed = line.consumed
    cell.rejected = line.rejected
    cell.requests = line.requests
    cell.sequence = booking.sequence
    cell.lapsed = 0.0
    enter(booking, bucket, cell, &news, line.held)
    return news

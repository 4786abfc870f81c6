"""Booking: what a line of a report adds to its cell and its bucket.

What was consumed in the time of a late report is set against the refill of that time, also where that
overflowed a bucket which looked full meanwhile. Of our own nodes that is so only for what they consumed
beyond their credit: that had its place in the bucket.
"""

from libc.math cimport INFINITY

from sluicegate.quota.ledger._bucket cimport (
    FORGET_SLOTS,
    LATE_REPORT_SLOTS,
    Bucket,
    NodeCell,
    cost_of_request,
    note_active,
    refill,
)
from sluicegate.quota.ledger._credit cimport outstanding_of, put_back, raise_totals, take_out, unbooked_of
from sluicegate.quota.packed._report_lines cimport PackedLine

cdef struct ReportContext:  # what all lines of a report have in common
    long long slot
    int slot_offset  # the slot as a cell stores it
    int slots  # that it covers
    unsigned int sequence, since
    bint is_known  # the report before it is booked
    bint is_new_boot  # an earlier boot of the node is known
    bint is_handed_over  # the first report of a node that has reported to another leader before
    bint is_late  # the slot after it is assigned already
    double silent_since  # the node was silent since then, in slots; below 0: it was not
    double still_silent_since  # and is so for the time since then, as its report is old; below 0: it is not
    double silent_until  # up to then it was taken to live on its safe share
    long long resumed_at  # the slot in which the central was back after an outage; 0: there was none
    int heard_since  # but not for users for which it has asked since this slot
    bint is_overtaken  # the node has sent an ask since, which is booked
    unsigned int active_ms  # the end of the slot, as a cell stores it

cdef struct Delta:  # what a line adds to the totals of its cell
    double consumed
    unsigned int rejected, requests


cdef inline double autonomous_usage(
    const NodeCell *cell, double since, double time
) noexcept nogil:
    """What a node that is not heard `since` has spent by `time` beyond its credit, if it lives on its safe share."""
    return max(0.0, cell.safe * (time - since) - outstanding_of(cell))


cdef inline void assume_usage(
    Bucket *bucket, const NodeCell *cell, double since, double until, double time
) noexcept nogil:
    """A node is silent: what it holds may be spent, and its safe share from `since` on, up to `until`.

    That is as good as spent, and takes no room in the bucket: one that holds little could else give out nothing
    until the node is forgotten.
    """
    cdef double spent = autonomous_usage(cell, since, min(time, until))
    bucket.reserved += spent
    bucket.silent += outstanding_of(cell) - unbooked_of(cell) + spent
    if spent > 0.0 and time < until:
        bucket.autonomous += cell.safe


cdef inline void hear_again(Bucket *bucket, const NodeCell *cell, double since, double until) noexcept nogil:
    """A node tells of the time in which it was silent: what was assumed of it holds no more."""
    cdef double spent = autonomous_usage(cell, since, min(bucket.time, until))
    bucket.reserved = max(0.0, bucket.reserved - spent)
    bucket.silent = max(0.0, bucket.silent - spent - (outstanding_of(cell) - unbooked_of(cell)))
    if spent > 0.0 and bucket.time < until:
        bucket.autonomous = max(0.0, bucket.autonomous - cell.safe)


cdef inline void update_demand(
    const ReportContext *context, Bucket *bucket, NodeCell *cell, const Delta *delta, double held
) noexcept nogil:
    """Update the mean cost of a request, and the demand of a node."""
    cdef double cost, demand, distance, request, new = delta.consumed
    cell.last_report = max(cell.last_report, context.slot_offset)
    if delta.requests and new > 0.0:
        cost = new / delta.requests
        if bucket.cost == 0.0:
            bucket.cost = cost
        elif cost != bucket.cost:
            bucket.cost += (cost - bucket.cost) * delta.requests / (delta.requests + 32.0)
    request = cost_of_request(bucket)
    demand = new + max(0.0, held - cell.held) + delta.rejected * request
    if context.slots > 1:
        demand /= context.slots
    if delta.rejected and bucket.cost == 0.0:
        # Refusals of unknown cost: the node wants more than it had, say as much again.
        demand += new / context.slots
    cell.held = <float> held
    # Within chance the mean is the better estimate; a jump beyond it is believed at once. A fall
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


cdef inline void apply_delta(
    const ReportContext *context,
    Bucket *bucket,
    NodeCell *cell,
    const Delta *delta,
    double held,
    double unforeseen,
) noexcept nogil:
    """Update a bucket by what a node consumed, of which so much was not known before."""
    cdef double recovered, before, before_creation, since
    cdef int older
    update_demand(context, bucket, cell, delta, held)
    if bucket.rate >= 0.0:
        refill(bucket, <double> context.slot)
    if context.slots > 1 and bucket.rate > 0.0:
        # Before the bucket was created it was full, or its state is lost: nodes consumed their shares,
        # which the refill of that time has covered.
        before_creation = bucket.rate * (bucket.filled_since - 2 - (context.slot - context.slots))
        if before_creation > bucket.overflowed_before_creation:
            bucket.overflowed += before_creation - bucket.overflowed_before_creation
            bucket.overflowed_before_creation = before_creation
            bucket.overflowed_slot = max(bucket.overflowed_slot, context.slot + LATE_REPORT_SLOTS)
    # All but the last slot of it is old; and that too, if the report is late.
    older = context.slots - 1 + context.is_late
    if older > 0 and bucket.rate > 0.0 and bucket.overflowed_slot > context.slot - context.slots:
        # The older part was consumed while the refill that should have covered it overflowed.
        recovered = min(bucket.overflowed, unforeseen * older / context.slots)
        recovered = min(recovered, bucket.rate * (context.slots - 1 + max(0.0, bucket.time - context.slot)))
        if context.is_handed_over:
            # Only what it consumed before the bucket has its refill: what came in while the central was
            # away has overflowed.
            since = max(bucket.filled_since, <double> context.resumed_at)
            before = min(max(0.0, since - 2 - (context.slot - context.slots)), <double> context.slots)
            recovered = min(recovered, unforeseen * before / context.slots)
        bucket.overflowed -= recovered
        bucket.level += recovered
    if delta.consumed > 0.0 or delta.rejected:
        cell.last_consumed = <float> delta.consumed
        cell.last_rejected = <float> delta.rejected
        bucket.recorded += delta.consumed


cdef inline unsigned int requests_of(const PackedLine *line, double new) noexcept nogil:
    """How many of a line's requests are new, if so much of what they consumed is: those of a mean cost."""
    if new >= line.consumed or line.requests == 0:
        return line.requests
    return max(<unsigned int> 1, <unsigned int> (line.requests * (max(0.0, new) / line.consumed)))


cdef inline Delta book_line(
    const ReportContext *context, Bucket *bucket, NodeCell *cell, const PackedLine *line
) noexcept nogil:
    """Bring a cell up to the totals of a line; returns what the line added."""
    cdef Delta delta
    cdef double unforeseen, told = line.consumed + line.held
    if context.silent_since >= 0.0 and cell.last_ask < context.heard_since:
        hear_again(bucket, cell, context.silent_since, context.silent_until)
    take_out(bucket, cell)
    if cell.sequence and (
        context.since >= cell.sequence and context.sequence - cell.sequence > <unsigned int> FORGET_SLOTS
    ):
        # Silent for long, and the node knows that we know: it may have forgotten the user, and count anew.
        cell.sequence = 0
        if context.slot_offset - cell.last_ask >= FORGET_SLOTS:
            # Else its ask has told its totals, and what it was granted then may not have reached it yet.
            cell.granted = cell.returned = cell.used = 0.0
            cell.uncovered = 0.0
    if cell.sequence == 0:
        delta.consumed = line.consumed if context.is_new_boot else line.consumed - line.settled
        delta.rejected = line.rejected if context.is_known or context.is_new_boot else 0
        delta.requests = requests_of(line, delta.consumed) if context.is_known or context.is_new_boot else 0
        if context.is_handed_over:
            cell.safe = <float> (delta.consumed / context.slots)  # for all we know, it lives on that
    else:
        delta.consumed = max(0.0, line.consumed - cell.consumed)
        delta.rejected = line.rejected - cell.rejected
        delta.requests = line.requests - cell.requests
    if told > cell.used and <int> (context.active_ms - cell.active_ms) > 0:
        note_active(bucket, cell, context.active_ms)
    cell.consumed = line.consumed
    cell.rejected = line.rejected
    cell.requests = line.requests
    cell.sequence = context.sequence
    cell.lapsed = 0.0
    cell.used = max(cell.used, line.consumed) if context.is_overtaken else told
    raise_totals(cell, line.granted, line.returned)
    put_back(bucket, cell)
    if context.still_silent_since >= 0.0 and cell.last_ask < context.heard_since:
        assume_usage(bucket, cell, context.still_silent_since, context.silent_until, bucket.time)
    unforeseen = min(delta.consumed, <double> cell.uncovered)
    cell.uncovered -= <float> unforeseen
    apply_delta(context, bucket, cell, &delta, line.held, unforeseen)
    return delta


cdef inline void book_count(
    const ReportContext *context, Bucket *bucket, NodeCell *cell, const Delta *delta
) noexcept nogil:
    """Book what a classic node counted in a slot: what it was promised is reserved no more."""
    cell.consumed += delta.consumed
    bucket.reserved = max(0.0, bucket.reserved - delta.consumed)
    apply_delta(context, bucket, cell, delta, 0.0, delta.consumed)

"""Booking: what a line of a report adds to its cell and its bucket.

What was consumed in the time of a late report is set against the refill of that time, also where that
overflowed a bucket which looked full meanwhile. Of our own nodes that is so only for what they consumed
beyond their credit: that had its place in the bucket. Credit that another leader has granted while we did
not hear the node had no place here either; of what was consumed of it, only a debt is made up for.

A node may tell of requests that began under another leader, or after our snapshot: those that run have
reserved what they will consume. The refill of that time has paid for them, so they are no debt of the
bucket (`take_over`).
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
from sluicegate.quota.ledger._credit cimport available_of, outstanding_of, put_back, raise_totals, take_out, unbooked_of
from sluicegate.quota.packed._report_lines cimport PackedLine

cdef struct ReportContext:  # what all lines of a report have in common
    long long slot
    int slot_offset  # the slot as a cell stores it
    int slots  # that it covers
    unsigned int sequence, since
    bint is_known  # the report before it is booked
    bint is_new_boot  # an earlier boot of the node is known
    bint is_handed_over  # the first report of a node that has reported to another leader before
    bint is_young  # the ledger began without books lately: of what nodes hold, it has granted nothing itself
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
    const Bucket *bucket, const NodeCell *cell, double since, double time
) noexcept nogil:
    """What a node that is not heard `since` has spent by `time` beyond its credit, if it lives on its safe share."""
    cdef double slots = time - since
    if bucket.autonomous_part < 1.0:
        slots -= (1.0 - bucket.autonomous_part) * max(0.0, time - max(since, bucket.part_since))
    return max(0.0, cell.safe * slots - outstanding_of(cell))


cdef inline void assume_usage(
    Bucket *bucket, const NodeCell *cell, double since, double until, double time
) noexcept nogil:
    """A node is silent: what it holds may be spent, and its safe share from `since` on, up to `until`.

    That is as good as spent, and takes no room in the bucket: one that holds little could else give out nothing
    until the node is forgotten.
    """
    cdef double spent = autonomous_usage(bucket, cell, since, min(time, until))
    bucket.reserved += spent
    bucket.silent += outstanding_of(cell) - unbooked_of(cell) + spent
    if spent > 0.0 and time < until:
        bucket.autonomous += bucket.autonomous_part * cell.safe


cdef inline void hear_again(Bucket *bucket, const NodeCell *cell, double since, double until) noexcept nogil:
    """A node tells of the time in which it was silent: what was assumed of it holds no more."""
    cdef double spent = autonomous_usage(bucket, cell, since, min(bucket.time, until))
    bucket.reserved = max(0.0, bucket.reserved - spent)
    bucket.silent = max(0.0, bucket.silent - spent - (outstanding_of(cell) - unbooked_of(cell)))
    if spent > 0.0 and bucket.time < until:
        bucket.autonomous = max(0.0, bucket.autonomous - bucket.autonomous_part * cell.safe)


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


cdef inline double slots_before(const ReportContext *context, const Bucket *bucket) noexcept nogil:
    """How many slots of a report are older than the refill that the bucket has, or that was lost in an outage."""
    cdef double since = max(bucket.filled_since, <double> context.resumed_at)
    return min(max(0.0, since - 2 - (context.slot - context.slots)), <double> context.slots)


cdef inline double take_over(
    const ReportContext *context,
    const Bucket *bucket,
    const NodeCell *cell,
    const PackedLine *line,
    const Delta *delta,
    double unforeseen,
) noexcept nogil:
    """What a node has consumed or reserved of the credit of another leader: the refill of that time has paid for it.

    Of a cell that is new here. What was let through in the time of which the bucket has the refill is left out:
    as much as was consumed in that time, or `unforeseen`, whichever is more. (In the first report, the latter is
    what was let through beyond the credit since a leader was heard.)
    """
    cdef double consumed, running = max(0.0, min(line.held, line.granted - line.returned - line.consumed))
    if context.is_handed_over:
        consumed = max(0.0, delta.consumed - unforeseen)
        return (
            max(0.0, delta.consumed + line.held - unforeseen)
            - consumed * (1.0 - slots_before(context, bucket) / context.slots)
        )
    if context.is_young and cell.last_ask:
        # An ask came first: what was used of earlier grants was taken to be booked (`tell`). A part of it still runs.
        return min(running, max(0.0, cell.consumed - line.consumed))
    return running if context.is_young else 0.0


cdef inline void apply_delta(
    const ReportContext *context,
    Bucket *bucket,
    NodeCell *cell,
    const Delta *delta,
    double held,
    double unforeseen,
    double foreign,
    double taken_over,
) noexcept nogil:
    """Update a bucket by what a node consumed, of which so much was not known before.

    `foreign`: what it consumed, besides, of credit that another leader has granted since it was last heard.
    `taken_over`: what a node has consumed or reserved that another leader had granted.
    """
    cdef double recovered, most, debt, before_creation
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
        most = min(bucket.overflowed, bucket.rate * (context.slots - 1 + max(0.0, bucket.time - context.slot)))
        recovered = min(most, unforeseen * older / context.slots)
        if foreign > 0.0:
            # That leader has granted no more than there was: a debt is none, but for the refill to come.
            debt = delta.consumed - available_of(bucket) - recovered
            debt -= bucket.rate * max(0.0, context.slot + 1 - bucket.time)
            debt = max(0.0, min(min(most - recovered, foreign * older / context.slots), debt))
            bucket.foreign += foreign - debt
            recovered += debt
        if context.is_handed_over:
            # Only what it consumed before the bucket has its refill: what came in while the central was
            # away has overflowed.
            recovered = min(recovered, unforeseen * slots_before(context, bucket) / context.slots)
        bucket.overflowed -= recovered
        bucket.level += recovered
    if taken_over > 0.0 and bucket.rate > 0.0:
        if not context.is_young:
            # It was granted after our snapshot, out of refill that this bucket has too, or that has overflowed.
            taken_over = min(taken_over, bucket.overflowed)
            bucket.overflowed -= taken_over
        bucket.level += taken_over
    if delta.consumed > 0.0 or delta.rejected:
        cell.last_consumed = <float> delta.consumed
        cell.last_rejected = <float> delta.rejected
        bucket.recorded += delta.consumed


cdef inline void note_refusals(
    const ReportContext *context, Bucket *bucket, const Delta *delta, bint is_granted
) noexcept nogil:
    """Sum up what nodes refuse that another leader grants something: it has no more (see `note_surplus`).

    The sum begins anew after a slot in which no more was asked for than comes in.
    """
    cdef double refused = delta.rejected * cost_of_request(bucket) / context.slots
    if context.slot > bucket.demanded_slot:
        if context.slot > bucket.demanded_slot + 1 or bucket.demanded <= bucket.rate:
            bucket.refused = 0.0
            bucket.surplus = -1.0
        bucket.demanded = 0.0
        bucket.demanded_slot = context.slot
    if context.slot == bucket.demanded_slot:
        bucket.demanded += delta.consumed / context.slots + refused
    if is_granted and refused > 0.0:
        bucket.refused += refused
        bucket.refused_slot = max(bucket.refused_slot, context.slot)


cdef inline void note_surplus(Bucket *bucket, long long slot) noexcept nogil:
    """All reports of the slot before `slot` are booked: note what another leader cannot have had in it.

    A report tells what was consumed in a slot, not when. Refill that overflowed the leader's bucket, before traffic
    began within a slot, has found room in this one: at most that of a slot. While nodes refuse requests for want of
    credit the leader has none left, and what is available here is that error.
    """
    cdef double surplus
    if bucket.refused > 0.0 and bucket.refused_slot == slot - 1:
        surplus = max(0.0, min(available_of(bucket), bucket.rate))
        bucket.surplus = surplus if bucket.surplus < 0.0 else min(bucket.surplus, surplus)


cdef inline void deduct_surplus(Bucket *bucket, long long slot) noexcept nogil:
    """Take over from another leader in `slot`, without what it cannot have had. What was saved since stays."""
    cdef double surplus = min(bucket.surplus, available_of(bucket))
    if surplus > 0.0 and bucket.refused >= surplus and slot <= bucket.demanded_slot + 2:
        bucket.level -= surplus
    bucket.refused = 0.0
    bucket.surplus = -1.0


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
    cdef double unforeseen = 0.0, foreign = 0.0, taken_over = 0.0, told = line.consumed + line.held
    cdef bint is_new = cell.sequence == 0 and not context.is_new_boot and (context.is_handed_over or context.is_young)
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
    if is_new:
        # What runs beyond the credit was let through on a share, as what was consumed beyond it.
        unforeseen = max(0.0, min(delta.consumed + line.held, line.returned + told - line.granted))
        taken_over = take_over(context, bucket, cell, line, &delta, unforeseen)
        cell.held = <float> line.held  # it is no demand of this slot
    if told > cell.used and <int> (context.active_ms - cell.active_ms) > 0:
        note_active(bucket, cell, context.active_ms)
    cell.consumed = line.consumed
    cell.rejected = line.rejected
    cell.requests = line.requests
    cell.sequence = context.sequence
    cell.lapsed = 0.0
    cell.used = max(cell.used, line.consumed) if context.is_overtaken else told
    if not is_new and context.slot - context.slots >= context.resumed_at:
        foreign = max(0.0, line.granted - cell.granted)
    if bucket.rate > 0.0:
        note_refusals(context, bucket, &delta, line.granted > cell.granted)
    raise_totals(cell, line.granted, line.returned)
    put_back(bucket, cell)
    if context.still_silent_since >= 0.0 and cell.last_ask < context.heard_since:
        assume_usage(bucket, cell, context.still_silent_since, context.silent_until, bucket.time)
    if not (is_new and context.is_handed_over):
        unforeseen = min(delta.consumed, <double> cell.uncovered)
    cell.uncovered = <float> max(0.0, cell.uncovered - unforeseen)
    foreign = max(0.0, min(delta.consumed - unforeseen, foreign))
    apply_delta(context, bucket, cell, &delta, line.held, unforeseen, foreign, taken_over)
    return delta


cdef inline void book_count(
    const ReportContext *context, Bucket *bucket, NodeCell *cell, const Delta *delta
) noexcept nogil:
    """Book what a classic node counted in a slot: what it was promised is reserved no more."""
    cell.consumed += delta.consumed
    bucket.reserved = max(0.0, bucket.reserved - delta.consumed)
    apply_delta(context, bucket, cell, delta, 0.0, delta.consumed, 0.0, 0.0)

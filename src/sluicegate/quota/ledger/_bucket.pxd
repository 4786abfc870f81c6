"""A bucket, its node cells, and the functions that need no more than one of them.

A `Bucket` belongs to one user and resource, a `NodeCell` to one bucket on one node. Amounts are in
the resource's unit. A cell stores a slot as its offset from the service ledger's first slot,
beginning with 1, so that it fits into an int; 0 is never.
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
    /* A cell that no report has mentioned for this many slots is forgotten. */
    #define FORGET_SLOTS 60
    /* During warm-up no node gets more than this multiple of what it consumed before. */
    #define MAX_GROWTH 1.1
    /* Nodes may report on the time before a bucket was created for this many slots. */
    #define LATE_REPORT_SLOTS 10
    /* Sums of fractions may fall short of a whole by this much. */
    #define SLACK 1e-5
    """
    const int LATE_REPORT_SLOTS
    const int ROUND_TRIP_SLOTS, FORGET_SLOTS
    const double WHOLE_REQUESTS, SLACK, MAX_GROWTH

cdef struct NodeCell:
    double consumed  # the node's total, as far as it is booked
    unsigned int rejected, requests  # likewise
    float promised[4]  # for the slots the node has not reported yet, at slot % 4
    float demand  # per slot, smoothed; infinite: not known yet
    float held  # what running requests are expected to consume
    float carry  # the fraction, in requests, that shares have fallen short of
    float safe  # the share of a slot in which the node is on its own
    float last_consumed, last_rejected  # in the last report that had any
    int node
    int last_report  # the slot of the last report with a line of this cell (from 1 on); 0: none yet
    int promised_until  # the last slot for which something is promised (from 1 on)
    float lapsed  # what was promised by a clock that has gone back since, until it reports
    unsigned int sequence  # of the last report with a line of this cell; 0: none yet
    int last_ask  # the slot in which the node last asked for a share (from 1 on)

cdef struct Bucket:
    double level  # what may be spent, after all that is booked; below 0: debt
    double rate  # refill per slot; below 0: no limit
    double capacity
    double held  # by running requests, at the last assignment
    double overflowed  # refill that exceeded the ceiling while a report was still outstanding
    double recorded  # all that was ever booked
    double cost  # the mean cost of a request; 0: not known
    long long slot  # up to which it is refilled
    long long overflowed_slot  # of the last overflow; for one before creation, until when it counts
    long long created_slot  # the bucket counts as full before this slot
    double overflowed_before_creation  # the refill before `created_slot` that reports were set against
    NodeCell *cells  # sorted by node number
    int count, room


cdef inline int position_of(Bucket *bucket, int node) noexcept nogil:
    """The index of a node's cell, or where it would be inserted."""
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
            bucket.overflowed += refilled - ceiling
            bucket.overflowed_slot = max(bucket.overflowed_slot, slot)
            refilled = ceiling
        bucket.level = refilled
        bucket.slot = slot


cdef inline double promised_after(NodeCell *cell, long long first, long long reported) noexcept nogil:
    """The sum of what is promised for the slots after the one that was reported."""
    cdef long long last = first + cell.promised_until - 1, slot = max(reported + 1, last - 3)
    cdef double promised = 0.0
    while slot <= last:
        promised += cell.promised[slot & 3]
        slot += 1
    return promised


cdef inline void promise(NodeCell *cell, long long first, long long slot, float amount) noexcept nogil:
    """Promise an amount for a slot. In those that were left out before it, the node lives on its safe share, if any."""
    cdef long long left_out = max(first + cell.promised_until, slot - 3)
    while left_out < slot:
        cell.promised[left_out & 3] = cell.safe if cell.promised_until else 0.0
        left_out += 1
    cell.promised[slot & 3] = amount
    cell.promised_until = <int> (slot - first + 1)


cdef inline bint is_reported(Bucket *bucket) noexcept nogil:
    """Whether any node has reported on it yet."""
    cdef int i
    for i in range(bucket.count):
        if bucket.cells[i].last_report:
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


cdef struct ReportContext:  # what all lines of a report have in common
    long long slot
    int slot_offset  # the slot as a cell stores it
    int slots  # that it covers
    unsigned int sequence, since
    bint is_known  # the report before it is booked
    bint is_new_boot  # an earlier boot of the node is known
    bint is_handed_over  # the first report of a node that has reported to another leader before

cdef struct Delta:  # what a line adds to the totals of its cell
    double consumed
    unsigned int rejected, requests


cdef inline void apply_delta(
    const ReportContext *context, Bucket *bucket, NodeCell *cell, const Delta *delta, double held
) noexcept nogil:
    """Update the mean cost, the demand and the refill of a bucket by what a node consumed."""
    cdef double cost, demand, distance, recovered, request, before_creation, new = delta.consumed
    cdef int older
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
    if bucket.rate >= 0.0:
        refill(bucket, context.slot)
    if context.slots > 1 and bucket.rate > 0.0:
        # Before the bucket was created it was full, or its state is lost: nodes consumed their shares,
        # which the refill of that time has covered.
        before_creation = bucket.rate * (bucket.created_slot - 1 - (context.slot - context.slots))
        if before_creation > bucket.overflowed_before_creation:
            bucket.overflowed += before_creation - bucket.overflowed_before_creation
            bucket.overflowed_before_creation = before_creation
            bucket.overflowed_slot = max(bucket.overflowed_slot, context.slot + LATE_REPORT_SLOTS)
    # All but the last slot of it is old; and that too, if the bucket has had a later refill.
    older = context.slots - 1 + (bucket.slot > context.slot)
    if older > 0 and bucket.rate > 0.0 and bucket.overflowed_slot > context.slot - context.slots:
        # The older part was consumed while the refill that should have covered it overflowed.
        recovered = min(bucket.overflowed, new * older / context.slots)
        recovered = min(recovered, bucket.rate * (context.slots - 1 + bucket.slot - context.slot))
        bucket.overflowed -= recovered
        bucket.level += recovered
    if new > 0.0 or delta.rejected:
        cell.last_consumed = <float> new
        cell.last_rejected = <float> delta.rejected
        bucket.recorded += new


cdef inline Delta book_line(
    const ReportContext *context, Bucket *bucket, NodeCell *cell, const PackedLine *line
) noexcept nogil:
    """Bring a cell up to the totals of a line; returns what the line added."""
    cdef Delta delta
    if cell.sequence == 0 or (
        context.since >= cell.sequence and context.sequence - cell.sequence > <unsigned int> FORGET_SLOTS
    ):
        delta.consumed = line.consumed if context.is_new_boot else line.consumed - line.settled
        delta.rejected = line.rejected if context.is_known or context.is_new_boot else 0
        delta.requests = line.requests if context.is_known or context.is_new_boot else 0
        if context.is_handed_over:
            cell.safe = <float> (delta.consumed / context.slots)  # for all we know, it lives on that
    else:
        delta.consumed = max(0.0, line.consumed - cell.consumed)
        delta.rejected = line.rejected - cell.rejected
        delta.requests = line.requests - cell.requests
    cell.consumed = line.consumed
    cell.rejected = line.rejected
    cell.requests = line.requests
    cell.sequence = context.sequence
    cell.lapsed = 0.0
    apply_delta(context, bucket, cell, &delta, line.held)
    return delta

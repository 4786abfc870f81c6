"""A bucket, its node cells, and the functions that need no more than one of them.

A `Bucket` belongs to one user and resource, a `NodeCell` to one bucket on one node. Amounts are in
the resource's unit, times in slots. A cell stores a slot as its offset from the service ledger's
first slot, beginning with 1, so that it fits into an int; 0 is never.

Our own nodes live on credit (`_credit.pxd`); classic nodes on what they are promised for a slot.
"""

from libc.math cimport INFINITY, floor

cdef extern from *:
    """
    /* Shares of fewer requests than this are given in whole requests. */
    #define WHOLE_REQUESTS 256
    /* With classic nodes: beside its burst, a bucket may hold one request and what comes in while a
       promise that was not used is on its way back. */
    #define ROUND_TRIP_SLOTS 3
    /* A cell that no report has mentioned for this many slots is forgotten. */
    #define FORGET_SLOTS 60
    /* Nodes may report on the time before a bucket was created for this many slots. */
    #define LATE_REPORT_SLOTS 10
    /* A node is active for a user for this many milliseconds after the last sign of traffic. */
    #define ACTIVE_MS 5000
    /* Sums of fractions may fall short of a whole by this much. */
    #define SLACK 1e-5
    """
    const int LATE_REPORT_SLOTS
    const int ROUND_TRIP_SLOTS, FORGET_SLOTS, ACTIVE_MS
    const double WHOLE_REQUESTS, SLACK

cdef struct NodeCell:
    double consumed  # the node's total, as far as it is booked
    double granted  # the total of all grants: never below returned + used
    double returned  # of it, what the node has given back
    double used  # as the node has told last: consumed, and reserved by running requests
    unsigned int rejected, requests  # the node's totals, as far as they are booked
    float promised[4]  # to a classic node, for the slots it has not reported yet, at slot % 4
    float demand  # per slot, smoothed; infinite: not known yet
    float held  # what running requests are expected to consume, by the last report
    float carry  # the fraction, in requests, that shares have fallen short of
    float safe  # the share of a slot in which the node is on its own
    float last_consumed, last_rejected  # in the last report that had any
    int node
    int last_report  # the slot of the last report with a line of this cell (from 1 on); 0: none yet
    int promised_until  # the last slot for which something is promised (from 1 on)
    float lapsed  # what was promised by a clock that has gone back since, until it reports
    unsigned int sequence  # of the last report with a line of this cell; 0: none yet
    float uncovered  # what it has used beyond its grants, until that is booked
    int last_ask  # the slot of the last ask with this cell (from 1 on); 0: none yet
    unsigned int active_ms  # when the node last told of traffic: milliseconds, modulo 2**32
    unsigned int granted_ms  # when it was last granted something
    unsigned int recalled_ms  # when its credit was last recalled

cdef struct Bucket:
    double level  # what may be spent, after all that is booked; below 0: debt
    double rate  # refill per slot; below 0: no limit
    double capacity
    double time  # up to which it is refilled, in slots
    double outstanding  # the credit of all own nodes that is not booked yet
    double unbooked  # the part of it that they have told to be used: as good as spent
    double reserved  # promised to classic nodes, and the safe shares of autonomous ones beyond their credit
    double silent  # what nodes hold that are not heard, used or not: as good as spent
    double spare  # what it may hold beyond its capacity while credit is out
    double inherited  # credit that nodes held unused when the limit was lowered: it takes no room
    double autonomous  # what they are assumed to spend per slot of their safe shares, in `reserved` and `silent`
    double autonomous_part  # of their safe shares, what is left of the refill by nodes that are heard
    double part_since  # from this slot on; before it, they are taken to have spent all of them
    double kept  # for nodes that a ledger without books does not know yet: they may have spent it
    double overflowed  # refill that exceeded the ceiling while a report was still outstanding
    double foreign  # consumed of another leader's credit in slots without reports: no debt while `overflowed`
    double demanded  # consumed and refused in `demanded_slot`
    long long demanded_slot  # the newest of which nodes have reported
    double refused  # by nodes that were granted something, in all slots since more is demanded than comes in
    long long refused_slot  # the newest of these
    double surplus  # the least that was available in these slots beside what was refused; below 0: not known yet
    double recorded  # all that was ever booked
    double cost  # the mean cost of a request; 0: not known
    long long overflowed_slot  # of the last overflow; for one before creation, until when it counts
    double filled_since  # the level has the refill since this slot began, and that of one more; full before it
    double overflowed_before_creation  # the refill before `filled_since` that reports were set against
    NodeCell *cells  # sorted by node number
    int count, room
    int active  # nodes that have told of traffic lately: when they were last counted, and since
    unsigned int counted_ms  # when that was, as a cell stores it
    int classic  # cells of classic nodes
    double promised[2]  # to classic nodes that are heard, for the two slots after `promised_slot`
    long long promised_slot  # the slot of the last assignment
    double postponed  # of `reserved`, what the refill to come will pay for


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


cdef inline bint is_counted(const Bucket *bucket, unsigned int active_ms) noexcept nogil:
    """Whether a node that last told of traffic at that time is in `active`."""
    return <int> (bucket.counted_ms - active_ms) < ACTIVE_MS


cdef inline void note_active(Bucket *bucket, NodeCell *cell, unsigned int active_ms) noexcept nogil:
    """A node tells of traffic at that time."""
    if is_counted(bucket, active_ms) and not is_counted(bucket, cell.active_ms):
        bucket.active += 1
    cell.active_ms = active_ms


cdef inline double cost_of_request(Bucket *bucket) noexcept nogil:
    """What a request costs, as far as is known."""
    return bucket.cost if bucket.cost > 0.0 else 1.0


cdef inline double capacity_of(Bucket *bucket) noexcept nogil:
    """The most that can be available of a bucket.

    For classic nodes, whose shares are of whole slots, it is enough for a slot and for one request; a
    limit of less than a request per slot goes on filling for a while beside the one it holds.
    """
    cdef double request
    if bucket.rate <= 0.0:
        return 0.0
    if bucket.classic == 0:
        return bucket.capacity
    request = cost_of_request(bucket)
    return max(bucket.capacity, max(bucket.rate, request + min(ROUND_TRIP_SLOTS * bucket.rate, request)))


cdef inline double unused_of_all(Bucket *bucket) noexcept nogil:
    """The credit that is out and not used, as far as is known."""
    return max(0.0, bucket.outstanding - bucket.unbooked)


cdef inline double spare_for_credit(Bucket *bucket) noexcept nogil:
    """What a bucket may hold beyond its capacity, of the credit that is out and not used."""
    return min(unused_of_all(bucket), max(bucket.spare, bucket.inherited))


cdef inline double full_level_of(Bucket *bucket) noexcept nogil:
    """The level of a bucket that is full. What is used and not booked is as good as spent."""
    return capacity_of(bucket) + bucket.unbooked + bucket.silent + bucket.kept


cdef inline double ceiling_of(Bucket *bucket) noexcept nogil:
    """The level up to which a bucket is refilled."""
    return full_level_of(bucket) + spare_for_credit(bucket)


cdef inline double promised_in(const Bucket *bucket, long long slot) noexcept nogil:
    """What is promised to classic nodes for a slot that is still to come."""
    if bucket.promised_slot < slot <= bucket.promised_slot + 2:
        return bucket.promised[slot - bucket.promised_slot - 1]
    return 0.0


cdef inline void postpone_promises(Bucket *bucket, double time) noexcept nogil:
    """Find how much of what is promised need not be there yet, where our own nodes have cells too.

    A promise is paid for by the refill of the slot before it, evenly; only what is more than that is put
    aside when it is made. So our own nodes get their part of the refill at any time.
    """
    cdef long long slot = <long long> floor(time)
    bucket.postponed = 0.0
    if bucket.classic < bucket.count:
        bucket.postponed = min(bucket.rate, promised_in(bucket, slot + 2))
        bucket.postponed += min(bucket.rate, promised_in(bucket, slot + 1)) * (slot + 1 - time)


cdef inline void _clip(Bucket *bucket, double most) noexcept nogil:
    if bucket.level > most:
        bucket.overflowed += bucket.level - most
        bucket.overflowed_slot = max(bucket.overflowed_slot, <long long> bucket.time)
        bucket.level = most


cdef inline void spill(Bucket *bucket) noexcept nogil:
    """Drop what a bucket cannot hold any more. What was given back just now stays: others may wait for it."""
    bucket.inherited = min(bucket.inherited, unused_of_all(bucket))
    _clip(bucket, full_level_of(bucket) + max(bucket.spare, bucket.inherited))


cdef inline void refill(Bucket *bucket, double time) noexcept nogil:
    """Bring the level up to a time."""
    cdef double spent, before = bucket.level
    if time > bucket.time:
        if bucket.classic:
            postpone_promises(bucket, time)
        spent = bucket.autonomous * (time - bucket.time)
        bucket.reserved += spent
        bucket.silent += spent
        bucket.level += bucket.rate * (time - bucket.time)
        bucket.time = time
        bucket.inherited = min(bucket.inherited, unused_of_all(bucket))
        _clip(bucket, max(ceiling_of(bucket), min(before, full_level_of(bucket) + bucket.spare)))


cdef inline void forgive_foreign_debt(Bucket *bucket) noexcept nogil:
    """Set what was consumed of another leader's credit against refill that has overflowed, as far as it is a debt.

    That leader has granted no more than there was. Reports that come together are booked one after the other, and
    what the first one finds in the bucket is missing for the rest: so it is done when all are booked.
    """
    cdef double recovered = min(min(bucket.overflowed, bucket.foreign), -bucket.level)
    if recovered > 0.0:
        bucket.overflowed -= recovered
        bucket.foreign -= recovered
        bucket.level += recovered


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

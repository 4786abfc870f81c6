# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The ledger of one service: what was consumed on which node, and what each node may let through.

A *bucket* belongs to one user and resource; it is refilled by its rate and holds at most its
capacity. A *cell* is one bucket on one node (`_bucket.pxd`). Reports carry cumulative totals, of
which the new part is recorded (`record`); the service deducts it from the level (`deduct`).

Our own nodes are granted credit when they ask (`_credit.pxd`, `_grants.pyx`). Once a slot the refill is
split by demand (`assign`): for our own nodes that gives the safe share, by which a node lives while no
leader is heard. Classic nodes know nothing of credit: what an assignment in slot s gives them is
promised for slot s + 2, out of

    available = level + the refill up to the end of the next slot - outstanding - reserved

where *outstanding* is the credit of our own nodes and *reserved* what is promised for slots that are
not reported yet: they may be spent as we speak. A report takes its slot's promise back and deducts what
was really consumed. Because a promise is deducted the moment it is made, everything that is ever
admitted was in the bucket before: there is nothing to oscillate.

Of what is available for promises, one slot's refill is given out, and half of what was saved beyond it.
Promises that are worth only a few requests are made in whole requests; the fraction is carried in the
cell, so that small limits go round between the nodes.

A node that has missed two reports gets nothing more; what it holds stays deducted until it reports, or
is forgotten. After a central outage, silent nodes are assumed to consume their safe shares
(`autonomous_until`) until the reconnect grace period ends. While a ledger that began empty may not know
all nodes yet (`warmup_until`), the part of the refill that unknown nodes may live on is kept for them
(`_keep_for_unknown_nodes`). Cells without traffic for a minute, and full buckets without cells, are
forgotten, a bounded number in each assignment. Slots are whole numbers, amounts are floats in the
resource's unit.
"""

from collections import deque

from cpython.pyport cimport PY_SSIZE_T_MAX
from libc.limits cimport INT_MAX
from libc.math cimport INFINITY, floor, isfinite, sqrt
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memmove, memset

from sluicegate.errors import ProtocolError
from sluicegate.quota.ledger._booking cimport (
    Delta,
    ReportContext,
    assume_usage,
    book_count,
    book_line,
    deduct_surplus,
    hear_again,
    note_surplus,
)
from sluicegate.quota.ledger._bucket cimport (
    ACTIVE_MS,
    FORGET_SLOTS,
    ROUND_TRIP_SLOTS,
    SLACK,
    WHOLE_REQUESTS,
    Bucket,
    NodeCell,
    capacity_of,
    cost_of_request,
    forgive_foreign_debt,
    is_counted,
    position_of,
    postpone_promises,
    promise,
    promised_after,
    refill,
    unused_of_all,
)
from sluicegate.quota.ledger._credit cimport (
    available_of,
    give_back,
    outstanding_of,
    put_back,
    take_out,
    tell,
    unbooked_of,
)
from sluicegate.quota.packed._shares cimport PackedShare, copy_shares, pack_share
from sluicegate.quota.packed._report_lines cimport BucketRef, PackedLine, PackedLines, StringTable
from sluicegate.quota.ledger._node_table cimport NODE_TIMEOUT, NodeTable
from sluicegate.quota.packed._bucket_ids cimport BucketIds
from sluicegate.quota.ledger._fair_share cimport Demand, classic, fair
from sluicegate.quota.ledger._usage cimport SlotTotals, Usage

__all__ = ["CELL_SIZE", "ServiceLedger"]

cdef extern from *:
    """
    /* Slot totals: at most this many numbers of each kind are kept. */
    #define HISTORY_TOTALS 4000000
    /* Past quotas: at most this many shares are kept. */
    #define HISTORY_SHARES 900000
    /* A sweep for idle buckets takes this many slots, and forgets at most so many in each. */
    #define SWEEP_SLOTS 16
    #define MAX_FORGOTTEN 10000
    /* Cells are prefetched this many lines before their line is booked. */
    #define PREFETCH_LINES 12
    /* The smallest burst: what nodes need between two grants, in seconds of refill. */
    #define MIN_BURST_SECONDS 0.25
    /* During warm-up no node gets more than this multiple of what it consumed before. */
    #define MAX_GROWTH 1.02
    /* What our own nodes need of a bucket beside what is promised to classic nodes: so many slots' shares. */
    #define OWN_SLOTS 0.2
    /* Credit that a silent node of an idle user never gave back is forgotten after this many slots. */
    #define FORGET_CREDIT_SLOTS 240
    """
    const double MIN_BURST_SECONDS, MAX_GROWTH, OWN_SLOTS
    const int FORGET_CREDIT_SLOTS
    const int SWEEP_SLOTS, MAX_FORGOTTEN, PREFETCH_LINES
    const Py_ssize_t HISTORY_TOTALS, HISTORY_SHARES

cdef extern from *:
    """
    #define prefetch(address) __builtin_prefetch((address), 1)
    """
    void prefetch(void *address) noexcept nogil

cdef enum:  # the phase of an assignment
    NOT_ASSIGNING = 0
    ASSIGNING = 1
    SWEEPING = 2

cdef enum:
    FAIR = 0
    CLASSIC = 1
    CUSTOM = 2

CELL_SIZE = sizeof(NodeCell)
cdef double MAX_AMOUNT = 1e18  # no total is larger


cdef inline bint _is_amount(value, double most) except -1:
    cdef double amount
    if type(value) is float:
        amount = value
    elif type(value) is int:
        try:
            amount = value
        except OverflowError:
            return False
    else:
        return False
    return 0.0 <= amount <= most


cdef class ServiceLedger:
    def __cinit__(self):
        self.buckets = NULL
        self.demands = NULL
        self.share_buffers = NULL
        self.count = self.room = self.cells = self.demands_room = self.share_buffers_room = 0

    def __init__(
        self,
        NodeTable nodes not None,
        rule,
        limit_of,
        *,
        long long first,
        int nr_slot=60,
        double slot_seconds=1.0,
    ):
        """`limit_of(user, resource)` returns a bucket's (rate per slot, capacity, start slot), or None."""
        self.nodes = nodes
        self.slot_seconds = slot_seconds
        self.rule = rule
        if rule == "fair":
            self.rule_kind = FAIR
        elif rule == "classic":
            self.rule_kind = CLASSIC
        else:
            self.rule_kind = CUSTOM
        self.limit_of = limit_of
        self.first = first
        self.assigned = first - 1
        self.nr_slot = nr_slot
        self.users = {}
        self.bucket_ids = BucketIds()
        self.names = self.bucket_ids.names
        self.free = deque()
        self.totals = {}
        self.quota_history = {}
        self.is_assigning = False
        self.phase = NOT_ASSIGNING

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.count):
            free(self.buckets[i].cells)
        free(self.buckets)
        free(self.demands)
        for i in range(self.share_buffers_room):
            free(self.share_buffers[i].data)
        free(self.share_buffers)

    def __len__(self):
        return self.count - len(self.free)

    # Booking

    @staticmethod
    def check(str node_id not None, dict lines not None):
        """Raise a ProtocolError if a report has lines that cannot be booked, before any is."""
        cdef double consumed, settled, held, granted, returned
        cdef long long rejected, requests
        for user, resources in lines.items():
            for resource, line in resources.items():
                try:
                    consumed, rejected, requests, settled, held, granted, returned = line
                except (TypeError, ValueError, OverflowError):
                    consumed = -1.0
                    rejected = requests = 0
                    settled = held = granted = returned = 0.0
                if not (
                    type(user) is str
                    and type(resource) is str
                    and 0.0 <= settled <= consumed <= MAX_AMOUNT
                    and 0.0 <= held <= MAX_AMOUNT
                    and 0.0 <= granted <= MAX_AMOUNT
                    and 0.0 <= returned <= MAX_AMOUNT
                    and rejected >= 0
                    and requests >= 0
                ):
                    raise ProtocolError(
                        f"invalid line of node {node_id!r} for user {user!r} and resource {resource!r}: got {line!r}, "
                        f"expected names, and amounts from 0 to {MAX_AMOUNT:g} with settled not above consumed"
                    )

    @staticmethod
    def check_slot(str node_id not None, dict consumption not None, dict rejection not None):
        """Likewise for what a classic node counted in one slot."""
        cdef double most = MAX_AMOUNT
        for counts in (consumption, rejection):
            for user, resources in (<dict> counts).items():
                for resource, amount in (<dict?> resources).items():
                    if type(user) is not str or type(resource) is not str or not _is_amount(amount, most):
                        raise ProtocolError(
                            f"invalid count of node {node_id!r} for user {user!r} and resource {resource!r}: "
                            f"got {amount!r}, expected names, and numbers from 0 to {most:g}"
                        )
            most = 2147483648.0  # of requests

    cdef int _node_number(self, str node_id) except -1:
        """The number of a node, for a caller that is about to change the ledger."""
        cdef int node = self.nodes.number_of(node_id)
        if node < 0:
            raise ValueError(f"unknown node: must be one that has reported, got {node_id!r}")
        if self.is_assigning:
            raise RuntimeError("cannot book a report or grant a share from within an assignment")
        return node

    def record(
        self,
        str node_id not None,
        long long slot,
        dict lines not None,
        *,
        int slots=1,
        unsigned int sequence=1,
        unsigned int since=0,
        bint is_known=False,
        bint is_new_boot=False,
        bint is_handed_over=False,
        bint is_overtaken=False,
        tuple silence=(-1.0, -1.0, -1.0),
    ):
        """Bring the totals of a node up to a report that was checked; returns what the report added.

        `slots` is how many slots it covers, `sequence` and `since` are the report's. Of a cell that
        has no total, what no leader has acknowledged is new; and all of it with `is_new_boot` (an
        earlier boot of the node is known, so that this one began in our time). A cell that the node
        may have forgotten has none: silent for long, and the node knows that we know. `is_known`: the
        report before it is booked. `is_handed_over`: it is the first report of a node that has
        reported to another leader before. `is_overtaken`: the node has told its usage anew since.
        `silence`: since when the node was silent, since when it still is, as its report is old, and up to
        when it is taken to live on its safe share; all in slots, below 0: it was not.
        """
        cdef int node = self._node_number(node_id), number
        cdef ReportContext context = self._report_context(slot)
        cdef PackedLine packed
        cdef Delta delta
        cdef NodeCell *cell
        cdef Usage usage = Usage(node_id, slots, self.names)
        cdef SlotTotals totals = None
        context.slots, context.sequence, context.since = slots, sequence, since
        context.silent_since, context.still_silent_since, context.silent_until = silence
        context.heard_since = self._slot_offset(self.assigned)
        context.resumed_at = self.nodes.resumed_at
        context.is_known, context.is_new_boot = is_known, is_new_boot
        context.is_handed_over, context.is_overtaken = is_handed_over, is_overtaken
        for user, resources in lines.items():
            for resource, line in (<dict?> resources).items():
                packed.consumed, rejected, requests, packed.settled, packed.held = line[:5]
                packed.granted, packed.returned = line[5:]
                packed.rejected = <unsigned int> (<unsigned long long> rejected)
                packed.requests = <unsigned int> (<unsigned long long> requests)
                number = self._bucket_number(user, resource, slot)
                if totals is None:
                    totals = self._totals_of(slot)
                cell = self._cell_of(&self.buckets[number], node)
                delta = book_line(&context, &self.buckets[number], cell, &packed)
                self._add_to_totals(number, &delta, totals, usage)
        return usage

    def record_packed(
        self,
        str node_id not None,
        long long slot,
        PackedLines lines not None,
        Py_ssize_t begin,
        Py_ssize_t end,
        *,
        int slots=1,
        unsigned int sequence=1,
        unsigned int since=0,
        bint is_known=False,
        bint is_new_boot=False,
        bint is_handed_over=False,
        bint is_overtaken=False,
        tuple silence=(-1.0, -1.0, -1.0),
        bint deducts=False,
    ):
        """As `record`, of the lines `begin` to `end`, which are of our service.

        With `deducts` it takes what was consumed out of the buckets, too, and returns None. What
        the next lines need is fetched while a line is booked: to wait for memory is what costs.
        """
        cdef int node = self._node_number(node_id)
        cdef ReportContext context = self._report_context(slot)
        cdef Usage usage = None if deducts else Usage(node_id, slots, self.names)
        cdef SlotTotals totals
        cdef BucketRef *ref
        cdef BucketRef *refs
        cdef const PackedLine *packed = lines.lines
        cdef Bucket *bucket
        cdef NodeCell *cell
        cdef Delta delta
        cdef Py_ssize_t i, coming
        context.slots, context.sequence, context.since = slots, sequence, since
        context.silent_since, context.still_silent_since, context.silent_until = silence
        context.heard_since = self._slot_offset(self.assigned)
        context.resumed_at = self.nodes.resumed_at
        context.is_known, context.is_new_boot = is_known, is_new_boot
        context.is_handed_over, context.is_overtaken = is_handed_over, is_overtaken
        if not 0 <= begin <= end <= lines.count:
            raise ValueError(f"lines must be within 0 to {lines.count}, got {begin} to {end}")
        if begin == end:
            return usage
        refs = lines.string_table.refs
        self._drop_foreign_refs(lines.string_table, refs[packed[begin].entry].service)
        totals = self._totals_of(slot)
        if self.room > totals.room:  # of a slot that has totals from before the names were looked up
            totals.grow(self.room)
        for i in range(begin - 2 * PREFETCH_LINES, end):
            coming = i + 2 * PREFETCH_LINES
            if begin <= coming < end:
                ref = &refs[packed[coming].entry]
                if ref.generation == 0 or self.bucket_ids.generations[ref.number] != ref.generation:
                    self._resolve(lines.string_table, packed[coming].entry, slot)
                    if self.room > totals.room:
                        totals.grow(self.room)
                prefetch(&self.buckets[ref.number])
                prefetch(<char *> &self.buckets[ref.number] + 64)
            coming = i + PREFETCH_LINES
            if begin <= coming < end:
                ref = &refs[packed[coming].entry]
                cell = &self.buckets[ref.number].cells[ref.position]
                prefetch(cell)
                prefetch(<char *> cell + 64)
            if i < begin:
                continue
            ref = &refs[packed[i].entry]
            bucket = &self.buckets[ref.number]
            if ref.position >= bucket.count or bucket.cells[ref.position].node != node:
                cell = self._cell_of(bucket, node)
                ref.position = <int> (cell - bucket.cells)
            delta = book_line(&context, bucket, &bucket.cells[ref.position], &packed[i])
            if delta.consumed > 0.0 or delta.rejected:
                totals.consumed[ref.number] += delta.consumed
                totals.rejected[ref.number] += delta.rejected
                if deducts:
                    bucket.level -= delta.consumed
                else:
                    usage.push(ref.number, delta.consumed, delta.rejected, delta.requests)
        return usage

    def resolve(self, PackedLines lines not None, Py_ssize_t begin, Py_ssize_t end, long long slot, int most):
        """Look up the buckets of the lines from `begin` to `end`, until `most` had to be made; where it stopped.

        Nothing is booked: a bucket that is made and not used is full, and is forgotten. To look up
        names is what takes long in a report of users who are new; so it can be done a few at a time.
        """
        cdef BucketRef *ref
        cdef const PackedLine *packed = lines.lines
        if not 0 <= begin <= end <= lines.count:
            raise ValueError(f"lines must be within 0 to {lines.count}, got {begin} to {end}")
        if begin < end:
            self._drop_foreign_refs(lines.string_table, lines.string_table.refs[packed[begin].entry].service)
        while begin < end and most > 0:
            ref = &lines.string_table.refs[packed[begin].entry]
            if ref.generation == 0 or self.bucket_ids.generations[ref.number] != ref.generation:
                self._resolve(lines.string_table, packed[begin].entry, slot)
                most -= 1
            begin += 1
        return begin

    def resolve_users(self, users, long long slot):
        """As `resolve`, of [(user, resources), ...] of a classic report."""
        for user, resources in users:
            for resource in resources:
                self._bucket_number(user, resource, slot)

    cdef int _drop_foreign_refs(self, StringTable string_table, int service) except -1:
        """Invalidate cached refs that another ledger of the service has left in the string table."""
        cdef Py_ssize_t i
        if string_table.bucket_ids_by_service[service] is not self.bucket_ids:
            for i in range(string_table.count):
                if string_table.refs[i].service == service:
                    string_table.refs[i].generation = 0
            string_table.bucket_ids_by_service[service] = self.bucket_ids
        return 0

    cdef int _resolve(self, StringTable string_table, int entry, long long slot) except -1:
        cdef BucketRef *ref = &string_table.refs[entry]
        user, resource = string_table.names[entry]
        ref.number = <int> self._bucket_number(user, resource, slot)
        ref.generation = self.bucket_ids.generations[ref.number]
        ref.position = 0
        string_table.names[entry] = self.names[ref.number]  # one tuple for all who know it
        return 0

    def record_slot(
        self, str node_id not None, long long slot, dict consumption not None, dict rejection not None
    ):
        """Book what a classic node counted in one slot; returns it as usage.

        Such a node sends no totals and does not say how many requests it served.
        """
        cdef int node = self._node_number(node_id), number
        cdef Delta delta
        cdef NodeCell *cell
        cdef ReportContext context = self._report_context(slot)
        cdef Usage usage = Usage(node_id, 1, self.names)
        cdef SlotTotals totals = None
        for user in {**consumption, **rejection} if rejection else consumption:
            amounts = consumption.get(user)
            refusals = rejection.get(user) if rejection else None
            if amounts and refusals:
                resources = {**amounts, **refusals}
            else:
                resources = amounts or refusals or ()
            for resource in resources:
                delta.consumed = (<dict> amounts).get(resource, 0.0) if amounts else 0.0
                delta.rejected = <unsigned int> (<double> (<dict> refusals).get(resource, 0)) if refusals else 0
                delta.requests = 0
                number = <int> self._bucket_number(user, resource, slot)
                cell = self._cell_of(&self.buckets[number], node)
                if totals is None:
                    totals = self._totals_of(slot)
                book_count(&context, &self.buckets[number], cell, &delta)
                self._add_to_totals(number, &delta, totals, usage)
        return usage

    cdef ReportContext _report_context(self, long long slot):
        """What is known of a report by its slot: it covers one, and the report before it is booked."""
        cdef ReportContext context
        memset(&context, 0, sizeof(ReportContext))
        context.slot = slot
        context.slot_offset = self._slot_offset(slot)
        context.slots = 1
        context.is_known = True
        context.is_late = self.assigned > slot
        # Until then no cell has been forgotten that had credit out.
        context.is_young = 1 < self.nodes.warmup_until and slot < self.nodes.warmup_until + FORGET_CREDIT_SLOTS
        context.active_ms = milliseconds((slot + 1) * self.slot_seconds)
        return context

    cdef int _add_to_totals(self, int number, const Delta *delta, SlotTotals totals, Usage usage) except -1:
        """Put what is new of a bucket into the totals of the slot, and into `usage`."""
        if delta.consumed > 0.0 or delta.rejected:
            if number >= totals.room:
                totals.grow(self.room)
            totals.consumed[number] += delta.consumed
            totals.rejected[number] += delta.rejected
            usage.push(number, delta.consumed, delta.rejected, delta.requests)
        return 0

    def deduct(self, Usage usage not None):
        """Take what was consumed out of the buckets."""
        cdef Py_ssize_t i
        if usage.names is not self.names:
            raise ValueError("usage must come from this service ledger, got that of another one")
        for i in range(usage.count):
            self.buckets[usage.rows[i].bucket].level -= usage.rows[i].consumed

    cdef Py_ssize_t _bucket_number(self, str user, str resource, long long slot) except -1:
        cdef Py_ssize_t number
        cdef Bucket *grown
        cdef Bucket *bucket
        resources = self.users.get(user)
        if resources is None:
            resources = self.users[user] = {}
        found = resources.get(resource)
        if found is not None:
            return found
        if self.free and self.free[0][0] + self.nr_slot < slot:
            number = self.free.popleft()[1]
        else:
            number = self.count
            if number == self.room:
                grown = <Bucket *> realloc(self.buckets, max(16, self.room + self.room // 2) * sizeof(Bucket))
                if grown == NULL:
                    raise MemoryError
                self.buckets = grown
                self.room = max(16, self.room + self.room // 2)
            self.count += 1
        self.bucket_ids.bind(number, (user, resource))
        resources[resource] = number
        bucket = &self.buckets[number]
        memset(bucket, 0, sizeof(Bucket))
        bucket.time = slot
        bucket.autonomous_part = 1.0
        bucket.counted_ms = milliseconds(slot * self.slot_seconds)
        self._set_limit(number, slot)
        bucket.filled_since = bucket.time
        if bucket.rate > 0.0:
            bucket.filled_since = min(bucket.time, bucket.time + 1.0 - bucket.level / bucket.rate)
        return number

    def _set_limit(self, Py_ssize_t number, long long slot):
        """The bucket's limit as it is now. One that is new holds what it would hold by now."""
        cdef Bucket *bucket = &self.buckets[number]
        user, resource = self.names[number]
        limit = self.limit_of(user, resource)
        if limit is None:
            bucket.rate = -1.0
            bucket.capacity = 0.0
            bucket.level = 0.0
            return
        bucket.rate, bucket.capacity, start_slot = limit
        bucket.capacity = max(bucket.capacity, bucket.rate * MIN_BURST_SECONDS / self.slot_seconds)
        bucket.time = max(bucket.time, max(slot, start_slot))
        bucket.level = min(capacity_of(bucket), bucket.rate * (bucket.time - start_slot + 1.0))

    cdef NodeCell *_cell_of(self, Bucket *bucket, int node) except NULL:
        """The node's cell of a bucket, made when there is none."""
        cdef int position = position_of(bucket, node), room
        cdef NodeCell *grown
        if position < bucket.count and bucket.cells[position].node == node:
            return &bucket.cells[position]
        if bucket.count == bucket.room:
            room = bucket.room + max(1, bucket.room // 4)
            grown = <NodeCell *> realloc(bucket.cells, room * sizeof(NodeCell))
            if grown == NULL:
                raise MemoryError
            bucket.cells = grown
            bucket.room = room
        memmove(
            &bucket.cells[position + 1], &bucket.cells[position], (bucket.count - position) * sizeof(NodeCell)
        )
        memset(&bucket.cells[position], 0, sizeof(NodeCell))
        bucket.cells[position].node = node
        # It has had no traffic. By a time of 0 it would seem to have some in half of all months.
        bucket.cells[position].active_ms = bucket.counted_ms - ACTIVE_MS
        bucket.count += 1
        bucket.classic += self.nodes.is_classic(node)
        self.cells += 1
        return &bucket.cells[position]

    cdef SlotTotals _totals_of(self, long long slot):
        """The totals of a slot; those of a slot that is not kept any more go to the oldest kept one."""
        cdef long long kept = max(4, min(self.nr_slot, HISTORY_TOTALS // max(1, self.room)))
        cdef SlotTotals totals
        slot = max(slot, self.assigned - kept + 1)
        totals = self.totals.get(slot)
        if totals is None:
            totals = self.totals[slot] = SlotTotals(max(16, self.room))
            for old in [old for old in self.totals if old <= slot - kept]:
                del self.totals[old]
        return totals

    cdef int _slot_offset(self, long long slot) noexcept:
        """A slot as a cell stores it: from 1 on, counted from the first slot."""
        return <int> max(1, min(slot - self.first + 1, INT_MAX))

    # Assigning

    def assign(self, long long slot):
        """Give out the quota of the next slot, in all buckets that have a limit.

        An error of a rule that was handed in comes out in the end; the buckets it did not split
        are split by ours.
        """
        while not self.assign_some(slot, PY_SSIZE_T_MAX):
            pass

    def assign_some(self, long long slot, Py_ssize_t cells):
        """Go on with the assignment of `slot` by about so many cells; True when it is done.

        Reports may be booked and asks be answered between two parts. Each bucket is assigned once,
        in one go, so for a bucket it is as if they had come before the assignment or after it.
        """
        if self.is_assigning:
            raise RuntimeError("cannot start an assignment from within another one")
        if self.phase == NOT_ASSIGNING:
            if slot <= self.assigned:
                return True
            self.phase = ASSIGNING
            self.assigning_slot = slot
            self.next_bucket = 0
            self.rule_error = None
            self._prepare_buffers(slot, reset=True)
        elif slot != self.assigning_slot:
            raise RuntimeError(f"the assignment of slot {self.assigning_slot} is still in progress, got slot {slot}")
        try:
            if self.phase == ASSIGNING and not self._assign_buckets(cells):
                return False
            if not self._sweep_buckets(cells):
                return False
        except BaseException:
            self.phase = NOT_ASSIGNING  # want of memory, say: this slot is lost, the next one is not
            raise
        self.phase = NOT_ASSIGNING
        if self.rule_error is not None:
            raise self.rule_error
        return True

    cdef bint _assign_buckets(self, Py_ssize_t cells) except -1:
        cdef Py_ssize_t number = self.next_bucket
        cdef long long slot = self.assigning_slot
        cdef int line
        self._prepare_buffers(slot, reset=False)  # of nodes that came between two parts
        self.is_assigning = True
        try:
            while number < self.count and cells > 0:
                if number + 1 < self.count:
                    for line in range(8):
                        prefetch(<char *> self.buckets[number + 1].cells + 64 * line)
                cells -= 1
                if self.buckets[number].count and self.buckets[number].rate >= 0.0:
                    cells -= self.buckets[number].count
                    self._assign(<int> number, slot)
                number += 1
        finally:
            self.is_assigning = False
            self.next_bucket = number
        if number < self.count:
            return False
        self.phase = SWEEPING
        self.assigned = slot
        self.next_swept = slot & (SWEEP_SLOTS - 1)
        self.forgotten = 0
        self._keep_history()
        return True

    cdef bint _sweep_buckets(self, Py_ssize_t cells) except -1:
        """A part of the buckets in each slot: all of them are looked at well within a minute."""
        cdef Py_ssize_t number = self.next_swept
        while number < self.count and self.forgotten < MAX_FORGOTTEN:
            if cells <= 0:
                self.next_swept = number
                return False
            if self.names[number] is not None:
                cells -= 1 + self.buckets[number].count
                self.forgotten += self._sweep_bucket(<int> number, self.assigned)
            number += SWEEP_SLOTS
        return True

    def rebase(self, long long slot):
        """The clock has gone back, to `slot`: go on from there.

        What was promised for slots that will come again stays promised until the nodes report.
        Nothing is refilled until the clock has caught up; but nobody waits for longer than a
        minute for that.
        """
        cdef Py_ssize_t number
        cdef int i, slot_offset = self._slot_offset(slot)
        cdef Bucket *bucket
        cdef NodeCell *cell
        for number in range(self.count):
            bucket = &self.buckets[number]
            if bucket.time > slot + FORGET_SLOTS:
                bucket.time = slot
            for i in range(bucket.count):
                cell = &bucket.cells[i]
                cell.lapsed += <float> promised_after(cell, self.first, self.nodes.reported[cell.node])
                memset(cell.promised, 0, 4 * sizeof(float))
                cell.promised_until = min(cell.promised_until, slot_offset)
                cell.last_report = min(cell.last_report, slot_offset)
                cell.last_ask = min(cell.last_ask, slot_offset - 1)
        self.assigned = slot - 1
        self.phase = NOT_ASSIGNING

    def _keep_history(self):
        """Keep what was given, for those who ask later: few slots of many cells, or many of few."""
        cdef Py_ssize_t i, kept = min(self.nr_slot, HISTORY_SHARES // max(1, self.cells))
        cdef ShareBuffer *buffer
        for i in range(len(self.nodes.names) if kept else 0):
            buffer = self._buffer_of(<int> i, self.assigned + self.nodes.lead_slots[i])
            if self.nodes.names[i] is not None and buffer.count:
                quotas = self.quota_history.setdefault(buffer.slot, {})
                quotas[self.nodes.names[i]] = (<char *> buffer.data)[: buffer.count * sizeof(PackedShare)]
        for old in [old for old in self.quota_history if old <= self.assigned + 1 - kept]:
            del self.quota_history[old]

    def quotas_of(self, long long slot):
        """node -> user -> resource -> amount: what was given for a slot, by its assignment.

        Of our own nodes it is what was granted since the assignment before.
        """
        cdef Py_ssize_t i
        cdef const unsigned char[:] packed
        cdef PackedShare share
        result = {}
        for node_id, quota in self.quota_history.get(slot, {}).items():
            packed = quota
            users = result[node_id] = {}
            before = self.quota_before(slot, node_id)
            for i in range(len(packed) // <Py_ssize_t> sizeof(PackedShare)):
                memcpy(&share, &packed[i * sizeof(PackedShare)], sizeof(PackedShare))
                name = self.names[share.bucket]
                if name is not None:
                    users.setdefault(name[0], {})[name[1]] = share.granted - granted_in(before, share.bucket)
        return result

    cdef bytes quota_before(self, long long slot, str node_id):
        """The totals that a node was granted up to the slot before, as an array of PackedShare."""
        cdef int node = self.nodes.number_of(node_id)
        if node < 0 or self.nodes.is_classic(node):
            return b""
        return self.quota_history.get(slot - 1, {}).get(node_id, b"")

    def resume(self, long long slot, double time, *, bint is_takeover):
        """Resume in `slot`, at `time` in slots; `nodes` knows which nodes are autonomous since.

        What they have spent meanwhile was covered by the refill of that time: it must find room. `is_takeover`:
        another leader has granted credit so far.
        """
        cdef Py_ssize_t number
        cdef double autonomous
        for number in range(self.count):
            if is_takeover:
                self._expect_no_traffic(&self.buckets[number], slot)
            self._recount(&self.buckets[number], slot, time)
            autonomous = self.buckets[number].autonomous
            self.buckets[number].autonomous = 0.0  # what they have spent by now is counted
            refill(&self.buckets[number], time)
            self.buckets[number].autonomous = autonomous
            forgive_foreign_debt(&self.buckets[number])
            if is_takeover:
                deduct_surplus(&self.buckets[number], slot)
        self.assigned = max(self.assigned, slot - 1)

    cdef int _expect_no_traffic(self, Bucket *bucket, long long slot) noexcept:
        """Take it that a user has no traffic at nodes whose last report has not a word of it.

        Or what is kept for nodes that a user has left would be missing where it is now; and what they hold would take
        no room in the bucket. A node with traffic asks as soon as it hears of the new leader, so it is as if it had
        asked.
        """
        cdef int i
        cdef NodeCell *cell
        for i in range(bucket.count):
            cell = &bucket.cells[i]
            if (
                not self.nodes.is_classic(cell.node)
                and slot - self.nodes.reported[cell.node] < NODE_TIMEOUT
                and self.first + cell.last_report <= self.nodes.reported[cell.node]
            ):
                cell.last_ask = max(cell.last_ask, self._slot_offset(slot))
        return 0

    cdef double _safe_usage(self, NodeCell *cell, long long slot) noexcept:
        """What a node takes up to the end of `slot` beside its promises: where it has none, its safe share."""
        cdef long long since = self.nodes.reported[cell.node]
        if self.nodes.is_classic(cell.node):
            since = max(since, self.first + cell.promised_until - 1)
        return cell.safe * (slot - since) if slot > since else 0.0

    cdef bint is_silent(self, const NodeCell *cell, long long slot) noexcept:
        """Whether a node is not heard, and has not asked for this user lately either."""
        return self.nodes.is_silent(cell.node, slot) and self.first + cell.last_ask <= slot

    cdef int hear_asking(self, Bucket *bucket, const NodeCell *cell) noexcept:
        """A node asks that was silent: what was assumed of it holds no more."""
        if self.is_silent(cell, self.assigned):
            hear_again(
                bucket, cell, self.nodes.reported[cell.node] + 1.0, self.nodes.autonomous_until[cell.node] + 1.0
            )
        return 0

    cdef int _recount(self, Bucket *bucket, long long slot, double time) noexcept:
        """Sum up the cells of a bucket once more: what its nodes hold, and those that are silent have spent by `time`.

        Classic nodes may take what they were promised up to the end of `slot`.
        """
        cdef int i
        cdef NodeCell *cell
        cdef bint is_silent
        cdef double held
        bucket.counted_ms = milliseconds(slot * self.slot_seconds)
        bucket.outstanding = bucket.unbooked = bucket.reserved = bucket.silent = bucket.autonomous = 0.0
        bucket.active = bucket.classic = 0
        bucket.autonomous_part = self._autonomous_part(bucket, slot - 1)
        bucket.part_since = <double> self.nodes.led_until
        for i in range(bucket.count):
            cell = &bucket.cells[i]
            is_silent = self.is_silent(cell, slot - 1)
            bucket.active += is_counted(bucket, cell.active_ms)
            if self.nodes.is_classic(cell.node):
                bucket.classic += 1
                held = cell.lapsed + promised_after(cell, self.first, self.nodes.reported[cell.node])
                if is_silent:
                    held += self._safe_usage(cell, min(slot, self.nodes.autonomous_until[cell.node]))
                elif self.first + cell.promised_until - 1 < slot - 1:
                    held += self._safe_usage(cell, slot - 1)
                bucket.reserved += held
                if is_silent:
                    bucket.silent += held
                continue
            held = outstanding_of(cell)
            bucket.outstanding += held
            bucket.unbooked += unbooked_of(cell)
            if is_silent:
                assume_usage(
                    bucket,
                    cell,
                    self.nodes.reported[cell.node] + 1.0,
                    self.nodes.autonomous_until[cell.node] + 1.0,
                    time,
                )
        self._sum_promises(bucket, slot - 1)
        return 0

    cdef double _autonomous_part(self, Bucket *bucket, long long slot) noexcept:
        """Of the safe shares of autonomous nodes, what nodes that are heard have left of a slot's refill.

        The safe shares of all nodes are one slot's refill. If it is all taken by nodes that came after our
        snapshot, those that are only in the snapshot have gone before they came. When the time is over in which
        nodes find us, it stays as it is: those that are still cut off may have spent that much.
        """
        cdef int i
        cdef NodeCell *cell
        cdef double heard = 0.0, autonomous = 0.0
        for i in range(bucket.count if self.nodes.resumed_at else 0):
            cell = &bucket.cells[i]
            if not self.is_silent(cell, slot):
                heard += cell.safe
            elif self.nodes.autonomous_until[cell.node] >= slot:
                autonomous += cell.safe
        if autonomous <= 0.0:
            return bucket.autonomous_part
        if heard + autonomous <= bucket.rate * (1.0 + SLACK):
            return 1.0
        return max(0.0, bucket.rate - heard) / autonomous

    cdef int _sum_promises(self, Bucket *bucket, long long slot) noexcept:
        """Sum up what is promised to classic nodes that are heard, for the slots after this one."""
        cdef int i
        cdef long long last
        cdef NodeCell *cell
        memset(bucket.promised, 0, 2 * sizeof(double))
        bucket.promised_slot = slot
        for i in range(bucket.count if bucket.classic else 0):
            cell = &bucket.cells[i]
            if self.nodes.is_classic(cell.node) and not self.nodes.is_silent(cell.node, slot):
                last = self.first + cell.promised_until - 1
                if last > slot:
                    bucket.promised[0] += cell.promised[(slot + 1) & 3]
                if last > slot + 1:
                    bucket.promised[1] += cell.promised[(slot + 2) & 3]
        postpone_promises(bucket, max(bucket.time, <double> slot))
        return 0

    cdef int _assign(self, int number, long long slot) except -1:
        cdef Bucket *bucket = &self.buckets[number]
        cdef NodeCell *cell
        cdef Demand *demands
        cdef int i
        cdef bint is_late, is_awaiting = slot < self.nodes.warmup_until
        cdef double budget, total = 0.0, safe_part
        if bucket.count > self.demands_room:
            demands = <Demand *> realloc(self.demands, 2 * bucket.count * sizeof(Demand))
            if demands == NULL:
                raise MemoryError
            self.demands = demands
            self.demands_room = 2 * bucket.count
        demands = self.demands
        is_late = self._gather_demands(bucket, slot)
        self._keep_for_unknown_nodes(bucket, slot)
        refill(bucket, slot)
        self._recount(bucket, slot + 1, bucket.time)
        forgive_foreign_debt(bucket)
        note_surplus(bucket, slot)
        if not is_late and bucket.overflowed_slot <= slot:
            bucket.overflowed = bucket.foreign = 0.0
        for i in range(bucket.count):
            if demands[i].per_slot < 0.0 and self.nodes.autonomous_until[bucket.cells[i].node] > slot:
                total += bucket.autonomous_part * bucket.cells[i].safe  # the safe shares of all are one slot's refill
        budget = self._budget(bucket, slot, total)
        if self.rule_kind == FAIR:
            fair(budget, demands, bucket.count)
        elif self.rule_kind == CLASSIC:
            classic(budget, demands, bucket.count)
        else:
            try:
                self._apply_custom_rule(number, budget)
            except Exception as error:
                self.rule_error = error
                fair(budget, demands, bucket.count)
        for i in range(bucket.count):
            if demands[i].per_slot >= 0.0:
                total += demands[i].share
        if is_awaiting:
            total = max(total, bucket.rate)
        safe_part = bucket.rate / total if total > 0.0 else 0.0
        for i in range(bucket.count):
            cell = &bucket.cells[i]
            if demands[i].per_slot >= 0.0 and (safe_part > 0.0 or bucket.rate == 0.0):
                if not (is_awaiting and cell.safe > 0.0):
                    cell.safe = <float> (demands[i].share * safe_part)
        if bucket.classic:
            self._promise_shares(bucket, budget, slot)
        self._write_shares(number, slot)
        return 0

    cdef bint _gather_demands(self, Bucket *bucket, long long slot) noexcept:
        """Fill `demands`; whether a report of a node is missing."""
        cdef int i
        cdef bint is_late = False
        cdef long long reported, first = self.first
        cdef NodeCell *cell
        cdef Demand *demand
        for i in range(bucket.count):
            cell = &bucket.cells[i]
            demand = &self.demands[i]
            reported = self.nodes.reported[cell.node]
            demand.consumed = cell.last_consumed
            demand.rejected = cell.last_rejected
            demand.age = slot - first - cell.last_report
            is_late = is_late or reported < slot - 1
            demand.per_slot = -1.0  # nothing more for it
            if self.nodes.is_silent(cell.node, slot):
                is_late = True
                continue
            cell.lapsed = 0.0
            # Not a word of it in the last report, or in that of the slot in which it was asked for.
            if first + cell.last_report <= reported and (
                cell.demand != <float> INFINITY or first + cell.last_ask <= reported + 1
            ):
                cell.demand = 0.0
            if self._idle_slots(cell) < FORGET_SLOTS - ROUND_TRIP_SLOTS - 1:
                demand.per_slot = cell.demand
            elif self.nodes.is_classic(cell.node):
                # It is about to be forgotten, and a promise must not be forgotten with it.
                promise(cell, first, slot + self.nodes.lead_slots[cell.node], 0.0)
        return is_late

    cdef long long _idle_slots(self, NodeCell *cell) noexcept:
        """For how many slots the node has reported without a word of the user, and has not asked for it."""
        return self.nodes.reported[cell.node] - self.first - max(cell.last_report, cell.last_ask)

    cdef double _budget(self, Bucket *bucket, long long slot, double autonomous) noexcept:
        """What is split: the refill of a slot, less what autonomous nodes live on.

        Where classic nodes are promised their parts, it is what is there, or a slot's refill if our own
        nodes take part: they take what comes in as it comes, so what is left of it says nothing.
        """
        cdef double available, request
        if self.rule_kind == CLASSIC:
            return bucket.level
        if not bucket.classic:
            return max(0.0, bucket.rate - autonomous)
        available = (
            available_of(bucket) - bucket.postponed
            + bucket.rate * max(0.0, slot + 1.0 - bucket.time)
        )
        if bucket.classic < bucket.count:
            available = max(available, bucket.rate)
        if available <= bucket.rate:
            return available
        request = cost_of_request(bucket)
        if bucket.rate + 0.5 * (available - bucket.rate) < request <= available:
            return request
        return bucket.rate + 0.5 * (available - bucket.rate)

    cdef int _promise_shares(self, Bucket *bucket, double budget, long long slot) noexcept:
        """Promise the classic nodes their shares, in whole requests where they are small."""
        cdef int i
        cdef NodeCell *cell
        cdef Demand *demands = self.demands
        cdef double request = cost_of_request(bucket), whole = WHOLE_REQUESTS * request
        cdef double in_parts = 0.0, requests_left, wanted, rounded, gathered = 0.0, amount
        if bucket.classic < bucket.count and self.rule_kind != CLASSIC:
            budget = self._limit_promises(bucket)
        for i in range(bucket.count):
            if demands[i].per_slot >= 0.0 and demands[i].share >= whole and self._is_classic_at(bucket, i):
                in_parts += demands[i].share
        requests_left = floor((budget - in_parts) / request + SLACK)
        for i in range(bucket.count):
            if demands[i].per_slot < 0.0 or not self._is_classic_at(bucket, i):
                continue
            cell = &bucket.cells[i]
            amount = demands[i].share
            if amount < whole and self.rule_kind != CLASSIC:
                # Whole requests go to the cell at which the parts so far make up one.
                wanted = amount / request + cell.carry
                gathered += wanted
                rounded = 0.0
                if gathered >= 1.0 - SLACK and requests_left >= 1.0:
                    rounded = min(floor(gathered + SLACK), requests_left)
                    gathered -= rounded
                    requests_left -= rounded
                cell.carry = <float> max(-4.0, min(4.0, wanted - rounded))
                amount = rounded * request
            promise(cell, self.first, slot + self.nodes.lead_slots[cell.node], <float> amount)
            bucket.reserved += amount
        self._sum_promises(bucket, slot)
        return 0

    cdef double _limit_promises(self, Bucket *bucket) noexcept:
        """Limit the shares of classic nodes, where our own need the bucket too; returns what may be promised.

        A promise holds its amount back for a slot and more, so no more is promised than may be needed, and
        half of what is saved beyond a slot's refill. The promises of two slots may be spent at the same
        moment, one at the end of its slot and one at the beginning: both are in the bucket, beside what our
        own nodes need from one ask to the next. But a request at least may be promised.
        """
        cdef int i
        cdef Demand *demands = self.demands
        cdef double capacity = capacity_of(bucket), request = cost_of_request(bucket)
        cdef double available = min(available_of(bucket), capacity), own = 0.0, total = 0.0
        cdef double saved = 0.5 * max(0.0, available - bucket.rate) / bucket.classic, most
        for i in range(bucket.count):
            if demands[i].per_slot < 0.0:
                continue
            if not self._is_classic_at(bucket, i):
                own += demands[i].share
                continue
            demands[i].share = min(
                demands[i].share, demands[i].per_slot + sqrt(demands[i].per_slot * request) + request + saved
            )
            total += demands[i].share
        most = max(0.0, min(available + bucket.rate, max(request, 0.5 * (capacity - OWN_SLOTS * own))))
        if total > most:
            for i in range(bucket.count):
                demands[i].share *= most / total
        return most

    cdef bint _is_classic_at(self, Bucket *bucket, int i) noexcept:
        return self.nodes.is_classic(bucket.cells[i].node)

    cdef int _write_shares(self, int number, long long slot) except -1:
        """Put the shares of a bucket into the quotas of its nodes."""
        cdef Bucket *bucket = &self.buckets[number]
        cdef NodeCell *cell
        cdef int i
        cdef long long target
        cdef double amount
        for i in range(bucket.count):
            cell = &bucket.cells[i]
            if self.demands[i].per_slot < 0.0:
                continue
            target = slot + self.nodes.lead_slots[cell.node]
            if self.nodes.is_classic(cell.node):
                amount = cell.promised[target & 3]
            elif self._idle_slots(cell) < FORGET_SLOTS // 2:
                amount = cell.granted
            else:
                continue
            self._push_share(cell.node, target, number, amount, cell.safe)
        return 0

    cdef int _push_share(self, int node, long long target, int number, double amount, float safe) except -1:
        cdef ShareBuffer *buffer = self._buffer_of(node, target)
        if buffer.count == buffer.room:
            _grow_buffer(buffer)
        buffer.data[buffer.count] = pack_share(number, amount, safe)
        prefetch(&buffer.data[buffer.count + 12])
        buffer.count += 1
        return 0

    cdef int _keep_for_unknown_nodes(self, Bucket *bucket, double time) noexcept:
        """During warm-up: keep the part of the refill that nodes may live on which have not connected yet.

        The known ones may have a bit more than they live on; one that is new, an even part. A user that has
        lived nowhere yet may have everything. When a node connects, its part is kept no more: what it
        consumed is booked.
        """
        cdef double grown = 0.0, lived_on = 0.0
        cdef int i
        bucket.kept = 0.0
        if time >= self.nodes.warmup_until or bucket.rate <= 0.0:
            return 0
        for i in range(bucket.count):
            lived_on += bucket.cells[i].safe
            grown += MAX_GROWTH * bucket.cells[i].safe + cost_of_request(bucket)
            if bucket.cells[i].safe == 0.0:
                grown += bucket.rate / self.nodes.estimated_count(<long long> time)
        if lived_on > 0.0 and grown < bucket.rate:
            bucket.kept = (bucket.rate - grown) * max(0.0, max(time, bucket.time) - bucket.filled_since + 1.0)
        return 0

    def _apply_custom_rule(self, int number, double budget):
        """Let a custom rule split the budget; raise ValueError if its shares are invalid."""
        cdef Bucket *bucket = &self.buckets[number]
        cdef int i
        user, resource = self.names[number]
        demands = [
            (
                self.nodes.names[bucket.cells[i].node],
                self.demands[i].per_slot,
                self.demands[i].consumed,
                self.demands[i].rejected,
            )
            for i in range(bucket.count)
            if self.demands[i].per_slot >= 0.0
        ]
        shares = list(self.rule(user, resource, budget, bucket.rate, demands))
        if len(shares) != len(demands):
            raise ValueError(f"assignment rule returned {len(shares)} shares, expected {len(demands)}: one per node")
        is_sane = all(isfinite(share) and share >= 0.0 for share in shares)
        if not is_sane or sum(shares) > max(budget, 0.0) * (1.0 + SLACK):
            raise ValueError(
                f"assignment rule returned invalid shares {shares!r}, expected amounts from 0 up, "
                f"in total at most {budget!r}"
            )
        remaining = iter(shares)
        for i in range(bucket.count):
            if self.demands[i].per_slot >= 0.0:
                self.demands[i].share = next(remaining)

    def _prepare_buffers(self, long long slot, *, bint reset):
        cdef Py_ssize_t i, added, room = 2 * len(self.nodes.names)
        cdef ShareBuffer *buffers
        cdef ShareBuffer *buffer
        cdef long long target
        if room > self.share_buffers_room:
            buffers = <ShareBuffer *> realloc(self.share_buffers, room * sizeof(ShareBuffer))
            if buffers == NULL:
                raise MemoryError
            self.share_buffers = buffers
            added = room - self.share_buffers_room
            memset(self.share_buffers + self.share_buffers_room, 0, added * sizeof(ShareBuffer))
            self.share_buffers_room = room
        for i in range(len(self.nodes.names)):
            target = slot + self.nodes.lead_slots[i]
            buffer = self._buffer_of(<int> i, target)
            if reset or buffer.slot != target:
                buffer.slot = target
                buffer.count = 0

    cdef ShareBuffer *_buffer_of(self, int node, long long slot) noexcept:
        """The buffer with the quota of a node and slot. With a lead of 1 only the newest is kept."""
        return &self.share_buffers[2 * node + (slot & (self.nodes.lead_slots[node] - 1))]

    cdef int _sweep_bucket(self, int number, long long slot) except -1:
        """Forget cells that were silent for long, and the bucket when it is full and has none."""
        cdef Bucket *bucket = &self.buckets[number]
        cdef NodeCell *cell
        cdef int i, kept = 0
        for i in range(bucket.count):
            cell = &bucket.cells[i]
            # Only what the node has reported on since without a word: then it knows that we know.
            if self._idle_slots(cell) >= FORGET_SLOTS and cell.held == 0.0:
                if outstanding_of(cell) <= 0.0 or self._idle_slots(cell) >= FORGET_CREDIT_SLOTS:
                    take_out(bucket, cell)
                    bucket.classic -= self.nodes.is_classic(cell.node)
                    continue
            if kept < i:
                bucket.cells[kept] = cell[0]
            kept += 1
        if kept == bucket.count and kept > 0:
            return 0
        self.cells -= bucket.count - kept
        bucket.count = kept
        if kept:
            return 1
        if bucket.rate >= 0.0:
            refill(bucket, slot)
            if bucket.level < capacity_of(bucket):
                return 0
        free(bucket.cells)
        bucket.cells = NULL
        bucket.room = 0
        user, resource = self.names[number]
        resources = self.users[user]
        del resources[resource]
        if not resources:
            del self.users[user]
        self.bucket_ids.release(number)
        self.free.append((slot, number))
        return 1

    # Quotas

    def quota(self, long long slot, str node_id not None):
        """The quota of a node for a slot."""
        cdef int node = self.nodes.number_of(node_id)
        cdef ShareBuffer *buffer
        if 0 <= node and 2 * node + 1 < self.share_buffers_room:
            buffer = self._buffer_of(node, slot)
            if buffer.slot == slot:
                return copy_shares(self.bucket_ids, buffer.data, buffer.count)
        return copy_shares(self.bucket_ids, NULL, 0)

    def tell(
        self,
        long long slot,
        str node_id not None,
        str user not None,
        str resource not None,
        double granted,
        double returned,
        double used,
    ):
        """Bring a cell up to what its node tells in an ask; for services without buckets of ours."""
        cdef int node = self._node_number(node_id)
        cdef Bucket *bucket = &self.buckets[self._bucket_number(user, resource, slot)]
        cdef NodeCell *cell = self._cell_of(bucket, node)
        if not (0.0 <= granted <= MAX_AMOUNT and 0.0 <= returned <= MAX_AMOUNT and 0.0 <= used <= MAX_AMOUNT):
            raise ProtocolError(
                f"invalid credit for user {user!r} and resource {resource!r}: got {granted!r} granted, "
                f"{returned!r} returned, {used!r} used, expected amounts from 0 to {MAX_AMOUNT:g}"
            )
        tell(bucket, cell, granted, returned, used, True)
        cell.last_ask = max(cell.last_ask, self._slot_offset(slot))

    def raise_credit(
        self, long long slot, str node_id not None, str user not None, str resource not None, double amount, double safe
    ):
        """Let a node take `amount` in `slot`, once: what a service of its own gives for that slot.

        Returns the total of all grants.
        """
        cdef int node = self._node_number(node_id), slot_offset = self._slot_offset(slot)
        cdef Bucket *bucket = &self.buckets[self._bucket_number(user, resource, slot)]
        cdef NodeCell *cell = self._cell_of(bucket, node)
        if cell.promised_until < slot_offset:
            cell.promised_until = slot_offset
            take_out(bucket, cell)
            cell.granted = max(cell.granted, cell.returned + cell.used + amount)
            put_back(bucket, cell)
        cell.safe = <float> safe
        cell.last_ask = max(cell.last_ask, slot_offset)
        return cell.granted

    # Limits

    def limits_changed(self, long long slot, Py_ssize_t begin=0, Py_ssize_t most=PY_SSIZE_T_MAX):
        """Ask `limit_of` again for `most` buckets, from number `begin` on; where to go on, or None.

        What is saved keeps its proportion; debt stays. To do it twice does no harm.
        """
        cdef Py_ssize_t number, end
        cdef Bucket *bucket
        cdef double before, level, saved, rate
        cdef int i
        self.limits_version += 1
        end = self.count if self.count - begin < most else begin + most
        for number in range(begin, end):
            if self.names[number] is None:
                continue
            bucket = &self.buckets[number]
            if bucket.rate < 0.0:
                self._set_limit(number, slot)
                continue
            refill(bucket, slot)
            before = capacity_of(bucket)
            level = bucket.level
            saved = min(level, available_of(bucket))
            rate = bucket.rate
            self._set_limit(number, slot)
            for i in range(bucket.count):
                bucket.cells[i].safe = <float> (
                    bucket.cells[i].safe * bucket.rate / rate if rate > 0.0 and bucket.rate > 0.0 else 0.0
                )
            if bucket.rate < 0.0:
                for i in range(bucket.count):
                    memset(bucket.cells[i].promised, 0, 4 * sizeof(float))
            elif before == 0.0:
                bucket.level = level
            else:
                # What nodes hold, and what they have spent, is no part of what is saved.
                bucket.level = level + max(0.0, saved) * (capacity_of(bucket) / before - 1.0)
                if capacity_of(bucket) < before:
                    bucket.inherited = unused_of_all(bucket)
        return end if end < self.count else None

    # Snapshots

    def dump(self):
        """Everything that must outlive us: names, levels, and the cells as they lie in memory.

        Returns (names, numbers, cells): for each bucket its (user, resource); 6 doubles (level,
        recorded, cost, time, number of cells, overflowed); and its cells.
        """
        cdef Py_ssize_t number
        cdef Bucket *bucket
        cdef double[6] row
        names = []
        numbers = []
        cells = []
        for number in range(self.count):
            if self.names[number] is None:
                continue
            bucket = &self.buckets[number]
            names.append(self.names[number])
            row[0] = bucket.level
            row[1] = bucket.recorded
            row[2] = bucket.cost
            row[3] = bucket.time
            row[4] = bucket.count
            row[5] = bucket.overflowed
            numbers.append((<char *> row)[: sizeof(row)])
            cells.append((<char *> bucket.cells)[: bucket.count * sizeof(NodeCell)])
        return names, b"".join(numbers), b"".join(cells)

    def load(
        self,
        list names not None,
        bytes numbers not None,
        bytes cells not None,
        dict nodes not None,
        *,
        long long assigned,
    ):
        """Take over the dump of another service ledger. `nodes` maps its node numbers to ours.

        This ledger must be new, and begin in the same slot.
        """
        cdef Py_ssize_t i, number, total = 0, at = 0
        cdef double[6] row
        cdef const char *packed = numbers
        cdef const char *packed_cells = cells
        cdef Bucket *bucket
        cdef NodeCell *cell
        cdef NodeCell old
        cdef int j, node
        if self.count:
            raise ValueError(f"cannot load into a service ledger in use: it has {self.count} buckets, expected none")
        if len(numbers) != len(names) * <Py_ssize_t> sizeof(row) or len(cells) % sizeof(NodeCell):
            raise ValueError(
                f"the dump of {len(names)} buckets has {len(numbers)} bytes of numbers, {len(cells)} bytes of cells, "
                f"expected {len(names) * sizeof(row)}, and a multiple of {sizeof(NodeCell)}"
            )
        for i in range(len(names)):
            memcpy(row, packed + i * sizeof(row), sizeof(row))
            for j in range(6):
                if not isfinite(row[j]):
                    raise ValueError(f"bucket {names[i]!r} has the number {row[j]!r}, expected a finite one")
            if not 0 <= row[4] <= len(nodes):
                raise ValueError(f"bucket {names[i]!r} has {row[4]!r} cells, expected 0 to {len(nodes)}: one per node")
            total += <Py_ssize_t> row[4]
        if total * <Py_ssize_t> sizeof(NodeCell) != len(cells):
            raise ValueError(f"the dump has {len(cells)} bytes of cells, expected {total * sizeof(NodeCell)}")
        self.assigned = assigned
        for i in range(len(names)):
            memcpy(row, packed + i * sizeof(row), sizeof(row))
            user, resource = names[i]
            number = self._bucket_number(user, resource, <long long> row[3])
            bucket = &self.buckets[number]
            bucket.recorded = row[1]
            bucket.cost = row[2]
            bucket.overflowed = row[5]
            bucket.time = row[3]
            bucket.overflowed_slot = <long long> bucket.time
            bucket.filled_since = 0.0
            for _ in range(<int> row[4]):
                memcpy(&old, packed_cells + at, sizeof(NodeCell))
                at += sizeof(NodeCell)
                node = nodes[old.node]
                old.node = node
                cell = self._cell_of(bucket, node)
                cell[0] = old
            self._recount(bucket, assigned + 1, bucket.time)
            if bucket.rate >= 0.0:
                bucket.level = min(row[0], capacity_of(bucket) + bucket.unbooked + bucket.silent)
        self._rebuild_buffers()

    def _rebuild_buffers(self):
        """Make the quotas of the last assignment once more, out of what is promised and granted."""
        cdef Py_ssize_t number
        cdef int i
        cdef long long target
        cdef NodeCell *cell
        self._prepare_buffers(self.assigned, reset=True)
        for number in range(self.count):
            for i in range(self.buckets[number].count if self.buckets[number].rate >= 0.0 else 0):
                cell = &self.buckets[number].cells[i]
                target = self.assigned + self.nodes.lead_slots[cell.node]
                if not self.nodes.is_classic(cell.node):
                    if self._idle_slots(cell) < FORGET_SLOTS // 2:
                        self._push_share(cell.node, target, <int> number, cell.granted, cell.safe)
                elif self.first + cell.promised_until - 1 == target:
                    self._push_share(cell.node, target, <int> number, cell.promised[target & 3], cell.safe)

    # Looking

    def totals_of(self, long long slot, bint rejected=False):
        """user -> resource -> what all nodes together consumed (or refused) in a slot."""
        cdef SlotTotals totals = self.totals.get(slot)
        cdef Py_ssize_t number
        cdef double value
        result = {}
        if totals is None:
            return result
        for number in range(min(totals.room, self.count)):
            value = totals.rejected[number] if rejected else totals.consumed[number]
            if value and self.names[number] is not None:
                user, resource = self.names[number]
                result.setdefault(user, {})[resource] = value
        return result

    def distribution(self):
        """user -> resource -> node -> the last report that had any of it."""
        cdef Py_ssize_t number
        cdef Bucket *bucket
        cdef int i
        result = {}
        for number in range(self.count):
            if self.names[number] is None:
                continue
            bucket = &self.buckets[number]
            user, resource = self.names[number]
            nodes = {
                self.nodes.names[bucket.cells[i].node]: {
                    "slot_number": self.first + bucket.cells[i].last_report - 1,
                    "consumption": bucket.cells[i].last_consumed,
                    "rejection": bucket.cells[i].last_rejected,
                }
                for i in range(bucket.count)
                if bucket.cells[i].last_report
            }
            if nodes:
                result.setdefault(user, {})[resource] = nodes
        return result

    def level(self, str user not None, str resource not None, double slot):
        """What a bucket holds in a slot, or None when it has no limit or is full and forgotten."""
        cdef Bucket bucket
        number = self.users.get(user, {}).get(resource)
        if number is None or self.buckets[<int> number].rate < 0.0:
            return None
        bucket = self.buckets[<int> number]
        refill(&bucket, slot)
        return bucket.level

    def available(self, str user not None, str resource not None, double slot):
        """What of a bucket may be granted in a slot, or None as for `level`."""
        cdef Bucket bucket
        number = self.users.get(user, {}).get(resource)
        if number is None or self.buckets[<int> number].rate < 0.0:
            return None
        bucket = self.buckets[<int> number]
        refill(&bucket, slot)
        return available_of(&bucket)

    def recorded(self, str user not None, str resource not None):
        """All that was booked of a bucket since it is here."""
        number = self.users.get(user, {}).get(resource)
        return 0.0 if number is None else self.buckets[<int> number].recorded

    def outstanding(self, str user not None, str resource not None):
        """The credit that is not booked yet, and what is reserved for classic and autonomous nodes."""
        number = self.users.get(user, {}).get(resource)
        if number is None:
            return 0.0
        return self.buckets[<int> number].outstanding + self.buckets[<int> number].reserved

    def give_back(self, str node_id not None):
        """A node gives back all the credit it has: it has stopped."""
        cdef int node = self.nodes.number_of(node_id), i
        cdef Py_ssize_t number
        cdef Bucket *bucket
        for number in range(self.count):
            bucket = &self.buckets[number]
            i = position_of(bucket, node)
            if i < bucket.count and bucket.cells[i].node == node:
                give_back(bucket, &bucket.cells[i])
                bucket.cells[i].held = 0.0

    def drop_node(self, str node_id not None, *, bint is_spent=False):
        """Forget all cells of a node that is gone for good; `is_spent`: its credit counts as consumed."""
        cdef int node = self.nodes.number_of(node_id), i
        cdef Py_ssize_t number
        cdef Bucket *bucket
        if 2 * node + 1 < self.share_buffers_room:
            self.share_buffers[2 * node].count = self.share_buffers[2 * node + 1].count = 0
        for number in range(self.count):
            bucket = &self.buckets[number]
            i = position_of(bucket, node)
            if i < bucket.count and bucket.cells[i].node == node:
                if is_spent:
                    bucket.level -= outstanding_of(&bucket.cells[i])
                take_out(bucket, &bucket.cells[i])
                bucket.classic -= self.nodes.is_classic(node)
                memmove(&bucket.cells[i], &bucket.cells[i + 1], (bucket.count - i - 1) * sizeof(NodeCell))
                bucket.count -= 1
                self.cells -= 1


cdef int _grow_buffer(ShareBuffer *buffer) except -1:
    cdef Py_ssize_t room = buffer.room + max(8, buffer.room // 4)
    cdef PackedShare *grown = <PackedShare *> realloc(buffer.data, room * sizeof(PackedShare))
    if grown == NULL:
        raise MemoryError
    buffer.data = grown
    buffer.room = room
    return 0

# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The ledger of one service: what was consumed on which node, and what each node is promised.

A *bucket* belongs to one user and resource; it is refilled by its rate in each slot and holds
at most its capacity. A *cell* is one bucket on one node (`_bucket.pxd`). Reports carry cumulative
totals, of which the new part is recorded (`record`); the service deducts it from the level
(`deduct`), and once a slot new quotas are assigned (`assign`).

An assignment in slot s gives out the quota of slot s + 1 (or s + 2, to nodes that fetch their
quota a slot later). What can be given out of a bucket is

    available = level + the refill of the next slot - promised - held

where *promised* are the amounts given for slots that their nodes have not reported yet (they
may be spent as we speak), and *held* is what running requests are expected to cost. A report
takes its slot's promise back and deducts what was really consumed, so a promise that is not
used returns in full. Because a promise is deducted the moment it is made, everything that is
ever admitted was in the bucket before: there is nothing to oscillate.

Of what is available, one slot's refill is given out, and half of what was saved beyond it; the
other half stays for nodes that ask within the slot, and for the slot after. Shares that are
worth only a few requests are given in whole requests; the fraction is carried in the cell, so
that small limits go round between the nodes.

A node that has missed two reports gets nothing more; what was promised to it stays promised until
it reports, or is forgotten. After a central outage, silent nodes are assumed to consume their safe
shares (`autonomous_until`) until the reconnect grace period ends. While a ledger that began empty may
not know all nodes yet (`warmup_until`), no node gets much more than it consumed before. The consumption
of a late report is set against the refill of its own time, also where that overflowed a bucket that
looked full meanwhile. Cells without traffic for a minute, and full buckets without cells, are forgotten,
a bounded number in each assignment. Slots are whole numbers, amounts are floats in the resource's unit.
"""

from collections import deque

from cpython.pyport cimport PY_SSIZE_T_MAX
from libc.limits cimport INT_MAX
from libc.math cimport INFINITY, floor, isfinite
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memmove, memset

from sluicegate.errors import ProtocolError
from sluicegate.quota.ledger._bucket cimport (
    FORGET_SLOTS,
    MAX_GROWTH,
    ROUND_TRIP_SLOTS,
    SLACK,
    WHOLE_REQUESTS,
    Bucket,
    Delta,
    NodeCell,
    ReportContext,
    apply_delta,
    book_line,
    ceiling_of,
    cost_of_request,
    is_reported,
    part_for_asker,
    position_of,
    promise,
    promised_after,
    refill,
)
from sluicegate.quota.packed._shares cimport PackedShare, copy_shares, pack_share
from sluicegate.quota.packed._report_lines cimport BucketRef, PackedLine, PackedLines, StringTable
from sluicegate.quota.ledger._node_table cimport NodeTable
from sluicegate.quota.packed._bucket_ids cimport BucketIds
from sluicegate.quota.ledger._fair_share cimport Demand, classic, fair
from sluicegate.quota.ledger._usage cimport SlotTotals, Usage

__all__ = ["CELL_SIZE", "NODE_TIMEOUT_SLOTS", "ServiceLedger"]

cdef extern from *:
    """
    /* A node this many slots behind has missed two reports: it is assumed gone. */
    #define NODE_TIMEOUT 3
    /* Slot totals: at most this many numbers of each kind are kept. */
    #define HISTORY_TOTALS 4000000
    /* Past quotas: at most this many shares are kept. */
    #define HISTORY_SHARES 900000
    /* A sweep for idle buckets takes this many slots, and forgets at most so many in each. */
    #define SWEEP_SLOTS 16
    #define MAX_FORGOTTEN 10000
    /* Cells are prefetched this many lines before their line is booked. */
    #define PREFETCH_LINES 12
    /* A bucket with a capacity of at most this many slots' refill has little for the next asker. */
    #define SCARCE_SLOTS 2
    """
    const int SCARCE_SLOTS
    const int NODE_TIMEOUT, SWEEP_SLOTS, MAX_FORGOTTEN, PREFETCH_LINES
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
NODE_TIMEOUT_SLOTS = NODE_TIMEOUT
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

    def __init__(self, NodeTable nodes not None, rule, limit_of, *, long long first, int nr_slot=60):
        """`limit_of(user, resource)` returns a bucket's (rate per slot, capacity, start slot), or None."""
        self.nodes = nodes
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
        cdef double consumed, settled, held
        cdef long long rejected, requests
        for user, resources in lines.items():
            for resource, line in resources.items():
                try:
                    consumed, rejected, requests, settled, held = line
                except (TypeError, ValueError, OverflowError):
                    consumed = -1.0
                    rejected = requests = 0
                    settled = held = 0.0
                if not (
                    type(user) is str
                    and type(resource) is str
                    and 0.0 <= settled <= consumed <= MAX_AMOUNT
                    and 0.0 <= held <= MAX_AMOUNT
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
    ):
        """Bring the totals of a node up to a report that was checked; returns what the report added.

        `slots` is how many slots it covers, `sequence` and `since` are the report's. Of a cell that
        has no total, what no leader has acknowledged is new; and all of it with `is_new_boot` (an
        earlier boot of the node is known, so that this one began in our time). A cell that the node
        may have forgotten has none: silent for long, and the node knows that we know. `is_known`: the
        report before it is booked. `is_handed_over`: it is the first report of a node that has
        reported to another leader before.
        """
        cdef int node = self._node_number(node_id), number
        cdef ReportContext context = ReportContext(
            slot, self._slot_offset(slot), slots, sequence, since, is_known, is_new_boot, is_handed_over
        )
        cdef PackedLine packed
        cdef Delta delta
        cdef NodeCell *cell
        cdef Usage usage = Usage(node_id, slots, self.names)
        cdef SlotTotals totals = None
        for user, resources in lines.items():
            for resource, line in (<dict?> resources).items():
                packed.consumed, rejected, requests, packed.settled, packed.held = line
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
        bint deducts=False,
    ):
        """As `record`, of the lines `begin` to `end`, which are of our service.

        With `deducts` it takes what was consumed out of the buckets, too, and returns None. What
        the next lines need is fetched while a line is booked: to wait for memory is what costs.
        """
        cdef int node = self._node_number(node_id)
        cdef ReportContext context = ReportContext(
            slot, self._slot_offset(slot), slots, sequence, since, is_known, is_new_boot, is_handed_over
        )
        cdef Usage usage = None if deducts else Usage(node_id, slots, self.names)
        cdef SlotTotals totals
        cdef BucketRef *ref
        cdef BucketRef *refs
        cdef const PackedLine *packed = lines.lines
        cdef Bucket *bucket
        cdef NodeCell *cell
        cdef Delta delta
        cdef Py_ssize_t i, coming
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
        cdef ReportContext context = ReportContext(slot, self._slot_offset(slot), 1, 0, 0, True, False, False)
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
                cell.consumed += delta.consumed
                if totals is None:
                    totals = self._totals_of(slot)
                apply_delta(&context, &self.buckets[number], cell, &delta, 0.0)
                self._add_to_totals(number, &delta, totals, usage)
        return usage

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
        bucket.slot = slot
        self._set_limit(number, slot)
        bucket.created_slot = bucket.slot  # the first of which it has the refill
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
        bucket.slot = max(slot, start_slot)
        bucket.level = min(ceiling_of(bucket), bucket.rate * (bucket.slot - start_slot + 1))

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
        bucket.count += 1
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
            if bucket.slot > slot + FORGET_SLOTS:
                bucket.slot = slot
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
        """node -> user -> resource -> amount: what was given for a slot, by its assignment."""
        cdef Py_ssize_t i
        cdef const unsigned char[:] packed
        cdef PackedShare share
        result = {}
        for node_id, quota in self.quota_history.get(slot, {}).items():
            packed = quota
            users = result[node_id] = {}
            for i in range(len(packed) // <Py_ssize_t> sizeof(PackedShare)):
                memcpy(&share, &packed[i * sizeof(PackedShare)], sizeof(PackedShare))
                name = self.names[share.bucket]
                if name is not None:
                    users.setdefault(name[0], {})[name[1]] = share.amount
        return result

    def resume(self, long long slot):
        """Resume in `slot` after an outage; `nodes` knows which nodes are autonomous since.

        What they have spent meanwhile was covered by the refill of that time: it must find room.
        """
        cdef Py_ssize_t number
        cdef int i
        cdef Bucket *bucket
        for number in range(self.count):
            bucket = &self.buckets[number]
            bucket.held = 0.0
            for i in range(bucket.count):
                bucket.held += self._silent_usage(&bucket.cells[i], slot)
        self.assigned = slot - 1

    cdef double _safe_usage(self, NodeCell *cell, long long slot) noexcept:
        """What a node takes up to the end of `slot` beside its promises: where it has none, its safe share."""
        cdef long long since = max(self.nodes.reported[cell.node], self.first + cell.promised_until - 1)
        return cell.safe * (slot - since) if slot > since else 0.0

    cdef double _silent_usage(self, NodeCell *cell, long long slot) noexcept:
        """What a node that we do not hear may have taken by the end of `slot`, and what its requests hold."""
        return (
            cell.held
            + cell.lapsed
            + promised_after(cell, self.first, self.nodes.reported[cell.node])
            + self._safe_usage(cell, min(slot, self.nodes.autonomous_until[cell.node]))
        )

    cdef int _assign(self, int number, long long slot) except -1:
        cdef Bucket *bucket = &self.buckets[number]
        cdef NodeCell *cell
        cdef Demand *demands
        cdef ShareBuffer *buffer
        cdef ShareBuffer *buffers = self.share_buffers
        cdef const long long *reported_by = self.nodes.reported
        cdef const int *lead_slots = self.nodes.lead_slots
        cdef int i
        cdef bint late = False, is_awaiting = slot < self.nodes.warmup_until
        cdef long long first = self.first, reported, target
        cdef double held = 0.0, outstanding = 0.0, available, budget, amount, total = 0.0, in_parts = 0.0
        cdef double request, per_request, whole, requests_left, wanted, rounded, gathered = 0.0, safe_part
        if bucket.count > self.demands_room:
            demands = <Demand *> realloc(self.demands, 2 * bucket.count * sizeof(Demand))
            if demands == NULL:
                raise MemoryError
            self.demands = demands
            self.demands_room = 2 * bucket.count
        demands = self.demands
        for i in range(bucket.count):
            cell = &bucket.cells[i]
            reported = reported_by[cell.node]
            if self.rule_kind != FAIR:
                demands[i].consumed = cell.last_consumed
                demands[i].rejected = cell.last_rejected
                demands[i].age = slot - first - cell.last_report
            if slot - reported >= NODE_TIMEOUT or self.nodes.autonomous_until[cell.node] >= slot:
                # Nothing more for it; but what it has may be spent as long as we do not hear.
                # It is as good as spent, and takes no room in the bucket: one that holds little
                # could else not give out all of its refill until the node is forgotten.
                demands[i].per_slot = -1.0
                held += self._silent_usage(cell, slot + 1)
                if self.nodes.autonomous_until[cell.node] > slot:
                    total += cell.safe  # the safe shares of all are one slot's refill
                late = True
                continue
            cell.lapsed = 0.0
            late = late or reported < slot - 1
            held += cell.held
            outstanding += promised_after(cell, first, reported)
            if first + cell.promised_until - 1 < slot:
                outstanding += self._safe_usage(cell, slot)
            # Not a word of it in the last report, or in that of the slot in which it was asked for.
            if first + cell.last_report <= reported and (
                cell.demand != <float> INFINITY or first + cell.last_ask <= reported + 1
            ):
                cell.demand = 0.0
            demands[i].per_slot = cell.demand
            if reported - first - max(cell.last_report, cell.last_ask) >= FORGET_SLOTS - ROUND_TRIP_SLOTS - 1:
                # It is about to be forgotten, and a promise must not be forgotten with it.
                demands[i].per_slot = -1.0
                promise(cell, first, slot + lead_slots[cell.node], 0.0)
        bucket.held = held
        refill(bucket, slot)
        if not late and bucket.overflowed_slot <= slot:
            bucket.overflowed = 0.0
        available = bucket.level + bucket.rate - held - outstanding
        request = cost_of_request(bucket)
        budget = available
        if is_awaiting:
            budget = min(budget, self._growth_cap(bucket, request, slot))
            total = max(total, bucket.rate)
        if budget > bucket.rate:
            budget = bucket.rate + 0.5 * (available - bucket.rate)
            if budget < request <= available:
                budget = request
        if self.rule_kind == FAIR:
            fair(budget, demands, bucket.count)
        elif self.rule_kind == CLASSIC:
            budget = bucket.level
            classic(budget, demands, bucket.count)
        else:
            try:
                self._apply_custom_rule(number, budget)
            except Exception as error:
                self.rule_error = error
                fair(budget, demands, bucket.count)
        whole = WHOLE_REQUESTS * request
        for i in range(bucket.count):
            if demands[i].per_slot >= 0.0:
                total += demands[i].share
                if self.rule_kind != CLASSIC and demands[i].share >= whole:
                    in_parts += demands[i].share
        requests_left = floor((budget - in_parts) / request + SLACK)
        per_request = 1.0 / request
        safe_part = bucket.rate / total if total > 0.0 else 0.0
        for i in range(bucket.count):
            if demands[i].per_slot < 0.0:
                continue
            cell = &bucket.cells[i]
            amount = demands[i].share
            if (safe_part > 0.0 or bucket.rate == 0.0) and not (is_awaiting and cell.safe > 0.0):
                cell.safe = <float> (amount * safe_part)
            if amount < whole and self.rule_kind != CLASSIC:
                # Whole requests go to the cell at which the parts so far make up one.
                wanted = amount * per_request + cell.carry
                gathered += wanted
                rounded = 0.0
                if gathered >= 1.0 - SLACK and requests_left >= 1.0:
                    rounded = min(floor(gathered + SLACK), requests_left)
                    gathered -= rounded
                    requests_left -= rounded
                cell.carry = <float> max(-4.0, min(4.0, wanted - rounded))
                amount = rounded * request
            target = slot + lead_slots[cell.node]
            promise(cell, first, target, <float> amount)
            buffer = &buffers[2 * cell.node + (target & (lead_slots[cell.node] - 1))]
            if buffer.count == buffer.room:
                _grow_buffer(buffer)
            buffer.data[buffer.count] = pack_share(number, <float> amount, cell.safe)
            prefetch(&buffer.data[buffer.count + 12])
            buffer.count += 1
        return 0

    cdef double _growth_cap(self, Bucket *bucket, double request, long long slot) noexcept:
        """A bit more than what the cells live on. Of one that is new that is not known: it has an even part.

        A user who has lived nowhere yet may have everything.
        """
        cdef double grown = 0.0, lived_on = 0.0
        cdef int i
        for i in range(bucket.count):
            lived_on += bucket.cells[i].safe
            grown += MAX_GROWTH * bucket.cells[i].safe + request
            if bucket.cells[i].safe == 0.0:
                grown += bucket.rate / self.nodes.estimated_count(slot)
        return grown if lived_on > 0.0 else INFINITY

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
            if (
                self.nodes.reported[cell.node] - self.first - max(cell.last_report, cell.last_ask) >= FORGET_SLOTS
                and cell.held == 0.0
            ):
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
            if bucket.level < ceiling_of(bucket):
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

    def grant(self, long long slot, str node_id not None, str user not None, resources):
        """Give a node that asks, within slot `slot`, a part of what is free of a user's buckets.

        Returns a list of (slot, resource, amount, safe), for this slot, and for the next one if
        it has been assigned already. To ask again in the same slot gives the same once more.
        In the middle of an assignment some of the buckets have their next share and others not:
        then the next slot is left out, as a user would have only some of its limits in it. The whole
        quota has all of them.
        """
        cdef int node = self._node_number(node_id), number, slot_offset = self._slot_offset(slot)
        cdef Bucket *bucket
        cdef NodeCell *cell
        cdef ShareBuffer *buffer
        cdef long long last, target, complete_until = slot + 1
        cdef double available, amount, most
        cdef bint again, is_scarce
        cdef int node_count = self.nodes.estimated_count(slot)
        result = []
        if self.assigned > slot or (self.phase == ASSIGNING and self.assigning_slot > slot):
            return result  # the clock has gone back a little: it will catch up
        for resource in resources:
            number = self._bucket_number(user, resource, slot)
            bucket = &self.buckets[number]
            if bucket.rate < 0.0:
                continue
            last = max(self.assigned, slot - 1)
            if self.phase == ASSIGNING and number < self.next_bucket:
                last = self.assigning_slot
            complete_until = min(complete_until, last + 1)
            cell = self._cell_of(bucket, node)
            again = cell.last_ask == slot_offset
            cell.last_ask = slot_offset
            cell.demand = INFINITY
            refill(bucket, slot)
            # A new user whose bucket can save little.
            is_scarce = bucket.capacity <= SCARCE_SLOTS * bucket.rate and not is_reported(bucket)
            most = INFINITY
            if slot < self.nodes.warmup_until and self._growth_cap(bucket, 0.0, slot) < INFINITY:
                most = bucket.rate / node_count  # the rest may belong to nodes that have not connected yet
            if cell.safe == 0.0:
                cell.safe = <float> (bucket.rate / node_count)
            for target in range(slot, last + 2):
                if self.first + cell.promised_until - 1 < target:
                    promise(cell, self.first, target, 0.0)
                if not again:
                    available = (
                        bucket.level
                        + bucket.rate * max(0, last + 1 - bucket.slot)
                        - self._outstanding(bucket, last + 1)
                    )
                    amount = part_for_asker(
                        min(available, most), bucket.rate, cost_of_request(bucket), node_count, is_scarce
                    )
                    cell.promised[target & 3] += <float> amount
                result.append((target, resource, cell.promised[target & 3], cell.safe))
                if 2 * node + 1 < self.share_buffers_room and self._buffer_of(node, target).slot == target:
                    buffer = self._buffer_of(node, target)
                    if buffer.count == buffer.room:
                        _grow_buffer(buffer)
                    buffer.data[buffer.count] = pack_share(number, cell.promised[target & 3], cell.safe)
                    buffer.count += 1
        return [share for share in result if share[0] <= complete_until]

    cdef double _outstanding(self, Bucket *bucket, long long slot):
        """What may be taken up to the end of `slot` and is not reported, and what running requests hold."""
        cdef int i
        cdef double outstanding = 0.0
        cdef bint is_silent
        cdef NodeCell *cell
        for i in range(bucket.count):
            cell = &bucket.cells[i]
            is_silent = self.assigned - self.nodes.reported[cell.node] >= NODE_TIMEOUT
            if is_silent or self.nodes.autonomous_until[cell.node] >= slot:
                outstanding += self._silent_usage(cell, slot)
            else:
                outstanding += cell.held + promised_after(cell, self.first, self.nodes.reported[cell.node])
                outstanding += self._safe_usage(cell, slot)
        return outstanding

    # Limits

    def limits_changed(self, long long slot, Py_ssize_t begin=0, Py_ssize_t most=PY_SSIZE_T_MAX):
        """Ask `limit_of` again for `most` buckets, from number `begin` on; where to go on, or None.

        What is saved keeps its proportion; debt stays. To do it twice does no harm.
        """
        cdef Py_ssize_t number, end
        cdef Bucket *bucket
        cdef double before, level, rate
        cdef int i
        end = self.count if self.count - begin < most else begin + most
        for number in range(begin, end):
            if self.names[number] is None:
                continue
            bucket = &self.buckets[number]
            if bucket.rate < 0.0:
                self._set_limit(number, slot)
                continue
            refill(bucket, slot)
            before = ceiling_of(bucket)
            level = bucket.level
            rate = bucket.rate
            self._set_limit(number, slot)
            for i in range(bucket.count):
                bucket.cells[i].safe = <float> (
                    bucket.cells[i].safe * bucket.rate / rate if rate > 0.0 and bucket.rate > 0.0 else 0.0
                )
            if bucket.rate < 0.0:
                for i in range(bucket.count):
                    memset(bucket.cells[i].promised, 0, 4 * sizeof(float))
            elif level <= 0.0 or before == 0.0:
                bucket.level = level
            else:
                bucket.level = level / before * ceiling_of(bucket)
        return end if end < self.count else None

    # Snapshots

    def dump(self):
        """Everything that must outlive us: names, levels, and the cells as they lie in memory.

        Returns (names, numbers, cells): for each bucket its (user, resource); 6 doubles (level,
        recorded, cost, slot, number of cells, overflowed); and its cells.
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
            row[3] = <double> bucket.slot
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
        cdef bint is_silent
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
            bucket.overflowed_slot = bucket.slot
            bucket.created_slot = 0
            for _ in range(<int> row[4]):
                memcpy(&old, packed_cells + at, sizeof(NodeCell))
                at += sizeof(NodeCell)
                node = nodes[old.node]
                old.node = node
                cell = self._cell_of(bucket, node)
                cell[0] = old
                is_silent = assigned - self.nodes.reported[node] >= NODE_TIMEOUT
                bucket.held += self._silent_usage(cell, assigned) if is_silent else old.held
            if bucket.rate >= 0.0:
                bucket.level = min(row[0], ceiling_of(bucket) + bucket.held)
        self._rebuild_buffers()

    def _rebuild_buffers(self):
        """Make the quotas of the last assignment once more, out of what is promised."""
        cdef Py_ssize_t number
        cdef int i
        cdef long long target
        cdef NodeCell *cell
        cdef ShareBuffer *buffer
        self._prepare_buffers(self.assigned, reset=True)
        for number in range(self.count):
            for i in range(self.buckets[number].count):
                cell = &self.buckets[number].cells[i]
                target = self.assigned + self.nodes.lead_slots[cell.node]
                if self.first + cell.promised_until - 1 == target and self.buckets[number].rate >= 0.0:
                    buffer = self._buffer_of(cell.node, target)
                    if buffer.count == buffer.room:
                        _grow_buffer(buffer)
                    buffer.data[buffer.count] = pack_share(<int> number, cell.promised[target & 3], cell.safe)
                    buffer.count += 1

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

    def level(self, str user not None, str resource not None, long long slot):
        """What a bucket holds in a slot, or None when it has no limit or is full and forgotten."""
        cdef Bucket bucket
        number = self.users.get(user, {}).get(resource)
        if number is None or self.buckets[<int> number].rate < 0.0:
            return None
        bucket = self.buckets[<int> number]
        refill(&bucket, slot)
        return bucket.level

    def recorded(self, str user not None, str resource not None):
        """All that was booked of a bucket since it is here."""
        number = self.users.get(user, {}).get(resource)
        return 0.0 if number is None else self.buckets[<int> number].recorded

    def outstanding(self, str user not None, str resource not None):
        """What is promised for slots that are not reported, and held by running requests."""
        number = self.users.get(user, {}).get(resource)
        return 0.0 if number is None else self._outstanding(&self.buckets[<int> number], self.assigned + 1)

    def cancel_promises(self, str node_id not None):
        """A node hands back what it was promised: it has stopped."""
        cdef int node = self.nodes.number_of(node_id), i
        cdef Py_ssize_t number
        cdef Bucket *bucket
        for number in range(self.count):
            bucket = &self.buckets[number]
            i = position_of(bucket, node)
            if i < bucket.count and bucket.cells[i].node == node:
                memset(bucket.cells[i].promised, 0, 4 * sizeof(float))
                bucket.cells[i].lapsed = bucket.cells[i].held = 0.0

    def drop_node(self, str node_id not None):
        """Forget all cells of a node that is gone for good, and what it was given."""
        cdef int node = self.nodes.number_of(node_id), i
        cdef Py_ssize_t number
        cdef Bucket *bucket
        if 2 * node + 1 < self.share_buffers_room:
            self.share_buffers[2 * node].count = self.share_buffers[2 * node + 1].count = 0
        for number in range(self.count):
            bucket = &self.buckets[number]
            i = position_of(bucket, node)
            if i < bucket.count and bucket.cells[i].node == node:
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

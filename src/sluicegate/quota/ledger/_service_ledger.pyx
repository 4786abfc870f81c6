# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The book of one service: what was consumed, on which node, and what is promised to it.

A *bucket* belongs to one user and resource; it is refilled by its rate in each slot and holds
at most its capacity. A *cell* is one bucket on one node (`_bucket.pxd`). Reports come as cumulative totals and
are turned into what is new (`record`); the service deducts that from the level (`deduct`),
and once a slot everything is assigned anew (`assign`).

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
it reports, or is forgotten. If it was we who were away, nodes that we do not hear are taken to live on
their safe shares until they had the time to come back; and as long as a book that began with nothing
may not have heard of all nodes, nobody gets much more than he lived on. When a late report comes, its
consumption is set against the refill of its own time, also where that has spilled over a bucket that
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
    MOST_GROWTH,
    ROUND_TRIP_SLOTS,
    SLACK,
    WHOLE_REQUESTS,
    Booking,
    Bucket,
    Cell,
    News,
    book_line,
    ceiling_of,
    cost_of_request,
    enter,
    is_reported,
    part_for_asker,
    position_of,
    promise,
    promised_after,
    refill,
)
from sluicegate.quota.packed._shares cimport PackedShare, copy_shares, pack_share
from sluicegate.quota.packed._report_lines cimport BucketRef, PackedLine, PackedLines, StringTable
from sluicegate.quota.ledger._node_table cimport Nodes
from sluicegate.quota.packed._bucket_ids cimport BucketIds
from sluicegate.quota.ledger._fair_share cimport Wish, classic, fair
from sluicegate.quota.ledger._usage cimport Sums, Usage

__all__ = ["CELL_SIZE", "MISSED_SLOTS", "Book"]

cdef extern from *:
    """
    /* A node that is so many slots behind has missed two reports: it is taken as gone. */
    #define GONE_SLOTS 3
    /* Sums of past slots: at most so many numbers of each kind are kept. */
    #define HISTORY_NUMBERS 4000000
    /* Quotas of past slots: likewise. */
    #define GIVEN_NUMBERS 900000
    /* Forgetting goes round the buckets once in so many slots, with at most so many at once. */
    #define TIDY_SLOTS 16
    #define FORGET_AT_ONCE 10000
    /* Lines whose cells are fetched before they are booked. */
    #define LINES_AHEAD 12
    /* A bucket that holds no more than so many slots' refill has little for who asks next. */
    #define SCARCE_SLOTS 2
    """
    const int SCARCE_SLOTS
    const int GONE_SLOTS, TIDY_SLOTS, FORGET_AT_ONCE, LINES_AHEAD
    const Py_ssize_t HISTORY_NUMBERS, GIVEN_NUMBERS

cdef extern from *:
    """
    #define ahead(address) __builtin_prefetch((address), 1)
    """
    void ahead(void *address) noexcept nogil

cdef enum:  # what an assignment is at
    AT_REST = 0
    ASSIGNING = 1
    TIDYING = 2

cdef enum:
    FAIR = 0
    CLASSIC = 1
    GIVEN = 2

CELL_SIZE = sizeof(Cell)
MISSED_SLOTS = GONE_SLOTS
cdef double MOST = 1e18  # no total is larger


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


cdef class Book:
    def __cinit__(self):
        self.buckets = NULL
        self.wishes = NULL
        self.outs = NULL
        self.count = self.room = self.cells = self.wishes_room = self.outs_room = 0

    def __init__(self, Nodes nodes not None, rule, terms, *, long long first, int nr_slot=60):
        """`terms(user, resource)` tells a bucket's (rate per slot, capacity, slot since when), or None."""
        self.nodes = nodes
        self.rule = rule
        if rule == "fair":
            self.kind = FAIR
        elif rule == "classic":
            self.kind = CLASSIC
        else:
            self.kind = GIVEN
        self.terms = terms
        self.first = first
        self.assigned = first - 1
        self.nr_slot = nr_slot
        self.users = {}
        self.bucket_ids = BucketIds()
        self.names = self.bucket_ids.names
        self.free = deque()
        self.sums = {}
        self.past = {}
        self.is_assigning = False
        self.phase = AT_REST

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.count):
            free(self.buckets[i].cells)
        free(self.buckets)
        free(self.wishes)
        for i in range(self.outs_room):
            free(self.outs[i].given)
        free(self.outs)

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
                    and 0.0 <= settled <= consumed <= MOST
                    and 0.0 <= held <= MOST
                    and rejected >= 0
                    and requests >= 0
                ):
                    raise ProtocolError(
                        f"node {node_id!r} reports {line!r} for {user!r} and {resource!r}: expected names, and "
                        f"amounts from 0 to {MOST:g} with settled not above consumed"
                    )

    @staticmethod
    def check_slot(str node_id not None, dict consumption not None, dict rejection not None):
        """Likewise for what a classic node counted in one slot."""
        cdef double most = MOST
        for counts in (consumption, rejection):
            for user, resources in (<dict> counts).items():
                for resource, amount in (<dict?> resources).items():
                    if type(user) is not str or type(resource) is not str or not _is_amount(amount, most):
                        raise ProtocolError(
                            f"node {node_id!r} reports {amount!r} for {user!r} and {resource!r}: expected names, "
                            f"and numbers from 0 to {MOST:g}"
                        )
            most = 2147483648.0  # of requests

    cdef int _node(self, str node_id) except -1:
        """The number of a node, for those who want to change something."""
        cdef int node = self.nodes.number_of(node_id)
        if node < 0:
            raise ValueError(f"node must be one that has reported, got {node_id!r}")
        if self.is_assigning:
            raise RuntimeError("nothing can be booked or asked for in the middle of an assignment")
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
        bint is_reborn=False,
        bint is_from_before=False,
    ):
        """Bring the totals of a node up to a report that was checked, and tell what is new in it.

        `slots` is how many slots it covers, `sequence` and `since` are the report's. Of a cell that
        has no total, what no leader has acknowledged is new; and all of it, if the node is reborn
        (we knew its last life, so that this one began in our time). A cell that the node may have
        forgotten has none: silent for long, and the node knows that we know. `is_known`: the
        report before it is in the book. `is_from_before`: it is the first of a node that has lived
        under another leader.
        """
        cdef int node = self._node(node_id), number
        cdef Booking booking = Booking(
            slot, self._day(slot), slots, sequence, since, is_known, is_reborn, is_from_before
        )
        cdef PackedLine packed
        cdef News news
        cdef Cell *cell
        cdef Usage usage = Usage(node_id, slots, self.names)
        cdef Sums sums = None
        for user, resources in lines.items():
            for resource, line in (<dict?> resources).items():
                packed.consumed, rejected, requests, packed.settled, packed.held = line
                packed.rejected = <unsigned int> (<unsigned long long> rejected)
                packed.requests = <unsigned int> (<unsigned long long> requests)
                number = self._number_of(user, resource, slot)
                if sums is None:
                    sums = self._sums(slot)
                cell = self._cell(&self.buckets[number], node)
                news = book_line(&booking, &self.buckets[number], cell, &packed)
                self._tell(number, &news, sums, usage)
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
        bint is_reborn=False,
        bint is_from_before=False,
        bint deducts=False,
    ):
        """As `record`, of the lines `begin` to `end`, which are of our service.

        With `deducts` it takes what was consumed out of the buckets, too, and returns None. What
        the next lines need is fetched while a line is booked: to wait for memory is what costs.
        """
        cdef int node = self._node(node_id)
        cdef Booking booking = Booking(
            slot, self._day(slot), slots, sequence, since, is_known, is_reborn, is_from_before
        )
        cdef Usage usage = None if deducts else Usage(node_id, slots, self.names)
        cdef Sums sums
        cdef BucketRef *ref
        cdef BucketRef *refs
        cdef const PackedLine *packed = lines.lines
        cdef Bucket *bucket
        cdef Cell *cell
        cdef News news
        cdef Py_ssize_t i, coming
        if not 0 <= begin <= end <= lines.count:
            raise ValueError(f"expected lines from 0 to {lines.count}, got {begin} to {end}")
        if begin == end:
            return usage
        refs = lines.string_table.refs
        self._know(lines.string_table, refs[packed[begin].entry].service)
        sums = self._sums(slot)
        if self.room > sums.room:  # of a slot that has sums from before the names were looked up
            sums.grow(self.room)
        for i in range(begin - 2 * LINES_AHEAD, end):
            coming = i + 2 * LINES_AHEAD
            if begin <= coming < end:
                ref = &refs[packed[coming].entry]
                if ref.generation == 0 or self.bucket_ids.generations[ref.number] != ref.generation:
                    self._find(lines.string_table, packed[coming].entry, slot)
                    if self.room > sums.room:
                        sums.grow(self.room)
                ahead(&self.buckets[ref.number])
                ahead(<char *> &self.buckets[ref.number] + 64)
            coming = i + LINES_AHEAD
            if begin <= coming < end:
                ref = &refs[packed[coming].entry]
                cell = &self.buckets[ref.number].cells[ref.position]
                ahead(cell)
                ahead(<char *> cell + 64)
            if i < begin:
                continue
            ref = &refs[packed[i].entry]
            bucket = &self.buckets[ref.number]
            if ref.position >= bucket.count or bucket.cells[ref.position].node != node:
                cell = self._cell(bucket, node)
                ref.position = <int> (cell - bucket.cells)
            news = book_line(&booking, bucket, &bucket.cells[ref.position], &packed[i])
            if news.consumed > 0.0 or news.rejected:
                sums.consumed[ref.number] += news.consumed
                sums.rejected[ref.number] += news.rejected
                if deducts:
                    bucket.level -= news.consumed
                else:
                    usage.push(ref.number, news.consumed, news.rejected, news.requests)
        return usage

    def find(self, PackedLines lines not None, Py_ssize_t begin, Py_ssize_t end, long long slot, int most):
        """Look up the buckets of the lines from `begin` to `end`, until `most` had to be made; where it stopped.

        Nothing is booked: a bucket that is made and not used is full, and is forgotten. To look up
        names is what takes long in a report of users who are new; so it can be done a few at a time.
        """
        cdef BucketRef *ref
        cdef const PackedLine *packed = lines.lines
        if not 0 <= begin <= end <= lines.count:
            raise ValueError(f"expected lines from 0 to {lines.count}, got {begin} to {end}")
        if begin < end:
            self._know(lines.string_table, lines.string_table.refs[packed[begin].entry].service)
        while begin < end and most > 0:
            ref = &lines.string_table.refs[packed[begin].entry]
            if ref.generation == 0 or self.bucket_ids.generations[ref.number] != ref.generation:
                self._find(lines.string_table, packed[begin].entry, slot)
                most -= 1
            begin += 1
        return begin

    def find_users(self, users, long long slot):
        """As `find`, of [(user, resources), ...] of a classic report."""
        for user, resources in users:
            for resource in resources:
                self._number_of(user, resource, slot)

    cdef int _know(self, StringTable string_table, int service) except -1:
        """What was found of a service in another book is of no use here."""
        cdef Py_ssize_t i
        if string_table.bucket_ids_by_service[service] is not self.bucket_ids:
            for i in range(string_table.count):
                if string_table.refs[i].service == service:
                    string_table.refs[i].generation = 0
            string_table.bucket_ids_by_service[service] = self.bucket_ids
        return 0

    cdef int _find(self, StringTable string_table, int entry, long long slot) except -1:
        cdef BucketRef *ref = &string_table.refs[entry]
        user, resource = string_table.names[entry]
        ref.number = <int> self._number_of(user, resource, slot)
        ref.generation = self.bucket_ids.generations[ref.number]
        ref.position = 0
        string_table.names[entry] = self.names[ref.number]  # one tuple for all who know it
        return 0

    def record_slot(
        self, str node_id not None, long long slot, dict consumption not None, dict rejection not None
    ):
        """Book what a classic node counted in one slot, and tell it as usage.

        Such a node sends no totals and does not say how many requests it served.
        """
        cdef int node = self._node(node_id), number
        cdef News news
        cdef Cell *cell
        cdef Booking booking = Booking(slot, self._day(slot), 1, 0, 0, True, False, False)
        cdef Usage usage = Usage(node_id, 1, self.names)
        cdef Sums sums = None
        for user in {**consumption, **rejection} if rejection else consumption:
            amounts = consumption.get(user)
            refusals = rejection.get(user) if rejection else None
            if amounts and refusals:
                resources = {**amounts, **refusals}
            else:
                resources = amounts or refusals or ()
            for resource in resources:
                news.consumed = (<dict> amounts).get(resource, 0.0) if amounts else 0.0
                news.rejected = <unsigned int> (<double> (<dict> refusals).get(resource, 0)) if refusals else 0
                news.requests = 0
                number = <int> self._number_of(user, resource, slot)
                cell = self._cell(&self.buckets[number], node)
                cell.consumed += news.consumed
                if sums is None:
                    sums = self._sums(slot)
                enter(&booking, &self.buckets[number], cell, &news, 0.0)
                self._tell(number, &news, sums, usage)
        return usage

    cdef int _tell(self, int number, const News *news, Sums sums, Usage usage) except -1:
        """Put what is new of a bucket into the sums of the slot, and into `usage`."""
        if news.consumed > 0.0 or news.rejected:
            if number >= sums.room:
                sums.grow(self.room)
            sums.consumed[number] += news.consumed
            sums.rejected[number] += news.rejected
            usage.push(number, news.consumed, news.rejected, news.requests)
        return 0

    def deduct(self, Usage usage not None):
        """Take what was consumed out of the buckets."""
        cdef Py_ssize_t i
        if usage.names is not self.names:
            raise ValueError("usage must come from this book")
        for i in range(usage.count):
            self.buckets[usage.used[i].bucket].level -= usage.used[i].consumed

    cdef Py_ssize_t _number_of(self, str user, str resource, long long slot) except -1:
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
        self._set_terms(number, slot)
        bucket.born = bucket.slot  # the first of which it has the refill
        return number

    def _set_terms(self, Py_ssize_t number, long long slot):
        """The bucket's limit as it is now. One that is new holds what it would hold by now."""
        cdef Bucket *bucket = &self.buckets[number]
        user, resource = self.names[number]
        terms = self.terms(user, resource)
        if terms is None:
            bucket.rate = -1.0
            bucket.capacity = 0.0
            bucket.level = 0.0
            return
        bucket.rate, bucket.capacity, begun = terms
        bucket.slot = max(slot, begun)
        bucket.level = min(ceiling_of(bucket), bucket.rate * (bucket.slot - begun + 1))

    cdef Cell *_cell(self, Bucket *bucket, int node) except NULL:
        """The node's cell of a bucket, made when there is none."""
        cdef int position = position_of(bucket, node), room
        cdef Cell *grown
        if position < bucket.count and bucket.cells[position].node == node:
            return &bucket.cells[position]
        if bucket.count == bucket.room:
            room = bucket.room + max(1, bucket.room // 4)
            grown = <Cell *> realloc(bucket.cells, room * sizeof(Cell))
            if grown == NULL:
                raise MemoryError
            bucket.cells = grown
            bucket.room = room
        memmove(
            &bucket.cells[position + 1], &bucket.cells[position], (bucket.count - position) * sizeof(Cell)
        )
        memset(&bucket.cells[position], 0, sizeof(Cell))
        bucket.cells[position].node = node
        bucket.count += 1
        self.cells += 1
        return &bucket.cells[position]

    cdef Sums _sums(self, long long slot):
        """Of a slot; what is told of one that is not kept any more is put to the oldest that is."""
        cdef long long kept = max(4, min(self.nr_slot, HISTORY_NUMBERS // max(1, self.room)))
        cdef Sums sums
        slot = max(slot, self.assigned - kept + 1)
        sums = self.sums.get(slot)
        if sums is None:
            sums = self.sums[slot] = Sums(max(16, self.room))
            for old in [old for old in self.sums if old <= slot - kept]:
                del self.sums[old]
        return sums

    cdef int _day(self, long long slot) noexcept:
        """A slot as it stands in a cell."""
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
            raise RuntimeError("an assignment is going on already")
        if self.phase == AT_REST:
            if slot <= self.assigned:
                return True
            self.phase = ASSIGNING
            self.begun = slot
            self.done = 0
            self.rule_error = None
            self._begin_outs(slot, anew=True)
        elif slot != self.begun:
            raise RuntimeError(f"the assignment of slot {self.begun} is going on, got {slot}")
        try:
            if self.phase == ASSIGNING and not self._assign_buckets(cells):
                return False
            if not self._tidy_buckets(cells):
                return False
        except BaseException:
            self.phase = AT_REST  # want of memory, say: this slot is lost, the next one is not
            raise
        self.phase = AT_REST
        if self.rule_error is not None:
            raise self.rule_error
        return True

    cdef bint _assign_buckets(self, Py_ssize_t cells) except -1:
        cdef Py_ssize_t number = self.done
        cdef long long slot = self.begun
        cdef int line
        self._begin_outs(slot, anew=False)  # of nodes that came between two parts
        self.is_assigning = True
        try:
            while number < self.count and cells > 0:
                if number + 1 < self.count:
                    for line in range(8):
                        ahead(<char *> self.buckets[number + 1].cells + 64 * line)
                cells -= 1
                if self.buckets[number].count and self.buckets[number].rate >= 0.0:
                    cells -= self.buckets[number].count
                    self._assign(<int> number, slot)
                number += 1
        finally:
            self.is_assigning = False
            self.done = number
        if number < self.count:
            return False
        self.phase = TIDYING
        self.assigned = slot
        self.tidied = slot & (TIDY_SLOTS - 1)
        self.forgotten = 0
        self._archive()
        return True

    cdef bint _tidy_buckets(self, Py_ssize_t cells) except -1:
        """A part of the buckets in each slot: all of them are looked at well within a minute."""
        cdef Py_ssize_t number = self.tidied
        while number < self.count and self.forgotten < FORGET_AT_ONCE:
            if cells <= 0:
                self.tidied = number
                return False
            if self.names[number] is not None:
                cells -= 1 + self.buckets[number].count
                self.forgotten += self._tidy(<int> number, self.assigned)
            number += TIDY_SLOTS
        return True

    def rebase(self, long long slot):
        """The clock has gone back, to `slot`: go on from there.

        What was promised for slots that will come again stays promised until the nodes report.
        Nothing is refilled until the clock has caught up; but nobody waits for longer than a
        minute for that.
        """
        cdef Py_ssize_t number
        cdef int i, day = self._day(slot)
        cdef Bucket *bucket
        cdef Cell *cell
        for number in range(self.count):
            bucket = &self.buckets[number]
            if bucket.slot > slot + FORGET_SLOTS:
                bucket.slot = slot
            for i in range(bucket.count):
                cell = &bucket.cells[i]
                cell.lapsed += <float> promised_after(cell, self.first, self.nodes.reported[cell.node])
                memset(cell.promised, 0, 4 * sizeof(float))
                cell.until = min(cell.until, day)
                cell.listed = min(cell.listed, day)
                cell.asked = min(cell.asked, day - 1)
        self.assigned = slot - 1
        self.phase = AT_REST

    def _archive(self):
        """Keep what was given, for those who ask later: few slots of many cells, or many of few."""
        cdef Py_ssize_t i, kept = min(self.nr_slot, GIVEN_NUMBERS // max(1, self.cells))
        cdef Out *out
        for i in range(len(self.nodes.names) if kept else 0):
            out = self._out(<int> i, self.assigned + self.nodes.lead[i])
            if self.nodes.names[i] is not None and out.count:
                past = self.past.setdefault(out.slot, {})
                past[self.nodes.names[i]] = (<char *> out.given)[: out.count * sizeof(PackedShare)]
        for old in [old for old in self.past if old <= self.assigned + 1 - kept]:
            del self.past[old]

    def quotas_of(self, long long slot):
        """node -> user -> resource -> amount: what was given for a slot, by its assignment."""
        cdef Py_ssize_t i
        cdef const unsigned char[:] packed
        cdef PackedShare given
        result = {}
        for node_id, past in self.past.get(slot, {}).items():
            packed = past
            users = result[node_id] = {}
            for i in range(len(packed) // <Py_ssize_t> sizeof(PackedShare)):
                memcpy(&given, &packed[i * sizeof(PackedShare)], sizeof(PackedShare))
                name = self.names[given.bucket]
                if name is not None:
                    users.setdefault(name[0], {})[name[1]] = given.amount
        return result

    def come_back(self, long long slot):
        """We were away, and it is `slot` now; `nodes` knows who is on his own since.

        What they have spent meanwhile was covered by the refill of that time: it must find room.
        """
        cdef Py_ssize_t number
        cdef int i
        cdef Bucket *bucket
        for number in range(self.count):
            bucket = &self.buckets[number]
            bucket.held = 0.0
            for i in range(bucket.count):
                bucket.held += self._of_silent(&bucket.cells[i], slot)
        self.assigned = slot - 1

    cdef double _on_its_own(self, Cell *cell, long long slot) noexcept:
        """What a node takes up to the end of `slot` beside its promises: where it has none, its safe share."""
        cdef long long since = max(self.nodes.reported[cell.node], self.first + cell.until - 1)
        return cell.safe * (slot - since) if slot > since else 0.0

    cdef double _of_silent(self, Cell *cell, long long slot) noexcept:
        """What a node that we do not hear may have taken by the end of `slot`, and what its requests hold."""
        return (
            cell.held
            + cell.lapsed
            + promised_after(cell, self.first, self.nodes.reported[cell.node])
            + self._on_its_own(cell, min(slot, self.nodes.alone[cell.node]))
        )

    cdef int _assign(self, int number, long long slot) except -1:
        cdef Bucket *bucket = &self.buckets[number]
        cdef Cell *cell
        cdef Wish *wishes
        cdef Out *out
        cdef Out *outs = self.outs
        cdef const long long *reported_by = self.nodes.reported
        cdef const int *lead = self.nodes.lead
        cdef int i
        cdef bint late = False, is_awaiting = slot < self.nodes.awaited_until
        cdef long long first = self.first, reported, target
        cdef double held = 0.0, outstanding = 0.0, available, budget, amount, total = 0.0, in_parts = 0.0
        cdef double request, per_request, whole, requests_left, wanted, given, gathered = 0.0, safe_part
        if bucket.count > self.wishes_room:
            wishes = <Wish *> realloc(self.wishes, 2 * bucket.count * sizeof(Wish))
            if wishes == NULL:
                raise MemoryError
            self.wishes = wishes
            self.wishes_room = 2 * bucket.count
        wishes = self.wishes
        for i in range(bucket.count):
            cell = &bucket.cells[i]
            reported = reported_by[cell.node]
            if self.kind != FAIR:
                wishes[i].consumed = cell.last_consumed
                wishes[i].rejected = cell.last_rejected
                wishes[i].age = slot - first - cell.listed
            if slot - reported >= GONE_SLOTS or self.nodes.alone[cell.node] >= slot:
                # Nothing more for it; but what it has may be spent as long as we do not hear.
                # It is as good as spent, and takes no room in the bucket: one that holds little
                # could else not give out all of its refill until the node is forgotten.
                wishes[i].demand = -1.0
                held += self._of_silent(cell, slot + 1)
                if self.nodes.alone[cell.node] > slot:
                    total += cell.safe  # the safe shares of all are one slot's refill
                late = True
                continue
            cell.lapsed = 0.0
            late = late or reported < slot - 1
            held += cell.held
            outstanding += promised_after(cell, first, reported)
            if first + cell.until - 1 < slot:
                outstanding += self._on_its_own(cell, slot)
            # Not a word of it in the last report, or in that of the slot in which it was asked for.
            if first + cell.listed <= reported and (
                cell.demand != <float> INFINITY or first + cell.asked <= reported + 1
            ):
                cell.demand = 0.0
            wishes[i].demand = cell.demand
            if reported - first - max(cell.listed, cell.asked) >= FORGET_SLOTS - ROUND_TRIP_SLOTS - 1:
                # It is about to be forgotten, and a promise must not be forgotten with it.
                wishes[i].demand = -1.0
                promise(cell, first, slot + lead[cell.node], 0.0)
        bucket.held = held
        refill(bucket, slot)
        if not late and bucket.spilled_at <= slot:
            bucket.spilled = 0.0
        available = bucket.level + bucket.rate - held - outstanding
        request = cost_of_request(bucket)
        budget = available
        if is_awaiting:
            budget = min(budget, self._grown(bucket, request, slot))
            total = max(total, bucket.rate)
        if budget > bucket.rate:
            budget = bucket.rate + 0.5 * (available - bucket.rate)
            if budget < request <= available:
                budget = request
        if self.kind == FAIR:
            fair(budget, wishes, bucket.count)
        elif self.kind == CLASSIC:
            budget = bucket.level
            classic(budget, wishes, bucket.count)
        else:
            try:
                self._ask_rule(number, budget)
            except Exception as error:
                self.rule_error = error
                fair(budget, wishes, bucket.count)
        whole = WHOLE_REQUESTS * request
        for i in range(bucket.count):
            if wishes[i].demand >= 0.0:
                total += wishes[i].share
                if self.kind != CLASSIC and wishes[i].share >= whole:
                    in_parts += wishes[i].share
        requests_left = floor((budget - in_parts) / request + SLACK)
        per_request = 1.0 / request
        safe_part = bucket.rate / total if total > 0.0 else 0.0
        for i in range(bucket.count):
            if wishes[i].demand < 0.0:
                continue
            cell = &bucket.cells[i]
            amount = wishes[i].share
            if (safe_part > 0.0 or bucket.rate == 0.0) and not (is_awaiting and cell.safe > 0.0):
                cell.safe = <float> (amount * safe_part)
            if amount < whole and self.kind != CLASSIC:
                # Whole requests go to the cell at which the parts so far make up one.
                wanted = amount * per_request + cell.carry
                gathered += wanted
                given = 0.0
                if gathered >= 1.0 - SLACK and requests_left >= 1.0:
                    given = min(floor(gathered + SLACK), requests_left)
                    gathered -= given
                    requests_left -= given
                cell.carry = <float> max(-4.0, min(4.0, wanted - given))
                amount = given * request
            target = slot + lead[cell.node]
            promise(cell, first, target, <float> amount)
            out = &outs[2 * cell.node + (target & (lead[cell.node] - 1))]
            if out.count == out.room:
                _grow(out)
            out.given[out.count] = pack_share(number, <float> amount, cell.safe)
            ahead(&out.given[out.count + 12])
            out.count += 1
        return 0

    cdef double _grown(self, Bucket *bucket, double request, long long slot) noexcept:
        """A bit more than what the cells live on. Of one that is new that is not known: it has an even part.

        A user who has lived nowhere yet may have everything.
        """
        cdef double grown = 0.0, lived_on = 0.0
        cdef int i
        for i in range(bucket.count):
            lived_on += bucket.cells[i].safe
            grown += MOST_GROWTH * bucket.cells[i].safe + request
            if bucket.cells[i].safe == 0.0:
                grown += bucket.rate / self.nodes.guess(slot)
        return grown if lived_on > 0.0 else INFINITY

    def _ask_rule(self, int number, double budget):
        """Let a rule that was handed in split the budget; what makes no sense is its error."""
        cdef Bucket *bucket = &self.buckets[number]
        cdef int i
        user, resource = self.names[number]
        wishes = [
            (
                self.nodes.names[bucket.cells[i].node],
                self.wishes[i].demand,
                self.wishes[i].consumed,
                self.wishes[i].rejected,
            )
            for i in range(bucket.count)
            if self.wishes[i].demand >= 0.0
        ]
        shares = list(self.rule(user, resource, budget, bucket.rate, wishes))
        if len(shares) != len(wishes):
            raise ValueError(f"the assignment rule gave {len(shares)} shares for {len(wishes)} nodes")
        is_sane = all(isfinite(share) and share >= 0.0 for share in shares)
        if not is_sane or sum(shares) > max(budget, 0.0) * (1.0 + SLACK):
            raise ValueError(f"the assignment rule gave {shares!r} out of {budget!r}")
        given = iter(shares)
        for i in range(bucket.count):
            if self.wishes[i].demand >= 0.0:
                self.wishes[i].share = next(given)

    def _begin_outs(self, long long slot, *, bint anew):
        cdef Py_ssize_t i, room = 2 * len(self.nodes.names)
        cdef Out *outs
        cdef Out *out
        cdef long long target
        if room > self.outs_room:
            outs = <Out *> realloc(self.outs, room * sizeof(Out))
            if outs == NULL:
                raise MemoryError
            self.outs = outs
            memset(self.outs + self.outs_room, 0, (room - self.outs_room) * sizeof(Out))
            self.outs_room = room
        for i in range(len(self.nodes.names)):
            target = slot + self.nodes.lead[i]
            out = self._out(<int> i, target)
            if anew or out.slot != target:
                out.slot = target
                out.count = 0

    cdef Out *_out(self, int node, long long slot) noexcept:
        """Where the quota of a node and slot stands. Who is told at once needs only the newest."""
        return &self.outs[2 * node + (slot & (self.nodes.lead[node] - 1))]

    cdef int _tidy(self, int number, long long slot) except -1:
        """Forget cells that were silent for long, and the bucket when it is full and has none."""
        cdef Bucket *bucket = &self.buckets[number]
        cdef Cell *cell
        cdef int i, kept = 0
        for i in range(bucket.count):
            cell = &bucket.cells[i]
            # Only what the node has reported on since without a word: then it knows that we know.
            if (
                self.nodes.reported[cell.node] - self.first - max(cell.listed, cell.asked) >= FORGET_SLOTS
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

    # What was given

    def quota(self, long long slot, str node_id not None):
        """What the node was given for a slot."""
        cdef int node = self.nodes.number_of(node_id)
        cdef Out *out
        if 0 <= node and 2 * node + 1 < self.outs_room:
            out = self._out(node, slot)
            if out.slot == slot:
                return copy_shares(self.bucket_ids, out.given, out.count)
        return copy_shares(self.bucket_ids, NULL, 0)

    def grant(self, long long slot, str node_id not None, str user not None, resources):
        """Give a node that asks, within slot `slot`, a part of what is free of a user's buckets.

        Returns a list of (slot, resource, amount, safe), for this slot, and for the next one if
        it has been assigned already. To ask again in the same slot gives the same once more.
        In the middle of an assignment some of the buckets have their next share and others not:
        then the next slot is not told of, as a user would have only some of his limits in it. The
        whole quota will tell all.
        """
        cdef int node = self._node(node_id), number, day = self._day(slot)
        cdef Bucket *bucket
        cdef Cell *cell
        cdef Out *out
        cdef long long last, target, told = slot + 1
        cdef double available, amount, most
        cdef bint again, is_scarce
        result = []
        if self.assigned > slot or (self.phase == ASSIGNING and self.begun > slot):
            return result  # the clock has gone back a little: it will catch up
        for resource in resources:
            number = self._number_of(user, resource, slot)
            bucket = &self.buckets[number]
            if bucket.rate < 0.0:
                continue
            last = max(self.assigned, slot - 1)
            if self.phase == ASSIGNING and number < self.done:
                last = self.begun
            told = min(told, last + 1)
            cell = self._cell(bucket, node)
            again = cell.asked == day
            cell.asked = day
            cell.demand = INFINITY
            refill(bucket, slot)
            # One who is new, and of whom little can be saved.
            is_scarce = bucket.capacity <= SCARCE_SLOTS * bucket.rate and not is_reported(bucket)
            most = INFINITY
            if slot < self.nodes.awaited_until and self._grown(bucket, 0.0, slot) < INFINITY:
                most = bucket.rate / self.nodes.guess(slot)  # the rest may be somebody's who is to come
            if cell.safe == 0.0:
                cell.safe = <float> (bucket.rate / self.nodes.guess(slot))
            for target in range(slot, last + 2):
                if self.first + cell.until - 1 < target:
                    promise(cell, self.first, target, 0.0)
                if not again:
                    available = (
                        bucket.level
                        + bucket.rate * max(0, last + 1 - bucket.slot)
                        - self._outstanding(bucket, last + 1)
                    )
                    amount = part_for_asker(
                        min(available, most), bucket.rate, cost_of_request(bucket), self.nodes.guess(slot), is_scarce
                    )
                    cell.promised[target & 3] += <float> amount
                result.append((target, resource, cell.promised[target & 3], cell.safe))
                if 2 * node + 1 < self.outs_room and self._out(node, target).slot == target:
                    out = self._out(node, target)
                    if out.count == out.room:
                        _grow(out)
                    out.given[out.count] = pack_share(number, cell.promised[target & 3], cell.safe)
                    out.count += 1
        return [share for share in result if share[0] <= told]

    cdef double _outstanding(self, Bucket *bucket, long long slot):
        """What may be taken up to the end of `slot` and is not reported, and what running requests hold."""
        cdef int i
        cdef double outstanding = 0.0
        cdef Cell *cell
        for i in range(bucket.count):
            cell = &bucket.cells[i]
            if self.assigned - self.nodes.reported[cell.node] >= GONE_SLOTS or self.nodes.alone[cell.node] >= slot:
                outstanding += self._of_silent(cell, slot)
            else:
                outstanding += cell.held + promised_after(cell, self.first, self.nodes.reported[cell.node])
                outstanding += self._on_its_own(cell, slot)
        return outstanding

    # Limits

    def limits_changed(self, long long slot, Py_ssize_t begin=0, Py_ssize_t most=PY_SSIZE_T_MAX):
        """Ask `terms` again for `most` buckets, from number `begin` on; where to go on, or None.

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
                self._set_terms(number, slot)
                continue
            refill(bucket, slot)
            before = ceiling_of(bucket)
            level = bucket.level
            rate = bucket.rate
            self._set_terms(number, slot)
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
        recorded, cost, slot, number of cells, spilled); and its cells.
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
            row[5] = bucket.spilled
            numbers.append((<char *> row)[: sizeof(row)])
            cells.append((<char *> bucket.cells)[: bucket.count * sizeof(Cell)])
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
        """Take over what `dump` of another book told. `nodes` has our number for each of its own.

        The book must be new, and begin in the same slot.
        """
        cdef Py_ssize_t i, number, total = 0, at = 0
        cdef double[6] row
        cdef const char *packed = numbers
        cdef const char *packed_cells = cells
        cdef Bucket *bucket
        cdef Cell *cell
        cdef Cell old
        cdef int j, node
        cdef bint is_silent
        if self.count:
            raise ValueError("only a new book can be loaded")
        if len(numbers) != len(names) * <Py_ssize_t> sizeof(row) or len(cells) % sizeof(Cell):
            raise ValueError("the numbers do not fit the names")
        for i in range(len(names)):
            memcpy(row, packed + i * sizeof(row), sizeof(row))
            for j in range(6):
                if not isfinite(row[j]):
                    raise ValueError(f"bucket {names[i]!r} has a number that is not finite")
            if not 0 <= row[4] <= len(nodes):
                raise ValueError(f"bucket {names[i]!r} has {row[4]!r} cells, of {len(nodes)} nodes")
            total += <Py_ssize_t> row[4]
        if total * <Py_ssize_t> sizeof(Cell) != len(cells):
            raise ValueError("the cells do not fit the buckets")
        self.assigned = assigned
        for i in range(len(names)):
            memcpy(row, packed + i * sizeof(row), sizeof(row))
            user, resource = names[i]
            number = self._number_of(user, resource, <long long> row[3])
            bucket = &self.buckets[number]
            bucket.recorded = row[1]
            bucket.cost = row[2]
            bucket.spilled = row[5]
            bucket.spilled_at = bucket.slot
            bucket.born = 0
            for _ in range(<int> row[4]):
                memcpy(&old, packed_cells + at, sizeof(Cell))
                at += sizeof(Cell)
                node = nodes[old.node]
                old.node = node
                cell = self._cell(bucket, node)
                cell[0] = old
                is_silent = assigned - self.nodes.reported[node] >= GONE_SLOTS
                bucket.held += self._of_silent(cell, assigned) if is_silent else old.held
            if bucket.rate >= 0.0:
                bucket.level = min(row[0], ceiling_of(bucket) + bucket.held)
        self._give_again()

    def _give_again(self):
        """Make the quotas of the last assignment once more, out of what is promised."""
        cdef Py_ssize_t number
        cdef int i
        cdef long long target
        cdef Cell *cell
        cdef Out *out
        self._begin_outs(self.assigned, anew=True)
        for number in range(self.count):
            for i in range(self.buckets[number].count):
                cell = &self.buckets[number].cells[i]
                target = self.assigned + self.nodes.lead[cell.node]
                if self.first + cell.until - 1 == target and self.buckets[number].rate >= 0.0:
                    out = self._out(cell.node, target)
                    if out.count == out.room:
                        _grow(out)
                    out.given[out.count] = pack_share(<int> number, cell.promised[target & 3], cell.safe)
                    out.count += 1

    # Looking

    def sums_of(self, long long slot, bint rejected=False):
        """user -> resource -> what all nodes together consumed (or refused) in a slot."""
        cdef Sums sums = self.sums.get(slot)
        cdef Py_ssize_t number
        cdef double value
        result = {}
        if sums is None:
            return result
        for number in range(min(sums.room, self.count)):
            value = sums.rejected[number] if rejected else sums.consumed[number]
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
                    "slot_number": self.first + bucket.cells[i].listed - 1,
                    "consumption": bucket.cells[i].last_consumed,
                    "rejection": bucket.cells[i].last_rejected,
                }
                for i in range(bucket.count)
                if bucket.cells[i].listed
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

    def release(self, str node_id not None):
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
        if 2 * node + 1 < self.outs_room:
            self.outs[2 * node].count = self.outs[2 * node + 1].count = 0
        for number in range(self.count):
            bucket = &self.buckets[number]
            i = position_of(bucket, node)
            if i < bucket.count and bucket.cells[i].node == node:
                memmove(&bucket.cells[i], &bucket.cells[i + 1], (bucket.count - i - 1) * sizeof(Cell))
                bucket.count -= 1
                self.cells -= 1


cdef int _grow(Out *out) except -1:
    cdef Py_ssize_t room = out.room + max(8, out.room // 4)
    cdef PackedShare *grown = <PackedShare *> realloc(out.given, room * sizeof(PackedShare))
    if grown == NULL:
        raise MemoryError
    out.given = grown
    out.room = room
    return 0

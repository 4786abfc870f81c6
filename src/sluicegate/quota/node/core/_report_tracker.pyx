# cython: language_level=3, cdivision=True, auto_pickle=False
"""`ReportTracker`: which central has acknowledged which totals, and the lines of the next report.

A `UserTotals` has what was collected of a user from the shared memory, and since which report each
of its totals is unchanged. All centrals get a report with the same sequence at the same time; each gets the
lines that have changed since the last report it acknowledged. So a lost report or Ack costs nothing
but a longer next report.

A total's `changed_sequence` is that of the first report that has its newest change. Users are in the
order of their newest change, so that a report touches only its own lines, however many users are
idle. What a leader has acknowledged is *settled*: an Ack stands for all sequences up to its own,
whether or not that central led when it booked them.

A report has at most MAX_LINES lines. What does not fit is deferred to the next one, as if it had
changed then: an Ack of this one must not stand for it.

A user without a change for IDLE_REPORTS reports, settled, and acknowledged by every central that
still answers, is dropped: a central takes a cell that was silent for 60 reports as unknown, so
that totals that begin at 0 again are booked in full.
"""

from collections import deque

from libc.string cimport memset

from sluicegate.quota.packed._gil cimport yield_gil_periodically
from sluicegate.quota.node.core._admission cimport MAX_TOTAL, balance_of, reserved_of

from sluicegate.quota.messages import Report

__all__ = ["ReportTracker", "UserTotals"]

cdef enum:
    IDLE_REPORTS = 120
    MAX_LINES = 50_000
    MIN_ENTRIES = 1024
    MAX_SLOTS = 1000
    UNANSWERED_REPORTS = 10


cdef class UserTotals:
    """The totals of one user of one service."""

    def __init__(self, str service not None, str name not None, uint64_t service_number, bytes key not None):
        self.service = service
        self.name = name
        self.service_number = service_number
        self.key = key

    cdef ResourceTotal *total_for(self, int resource, double settled) noexcept:
        """The total of a resource. A new one starts with `settled` from the shared memory."""
        cdef int i
        cdef ResourceTotal *total
        for i in range(self.count):
            if self.totals[i].resource == resource:
                return &self.totals[i]
        total = &self.totals[self.count]
        memset(total, 0, sizeof(ResourceTotal))
        total.resource = <uint8_t> resource
        total.settled = total.stored_settled = settled
        total.entry = -1
        self.count += 1
        return total

    cdef bint has_reservations(self) noexcept:
        cdef int i
        for i in range(self.count):
            if self.totals[i].reserved > 0.0:
                return True
        return False

    def __repr__(self):
        return f"UserTotals({self.service!r}, {self.name!r}, totals={self.count})"


cdef class ReportTracker:
    """Sequences, and the users in the order of their newest change.

    `service_name` and `resource_name` map numbers in the shared memory to names.
    """

    def __init__(
        self, str node not None, boot, centrals, service_name, resource_name, uint32_t sequence=1,
        long long settled_slot=-1,
    ):
        self.node = node
        self.boot = boot
        self.sequence = sequence  # of the next report
        self.settled = 0  # the highest sequence that a leader has acknowledged
        self.settled_slot = settled_slot  # the slot of that report
        self._slots = deque()
        self._acknowledged = dict.fromkeys(centrals, 0)
        self._answered = dict.fromkeys(centrals, 0)
        self._users = {}
        self._changed = {}
        self.with_reservations = {}
        self.holding = {}
        self.unsettled = {}
        self._service_name = service_name
        self._resource_name = resource_name
        self._string_table = StringTable()

    def __len__(self):
        return sum(map(len, self._users.values()))

    def users(self):
        """All users that are known, as `UserTotals`."""
        return [user for users in self._users.values() for user in users.values()]

    # What was counted

    cdef int update(
        self, uint64_t service, bytes key, UserRecord *record, ResourceCell *cells, int count, uint32_t window,
        uint32_t reservation_windows,
    ) except -1:
        """Update a user's totals to those of a record as of the begin of `window`."""
        cdef bint has_begun = record.window >= window
        # Requests that were never finished have died.
        cdef bint is_dead = window > record.window and window - record.window > reservation_windows
        cdef bint is_changed = False
        cdef double consumed, reserved
        cdef uint32_t rejected, requests
        cdef UserTotals user
        cdef ResourceTotal *total
        cdef ResourceCell *cell
        cdef int i
        users = self._users.get(service)
        if users is None:
            users = self._users[service] = {}
        found = (<dict> users).get(key)
        if found is None:
            name = key.decode("utf-8", "surrogatepass")
            user = (<dict> users)[key] = UserTotals(self._service_name(service), name, service, key)
            is_changed = True
        else:
            user = <UserTotals> found
        user.changed_window = record.changed_window
        for i in range(count):
            cell = &cells[i]
            if cell.resource == 0:  # beginnings are in no report
                continue
            if has_begun:
                # A node that has left in this window, and is back, has told of the window up to then.
                consumed = max(cell.consumed_before, cell.settled)
                rejected, requests = cell.rejected_before, cell.requests_before
                reserved = cell.old_reserved + cell.ticketed[0] + cell.ticketed[1]
            else:
                consumed, rejected, requests = cell.consumed, cell.rejected, cell.requests
                reserved = 0.0 if is_dead else reserved_of(cell)
            reserved = min(max(reserved, 0.0), MAX_TOTAL)  # sums of what came and went are off by rounding
            total = user.total_for(cell.resource, cell.settled)
            if (
                total.consumed != consumed or total.rejected != rejected or total.requests != requests
                or total.reserved != reserved or total.granted != cell.granted or total.returned != cell.returned
            ):
                total.consumed = consumed
                total.rejected = rejected
                total.requests = requests
                total.reserved = reserved
                total.granted = cell.granted
                total.returned = cell.returned
                total.changed_sequence = self.sequence
                is_changed = True
            if cell.is_limited and balance_of(cell) > 0.0:
                self.holding[user.service, user.name] = None
        if is_changed:
            self.mark_changed(user)
        return 0

    def take_holding(self):
        """(service, user) of those that had credit left when they were last collected."""
        holding, self.holding = self.holding, {}
        return holding

    cdef int mark_changed(self, UserTotals user) except -1:
        """A total of a user has changed since the last report."""
        if user.changed_sequence != self.sequence:
            user.changed_sequence = self.sequence
            self._changed.pop(user, None)
            self._changed[user] = None
        return 0

    def expire_reservations(self, uint32_t window, uint32_t reservation_windows):
        """Release the reservations of users without a change for that many windows: their requests died."""
        cdef UserTotals user
        cdef int i
        for user in list(self.with_reservations):
            if window - user.changed_window > reservation_windows:
                for i in range(user.count):
                    if user.totals[i].reserved > 0.0:
                        user.totals[i].reserved = 0.0
                        user.totals[i].changed_sequence = self.sequence
                        self.mark_changed(user)
            if not user.has_reservations():
                del self.with_reservations[user]

    # Reports and acknowledgements

    def make_reports(self, slot, sent, *, epoch, leaving=False):
        """[(central, Report), ...]"""
        cdef uint32_t sequence = self.sequence
        cdef UserTotals user
        cdef ResourceTotal *total
        cdef Py_ssize_t done = 0
        cdef int i
        # A central that has not answered for a while must not delay reports to the others.
        answering = [
            acknowledged
            for central, acknowledged in self._acknowledged.items()
            if self._answered[central] + UNANSWERED_REPORTS >= sequence
        ]
        least = min(answering or self._acknowledged.values())
        self._defer_excess(least)
        for user in self._since(sequence - 1):
            for i in range(user.count):
                total = &user.totals[i]
                if total.changed_sequence == sequence:
                    remember_reported(total, sequence)
            self.unsettled[user] = None
            if user.has_reservations():
                self.with_reservations[user] = None
            done += 1
            yield_gil_periodically(done)
        self.sequence += 1
        made = {}
        reports = []
        for central, acknowledged in self._acknowledged.items():
            if acknowledged < least:
                acknowledged = self._assumed_acknowledged(acknowledged, sequence)
            lines = made.get(acknowledged)
            if lines is None:
                lines = made[acknowledged] = self._lines(self._since(acknowledged), acknowledged)
            report = Report(
                self.node, self.boot, sequence, epoch, acknowledged, slot, sent, lines, leaving, self.settled_slot
            )
            reports.append((central, report))
        if len(self._slots) < MAX_SLOTS:  # those that come later are known by those before
            self._slots.append((sequence, slot))
        return reports

    cdef uint32_t _assumed_acknowledged(self, uint32_t acknowledged, uint32_t sequence):
        """The `since` of a report to a central that has not answered: too high if the missing lines do not
        fit. Then the central answers how far it is, or gets only the changes from now on."""
        cdef UserTotals user
        cdef Py_ssize_t lines = 0
        for user in reversed(self._changed):
            if user.changed_sequence <= acknowledged:
                return acknowledged
            lines += user.count
            if lines > MAX_LINES:
                return sequence - 1
        return acknowledged

    def _defer_excess(self, uint32_t since):
        """Defer users to the next report, so that no report has more than MAX_LINES lines."""
        cdef UserTotals user
        cdef Py_ssize_t lines = 0, done = 0
        cdef int i
        deferred = []
        for user in self._since(since):
            done += 1
            yield_gil_periodically(done)
            for i in range(user.count):
                lines += user.totals[i].changed_sequence > since
            if lines > MAX_LINES:
                deferred.append(user)
        for user in deferred:
            for i in range(user.count):
                if user.totals[i].changed_sequence > since:
                    user.totals[i].changed_sequence = self.sequence + 1
            user.changed_sequence = self.sequence + 1
            del self._changed[user]
            self._changed[user] = None

    def acknowledge(self, central, sequence, *, leads):
        """`central` has booked `sequence` and so all before it."""
        if sequence >= self.sequence:
            return  # never sent: of another boot of this node, or invalid
        self._answered[central] = self.sequence
        # Less than before: the central was restored from a snapshot, or the Ack was overtaken;
        # to repeat what it knows costs nothing but a longer report.
        self._acknowledged[central] = sequence
        if leads:
            self.settled = max(self.settled, <uint32_t> sequence)
            while self._slots and self._slots[0][0] <= self.settled:
                self.settled_slot = max(self.settled_slot, <long long> self._slots.popleft()[1])

    def unacknowledged(self, central):
        """How many lines the next report to `central` will have."""
        cdef uint32_t since = self._acknowledged[central]
        cdef UserTotals user
        cdef Py_ssize_t lines = 0, done = 0
        cdef int i
        for user in self._since(since):
            for i in range(user.count):
                lines += user.totals[i].changed_sequence > since
            done += 1
            yield_gil_periodically(done)
        return lines

    def pop_idle(self):
        """Take out and return the users whose totals every central has."""
        cdef UserTotals user
        bound = min(self.settled, <long long> self.sequence - IDLE_REPORTS)
        for central, sequence in self._acknowledged.items():
            if self._answered[central] >= <long long> self.sequence - IDLE_REPORTS:
                bound = min(bound, sequence)
        dropped = []
        for user in self._changed:
            if user.changed_sequence > bound:
                break
            dropped.append(user)
        for user in dropped:
            del self._changed[user]
        return dropped

    def is_pending(self, UserTotals user not None):
        """Whether some central may still need the totals of `user`."""
        return user in self._changed

    def forget(self, UserTotals user not None):
        """The user's record is gone."""
        del self._users[user.service_number][user.key]
        self._entries_in_use -= user.count
        self.with_reservations.pop(user, None)
        self.unsettled.pop(user, None)

    cdef list _since(self, uint32_t sequence):
        """The users that have changed after a report, in that order."""
        cdef UserTotals user
        users = []
        for user in reversed(self._changed):
            if user.changed_sequence <= sequence:
                break
            users.append(user)
        users.reverse()
        return users

    cdef PackedLines _lines(self, list users, uint32_t since):
        cdef PackedLines lines
        cdef UserTotals user
        cdef ResourceTotal *total
        cdef Py_ssize_t count = 0, done = 0
        cdef int i
        self._renumber()
        for user in users:
            count += user.count
        lines = PackedLines(self._string_table)
        lines.allocate(count)
        for user in users:
            done += 1
            yield_gil_periodically(done)
            if user.changed_sequence > self.sequence - 1:
                continue  # it was deferred
            for i in range(user.count):
                total = &user.totals[i]
                if total.changed_sequence <= since:
                    continue
                if total.entry < 0:
                    total.entry = <int> len(self._string_table)
                    self._string_table.add(user.service, user.name, self._resource_name(total.resource))
                    self._entries_in_use += 1
                lines.lines[lines.count].consumed = total.consumed
                lines.lines[lines.count].rejected = total.rejected
                lines.lines[lines.count].requests = total.requests
                # A central that is behind the others cannot have booked a total it never got.
                lines.lines[lines.count].settled = (
                    0.0 if 0 < since < total.first_sequence else acknowledge_total(total, self.settled)
                )
                lines.lines[lines.count].held = total.reserved
                lines.lines[lines.count].granted = total.granted
                lines.lines[lines.count].returned = total.returned
                lines.lines[lines.count].entry = total.entry
                lines.count += 1
        lines.group_by_service()
        return lines

    def _renumber(self):
        """Start a new dictionary when most entries are of users that are forgotten."""
        cdef UserTotals user
        cdef int i
        if len(self._string_table) <= MIN_ENTRIES + 2 * self._entries_in_use:
            return
        self._string_table = StringTable()
        self._entries_in_use = 0
        for users in self._users.values():
            for user in (<dict> users).values():
                for i in range(user.count):
                    user.totals[i].entry = -1


cdef void remember_reported(ResourceTotal *total, uint32_t sequence) noexcept:
    """Remember the `consumed` that report `sequence` carries."""
    if total.first_sequence == 0:
        total.first_sequence = sequence
    if total.pending == MAX_PENDING:
        # A dropped one delays `settled`, and never makes it too large. The oldest are the next to
        # be acknowledged, so the newest is overwritten.
        total.pending -= 1
    total.pending_sequence[total.pending] = sequence
    total.pending_consumed[total.pending] = total.consumed
    total.pending += 1


cdef double acknowledge_total(ResourceTotal *total, uint32_t sequence) noexcept:
    """A leader has acknowledged `sequence` and all before it: update and return `settled`."""
    cdef int i, done = 0
    if total.changed_sequence <= sequence:
        total.settled = total.consumed
        total.pending = 0
    while done < total.pending and total.pending_sequence[done] <= sequence:
        total.settled = total.pending_consumed[done]
        done += 1
    if done:
        for i in range(done, total.pending):
            total.pending_sequence[i - done] = total.pending_sequence[i]
            total.pending_consumed[i - done] = total.pending_consumed[i]
        total.pending -= done
    return total.settled


cdef bint acknowledge_user(UserTotals user, uint32_t sequence) noexcept:
    """Update `settled` of all totals; whether the shared memory differs."""
    cdef bint is_changed = False
    cdef int i
    for i in range(user.count):
        if acknowledge_total(&user.totals[i], sequence) != user.totals[i].stored_settled:
            is_changed = True
    return is_changed

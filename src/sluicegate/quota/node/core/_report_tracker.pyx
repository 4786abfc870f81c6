# cython: language_level=3, cdivision=True, auto_pickle=False
"""Who knows what of a host's counters: sequences, acknowledgements, and the lines of a report.

An `Account` is what was collected of a user from the shared memory, and of each of his totals who
has been told. All centrals get a report with the same sequence at the same time; each gets the
lines that have changed since the last report it acknowledged. So a lost report or Ack costs nothing
but a longer next report.

A total's `changed` is the sequence of the first report that has its newest change. Accounts stand
in the order of their newest change, so that a report touches only what it tells, however many
users rest. What a leader has acknowledged is settled: an Ack stands for all sequences up to its
own, whether or not that central led when it booked them.

A report has at most MOST_LINES lines. What does not fit is told by the next one, as if it had
changed then: an Ack of this one must not stand for it.

A user without a change for IDLE_REPORTS reports, settled, and acknowledged by every central that
still answers, is dropped: a central takes a cell that was silent for 60 reports as unknown, so
that totals that begin at 0 again are booked in full.
"""

from collections import deque

from libc.string cimport memset

from sluicegate.quota.packed._gil cimport take_turns
from sluicegate.quota.node.core._admission cimport LARGEST

from sluicegate.quota.messages import Report

__all__ = ["Account", "ReportBook"]

cdef enum:
    IDLE_REPORTS = 120
    MOST_LINES = 50_000
    FEW_ENTRIES = 1024
    MOST_SLOTS = 1000
    DEAF_REPORTS = 10


cdef class Account:
    """One user of one service."""

    def __init__(self, str service not None, str name not None, uint64_t service_number, bytes key not None):
        self.service = service
        self.name = name
        self.service_number = service_number
        self.key = key

    cdef Total *total(self, int resource, double settled) noexcept:
        """The total of a resource. One that is new has what the shared memory says is settled of it."""
        cdef int i
        cdef Total *total
        for i in range(self.count):
            if self.totals[i].resource == resource:
                return &self.totals[i]
        total = &self.totals[self.count]
        memset(total, 0, sizeof(Total))
        total.resource = <uint8_t> resource
        total.settled = total.noted = settled
        total.entry = -1
        self.count += 1
        return total

    cdef bint holds(self) noexcept:
        cdef int i
        for i in range(self.count):
            if self.totals[i].held > 0.0:
                return True
        return False

    def __repr__(self):
        return f"Account({self.service!r}, {self.name!r}, totals={self.count})"


cdef class ReportBook:
    """Sequences, and the accounts in the order of their newest change.

    `service_name` and `resource_name` tell the names of numbers in the shared memory.
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
        self._accounts = {}
        self._changed = {}
        self.holding = {}
        self.unsettled = {}
        self._service_name = service_name
        self._resource_name = resource_name
        self._dictionary = Dictionary()

    def __len__(self):
        return sum(map(len, self._accounts.values()))

    # What was counted

    cdef int enter(
        self, uint64_t service, bytes key, User *user, Cell *cells, int count, uint32_t window,
        uint32_t reservation_windows,
    ) except -1:
        """Bring an account to what a record held when `window` began."""
        cdef bint has_begun = user.window >= window
        # Requests that were never settled have died.
        cdef bint is_dead = window > user.window and window - user.window > reservation_windows
        cdef bint is_changed = False
        cdef double consumed, held
        cdef uint32_t rejected, requests
        cdef Account account
        cdef Total *total
        cdef Cell *cell
        cdef int i
        accounts = self._accounts.get(service)
        if accounts is None:
            accounts = self._accounts[service] = {}
        found = (<dict> accounts).get(key)
        if found is None:
            name = key.decode("utf-8", "surrogatepass")
            account = (<dict> accounts)[key] = Account(self._service_name(service), name, service, key)
            is_changed = True
        else:
            account = <Account> found
        account.changed_in = user.changed
        for i in range(count):
            cell = &cells[i]
            if cell.resource == 0:  # beginnings are in no report
                continue
            if has_begun:
                consumed, rejected, requests = cell.before, cell.rejected_before, cell.requests_before
                held = cell.old_held
            else:
                consumed, rejected, requests = cell.consumed, cell.rejected, cell.requests
                held = 0.0 if is_dead else cell.old_held + cell.held
            held = min(max(held, 0.0), LARGEST)  # sums of what came and went are off by rounding
            total = account.total(cell.resource, cell.settled)
            if (
                total.consumed != consumed or total.rejected != rejected or total.requests != requests
                or total.held != held
            ):
                total.consumed = consumed
                total.rejected = rejected
                total.requests = requests
                total.held = held
                total.changed = self.sequence
                is_changed = True
        if is_changed:
            self.mark(account)
        return 0

    cdef int mark(self, Account account) except -1:
        """Something of an account has changed since the last report."""
        if account.changed != self.sequence:
            account.changed = self.sequence
            self._changed.pop(account, None)
            self._changed[account] = None
        return 0

    def expire(self, uint32_t window, uint32_t reservation_windows):
        """Requests of users who have not come for so long have died."""
        cdef Account account
        cdef int i
        for account in list(self.holding):
            if window - account.changed_in > reservation_windows:
                for i in range(account.count):
                    if account.totals[i].held > 0.0:
                        account.totals[i].held = 0.0
                        account.totals[i].changed = self.sequence
                        self.mark(account)
            if not account.holds():
                del self.holding[account]

    # Who knows it

    def reports(self, slot, sent, *, epoch, leaving=False):
        """[(central, Report), ...]"""
        cdef uint32_t sequence = self.sequence
        cdef Account account
        cdef Total *total
        cdef Py_ssize_t done = 0
        cdef int i
        # One who has not answered for a while must not hold up what the others are told.
        heard = [
            acknowledged
            for central, acknowledged in self._acknowledged.items()
            if self._answered[central] + DEAF_REPORTS >= sequence
        ]
        least = min(heard or self._acknowledged.values())
        self._put_off(least)
        for account in self._since(sequence - 1):
            for i in range(account.count):
                total = &account.totals[i]
                if total.changed == sequence:
                    note(total, sequence)
            self.unsettled[account] = None
            if account.holds():
                self.holding[account] = None
            done += 1
            take_turns(done)
        self.sequence += 1
        made = {}
        reports = []
        for central, acknowledged in self._acknowledged.items():
            if acknowledged < least:
                acknowledged = self._nearest(acknowledged, sequence)
            lines = made.get(acknowledged)
            if lines is None:
                lines = made[acknowledged] = self._lines(self._since(acknowledged), acknowledged)
            report = Report(
                self.node, self.boot, sequence, epoch, acknowledged, slot, sent, lines, leaving, self.settled_slot
            )
            reports.append((central, report))
        if len(self._slots) < MOST_SLOTS:  # those that come later are known by those before
            self._slots.append((sequence, slot))
        return reports

    cdef uint32_t _nearest(self, uint32_t acknowledged, uint32_t sequence):
        """What a report takes for granted to one who has not answered: too much, if the truth does
        not fit. Then he says how far he is, or is told only what is new from now on."""
        cdef Account account
        cdef Py_ssize_t lines = 0
        for account in reversed(self._changed):
            if account.changed <= acknowledged:
                return acknowledged
            lines += account.count
            if lines > MOST_LINES:
                return sequence - 1
        return acknowledged

    def _put_off(self, uint32_t since):
        """See to it that no report has too many lines."""
        cdef Account account
        cdef Py_ssize_t lines = 0, done = 0
        cdef int i
        put_off = []
        for account in self._since(since):
            done += 1
            take_turns(done)
            for i in range(account.count):
                lines += account.totals[i].changed > since
            if lines > MOST_LINES:
                put_off.append(account)
        for account in put_off:
            for i in range(account.count):
                if account.totals[i].changed > since:
                    account.totals[i].changed = self.sequence + 1
            account.changed = self.sequence + 1
            del self._changed[account]
            self._changed[account] = None

    def acknowledge(self, central, sequence, *, leads):
        """`central` has booked `sequence` and so all before it."""
        if sequence >= self.sequence:
            return  # never sent: of another life of this node, or nonsense
        self._answered[central] = self.sequence
        # Less than before: the central was restored from a snapshot, or the Ack was overtaken;
        # to tell again what it knows costs nothing but a longer report.
        self._acknowledged[central] = sequence
        if leads:
            self.settled = max(self.settled, <uint32_t> sequence)
            while self._slots and self._slots[0][0] <= self.settled:
                self.settled_slot = max(self.settled_slot, <long long> self._slots.popleft()[1])

    def unacknowledged(self, central):
        """How many lines the next report to `central` will have."""
        cdef uint32_t since = self._acknowledged[central]
        cdef Account account
        cdef Py_ssize_t lines = 0, done = 0
        cdef int i
        for account in self._since(since):
            for i in range(account.count):
                lines += account.totals[i].changed > since
            done += 1
            take_turns(done)
        return lines

    def drop_idle(self):
        """Take out the accounts whose totals nobody needs any more."""
        cdef Account account
        bound = min(self.settled, <long long> self.sequence - IDLE_REPORTS)
        for central, sequence in self._acknowledged.items():
            if self._answered[central] >= <long long> self.sequence - IDLE_REPORTS:
                bound = min(bound, sequence)
        dropped = []
        for account in self._changed:
            if account.changed > bound:
                break
            dropped.append(account)
        for account in dropped:
            del self._changed[account]
        return dropped

    def is_waiting(self, Account account not None):
        """Whether some central may still have to be told of `account`."""
        return account in self._changed

    def forget(self, Account account not None):
        """The user's record is gone."""
        del self._accounts[account.service_number][account.key]
        self._entries_in_use -= account.count
        self.holding.pop(account, None)
        self.unsettled.pop(account, None)

    cdef list _since(self, uint32_t sequence):
        """The accounts that have changed after a report, in that order."""
        cdef Account account
        accounts = []
        for account in reversed(self._changed):
            if account.changed <= sequence:
                break
            accounts.append(account)
        accounts.reverse()
        return accounts

    cdef PackedLines _lines(self, list accounts, uint32_t since):
        cdef PackedLines lines
        cdef Account account
        cdef Total *total
        cdef Py_ssize_t count = 0, done = 0
        cdef int i
        self._renumber()
        for account in accounts:
            count += account.count
        lines = PackedLines(self._dictionary)
        lines.reserve(count)
        for account in accounts:
            done += 1
            take_turns(done)
            if account.changed > self.sequence - 1:
                continue  # it was put off
            for i in range(account.count):
                total = &account.totals[i]
                if total.changed <= since:
                    continue
                if total.entry < 0:
                    total.entry = <int> len(self._dictionary)
                    self._dictionary.add(account.service, account.name, self._resource_name(total.resource))
                    self._entries_in_use += 1
                lines.lines[lines.count].consumed = total.consumed
                lines.lines[lines.count].rejected = total.rejected
                lines.lines[lines.count].requests = total.requests
                # A central that is behind what others know cannot have booked any of what it was
                # never told of.
                lines.lines[lines.count].settled = (
                    0.0 if 0 < since < total.first else settle(total, self.settled)
                )
                lines.lines[lines.count].held = total.held
                lines.lines[lines.count].entry = total.entry
                lines.count += 1
        lines.arrange()
        return lines

    def _renumber(self):
        """Begin the dictionary anew when most of it is of users who have gone."""
        cdef Account account
        cdef int i
        if len(self._dictionary) <= FEW_ENTRIES + 2 * self._entries_in_use:
            return
        self._dictionary = Dictionary()
        self._entries_in_use = 0
        for accounts in self._accounts.values():
            for account in (<dict> accounts).values():
                for i in range(account.count):
                    account.totals[i].entry = -1


cdef void note(Total *total, uint32_t sequence) noexcept:
    """Report `sequence` has `consumed` as it stands now."""
    if total.first == 0:
        total.first = sequence
    if total.notes == MOST_NOTES:
        # To drop a note settles later, never too much. The oldest are the next to be
        # acknowledged, so the newest gives way.
        total.notes -= 1
    total.note_sequence[total.notes] = sequence
    total.note_consumed[total.notes] = total.consumed
    total.notes += 1


cdef double settle(Total *total, uint32_t sequence) noexcept:
    """A leader has acknowledged `sequence` and all before it: what of `consumed` it knows."""
    cdef int i, done = 0
    if total.changed <= sequence:
        total.settled = total.consumed
        total.notes = 0
    while done < total.notes and total.note_sequence[done] <= sequence:
        total.settled = total.note_consumed[done]
        done += 1
    if done:
        for i in range(done, total.notes):
            total.note_sequence[i - done] = total.note_sequence[i]
            total.note_consumed[i - done] = total.note_consumed[i]
        total.notes -= done
    return total.settled


cdef bint has_settled(Account account, uint32_t sequence) noexcept:
    """Settle an account; whether the shared memory does not know it yet."""
    cdef bint is_news = False
    cdef int i
    for i in range(account.count):
        if settle(&account.totals[i], sequence) != account.totals[i].noted:
            is_news = True
    return is_news

"""Who knows what of a node's counters: sequences, acknowledgements, and the lines of a report.

All centrals get a report with the same sequence at the same time; each gets the lines that have
changed since the last report it acknowledged. So a lost report or Ack costs nothing but a longer
next report.

A total's `changed` is the sequence of the first report that has its newest change. Accounts stand
in the order of their newest change, so that a report touches only what it tells, however many
users rest. What a leader has acknowledged is settled: an Ack stands for all sequences up to its
own, whether or not that central led when it booked them.

A user without a change for `_IDLE_REPORTS` reports, settled, and acknowledged by every central
that still answers, is dropped: a central takes a cell that was silent for 60 reports as unknown,
so that totals that begin at 0 again are booked in full.
"""

from collections.abc import Iterator, Sequence

from headgate.quota.protocol import Line, Lines, Report

__all__ = ["Account", "ReportBook", "Total"]

_IDLE_REPORTS = 120
# Of the reports that no leader has acknowledged, so many totals are kept; see `note`.
_MOST_NOTES = 4


class Total:
    """One user and one resource, as far as it was collected."""

    __slots__ = (
        "changed",
        "consumed",
        "first",
        "held",
        "noted",
        "notes",
        "rejected",
        "requests",
        "settled",
    )

    def __init__(self, settled: float) -> None:
        self.consumed = 0.0
        self.rejected = 0
        self.requests = 0
        self.held = 0.0
        self.settled = settled
        self.noted = settled  # as it stands in the shared memory
        self.changed = 0  # the first report that has the newest change
        self.first = 0  # the first report that has it; 0: none yet
        self.notes: list[tuple[int, float]] = []

    def note(self, sequence: int) -> None:
        """Report `sequence` has `consumed` as it stands now."""
        self.first = self.first or sequence
        if len(self.notes) >= _MOST_NOTES:
            # To drop a note settles later, never too much. The oldest are the next to be
            # acknowledged, so the newest gives way.
            self.notes.pop()
        self.notes.append((sequence, self.consumed))

    def settle(self, sequence: int) -> float:
        """A leader has acknowledged `sequence` and all before it: what of `consumed` it knows."""
        if self.changed <= sequence:
            self.settled = self.consumed
            self.notes.clear()
        while self.notes and self.notes[0][0] <= sequence:
            self.settled = self.notes.pop(0)[1]
        return self.settled


class Account:
    """One user of one service."""

    __slots__ = ("changed", "changed_in", "key", "name", "seen", "service", "totals")

    def __init__(self, service: str, name: str, key: tuple[int, bytes]) -> None:
        self.service = service
        self.name = name
        self.key = key  # in the shared memory
        self.totals: dict[str, Total] = {}
        self.seen: tuple[tuple[int, float, int, int, float, float], ...] = ()
        self.changed = 0  # the first report that has the newest change
        self.changed_in = 0  # the window of it

    def total(self, resource: str, settled: float) -> Total:
        total = self.totals.get(resource)
        if total is None:
            total = self.totals[resource] = Total(settled)
        return total

    @property
    def is_holding(self) -> bool:
        return any(total.held for total in self.totals.values())


class ReportBook:
    """Sequences, and the accounts in the order of their newest change."""

    def __init__(self, node: str, boot: int, centrals: Sequence[str], sequence: int = 1) -> None:
        self.node = node
        self.boot = boot
        self.sequence = sequence  # of the next report
        self.settled = 0  # the highest sequence that a leader has acknowledged
        self._acknowledged = dict.fromkeys(centrals, 0)
        self._answered = dict.fromkeys(centrals, 0)
        self._changed: dict[Account, None] = {}

    def mark(self, account: Account) -> None:
        """Something of `account` changes, for the first time since the last report."""
        account.changed = self.sequence
        self._changed.pop(account, None)
        self._changed[account] = None

    def reports(
        self, slot: int, sent: float, *, epoch: int, leaving: bool = False
    ) -> tuple[list[tuple[str, Report]], list[Account]]:
        """A report for each central, and the accounts that have changed since the last ones."""
        sequence = self.sequence
        fresh = list(self._since(sequence - 1))
        for account in fresh:
            for total in account.totals.values():
                if total.changed == sequence:
                    total.note(sequence)
        self.sequence += 1
        made: dict[int, Lines] = {}
        reports = []
        for central, acknowledged in self._acknowledged.items():
            lines = made.get(acknowledged)
            if lines is None:
                lines = made[acknowledged] = self._lines(acknowledged)
            report = Report(
                self.node, self.boot, sequence, epoch, acknowledged, slot, sent, lines, leaving
            )
            reports.append((central, report))
        return reports, fresh

    def acknowledge(self, central: str, sequence: int, *, leads: bool) -> None:
        """`central` has booked `sequence` and so all before it."""
        if sequence >= self.sequence:
            return  # never sent: of another life of this node, or nonsense
        self._answered[central] = self.sequence
        # Less than before: the central was restored from a snapshot, or the Ack was overtaken;
        # to tell again what it knows costs nothing but a longer report.
        self._acknowledged[central] = sequence
        if leads:
            self.settled = max(self.settled, sequence)

    def is_waiting(self, account: Account) -> bool:
        """Whether some central may still have to be told of `account`."""
        return account in self._changed

    def unacknowledged(self, central: str) -> int:
        """How many lines the next report to `central` will have."""
        since = self._acknowledged[central]
        return sum(
            total.changed > since
            for account in self._since(since)
            for total in account.totals.values()
        )

    def drop_idle(self) -> list[Account]:
        """Take out the accounts whose totals nobody needs any more."""
        bound = min(self.settled, self.sequence - _IDLE_REPORTS)
        for central, sequence in self._acknowledged.items():
            if self._answered[central] >= self.sequence - _IDLE_REPORTS:
                bound = min(bound, sequence)
        dropped = []
        for account in self._changed:
            if account.changed > bound:
                break
            dropped.append(account)
        for account in dropped:
            del self._changed[account]
        return dropped

    def _since(self, sequence: int) -> Iterator[Account]:
        for account in reversed(self._changed):
            if account.changed <= sequence:
                return
            yield account

    def _lines(self, since: int) -> Lines:
        lines: Lines = {}
        for account in self._since(since):
            told = {
                resource: Line(
                    total.consumed,
                    total.rejected,
                    total.requests,
                    # A central that is behind what others know cannot have booked any of what
                    # it was never told of.
                    0.0 if 0 < since < total.first else total.settle(self.settled),
                    total.held,
                )
                for resource, total in account.totals.items()
                if total.changed > since
            }
            if told:
                lines.setdefault(account.service, {})[account.name] = told
        return lines

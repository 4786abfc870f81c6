"""Who knows what of a node's counters: sequences, acknowledgements, and the lines of a report.

All centrals get a report with the same sequence at the same time; each gets the lines that have
changed since the last report it acknowledged. So a lost report or Ack costs nothing but a longer
next report.

A cell's `changed` is the sequence of the first report that has its newest change. Tallies stand
in the order of their newest change, so that a report touches only what it tells, however many
users rest. What a leader has acknowledged is settled: an Ack stands for all sequences up to its
own, whether or not that central led when it booked them.

A user without a change for `_IDLE_REPORTS` reports, settled, and acknowledged by every central
that still answers, is dropped: a central takes a cell that was silent for 60 reports as unknown,
so that totals that begin at 0 again are booked in full.
"""

from collections.abc import Iterator, Sequence

from headgate.quota.protocol import Line, Lines, Report
from headgate.quota.tally import Tally

__all__ = ["ReportBook"]

_IDLE_REPORTS = 120


class ReportBook:
    """Sequences, and the tallies in the order of their newest change."""

    def __init__(self, node: str, boot: int, centrals: Sequence[str]) -> None:
        self.node = node
        self.boot = boot
        self.sequence = 1  # of the next report
        self.settled = 0  # the highest sequence that a leader has acknowledged
        self._acknowledged = dict.fromkeys(centrals, 0)
        self._answered = dict.fromkeys(centrals, 0)
        self._changed: dict[Tally, None] = {}

    def mark(self, tally: Tally) -> None:
        """Something of `tally` changes, for the first time since the last report."""
        tally.changed = self.sequence
        self._changed.pop(tally, None)
        self._changed[tally] = None

    def reports(
        self, slot: int, sent: float, *, epoch: int, leaving: bool = False
    ) -> tuple[list[tuple[str, Report]], list[Tally]]:
        """A report for each central, and the tallies that have changed since the last ones."""
        sequence = self.sequence
        fresh = list(self._since(sequence - 1))
        for tally in fresh:
            for cell in tally.cells.values():
                if cell.changed == sequence:
                    cell.note(sequence)
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

    def is_waiting(self, tally: Tally) -> bool:
        """Whether some central may still have to be told of `tally`."""
        return tally in self._changed

    def unacknowledged(self, central: str) -> int:
        """How many lines the next report to `central` will have."""
        since = self._acknowledged[central]
        return sum(
            cell.changed > since for tally in self._since(since) for cell in tally.cells.values()
        )

    def drop_idle(self) -> list[Tally]:
        """Take out the tallies whose totals nobody needs any more."""
        bound = min(self.settled, self.sequence - _IDLE_REPORTS)
        for central, sequence in self._acknowledged.items():
            if self._answered[central] >= self.sequence - _IDLE_REPORTS:
                bound = min(bound, sequence)
        dropped = []
        for tally in self._changed:
            if tally.changed > bound:
                break
            dropped.append(tally)
        for tally in dropped:
            del self._changed[tally]
        return dropped

    def _since(self, sequence: int) -> Iterator[Tally]:
        for tally in reversed(self._changed):
            if tally.changed <= sequence:
                return
            yield tally

    def _lines(self, since: int) -> Lines:
        lines: Lines = {}
        for tally in self._since(since):
            told = {
                resource: Line(
                    cell.consumed,
                    cell.rejected,
                    cell.requests,
                    # A central that is behind what others know cannot have booked any of what
                    # it was never told of.
                    0.0 if 0 < since < cell.first else cell.settle(self.settled),
                    tally.held(resource),
                )
                for resource, cell in tally.cells.items()
                if cell.changed > since
            }
            if told:
                lines.setdefault(tally.service, {})[tally.name] = told
        return lines

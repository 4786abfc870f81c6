"""`Course`: the admitted and refused requests of one user of a fleet over time, in bins of 50 ms.

Times are seconds since the traffic began; amounts are requests, on all nodes together. A second is
a slot.

What the machine made late is distinguished from what the fleet did. A slot is calm unless a process
of the fleet was held up for a tenth of a second or longer in it or in one of the three before it:
a node that does not run asks for nothing and reports late, so it gets another share in the slot
after next, and the slot after that evens it out. What must pass at the least is asserted of calm
slots; what may pass at the most, of all of them, where whatever was late may come later.

A request that is a few milliseconds late may fall into the next slot, also in calm ones. So bounds
hold for consecutive calm slots together, with an allowance at both ends (`Run.slack`).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from sluicegate.demo.pauses import SHORTEST_PAUSE, Span
from sluicegate.demo.shared_counts import BIN_SECONDS, BINS_PER_SECOND
from sluicegate.demo.verdict import LONG_PAUSE, RECOVERY


@dataclass(frozen=True)
class Run:
    """Consecutive calm slots, together."""

    slots: int
    admitted: int
    demand: int
    # The seconds by which its ends may be off: pauses too short to be noted, at either end, and
    # those that were noted from the slot before it on.
    slack: float


@dataclass(frozen=True, repr=False)
class Course:
    """Admitted and refused requests of a user in each bin."""

    user: str
    admitted: list[int]
    refused: list[int]
    pauses: list[Span]  # of any process of the fleet
    prolonged: tuple[Span, ...] = ()  # after which slots are not calm either

    def total(self, begin: float = 0.0, end: float = math.inf) -> int:
        """Admitted from one second to another."""
        return sum(self.admitted[_bin(begin) : _bin(end)])

    def demand(self, begin: float, end: float) -> int:
        return self.total(begin, end) + sum(self.refused[_bin(begin) : _bin(end)])

    def late(self, begin: float, end: float) -> float:
        """For how many seconds between two moments some process was held up."""
        total, until = 0.0, begin
        for first, last in sorted(self.pauses):
            total += max(min(last, end) - max(first, until), 0.0)
            until = max(until, last)
        return total

    def over(
        self, window: float, limit: float, begin: float, end: float, *, calm: bool = False
    ) -> float:
        """The most that was admitted in any window beyond its limit, but for what was late.

        What a share lets through in the course of a slot is let through later when processes are
        held up for a while, so there is as much more in a window that begins with it. `calm`: only
        windows in calm slots. A node that was held up at the end of a slot may take its next share
        at once, so in others there may be two slots' shares.
        """
        width = _bin(window)
        slots = set(self.calm(begin, end))
        return max(
            (
                sum(self.admitted[first : first + width]) / (limit * window)
                - self.late(first * BIN_SECONDS - 1.0, first * BIN_SECONDS + window) / window
                - 1.0
                for first in range(_bin(begin), _bin(end) - width + 1)
                if not calm or slots.issuperset(_slots(first, first + width))
            ),
            default=-1.0,
        )

    def calm(self, begin: float, end: float) -> list[int]:
        """The calm slots that lie wholly between two moments."""
        pauses = [*self._long_pauses(), *self.prolonged]
        return [
            slot
            for slot in range(math.ceil(begin), math.floor(end))
            if not any(first < slot + 1 and last > slot - RECOVERY for first, last in pauses)
        ]

    def without_leader_from(self, gone: float) -> "Course":
        """The same, of a fleet that lost its central at a moment.

        Nodes reuse their last quota for as many slots as they take to recover from a pause. If a
        pause has made that quota uneven, it is felt as if the pause had lasted until then.
        """
        recent = [begin for begin, end in self._long_pauses() if gone - RECOVERY < end < gone + 1]
        return replace(self, prolonged=((min(recent), gone + 1),) if recent else ())

    def _long_pauses(self) -> list[Span]:
        return [(begin, end) for begin, end in sorted(self.pauses) if end - begin >= LONG_PAUSE]

    def calm_runs(self, begin: float, end: float) -> list[Run]:
        """The longest runs of calm slots between two moments."""
        return [self._run(slots) for slots in self._consecutive(begin, end)]

    def all_calm_runs(self, begin: float, end: float) -> list[Run]:
        """Every run of one or more calm slots between two moments."""
        return [
            self._run(slots[first:last])
            for slots in self._consecutive(begin, end)
            for first in range(len(slots))
            for last in range(first + 1, len(slots) + 1)
        ]

    def _consecutive(self, begin: float, end: float) -> Iterator[range]:
        slots = self.calm(begin, end)
        starts = [slot for slot in slots if slot - 1 not in slots]
        stops = [slot + 1 for slot in slots if slot + 1 not in slots]
        return map(range, starts, stops)

    def _run(self, slots: range) -> Run:
        return Run(
            len(slots),
            self.total(slots.start, slots.stop),
            self.demand(slots.start, slots.stop),
            2 * SHORTEST_PAUSE + self.late(slots.start - 1, slots.stop),
        )

    def under(self, limit: float, begin: float, end: float) -> float:
        """The part that is missing in calm slots of what was asked for within the limit."""
        runs = self.calm_runs(begin, end)
        wanted = sum(min(run.demand, limit * run.slots) for run in runs)
        missing = sum(
            max(min(run.demand, limit * run.slots) - run.admitted - limit * run.slack, 0.0)
            for run in runs
        )
        return missing / max(wanted, 1.0)

    def seconds(self, begin: float = 0.0, end: float = math.inf) -> list[int]:
        """Admitted in each second, that is in each slot."""
        last = max((i for i, n in enumerate(self.admitted) if n), default=0)
        end = min(end, math.ceil((last + 1) * BIN_SECONDS))
        return [self.total(second, second + 1) for second in range(int(begin), int(end))]

    def __repr__(self) -> str:
        seconds = len(self.seconds())
        refused = [self.demand(at, at + 1) - self.total(at, at + 1) for at in range(seconds)]
        pauses = [f"{begin:.2f} to {end:.2f}" for begin, end in self._long_pauses() if end > 0]
        return (
            f"{self.user}: admitted per second {self.seconds()}, refused {refused}, "
            f"calm {self.calm(0, seconds)}, long pauses {', '.join(pauses) or 'none'}, "
            f"some process held up for {self.late(0, seconds):.1f} s in all"
        )


def _slots(first: int, last: int) -> range:
    """The slots of the bins from `first` to before `last`."""
    return range(first // BINS_PER_SECOND, -(-last // BINS_PER_SECOND))


def _bin(seconds: float) -> int:
    return round(min(seconds, 1e6) / BIN_SECONDS)

"""What came of the calls of `sluicegate demo dispatch`, second by second, and the verdict on it.

Without I/O: a call is recorded with the second of the demo in which it was made or has ended.

What is measured, once the load is three times the capacity (and a second later, when the queue has
filled up):

    idle        1 minus what was answered over what the workers could have answered. For as long
                as the machine held up a worker, that one could answer nothing; while it held up
                the clients, none could.
    timed out   of the requests that were accepted, those without an answer in time
    lost        calls that have not ended, neither with an answer nor with an error
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from sluicegate.demo.pauses import Span
from sluicegate.demo.verdict import Check

__all__ = ["ANSWERED", "OTHER", "REFUSED", "TIMED_OUT", "Second", "Tally", "checks", "paused"]

ANSWERED, REFUSED, TIMED_OUT, OTHER = "answered", "refused", "timed_out", "other"
_GOALS = {"idle": 0.1, "timed out": 0.1, "lost": 0.0}


@dataclass(slots=True)
class Second:
    """The calls that were made in a second, those that ended in it, and the batches in between."""

    asked: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    batches: dict[tuple[int, int], int] = field(default_factory=dict)  # sizes
    seconds: list[float] = field(default_factory=list)  # from a call to its answer

    @property
    def mean_batch(self) -> float:
        return sum(self.batches.values()) / len(self.batches) if self.batches else 0.0

    def percentile(self, part: float) -> float:
        """How long this part of the answers took at most."""
        if not self.seconds:
            return 0.0
        return sorted(self.seconds)[min(int(part * len(self.seconds)), len(self.seconds) - 1)]


class Tally:
    """All calls of the demo. What ends after its last second counts for the whole run only."""

    def __init__(self, seconds: int) -> None:
        self.seconds = [Second() for _ in range(seconds)]
        self.asked = 0
        self.ended: Counter[str] = Counter()
        self.by_worker: Counter[int] = Counter()  # answers
        self._after = Second()

    def ask(self, t: float) -> None:
        self.asked += 1
        self._second(t).asked += 1

    def end(self, t: float, outcome: str) -> None:
        self.ended[outcome] += 1
        self._second(t).ended[outcome] += 1

    def answer(self, t: float, took: float, worker: int, batch: int, size: int) -> None:
        self.end(t, ANSWERED)
        self.by_worker[worker] += 1
        second = self._second(t)
        second.batches[worker, batch] = size
        second.seconds.append(took)

    @property
    def waiting(self) -> int:
        """Calls that have not ended."""
        return self.asked - self.ended.total()

    def _second(self, t: float) -> Second:
        return self.seconds[int(t)] if 0 <= t < len(self.seconds) else self._after


def paused(spans: Sequence[Span], begin: float, end: float) -> float:
    """For how many seconds between begin and end the machine held a process up."""
    return sum(max(min(to, end) - max(since, begin), 0.0) for since, to in spans)


def checks(
    tally: Tally, first: int, capacity: float, held_up: Sequence[float], recorded: int
) -> list[Check]:
    """The verdict on the seconds from `first` up to `recorded`.

    `capacity`: answers per second of all workers; `held_up`: seconds that each has lost.
    """
    judged = tally.seconds[first:recorded]
    each = capacity / len(held_up)
    possible = sum(each * max(len(judged) - lost, 0.0) for lost in held_up)
    answered = sum(second.ended[ANSWERED] for second in judged)
    timed_out = sum(second.ended[TIMED_OUT] for second in judged)
    measured = (
        1.0 - answered / possible if possible else 0.0,
        timed_out / max(answered + timed_out, 1),
        float(tally.waiting),
    )
    return [
        Check(name, max(amount, 0.0), goal)
        for (name, goal), amount in zip(_GOALS.items(), measured, strict=True)
    ]

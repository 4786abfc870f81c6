"""`Course`: how it went for a user of a story, in bins of the wall clock.

Times are seconds since the story began; amounts are requests, on all nodes together. A second of
the story is a slot.
"""

import math
from dataclasses import dataclass

from tests.system.quota_worker import BIN_SECONDS

PER_SECOND = round(1 / BIN_SECONDS)


@dataclass(frozen=True, repr=False)
class Course:
    """How it went for a user: admitted and refused requests in each bin of the story."""

    user: str
    admitted: list[int]
    refused: list[int]
    held: list[list[float]]  # of each worker: seconds for which the machine held it up, by bin

    def total(self, begin: float = 0.0, end: float = math.inf) -> int:
        """Admitted from one second of the story to another."""
        return sum(self.admitted[_bin(begin) : _bin(end)])

    def demand(self, begin: float, end: float) -> int:
        return self.total(begin, end) + sum(self.refused[_bin(begin) : _bin(end)])

    def most(self, window: float, begin: float, end: float) -> int:
        """The most that was admitted in any window of so many seconds."""
        width = _bin(window)
        return max(
            sum(self.admitted[first : first + width])
            for first in range(_bin(begin), _bin(end) - width + 1)
        )

    def over(self, window: float, limit: float, begin: float, end: float) -> float:
        return (self.most(window, begin, end) - limit * window) / (limit * window)

    def over_in_time(self, window: float, limit: float, begin: float, end: float) -> float:
        """`over`, but for what the machine made late.

        What a share lets through in the course of a slot is let through later when all processes
        are held up for a while, so there is as much more in a window that begins with it.
        """
        width = _bin(window)
        return max(
            sum(self.admitted[first : first + width]) / (limit * window)
            - max(sum(held[first - PER_SECOND : first + width]) for held in self.held) / window
            - 1.0
            for first in range(_bin(begin), _bin(end) - width + 1)
        )

    def under(self, limit: float, begin: float, end: float) -> float:
        wanted = min(self.demand(begin, end), limit * (end - begin))
        return (wanted - self.total(begin, end)) / wanted

    def seconds(self, begin: float = 0.0, end: float = math.inf) -> list[int]:
        """Admitted in each second of the story, that is in each slot."""
        last = max((i for i, n in enumerate(self.admitted) if n), default=0)
        end = min(end, math.ceil((last + 1) * BIN_SECONDS))
        return [self.total(second, second + 1) for second in range(int(begin), int(end))]

    def __repr__(self) -> str:
        refused = [
            sum(self.refused[second * PER_SECOND : (second + 1) * PER_SECOND])
            for second in range(len(self.seconds()))
        ]
        longest = [max(bins) for bins in zip(*self.held, strict=True)]
        held = {round(i * BIN_SECONDS, 2): held for i, held in enumerate(longest) if held}
        return (
            f"{self.user}: admitted per second {self.seconds()}, refused {refused}, "
            f"held up for so many seconds until {held}"
        )


def _bin(seconds: float) -> int:
    return round(min(seconds, 1e6) / BIN_SECONDS)

"""How well a target was paced: figures out of what was asked for, passed and rewarded.

A run is a `Series` of bins. In each period the value reached is compared with the ideal line, and
with what was *possible*: one limiter that sees all requests of the cluster, passes as many whole
ones as the line allows, and makes up a lag at `boost` times the slope of the line at most.

    delivered     value at the end of a period over the target, the least of all periods
    achieved      the same over what was possible
    over          rewards in a period over the target, minus 1, the most of all periods
    over_earned   the same of passes x conversion: rewards that come late count where they were
                  earned
    off_target    passes more or less than the target, in units, in any whole period
    cold          value at the end of the first period over the target
    start_syncs   sync intervals from the first request to the first pass
    error         mean distance to the line over a period, as a part of the target
    error_most    the largest distance
    gap           mean distance to what was possible, as a part of the target
    deviation     standard deviation of the passes of a second over their mean
    recovery      sync intervals after a change until the value stays within 5 % of the line
    quality       sum of the scores that passed over that of the best choice of as many
    tie_error     part that passed of the score at the cut: distance to what it should be
    unrecorded    passes that the store lacks at the end, or has too many of; not those that a crash
                  lost, nor those of periods that were forgotten while the store was away

Periods of the warm-up count for cold, start_syncs, off_target and unrecorded alone.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from sluicegate.sim.measures import Goal, Missed

__all__ = [
    "GOALS",
    "Bounded",
    "Measures",
    "PeriodFigures",
    "Series",
    "missed",
    "recovery",
    "worst",
]

_ROUNDING = 1e-9
_WITHIN = 0.05  # of the line
_LEAST_LINE = 0.2  # of the target: earlier in a period the line is this much, for recovery

GOALS: dict[str, Goal] = {
    "delivered": Goal(False, "delivered", True),
    "achieved": Goal(False, "delivered of possible", True),
    "over": Goal(True, "over the target", True),
    "over_earned": Goal(True, "over, earned", True),
    "off_target": Goal(True, "off target, units", False),
    "cold": Goal(False, "first period", True),
    "start_syncs": Goal(True, "syncs to first pass", False),
    "error": Goal(True, "error to the line", True),
    "error_most": Goal(True, "largest error", True),
    "gap": Goal(True, "error to the possible", True),
    "deviation": Goal(True, "deviation per second", True),
    "recovery": Goal(True, "syncs to recover", False),
    "quality": Goal(False, "sum of scores", True),
    "tie_error": Goal(True, "tie share error", True),
    "unrecorded": Goal(True, "unrecorded", False),
}


@dataclass(slots=True)
class Series:
    """A run in bins of `width` seconds. Values are cumulative within each period."""

    width: float
    requests: list[float]
    passes: list[float]
    rewards: list[float]
    pass_rate: list[float]  # mean over the nodes, at the end of a bin
    value: list[float]  # what passes have earned in the period
    line: list[float]
    possible: list[float]


class PeriodFigures(NamedTuple):
    """One period of a run."""

    number: int
    is_whole: bool  # it was run from its begin to its end
    first_bin: int
    bins: int
    value: float
    possible: float
    rewards: float
    passes: float  # as the nodes counted them, less what was lost in crashes
    error: float
    error_most: float
    gap: float


class Bounded(NamedTuple):
    """A figure of a random cluster, and the most that its regime allows."""

    name: str
    figure: float
    most: float
    tolerance: float  # for rounding

    @property
    def is_met(self) -> bool:
        return self.figure <= self.most + self.tolerance

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "figure": self.figure,
            "most": self.most,
            "met": self.is_met,
        }


@dataclass(slots=True)
class Measures:
    """The figures of one run; None: it has no such figure."""

    delivered: float | None = None
    achieved: float | None = None
    over: float | None = None
    over_earned: float | None = None
    off_target: float | None = None
    cold: float | None = None
    start_syncs: float | None = None
    error: float | None = None
    error_most: float | None = None
    gap: float | None = None
    deviation: float | None = None
    recovery: float | None = None
    quality: float | None = None
    tie_error: float | None = None
    unrecorded: float | None = None

    def __getitem__(self, name: str) -> float | None:
        value: float | None = getattr(self, name)
        return value

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def missed(measures: Measures, goals: Mapping[str, float]) -> list[Missed]:
    """The goals that are not met; a figure that the run does not have misses its goal."""
    found = []
    for name, goal in goals.items():
        value = measures[name]
        if value is not None:
            past = value - goal if GOALS[name].at_most else goal - value
            if past <= _ROUNDING * max(1.0, abs(goal)):
                continue
        found.append(Missed(name, value, goal))
    return found


def worst(all_measures: Sequence[Measures]) -> Measures:
    """Of several runs, the worst of each figure."""
    found = Measures()
    for name, goal in GOALS.items():
        known = [value for one in all_measures if (value := one[name]) is not None]
        if known:
            setattr(found, name, max(known) if goal.at_most else min(known))
    return found


def deviation(passes: Sequence[float], width: float, period: float) -> float | None:
    """Of the passes of a second, or of a bin that is longer."""
    size = max(1, round(min(1.0, period / 10.0) / width))
    groups = [sum(passes[i : i + size]) for i in range(0, len(passes) - size + 1, size)]
    mean = statistics.fmean(groups) if groups else 0.0
    return statistics.pstdev(groups) / mean if mean else None


def recovery(
    series: Series, target: float, changes: Sequence[float], interval: float
) -> float | None:
    """Sync intervals from a change until the value stays near the line; the most of all changes."""
    if not changes:
        return None
    ends = [*changes[1:], len(series.value) * series.width]
    longest = 0.0
    for begin, end in zip(changes, ends, strict=True):
        first = math.ceil(begin / series.width)
        last_far = begin
        for index in range(first, min(len(series.value), math.floor(end / series.width))):
            line = series.line[index]
            allowed = _WITHIN * max(line, _LEAST_LINE * target)
            if abs(series.value[index] - line) > allowed:
                last_far = (index + 1) * series.width
        longest = max(longest, (last_far - begin) / interval)
    return longest

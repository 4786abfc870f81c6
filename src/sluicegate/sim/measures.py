"""How well a limit was kept: figures out of what was asked for and what was let through.

A `Cell` is one user and one resource: what was asked for and admitted in each step (a tenth of
a slot), beside what the limit allows in it. All figures leave out the warm-up. With several
cells, a figure is the worst of them.

    over_1, over_10, over_60   the most admitted in any window of so many seconds, over what the
                               limit allows in it, minus 1: 0.03 is three percent too much.
                               Windows begin with a slot; sliding_1, ... begin at any step
    over_60_units              the same of 60 s, as an amount: how many units too much
    under                      1 - admitted / min(asked for, allowed), the latter by stretches of
                               ten slots: what could have passed
    shortfall                  1 - admitted / what one perfect bucket would have admitted
    cheap_shortfall            the same of the cheapest requests alone, in requests, of users whose
                               requests differ in what they are expected to cost
    excess                     the most by which any window held more than limit * window + burst,
                               in requests (all three: see ideal.py)
    lowest_second              the least that any second let through of what it could have
    nothing                    share of the seconds with demand in which nothing passed
    jain                       Jain's index of fairness between equal nodes; 1 is perfectly fair
    rejected                   share of the requests refused of users who asked for no more than
                               their limits
    converged                  whole slots after a disturbance until all that follow let through
                               what was asked for, up to the limit and what was saved before,
                               within 5 %
    dip                        most slots in a row below 90 %
    low_seconds                seconds below 90 %
    fresh                      slots after an election until every node has a quota of the new
                               leader in force
    takeover                   the same in seconds, from when something happened to the leader
    unrecorded                 admitted, but not booked at the leader in the end, though nothing
                               of it was lost in a crash; negative: booked too often

A window is measured against `rate * seconds`, and the burst besides if the scenario says so:
under lasting overload the bucket is empty, and its capacity is no excuse.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

__all__ = ["GOALS", "STEPS", "Cell", "Goal", "Measures", "Missed", "measure", "missed"]

STEPS = 10  # per slot
_WITHIN = 0.05
_UNDER_SLOTS = 10
_DIP = 0.9
_ROUNDING = 1e-9


class Goal(NamedTuple):
    at_most: bool  # or at least
    text: str  # for people
    percent: bool


GOALS: dict[str, Goal] = {
    "over_1": Goal(True, "over 1 s", True),
    "over_10": Goal(True, "over 10 s", True),
    "over_60": Goal(True, "over 60 s", True),
    "over_60_units": Goal(True, "over 60 s, units", False),
    "under": Goal(True, "under", True),
    "shortfall": Goal(True, "shortfall", True),
    "cheap_shortfall": Goal(True, "shortfall, cheapest", True),
    "excess": Goal(True, "excess, requests", False),
    "lowest_second": Goal(False, "lowest second", True),
    "nothing": Goal(True, "seconds of nothing", True),
    "jain": Goal(False, "fairness (Jain)", False),
    "rejected": Goal(True, "rejected within limit", True),
    "converged": Goal(True, "slots to converge", False),
    "dip": Goal(True, "slots in a dip", False),
    "low_seconds": Goal(True, "seconds below 90 %", False),
    "fresh": Goal(True, "slots to fresh quota", False),
    "takeover": Goal(True, "seconds to take over", False),
    "unrecorded": Goal(True, "unrecorded", False),
}


@dataclass(slots=True)
class Cell:
    """One user and one resource, step by step. `by_node`: admitted on nodes that are equal."""

    service: str
    user: str
    resource: str
    demand: Sequence[float]
    admitted: Sequence[float]
    allowed: Sequence[float]  # by the rate of the limit, in each step
    capacity: float = 0.0
    unit: float = 1.0  # the most that one request took
    offered: int = 0  # requests
    refused: int = 0
    by_node: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Measures:
    """The figures of a run. None: it could not be said, as with over_60 of a run of 30 s."""

    over_1: float | None = None
    over_10: float | None = None
    over_60: float | None = None
    sliding_1: float | None = None
    sliding_10: float | None = None
    sliding_60: float | None = None
    over_60_units: float | None = None
    under: float | None = None
    shortfall: float | None = None
    cheap_shortfall: float | None = None
    excess: float | None = None
    lowest_second: float | None = None
    nothing: float | None = None
    jain: float | None = None
    rejected: float | None = None
    converged: float | None = None
    dip: float | None = None
    low_seconds: float | None = None
    fresh: float | None = None
    takeover: float | None = None
    unrecorded: float | None = None
    lost: float = 0.0  # admitted, and lost with the memory of a node that crashed
    messages: int = 0
    violations: int = 0  # of invariants; only counted where they are not fatal

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Missed(NamedTuple):
    """A goal that was not met."""

    goal: str
    figure: float | None
    expected: float

    def __str__(self) -> str:
        sense = "at most" if GOALS[self.goal].at_most else "at least"
        figure = "none" if self.figure is None else f"{self.figure:.6g}"
        return f"{self.goal} is {figure}, expected {sense} {self.expected:g}"


def missed(measures: Measures, goals: Mapping[str, float]) -> list[Missed]:
    """The goals that were not met. A figure that could not be had does not meet its goal."""
    found = []
    for name, expected in goals.items():
        figure = measures[name]
        if figure is not None:
            excess = figure - expected if GOALS[name].at_most else expected - figure
            if name == "unrecorded":
                excess = abs(figure) - expected
            if excess <= _ROUNDING * max(1.0, abs(expected)):
                continue
        found.append(Missed(name, figure, expected))
    return found


def measure(
    cells: Sequence[Cell],
    *,
    slot_seconds: float = 1.0,
    warm_up: float = 0.0,
    disturbances: Sequence[float] = (),
    burst: bool = False,
) -> Measures:
    """All that can be read off the cells. Times are seconds since the first step."""
    first = math.ceil(warm_up / slot_seconds - _ROUNDING) * STEPS
    measures = Measures()
    for cell in cells:
        _measure_cell(measures, cell, first, slot_seconds, disturbances, burst)
    offered = refused = 0
    for cell in cells:
        if sum(cell.demand) <= sum(cell.allowed):
            offered += cell.offered
            refused += cell.refused
    if offered:
        measures.rejected = refused / offered
    return measures


def _measure_cell(
    measures: Measures,
    cell: Cell,
    first: int,
    slot_seconds: float,
    disturbances: Sequence[float],
    burst: bool,
) -> None:
    demand, admitted, allowed = cell.demand[first:], cell.admitted[first:], cell.allowed[first:]
    asked, passed, free = (
        [0.0, *accumulate(demand)],
        [0.0, *accumulate(admitted)],
        [0.0, *accumulate(allowed)],
    )
    capacity = cell.capacity if burst else 0.0
    step_seconds = slot_seconds / STEPS
    for seconds in (1, 10, 60):
        steps = round(seconds / step_seconds)
        for name, begin in (("over", STEPS), ("sliding", 1)):
            over, units = _most_over(passed, free, steps, begin, capacity)
            _worst(measures, f"{name}_{seconds}", over, max)
            if name == "over" and seconds == 60:
                _worst(measures, "over_60_units", units, max)
    possible = _possible(asked, free, _UNDER_SLOTS * STEPS)
    if possible > 0:
        _worst(measures, "under", 1.0 - passed[-1] / possible, max)
    second = max(1, round(1.0 / step_seconds))
    shares = _shares(asked, passed, free, second)
    if shares:
        _worst(measures, "lowest_second", min(shares), min)
        _worst(measures, "low_seconds", float(sum(share < _DIP for share in shares)), max)
        _worst(measures, "nothing", sum(share == 0.0 for share in shares) / len(shares), max)
    slots = _shares(asked, passed, free, STEPS)
    _worst(measures, "dip", float(_longest(share < _DIP for share in slots)), max)
    starts = [time / slot_seconds - first // STEPS for time in disturbances]
    slots_to_converge = _converged(asked, passed, free, starts, cell.unit, cell.capacity)
    _worst(measures, "converged", slots_to_converge, max)
    if len(cell.by_node) > 1 and any(cell.by_node.values()):
        _worst(measures, "jain", jain(list(cell.by_node.values())), min)


def _possible(asked: list[float], free: list[float], steps: int) -> float:
    """What could have passed: in each stretch of `steps` what was asked for, or allowed."""
    last = len(asked) - 1
    ends = [*range(0, last, steps), last]
    return math.fsum(
        min(asked[end] - asked[begin], free[end] - free[begin]) for begin, end in pairwise(ends)
    )


def _worst(measures: Measures, name: str, figure: float | None, worse: Any) -> None:
    if figure is not None:
        before = measures[name]
        setattr(measures, name, figure if before is None else worse(before, figure))


def _most_over(
    passed: list[float], free: list[float], steps: int, begin: int, capacity: float
) -> tuple[float | None, float | None]:
    """The worst window of `steps`, as a fraction and as an amount. The lists are running sums."""
    most: float | None = None
    units: float | None = None
    for start in range(0, len(passed) - steps, begin):
        limit = free[start + steps] - free[start] + capacity
        amount = passed[start + steps] - passed[start]
        if limit > 0:
            over = amount / limit - 1.0
            most = over if most is None else max(most, over)
        units = amount - limit if units is None else max(units, amount - limit)
    return most, units


def _shares(asked: list[float], passed: list[float], free: list[float], steps: int) -> list[float]:
    """Of each window with demand, how much passed of what could have."""
    shares = []
    for start in range(0, len(passed) - steps, steps):
        end = start + steps
        possible = min(asked[end] - asked[start], free[end] - free[start])
        if possible > 0:
            shares.append((passed[end] - passed[start]) / possible)
    return shares


def _longest(flags: Any) -> int:
    """The longest row of true ones."""
    longest = row = 0
    for flag in flags:
        row = row + 1 if flag else 0
        longest = max(longest, row)
    return longest


def _converged(
    asked: list[float],
    passed: list[float],
    free: list[float],
    starts: Sequence[float],
    unit: float,
    capacity: float,
) -> float | None:
    """Of the slowest of several disturbances, the whole slots until all up to the next are right.

    A slot is right when it let through what was asked for, up to the limit; it may go beyond the
    limit by what the slots before it have left in the bucket.
    """
    slots = (len(passed) - 1) // STEPS
    begins = sorted({start for start in starts if 0 <= start < slots})
    wrong = _wrong_slots(asked, passed, free, unit, capacity)
    slowest: float | None = None
    for start, end in pairwise([*begins, float(slots)]):
        last = max(
            (slot for slot in wrong if math.floor(start) <= slot < math.floor(end)), default=-1
        )
        waited = max(0.0, last + 1.0 - math.ceil(start - _ROUNDING))
        slowest = waited if slowest is None else max(slowest, waited)
    return slowest


def _wrong_slots(
    asked: list[float], passed: list[float], free: list[float], unit: float, capacity: float
) -> list[int]:
    wrong = []
    saved = 0.0
    for slot in range((len(passed) - 1) // STEPS):
        here, there = slot * STEPS, (slot + 1) * STEPS
        amount = passed[there] - passed[here]
        limit = free[there] - free[here]
        possible = min(asked[there] - asked[here], limit)
        least = possible - max(_WITHIN * possible, unit) - _ROUNDING
        most = limit + max(_WITHIN * limit, unit) + saved + _ROUNDING
        if not least <= amount <= most:
            wrong.append(slot)
        saved = min(max(saved + limit - amount, 0.0), capacity)
    return wrong


def jain(amounts: Sequence[float]) -> float:
    """1 if all are the same, 1 / n if one has everything."""
    squares = sum(amount * amount for amount in amounts)
    return sum(amounts) ** 2 / (len(amounts) * squares) if squares else 1.0

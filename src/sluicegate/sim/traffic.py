"""The users: how many requests come to which node, tenth of a slot by tenth of a slot.

A `Traffic` says what one user does: the rate over time, how it is spread over the nodes, how
regular the requests arrive, what each costs and how long it runs. A `Stream` is that traffic
going on in one run. Asked once per step, it says who gets how many requests (`counts`); or it
gives the moment of each request (`arrivals`) and the node it goes to (`place`).

Rates are requests per second, times and durations seconds since the simulation began. Costs
that are drawn are whole numbers, so that sums of them are exact.
"""

import math
import random
from bisect import bisect, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

__all__ = ["Cost", "Poisson", "Rate", "Spread", "Stream", "Traffic"]

_TABLE_UP_TO = 64.0  # mean; above, the normal distribution is as good
_TABLES = 512


class Poisson:
    """Draws how many requests come when `mean` are to be expected."""

    __slots__ = ("_gauss", "_random", "_tables")

    def __init__(self, rng: random.Random) -> None:
        self._random = rng.random
        self._gauss = rng.gauss
        self._tables: dict[float, list[float]] = {}

    def draw(self, mean: float) -> int:
        return self.draw_many(mean, 1)[0]

    def draw_many(self, mean: float, count: int) -> list[int]:
        """`count` draws of the same mean."""
        if mean <= 0.0:
            return [0] * count
        if mean > _TABLE_UP_TO:
            gauss, deviation = self._gauss, math.sqrt(mean)
            return [max(0, round(gauss(mean, deviation))) for _ in range(count)]
        table = self._tables.get(mean)
        if table is None:
            if len(self._tables) >= _TABLES:  # rates that change all the time
                self._tables.clear()
            table = self._tables[mean] = _cumulated(mean)
        rng = self._random
        return [bisect(table, rng()) for _ in range(count)]


def _cumulated(mean: float) -> list[float]:
    """The probability of at most 0, 1, 2, ... requests: a draw is a look into this table."""
    probability = total = math.exp(-mean)
    table = [total]
    number = 0
    while number < mean or probability > 1e-18:
        number += 1
        probability *= mean / number
        total += probability
        table.append(total)
    table[-1] = math.inf
    return table


@dataclass(slots=True, frozen=True)
class Rate:
    """Requests per second over time.

    Without `cycle`, points of (time, rate): each holds until the next one, or with `ramp` the
    rate goes from one to the next in a straight line. With it, (on, off) seconds: the rate of
    the points in the first, nothing in the second, over and over.
    """

    points: tuple[tuple[float, float], ...]
    ramp: bool = False
    cycle: tuple[float, float] | None = None

    def at(self, time: float) -> float:
        if self.cycle is not None and time % sum(self.cycle) >= self.cycle[0]:
            return 0.0
        points = self.points
        if len(points) == 1:
            return points[0][1] if time >= points[0][0] else 0.0
        number = bisect_right(points, (time, math.inf)) - 1
        if number < 0:
            return 0.0
        since, rate = points[number]
        if self.ramp and number + 1 < len(points):
            until, coming = points[number + 1]
            return rate + (coming - rate) * (time - since) / (until - since)
        return rate

    def changes(self) -> list[float]:
        """When the rate jumps: what a limit has to get used to."""
        return [] if self.ramp or self.cycle else [time for time, _ in self.points if time > 0]


@dataclass(slots=True, frozen=True)
class Spread:
    """Which nodes the requests go to: all that are up, alike; or these, by weight; or `stay`:
    one at a time, for a random number of seconds between the two."""

    weights: tuple[tuple[str, float], ...] = ()
    stay: tuple[float, float] | None = None

    @property
    def even(self) -> bool:
        return self.stay is None and len({weight for _, weight in self.weights}) <= 1


_MOST_MEANS = 20.0


@dataclass(slots=True, frozen=True)
class Cost:
    """What a request takes of a resource: always `mean`; or, with a `tail`, whole numbers by a
    Pareto distribution of that index: the nearer to 1, the heavier its tail. No cost is above
    twenty times the mean, or it alone would decide the figures of a run."""

    mean: float
    tail: float | None = None

    def draw(self, rng: random.Random) -> float:
        if self.tail is None:
            return self.mean
        drawn = rng.paretovariate(self.tail) * self.mean * (self.tail - 1) / self.tail
        return float(max(1, round(min(drawn, _MOST_MEANS * self.mean))))


@dataclass(slots=True, frozen=True)
class Traffic:
    """All that one user does."""

    service: str
    user: str
    rate: Rate
    spread: Spread = Spread()
    moves: tuple[tuple[float, Spread], ...] = ()  # from this time on, spread so
    cost: dict[str, Cost] = field(default_factory=lambda: {"requests": Cost(1.0)})
    poisson: bool = True
    duration: float = 0.0  # seconds that a request runs; its cost is known when it ends
    together: int = 1  # how many requests come to a node at once

    def changes(self) -> list[float]:
        return sorted({*self.rate.changes(), *(time for time, _ in self.moves)})


class Stream:
    """A user's traffic as it comes in one run."""

    def __init__(self, traffic: Traffic, rng: random.Random) -> None:
        self.traffic = traffic
        # What every request costs, if all cost the same and end at once.
        self.constant_cost: dict[str, float] | None = None
        if not traffic.duration and all(cost.tail is None for cost in traffic.cost.values()):
            self.constant_cost = {name: cost.mean for name, cost in traffic.cost.items()}
        self.expected_cost = {name: cost.mean for name, cost in traffic.cost.items()}
        self._dice = rng
        self._draw_many: Callable[[float, int], list[int]] = Poisson(rng).draw_many
        self._spread = traffic.spread
        self._moves = list(traffic.moves)
        self._started: dict[str, float] = {}  # of even arrivals, the part of the next request
        self._place = ""
        self._until = -math.inf
        # Of `place`: for which nodes that are up, those with traffic, and their weights summed up.
        self._known_live: Sequence[str] | None = None
        self._targets: list[str] = []
        self._weights: list[float] = []
        self._due: list[float] = []  # of even arrivals, what each node should have got by now

    @property
    def even(self) -> bool:
        """Whether all nodes get the same, in the long run."""
        return self.traffic.spread.even and not self.traffic.moves

    def counts(self, time: float, seconds: float, live: Sequence[str]) -> Iterable[tuple[str, int]]:
        """(node, requests) of the `seconds` around `time`, for the nodes that are up."""
        self._follow_moves(time)
        expected = self.traffic.rate.at(time) * seconds
        if expected <= 0.0 or not live:
            return []
        spread = self._spread
        if spread.stay is not None:
            return [(self._hop(time, spread.stay, live), self._count("", expected, 0, 1))]
        if not spread.weights:
            if self.traffic.poisson:
                return zip(live, self._draw_many(expected / len(live), len(live)), strict=True)
            targets = [(node, 1.0) for node in live]
        else:
            targets = [(node, weight) for node, weight in spread.weights if node in live]
        total = sum(weight for _, weight in targets)
        return [
            (node, self._count(node, expected * weight / total, number, len(targets)))
            for number, (node, weight) in enumerate(targets)
        ]

    def arrivals(self, end: float, step_seconds: float) -> Iterator[float]:
        """The moments before `end` at which requests come, `together` of them each time. The rate
        is that of the middle of a step."""
        poisson, together = self.traffic.poisson, self.traffic.together
        rate_at, draw = self.traffic.rate.at, self._dice.expovariate
        left = draw(1.0) if poisson else 0.5  # of the expected arrivals, until the next one
        for step in range(math.ceil(end / step_seconds)):
            begin = step * step_seconds
            rate = rate_at(begin + 0.5 * step_seconds) / together
            expected = rate * step_seconds
            while left < expected:
                time = begin + left / rate
                if time >= end:
                    return
                yield time
                left += draw(1.0) if poisson else 1.0
            left -= expected

    def place(self, time: float, live: Sequence[str]) -> str | None:
        """The node that a request goes to; None: none of its nodes is up."""
        if self._moves:
            self._follow_moves(time)
        if not live:
            return None
        if self._spread.stay is not None:
            return self._hop(time, self._spread.stay, live)
        if live is not self._known_live:
            self._known_live = live
            weights = self._spread.weights or [(node, 1.0) for node in live]
            up = [(node, weight) for node, weight in weights if node in live]
            self._targets = [node for node, _ in up]
            self._weights = [*accumulate(weight for _, weight in up)]
            self._due = [0.0] * len(up)
        if not self._targets:
            return None
        if self.traffic.poisson:
            drawn = self._dice.random() * self._weights[-1]
            return self._targets[min(bisect(self._weights, drawn), len(self._targets) - 1)]
        return self._next_in_turn()

    def _next_in_turn(self) -> str:
        """The node that is furthest behind its weight."""
        due, before = self._due, 0.0
        for number, weight in enumerate(self._weights):
            due[number] += (weight - before) / self._weights[-1]
            before = weight
        chosen = max(range(len(due)), key=due.__getitem__)
        due[chosen] -= 1.0
        return self._targets[chosen]

    def _follow_moves(self, time: float) -> None:
        while self._moves and time >= self._moves[0][0]:
            self._spread = self._moves.pop(0)[1]
            self._known_live = None

    def _count(self, node: str, expected: float, number: int, of: int) -> int:
        if self.traffic.poisson:
            return self._draw_many(expected, 1)[0]
        # Nodes start at different parts of a request, or all would get theirs at once.
        started = self._started.get(node, (number + 0.5) / of) + expected
        count = int(started + 1e-9)
        self._started[node] = started - count
        return count

    def _hop(self, time: float, stay: tuple[float, float], live: Sequence[str]) -> str:
        if time >= self._until or self._place not in live:
            others = [node for node in live if node != self._place]
            self._place = self._dice.choice(others or list(live))
            self._until = time + self._dice.uniform(*stay)
        return self._place

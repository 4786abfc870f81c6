"""Requests: how many come, to which nodes, and the moments at which they do.

A `Shape` is a sequence of segments, in each of which the rate and the weights of the nodes are
constant. Arrivals are drawn on a time scale of their own, on which the rate is 1: so a Poisson
process, or evenly spaced requests, is exact across all changes of the rate.
"""

import math
import random
from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

__all__ = ["SHAPES", "Arrivals", "Change", "Segment", "Shape"]

SHAPES = ("even", "skewed", "moving", "bursty", "daily")
_GOLDEN = 0.6180339887498949  # its multiples, modulo 1, fill the interval evenly
_DAY_STEPS = 96  # a day has quarters of an hour, a shorter period has as many parts
_DAY_SWING = 0.8  # by which the daily rate is above and below its mean


@dataclass(slots=True, frozen=True)
class Change:
    """From a time on, there is `load` times the usual traffic, or it comes to other nodes."""

    at: float
    load: float = 1.0
    nodes: tuple[int, ...] | None = None  # that have all the traffic; None: as the shape says


@dataclass(slots=True, frozen=True)
class Segment:
    """Until a time, requests come at a rate, and each node gets its weight's part of them."""

    until: float
    rate: float  # requests per second
    weights: tuple[float, ...]


@dataclass(slots=True, frozen=True)
class Shape:
    """How the traffic is spread over nodes and time. Times are seconds since the run began."""

    kind: str
    rate: float  # requests per second, in the mean
    nodes: int
    period: float
    start: float = 0.0  # the place in the period at which the run begins
    skew: float = 1.0  # weights are 1 / number ** skew
    stay: float = 20.0  # seconds between two moves
    busy: int = 1  # nodes that have traffic between moves
    cycle: tuple[float, float] = (2.0, 2.0)  # seconds with traffic and without
    changes: tuple[Change, ...] = ()

    def segment(self, time: float) -> Segment:
        """What holds from a time on."""
        until, rate, weights = math.inf, self.rate, (1.0,) * self.nodes
        if self.kind == "skewed":
            weights = tuple(1.0 / (number + 1) ** self.skew for number in range(self.nodes))
        elif self.kind == "moving":
            move, until = _step(time, self.stay)
            first = move * self.busy
            busy = {(first + number) % self.nodes for number in range(self.busy)}
            weights = tuple(1.0 if number in busy else 0.0 for number in range(self.nodes))
        elif self.kind == "bursty":
            rate, until = self._burst(time)
        elif self.kind == "daily":
            part, until = _step(time + self.start, self.period / _DAY_STEPS)
            until -= self.start
            angle = 2.0 * math.pi * (part + 0.5) / _DAY_STEPS
            rate *= 1.0 - _DAY_SWING * math.cos(angle)
        return self._changed(time, Segment(until, rate, weights))

    def _burst(self, time: float) -> tuple[float, float]:
        on, off = self.cycle
        cycle, until = _step(time, on + off)
        ends = cycle * (on + off) + on
        return (self.rate * (on + off) / on, ends) if time < ends else (0.0, until)

    def _changed(self, time: float, usual: Segment) -> Segment:
        until, rate, weights = usual.until, usual.rate, usual.weights
        for change in self.changes:
            if change.at > time:
                return Segment(min(until, change.at), rate, weights)
            rate, weights = usual.rate * change.load, usual.weights
            if change.nodes is not None:
                chosen = set(change.nodes)
                weights = tuple(float(number in chosen) for number in range(self.nodes))
        return Segment(until, rate, weights)


def _step(time: float, length: float) -> tuple[int, float]:
    """The number of the step that a time is in, and when the next one begins."""
    number = math.floor(time / length)
    if (number + 1) * length <= time:  # the division was rounded
        number += 1
    return number, (number + 1) * length


class Arrivals:
    """The requests of a run, in order.

    `offer` is called for each, with its time and node. It may plan something: `next_time` says when
    the next act of the world is, and no request after that is offered before it.
    """

    def __init__(
        self,
        shape: Shape,
        rng: random.Random,
        *,
        is_poisson: bool,
        offer: Callable[[float, int], object],
        next_time: Callable[[], float],
    ) -> None:
        self._shape = shape
        self._rng = rng
        self._is_poisson = is_poisson
        self._offer = offer
        self._next_time = next_time
        self._time = 0.0
        self._gap = rng.random()  # until the next request, where the rate is 1
        self._place = rng.random()
        self._nodes: Sequence[int] = range(shape.nodes)
        self._segment = Segment(0.0, 0.0, ())
        self._known: tuple[int, ...] = ()
        self._heights: list[float] = []

    def use(self, nodes: Sequence[int]) -> None:
        """Send requests only to these nodes, from now on."""
        self._nodes = tuple(nodes)
        self._spread()

    def run(self, until: float) -> None:
        """Offer all requests before a time, or before the next act if that comes earlier."""
        while self._time < min(until, self._next_time()):
            if self._time >= self._segment.until or not self._heights:
                self._segment = self._shape.segment(self._time)
                self._spread()
            self._run_segment(min(until, self._segment.until, self._next_time()))

    def _spread(self) -> None:
        """Split the interval from 0 to 1 between the nodes that are up."""
        weights = self._segment.weights
        if not weights:
            return
        known = [node for node in self._nodes if node < len(weights) and weights[node] > 0.0]
        if known:
            heights = list(accumulate(weights[node] for node in known))
        else:  # those meant are down: the others get it all
            known = list(self._nodes)
            heights = [float(number + 1) for number in range(len(known))]
        self._known = tuple(known)
        self._heights = [height / heights[-1] for height in heights]

    def _run_segment(self, until: float) -> None:
        time, rate, gap, place = self._time, self._segment.rate, self._gap, self._place
        draw, log, is_poisson = self._rng.random, math.log, self._is_poisson
        offer, next_time = self._offer, self._next_time
        known, heights = self._known, self._heights
        last = len(known) - 1
        if last < 0:
            rate = 0.0  # no node is up: nobody hears them
        while rate > 0.0:
            after = time + gap / rate
            if after >= until:
                gap -= (until - time) * rate
                break
            time = after
            if is_poisson:
                gap, place = -log(1.0 - draw()), draw()
            else:
                gap, place = 1.0, (place + _GOLDEN) % 1.0
            offer(time, known[min(bisect(heights, place), last)])
            if next_time() < until:
                until = max(next_time(), time)
        self._time, self._gap, self._place = until, max(gap, 0.0), place

"""Scores of requests: what they are drawn from, and the best choice that was possible."""

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["DISTRIBUTIONS", "ScoreLog", "Scores"]

DISTRIBUTIONS = ("uniform", "normal", "exponential", "tiers")


@dataclass(slots=True, frozen=True)
class Scores:
    """A distribution of scores; `drift` is added to all of them in the course of a period."""

    distribution: str = "uniform"
    tiers: int = 5
    drift: float = 0.0

    def draw(self, rng: random.Random, periods: float) -> float:
        """A score at a time, which is given in periods since the run began."""
        drift = self.drift * periods
        if self.distribution == "uniform":
            return rng.random() + drift
        if self.distribution == "normal":
            return rng.gauss(10.0, 2.0) + drift
        if self.distribution == "exponential":
            return -math.log(1.0 - rng.random()) + drift
        return float(1 + int(rng.random() * self.tiers)) + math.floor(drift)


@dataclass(slots=True)
class ScoreLog:
    """The scores of one period."""

    offered: list[float] = field(default_factory=list)
    passed: list[float] = field(default_factory=list)

    @property
    def quality(self) -> float:
        """The sum of the scores that passed, as a part of the best choice of as many."""
        best = sorted(self.offered, reverse=True)[: len(self.passed)]
        total = math.fsum(best)
        return math.fsum(self.passed) / total if total else 1.0

    @property
    def tie_error(self) -> float:
        """How far the part that passed of the score at the cut is from what it should be."""
        if not self.passed:
            return 0.0
        counts = Counter(self.offered)
        cut, above = self._cut(counts)
        ideal = (len(self.passed) - above) / counts[cut]
        return abs(Counter(self.passed)[cut] / counts[cut] - ideal)

    def _cut(self, counts: Counter[float]) -> tuple[float, int]:
        """The score at which the best choice ends, and how many requests are above it."""
        scores: Sequence[float] = sorted(counts, reverse=True)
        above = 0
        for score in scores:
            if above + counts[score] >= len(self.passed):
                return score, above
            above += counts[score]
        return scores[-1], above - counts[scores[-1]]

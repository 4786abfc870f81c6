"""Rewards: which passes bring one, and how long it takes."""

import random
from dataclasses import dataclass

__all__ = ["Rewards"]


@dataclass(slots=True, frozen=True)
class Rewards:
    """A part of all passes brings a reward: by chance, or every n-th pass of the cluster."""

    conversion: float = 1.0
    is_random: bool = False
    delay: tuple[float, float] = (0.0, 0.0)  # seconds: least and most

    @property
    def are_at_once(self) -> bool:
        """Whether each pass is its own reward."""
        return self.conversion == 1.0 and self.delay[1] == 0.0

    def brings(self, rng: random.Random, passes: int) -> bool:
        """Whether the pass of this number, from 1 on, brings one."""
        if self.is_random:
            return rng.random() < self.conversion
        return int(passes * self.conversion + 1e-9) > int((passes - 1) * self.conversion + 1e-9)

    def draw_delay(self, rng: random.Random) -> float:
        least, most = self.delay
        return least if least == most else rng.uniform(least, most)

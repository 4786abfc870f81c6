"""`RewardRate`: rewards per pass, when rewards may come late.

The rate is rewards / passes, both fading with time, so it follows a drift. Rewards that come late
belong to earlier passes: compared with the passes of the same moment, the rate would be too low
while passes grow, and the limiter would overspend. So rewards are compared with the passes of
`delay` seconds ago. Nobody tells which pass brought a reward, but passes that change leave their
mark in the rewards `delay` seconds later: of nine delays from 0 to `within`, the one whose passes
predict the rewards best is taken. While passes are even, all predict them equally well, and it does
not matter which one it is. At first, the time until the first reward is taken for the delay.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence

__all__ = ["RewardRate"]

_DELAYS = 8  # steps from 0 to `within`
_PRIOR_REWARDS = 3.0  # what the first guess weighs, in rewards of the usual size
_MOST_POINTS = 4_000
_CLEARLY_BETTER = 0.8  # of the other's squared error
_CERTAINTY = 50.0  # rewards that the first guess is worth against doubt
_DOUBT = 1.5  # standard deviations by which few rewards may mislead
_MEMORY_OF_DELAYS = 10.0  # what is averaged over, in delays


class RewardRate:
    """The rate of one limiter, from cumulative totals of the cluster."""

    def __init__(self, guess: float, within: float) -> None:
        self.rate = self.estimate = self._guess = guess
        self._guess_unit = 0.0  # the size of rewards by which the guess weighs
        self.within = within
        self.delay = within
        steps = range(_DELAYS + 1) if within else [_DELAYS]
        self._fits = [_Fit(within * step / _DELAYS) for step in steps]
        self._chosen = self._fits[-1]
        self._period_began = 0.0
        self._first = 0.0  # when passes began
        self.has_rewards = False
        self._times: list[float] = []
        self._passes: list[float] = []
        self._rewards = 0.0
        self._reward_count = 0.0
        self._recent_count = 0.0
        self._at_begin: tuple[Sequence[float], Sequence[float]] = ((), ())

    def begin_period(self, time: float) -> None:
        """Remember the passes that were waiting for their reward when a period began."""
        self._period_began = time
        self._at_begin = (self._times.copy(), self._passes.copy())

    def see(
        self,
        time: float,
        passes: float,
        rewards: float,
        reward_count: float,
        unit: float,
        memory: float,
    ) -> None:
        """Learn from the totals at some time.

        `unit` is the usual size of a reward, `memory` the seconds after which totals have faded.
        """
        self._weigh_guess(unit)
        if not self._times:
            # What others have passed before this node came, they have passed evenly.
            self._first = min(self._period_began, time - 1e-3)
            self._times, self._passes = [self._first, time], [0.0, passes]
            self._rewards, self._reward_count = rewards, reward_count
            self.has_rewards = rewards > 0.0
            return
        before = self._times[-1]
        if time <= before:
            return
        new_rewards = max(rewards - self._rewards, 0.0)
        self._rewards = max(rewards, self._rewards)
        new_count = max(reward_count - self._reward_count, 0.0)
        self._reward_count = max(reward_count, self._reward_count)
        self._note(time, max(passes, self._passes[-1]))
        fading = math.exp(-(time - before) / max(memory, _MEMORY_OF_DELAYS * self.within))
        self._recent_count = self._recent_count * fading + new_count
        for fit in self._fits:
            ripe = self._until(time - fit.delay) - self._until(before - fit.delay)
            fit.add(ripe, new_rewards, fading)
        self._choose(time, new_rewards)
        self.delay = self._chosen.delay
        # Few rewards tell little. While they may come late, err on the side of spending less.
        self.estimate = self._chosen.rate if self.has_rewards else self._guess
        doubt = _DOUBT / math.sqrt(self._recent_count + _CERTAINTY) if self.within else 0.0
        self.rate = self.estimate * (1.0 + doubt)

    def _weigh_guess(self, unit: float) -> None:
        """Let the guess weigh as much as some rewards of the size that is known by now."""
        if unit > self._guess_unit:
            for fit in self._fits:
                fit.add_guess(self._guess, _PRIOR_REWARDS * (unit - self._guess_unit))
            self._guess_unit = unit

    def _choose(self, time: float, new_rewards: float) -> None:
        """Choose the delay: by the first reward, and by the best fit when all have seen enough."""
        if time - self._first > 1.5 * self.within:
            best = min(self._fits, key=_Fit.error)
            if best.error() < _CLEARLY_BETTER * self._chosen.error():
                self._chosen = best
        elif new_rewards and not self.has_rewards:
            longest = time - self._first  # it was for the first pass at the earliest
            self._chosen = next((fit for fit in self._fits if fit.delay >= longest), self._fits[-1])
        self.has_rewards = self.has_rewards or new_rewards > 0.0

    def to_come(self, usual: float) -> float:
        """Rewards to be expected of passes, beyond those that were to be expected at the begin.

        `usual`: rewards per second on the line. What was to be expected beyond that counts for this
        period, for it comes in it.
        """
        if not self.within or not self._times:
            return 0.0
        now = _pending(self._times, self._passes, self.delay)
        at_begin = self.rate * _pending(*self._at_begin, self.delay)
        return self.rate * now - min(at_begin, usual * self.delay)

    def _note(self, time: float, passes: float) -> None:
        oldest = self._times[-1] - 2.0 * self.within
        self._times.append(time)
        self._passes.append(passes)
        old = bisect_right(self._times, oldest) - 1
        if old > 100 or len(self._times) > _MOST_POINTS:
            old = max(old, len(self._times) - _MOST_POINTS)
            del self._times[:old], self._passes[:old]

    def _until(self, time: float) -> float:
        return _interpolate(self._times, self._passes, time)


class _Fit:
    """How well the passes of `delay` seconds ago predict the rewards."""

    __slots__ = ("_cross", "_passes", "_rewards", "_squares", "_squares_of_rewards", "delay")

    def __init__(self, delay: float) -> None:
        self.delay = delay
        self._passes = self._rewards = 0.0
        self._squares = self._cross = self._squares_of_rewards = 0.0

    @property
    def rate(self) -> float:
        return max(self._rewards, 1e-9) / max(self._passes, 1e-9)

    def add_guess(self, rate: float, rewards: float) -> None:
        """Go on as if so many rewards had been seen at the guessed rate."""
        self._rewards += rewards
        self._passes += rewards / rate

    def add(self, passes: float, rewards: float, fading: float) -> None:
        self._passes = self._passes * fading + passes
        self._rewards = self._rewards * fading + rewards
        self._squares = self._squares * fading + passes * passes
        self._cross = self._cross * fading + passes * rewards
        self._squares_of_rewards = self._squares_of_rewards * fading + rewards * rewards

    def error(self) -> float:
        """The sum of squared errors of the best prediction by these passes."""
        explained = self._cross * self._cross / self._squares if self._squares else 0.0
        return max(self._squares_of_rewards - explained, 0.0)


def _pending(times: Sequence[float], passes: Sequence[float], delay: float) -> float:
    """The passes of the last `delay` seconds of a history."""
    if not times:
        return 0.0
    return passes[-1] - _interpolate(times, passes, times[-1] - delay)


def _interpolate(times: Sequence[float], values: Sequence[float], time: float) -> float:
    index = bisect_right(times, time)
    if index == 0:
        return values[0]
    if index == len(times):
        return values[-1]
    before, after = times[index - 1], times[index]
    low, high = values[index - 1], values[index]
    return low + (high - low) * (time - before) / (after - before)

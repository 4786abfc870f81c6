"""`Steering`: how much a node may pass until its next sync. No I/O: it is given what was seen.

Once per sync, in rewards:

    step = target x (line(next sync) - line(now))
    lag  = target x line(now) - rewards that are there or may be expected
    need = step + lag x interval / horizon,  at most boost x step

The horizon is the burst interval, or what is left of the period if that is less: a lag is made up
within it. This node's plan is its share of the need, turned into passes by the reward rate.

**Expected rewards.** Passes may bring their reward later. Those that wait for it count at the
reward rate, less those that waited when the period began: their rewards come now, in return
(`reward_rate.py`).

**Holds.** A node passes only what it holds, by the store's grant (`stores/store.py`), and the store
grants no more than the target. A plan of a whole pass or more is held three times over, so that two
lost syncs do not stop it, but never more than this node's share of what is left of the target.

**Single units.** A plan of less than a pass is not saved up, or each of fifty nodes would sit on a
fraction. The node claims one whole unit that is due soon, passes it when it is due, and gives it
back when no request came for it. Where requests are rare, a unit is claimed the earlier, so that
the node that gets the next request has one; and units pass a little before the line, so that there
are requests left for the last.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from sluicegate._validate import check_positive
from sluicegate.pacing.line import Line
from sluicegate.pacing.reward_rate import RewardRate
from sluicegate.pacing.schedule import Schedule, Span

__all__ = ["Claim", "Release", "Seen", "Steering"]

_HELD_SYNCS = 3.0  # a hold covers this many syncs
_AHEAD = 1.5  # sync intervals before it is due that a single unit may be claimed
_LAST_REQUESTS = 8.0  # requests that should still come after the last unit is due
_ROUNDING = 1e-6  # units: sums of doubles may be off
_MEMORY_SYNCS = 10.0  # the reward rate is averaged over this many


class Seen(NamedTuple):
    """What a node knows of a limiter at some moment, in Unix time."""

    time: float
    interval: float  # seconds until the next sync
    share: float  # of the cluster's requests that come to this node
    gap: float  # seconds between two requests at this node; infinite: none is expected
    request_rate: float  # of this node, per second
    cluster_request_rate: float
    passes: float  # of the cluster, in this period
    rewards: float
    reward_count: int
    unit: float  # the usual cost of a request
    nodes: int  # that are live
    is_settling: bool  # the store was away, and others have not told yet what they did


class Claim(NamedTuple):
    """What to ask of the store: see `CounterUpdate`."""

    want: float
    ceiling: float
    is_single: bool  # one unit, rather than a plan


class Release(NamedTuple):
    """Credit for the node: `rate` per second from `start` on, at most `cap` of it saved."""

    rate: float
    start: float  # Unix time
    cap: float


class Steering:
    """The plan of one limiter on one node."""

    def __init__(
        self,
        *,
        target: float,
        schedule: Schedule,
        reserve: float,
        curve: Sequence[float] | None,
        burst_interval: float,
        boost: float,
        decay: float,
        reward_rate: float,
        reward_within: float,
    ) -> None:
        self.target = check_positive("target", target)
        self.schedule = schedule
        self.curve = curve
        self.ideal_pass_rate = 0.0
        self.line = Line(Span(0.0, 1.0), 0.0, None, schedule)
        self.span = Span(0.0, 0.0)
        self.reward_within = reward_within
        self._reserve = reserve
        self._burst_interval = burst_interval
        self._boost = boost
        self._decay = decay
        self._reward_rate = RewardRate(reward_rate, reward_within)
        self._seen: Seen | None = None
        self._ended_passes = 0.0  # of all earlier periods
        self._ended_rewards = 0.0
        self._ended_reward_count = 0

    @property
    def reward_rate(self) -> float:
        """Rewards per pass to plan by: rather too many than too few."""
        return self._reward_rate.rate

    @property
    def estimated_reward_rate(self) -> float:
        return self._reward_rate.estimate

    def begin(self, span: Span) -> None:
        """A period begins."""
        if self._seen is not None and self.span.end:
            self._ended_passes += self._seen.passes
            self._ended_rewards += self._seen.rewards
            self._ended_reward_count += self._seen.reward_count
            self._seen = self._seen._replace(passes=0.0, rewards=0.0, reward_count=0)
        self.span = span
        self.line = Line(span, self._reserve, self.curve, self.schedule)
        self._reward_rate.begin_period(span.begin)

    def set_target(self, target: float) -> None:
        self.target = check_positive("target", target)

    def see(self, seen: Seen) -> None:
        """Note what a sync has told."""
        self._seen = seen
        self._reward_rate.see(
            seen.time,
            self._ended_passes + seen.passes,
            self._ended_rewards + seen.rewards,
            self._ended_reward_count + seen.reward_count,
            seen.unit,
            max(_MEMORY_SYNCS * seen.interval, 2.0 * self._burst_interval),
        )
        step = self._step(seen)
        requests = seen.cluster_request_rate * seen.interval * self.reward_rate
        if requests > 0.0:
            ideal = min(step / requests, 1.0)
            self.ideal_pass_rate = ideal + (self.ideal_pass_rate - ideal) * self._decay

    def plan(self, seen: Seen) -> float:
        """Passes that this node should let through until the next sync."""
        step = self._step(seen)
        left = max(self.span.end - seen.time, 1e-9)
        horizon = max(min(self._burst_interval, left), min(seen.interval, left))
        lag = 0.0 if seen.is_settling else self._lag(seen)
        fix = lag * min(seen.interval, left) / horizon
        usual = self.target * min(seen.interval, left) / (self.line.end - self.line.begin)
        need = step + min(fix, (self._boost - 1.0) * max(step, usual))
        return max(seen.share * need / self.reward_rate, 0.0)

    def claim(self, seen: Seen, credit: float, is_given_back: bool) -> Claim:
        """What to hold until the next sync."""
        if seen.time < self.span.begin or seen.time >= self.span.end:
            return Claim(0.0, 0.0, True)
        plan = self.plan(seen)
        rest = (self.target - self._expected(seen)) / self.reward_rate
        if plan + credit >= seen.unit or self._is_last_chance(seen):
            part = math.ceil(seen.share * max(rest, 0.0) / seen.unit) * seen.unit
            want = min(_HELD_SYNCS * plan + 2.0 * seen.unit, part)
            return Claim(want, seen.passes + rest + _ROUNDING, False)
        if is_given_back:
            return Claim(0.0, 0.0, True)
        room = min(self._soon(seen), rest)
        return Claim(self._unplanned(seen), seen.passes + room + _ROUNDING, True)

    def release(
        self, seen: Seen, claim: Claim, granted: float, credit: float, held_by_others: float
    ) -> Release:
        """How to spend what was granted."""
        if claim.is_single:
            start = max(self._due(seen, held_by_others), seen.time)
            return Release(math.inf, start, max(granted, seen.unit))
        left = min(seen.interval, self.span.end - seen.time)
        plan = self.plan(seen)
        if self._is_last(seen):
            # Whole units, and soon enough that requests come for all of them.
            plan = max(plan, min(granted - credit, plan + seen.unit))
            left -= min(_LAST_REQUESTS * seen.gap, 0.5 * left)
        return self._evenly(seen, plan / max(left, 1e-3))

    def coast(self, seen: Seen) -> Release:
        """How to go on while the store is away: this node's share of the line."""
        if seen.time < self.span.begin or seen.time >= self.span.end:
            return Release(0.0, seen.time, 0.0)
        return self._evenly(seen, seen.share * self._step(seen) / self.reward_rate / seen.interval)

    def _evenly(self, seen: Seen, rate: float) -> Release:
        return Release(rate, seen.time, max(seen.unit, rate * min(seen.interval, 1.0)))

    def _soon(self, seen: Seen) -> float:
        """Passes that are due before this node syncs again, or has its next request."""
        if seen.gap == math.inf:
            # A first request may come; but not at the expense of those who have requests.
            return (self.target - self._expected(seen)) / self.reward_rate - seen.nodes * seen.unit
        soon = self.line.part(seen.time + _AHEAD * max(seen.interval, seen.gap))
        return (self.target * soon - self._expected(seen)) / self.reward_rate + 0.5 * seen.unit

    def _unplanned(self, seen: Seen) -> float:
        """What a node holds without a plan: a unit, or more where the cluster is behind."""
        behind = min(self._lag(seen), self._boost * self._step(seen)) / self.reward_rate
        return max(math.floor(behind / seen.nodes / seen.unit), 1) * seen.unit

    def _due(self, seen: Seen, held_by_others: float) -> float:
        """When a single unit may pass: when the line has reached the middle of it."""
        # Where requests are rare, few of the others' units will be used before the next sync.
        used_by_others = held_by_others * min(seen.interval / seen.gap, 1.0)
        before = self._expected(seen) + self.reward_rate * (used_by_others + 0.5 * seen.unit)
        due = self.line.time_of(before / self.target)
        return due - self._early(seen, due)

    def _early(self, seen: Seen, due: float) -> float:
        """How much earlier than on the line single units pass, so that requests come for the last.

        It grows along the line, to some requests' time or a fifth of the period at its end.
        """
        length = self.line.end - self.line.begin
        return min(_LAST_REQUESTS * seen.gap, 0.2 * length) * (due - self.line.begin) / length

    def ideal_reward(self, time: float) -> float:
        return self.target * self.line.part(time)

    def lag(self, time: float) -> float:
        """Seconds behind the line, as of the last sync or the begin of the period."""
        if self._seen is None:
            return 0.0
        reached = self.line.time_of(self._expected(self._seen) / self.target)
        return min(max(self._seen.time, self.line.begin), self.line.end) - reached

    def _is_last(self, seen: Seen) -> bool:
        """Whether the next sync comes after the end of the line."""
        return seen.time + seen.interval >= self.line.end

    def _is_last_chance(self, seen: Seen) -> bool:
        """Whether a request will come here before the end of the line, and no sync will."""
        return self._is_last(seen) and seen.gap < self.line.end - seen.time

    def _step(self, seen: Seen) -> float:
        return self.target * (self.line.part(seen.time + seen.interval) - self.line.part(seen.time))

    def _lag(self, seen: Seen) -> float:
        """Rewards behind the line."""
        return self.ideal_reward(seen.time) - self._expected(seen)

    def _expected(self, seen: Seen) -> float:
        """Rewards of this period: those that are there, and those that passes have earned."""
        if not self._reward_rate.has_rewards:
            # None has ever come. Should nobody report them, passes are all that is left to count.
            return max(seen.rewards, self.reward_rate * seen.passes)
        usual = self.target / (self.line.end - self.line.begin)
        return max(seen.rewards + self._reward_rate.to_come(usual), 0.0)

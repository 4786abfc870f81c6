"""`LimiterControl`: what a limiter tells the store at a sync, and does with the answer."""

import math
from collections.abc import Callable

from sluicegate.pacing._cluster_clock import ClusterClock
from sluicegate.pacing._counter import ClusterCounter
from sluicegate.pacing._limiter import ClusterLimiter
from sluicegate.pacing.steering import Claim, Release, Seen, Steering
from sluicegate.stores.store import CounterTotals, CounterUpdate

__all__ = ["SETTLE_SYNCS", "LimiterControl"]

_SURPRISE = 2.0  # times the requests that were foreseen until the next sync
_SURPRISING_REQUESTS = 8.0  # beyond that
_LONG_PERIOD = 30.0  # syncs
_LAST_SYNCS = 5.0  # near the end of the line a unit changes hands more quickly
_LONGEST_GAP = 4.0  # times the mean: after a silence of more, no request is expected
_LONGEST_SILENCE = 2.0  # syncs, if that is more
SETTLE_SYNCS = 1.2  # after an outage, until all nodes have synced
_AT_ONCE = 1e12  # a rate of credit per second: all of it now


class LimiterControl:
    """Carries out the plan of `Steering` on a `ClusterLimiter`. Times are local."""

    def __init__(
        self,
        steering: Steering,
        clock: ClusterClock,
        sync_interval: float,
        live_for: float,
        nodes: Callable[[], int],
        ask_for_sync: Callable[[], object],
    ) -> None:
        self.steering = steering
        self._nodes = nodes
        self.ask_for_sync = ask_for_sync
        self.is_over = False
        self._clock = clock
        self._live_for = live_for
        self._sync_interval = sync_interval
        self._interval = sync_interval  # until the next sync
        self._unit = 1.0
        self._mean_gap = math.inf  # seconds between two requests
        self._requests = 0  # that had come when one was last seen to have come
        self._requested_at = math.nan  # when that was, in local time
        self._claim = Claim(0.0, 0.0, True)
        self._due = math.inf  # local time at which the unit that is held may pass
        self._is_in_touch = False  # the last sync was answered
        self._was_in_touch = False  # one was, ever
        self._settled_at = -math.inf  # local time at which all have told what they did meanwhile

    def begin_period(self, limiter: ClusterLimiter, local: float) -> None:
        """Begin the period of a moment, or end the only one."""
        now = self._clock.unix(local)
        span = self.steering.schedule.at(now)
        if now >= span.end:
            self.is_over = True
            limiter._end()
            return
        limiter._turn(span.begin, span.end)
        self.steering.begin(span)
        self._claim = Claim(0.0, 0.0, True)
        seen = self._seen(limiter, local, self._interval)
        # A sync is due now. Until it is answered, a node goes on with its share, in whole passes;
        # in a short period that would be too much of the target.
        release = self.steering.coast(seen)
        hold = 0.0
        if span.end - span.begin >= _LONG_PERIOD * self._sync_interval:
            hold = math.floor(release.rate * self._interval / seen.unit) * seen.unit
        until = local + self._live_for if self._is_in_touch else -math.inf
        self._set(limiter, release, hold, until)

    def updates(
        self, limiter: ClusterLimiter, local: float, interval: float, decay: float
    ) -> list[tuple[ClusterCounter, list[CounterUpdate]]]:
        """What to tell the store. `interval`: seconds until the next sync after this one."""
        for counter in limiter._counters:
            counter._measure(local, self._sync_interval, decay)
        self._measure_gap(limiter.requests._total_count, local)
        seen = self._seen(limiter, local, interval)
        self._interval = interval
        keeps_unit = self._claim.is_single and limiter._hold_left > 0.0
        is_given_back = keeps_unit and local >= self._give_back_at()
        credit = 0.0 if self._claim.is_single else limiter._credit_left
        self._claim = self.steering.claim(seen, credit, is_given_back)
        if not keeps_unit or not self._claim.is_single or is_given_back:
            self._due = math.inf
        claim = self._claim
        # What is given back must not pass while it is on its way.
        limiter._limit_hold(claim.want)
        hold = (claim.want, seen.unit, claim.ceiling)
        return [
            (counter, counter._updates(*hold) if counter is limiter.passes else counter._updates())
            for counter in limiter._counters
        ]

    def next_act(self, limiter: ClusterLimiter) -> float:
        """When to sync out of turn, in local time: to give a unit back while others can use it."""
        if not self._claim.is_single or limiter._hold_left <= 0.0:
            return math.inf
        return self._give_back_at() if self._is_near_end(self._due) else math.inf

    def _give_back_at(self) -> float:
        """When a unit that was due has waited long enough for a request."""
        shortest = 0.25 if self._is_near_end(self._due) else 1.0
        gap = self._mean_gap if self._mean_gap < math.inf else 0.0
        return self._due + max(shortest * self._sync_interval, gap)

    def _measure_gap(self, requests: int, local: float) -> None:
        """Note how long it is from one request to the next."""
        if math.isnan(self._requested_at):
            self._requested_at, self._requests = local, requests
        came = requests - self._requests
        if came and local > self._requested_at:
            gap = (local - self._requested_at) / came
            if self._mean_gap < math.inf:
                gap += (self._mean_gap - gap) * 0.5
            self._mean_gap, self._requested_at, self._requests = gap, local, requests

    def _gap(self, local: float) -> float:
        """Seconds between two requests; infinite if they have ended, by all that can be known."""
        longest = max(_LONGEST_GAP * self._mean_gap, _LONGEST_SILENCE * self._sync_interval)
        return self._mean_gap if local - self._requested_at <= longest else math.inf

    def _is_near_end(self, local: float) -> bool:
        left = self.steering.line.end - self._clock.unix(local)
        return left < _LAST_SYNCS * self._sync_interval

    def receive(
        self,
        limiter: ClusterLimiter,
        update: CounterUpdate,
        totals: CounterTotals,
        sent: float,
        local: float,
    ) -> None:
        """The counters have the answer; `update` and `totals` are those of the passes."""
        if update.key.begin != limiter.passes.span[0] or self.is_over:
            return  # a period has begun meanwhile
        if not self._is_in_touch and self._was_in_touch:
            self._settled_at = local + SETTLE_SYNCS * self._sync_interval
        self._is_in_touch = self._was_in_touch = True
        others = totals.held - totals.granted
        self._bound_others(limiter, local, others)
        seen = self._seen(limiter, local, self._interval)
        self.steering.see(seen)
        granted = max(totals.granted - limiter.passes._added_since(update), 0.0)
        release = self.steering.release(seen, self._claim, granted, limiter._credit_left, others)
        if self._claim.is_single:
            if granted < seen.unit:
                release = Release(0.0, seen.time, seen.unit)
            elif self._due == math.inf or seen.gap > self._sync_interval:
                # A unit keeps its turn. Where requests are rare, the others' units keep waiting,
                # too, and it is due by what has passed.
                self._due = release.start - self._clock.unix(0.0)
            release = release._replace(start=self._due + self._clock.unix(0.0))
        self._set(limiter, release, granted, sent + self._live_for)
        self._choose(limiter, seen, release)

    def set_target(self, limiter: ClusterLimiter, target: float) -> None:
        """From now on: what is held beyond a lower target does not pass any more."""
        self.steering.set_target(target)
        rest = (target - limiter.rewards.value()) / self.steering.reward_rate
        limiter._limit_hold(max(rest, 0.0))
        self.ask_for_sync()

    def has_ended(self, local: float) -> bool:
        """Whether the only period is over."""
        end = self.steering.schedule.end
        return end is not None and self._clock.unix(local) >= end

    def coast(self, limiter: ClusterLimiter, local: float) -> None:
        """The store did not answer. What is held lasts for a while; then the share must do."""
        self._is_in_touch = False
        if not self.is_over and limiter._is_without_hold(local):
            self.lapse(limiter, local)

    def lapse(self, limiter: ClusterLimiter, local: float) -> None:
        """The store has forgotten what this node held: now its share of the line must do."""
        if self._claim.is_single:
            self._set(
                limiter, Release(0.0, 0.0, 0.0), 0.0, -math.inf
            )  # its credit was for the unit
        self._claim = Claim(0.0, 0.0, True)
        seen = self._seen(limiter, local, self._interval)
        self._set(limiter, self.steering.coast(seen), 0.0, -math.inf)

    def _bound_others(self, limiter: ClusterLimiter, local: float, held: float) -> None:
        """The others pass no more than they hold, once all have told it in this period."""
        begun = self._clock.unix(local) - self.steering.span.begin
        room = held if begun > self._live_for / 2.0 else math.inf
        limiter.passes._bound_others(room)
        if not self.steering.reward_within:
            limiter.rewards._bound_others(room * self.steering.reward_rate)

    def _set(
        self, limiter: ClusterLimiter, release: Release, hold: float, hold_until: float
    ) -> None:
        start = release.start - self._clock.unix(0.0)
        rate = min(release.rate, _AT_ONCE)
        slack = (rate if rate < _AT_ONCE else 0.0) + 3.0 * self._unit
        is_single = self._claim.is_single and release.rate in (0.0, math.inf)
        most = max(limiter._share * self.steering.target / self.steering.reward_rate, self._unit)
        limiter._release(rate, start, is_single, release.cap, hold, hold_until, most, slack)
        foreseen = limiter.requests.rate * self._interval
        limiter._expect(_SURPRISE * foreseen + _SURPRISING_REQUESTS * self._unit)

    def _choose(self, limiter: ClusterLimiter, seen: Seen, release: Release) -> None:
        """Set the score above which requests pass, so that as many pass as planned."""
        foreseen = seen.request_rate * self._interval
        if foreseen > 0.0:  # a rate that fades away may be too small for the product
            amount = self.steering.plan(seen)
            if not self._claim.is_single:
                amount = release.rate * self._interval + limiter._credit_left
            limiter._set_cut(amount / foreseen)

    def _seen(self, limiter: ClusterLimiter, local: float, interval: float) -> Seen:
        count = limiter.requests.local_count
        if count:
            self._unit = limiter.requests.local() / count
        return Seen(
            time=self._clock.unix(local),
            interval=interval,
            share=limiter._share,
            gap=self._gap(local),
            request_rate=limiter.requests.rate,
            cluster_request_rate=limiter.requests.cluster_rate,
            passes=limiter.passes.value(),
            rewards=limiter.rewards.value(),
            reward_count=limiter.rewards.cluster_count,
            unit=self._unit,
            nodes=self._nodes(),
            is_settling=local < self._settled_at,
        )

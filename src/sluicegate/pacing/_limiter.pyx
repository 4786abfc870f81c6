# cython: language_level=3, binding=False, embedsignature=True, embedsignature.format=clinic, cdivision=True
"""`ClusterLimiter`: the decision. What to decide by comes from `steering.py`, once per sync.

Credit accrues with time, at the rate that was planned for this node, and every pass spends some:
deterministic, so a node passes what was planned whatever its traffic does in the meantime. A pass
needs half its cost in credit, so the error is half a pass in either direction, and it needs its
whole cost in the hold: what the store has granted this node. So all nodes together never pass more
than the target while the store answers.

With scores, whatever is above the cut passes, and the credit may run down by `slack`: chance may
bring good requests in a row. What is at the cut passes when there is credit, which splits ties.
"""

import threading

from libc.math cimport INFINITY, fabs

from sluicegate._minmax cimport fast_max, fast_min
from sluicegate.pacing._cluster_clock cimport ClusterClock
from sluicegate.pacing._counter cimport ClusterCounter
from sluicegate.pacing._score_window cimport ScoreWindow

from sluicegate._validate import check_between, check_number

__all__ = ["TARGETS", "ClusterLimiter"]

TARGETS = (1e-6, 1e15)  # the least and the most

cdef double _CUT_TOLERANCE = 0.005


cdef class ClusterLimiter:
    """A limiter of the whole cluster. Made by `Cluster.limiter`."""

    cdef readonly str name
    cdef readonly tuple label_values
    cdef readonly ClusterCounter requests
    cdef readonly ClusterCounter passes
    cdef readonly ClusterCounter rewards
    # Of a scored limiter: requests that reach the cluster's cut, and the sum of this node's cut over
    # its passes. They are how nodes with better requests get a larger share.
    cdef ClusterCounter _worthy
    cdef ClusterCounter _cuts
    cdef ClusterClock _clock
    cdef ScoreWindow _scores
    cdef object _control
    cdef object _lock
    cdef object __weakref__

    cdef double _ends           # local time of the end of the period
    cdef double _surprise       # the sum of requests that is too much to have been foreseen
    cdef double _credit
    cdef double _credit_at      # local time
    cdef double _rate           # of credit, per second
    cdef double _cap            # of credit
    cdef double _hold
    cdef double _hold_until     # local time; after that the store has forgotten the hold
    cdef double _most           # that may pass at once without a hold
    cdef double _cut, _slack
    cdef double _cluster_cut
    cdef double _explore, _explore_credit

    def __cinit__(self, *_, **__):
        self._clock = ClusterClock(None)
        self._ends = self._surprise = INFINITY

    def __init__(self, name, labels, clock, control, scores, double explore, counters):
        self.name = name
        self.label_values = labels
        self._clock = clock
        self._define(control, scores, explore, counters)

    def take(self, double v=1.0, score=None):
        """Whether `v` may pass. A scored limiter needs the score."""
        return self._take(v, score, False)

    def acquire(self, double v=1.0, score=None):
        """As `take`; what passes is its own reward."""
        return self._take(v, score, True)

    def reward(self, double v=1.0):
        """Note a reward: the target is reached in these."""
        if not 0.0 <= v <= 1e15:
            raise ValueError(f"v must be a number from 0 to 1e15, got {v!r}")
        if self._clock.local() >= self._ends:
            self._turn_if_over()
        self.rewards.count(v)

    cdef bint _take(self, double v, score, bint is_rewarded) except -1:
        cdef double local, value = 0.0
        cdef bint passes
        if not 1e-9 <= v <= 1e15:
            raise ValueError(f"v must be a number from 1e-9 to 1e15, got {v!r}")
        if self._scores is not None:
            value = self._check_score(score)
        elif score is not None:
            raise ValueError(f"{self.name!r} takes no score (it was made without scored=True), got {score!r}")
        local = self._clock.local()
        if local >= self._ends:
            self._turn_if_over()
        if local >= self._hold_until and self._hold_until > -INFINITY:
            self._control.lapse(self, local)
        self.requests.count(v)
        if self.requests._sum >= self._surprise:
            self._surprise = INFINITY
            self._control.ask_for_sync()
        self._accrue(local)
        if self._scores is None:
            passes = self._credit >= fast_min(0.5 * v, self._cap)
        else:
            passes = self._is_chosen(v, value)
        if not passes or v > (self._hold if local < self._hold_until else self._most):
            return False
        self._credit -= v
        self._hold -= v
        self.passes.count(v)
        if self._scores is not None and self._cut > -INFINITY:
            self._cuts.count(v * self._cut)
        if is_rewarded:
            self.rewards.count(v)
        return True

    cdef inline void _accrue(self, double local) noexcept:
        if local > self._credit_at:
            # A cap that was lowered takes nothing away.
            self._credit = fast_max(
                self._credit, fast_min(self._credit + (local - self._credit_at) * self._rate, self._cap)
            )
            self._credit_at = local

    cdef bint _is_chosen(self, double v, double score) noexcept:
        self._scores.note(score)
        if score >= self._cluster_cut:
            self._worthy.count(v)
        if score > self._cut:
            return self._credit >= -self._slack
        if score == self._cut:
            return self._credit >= 0.5 * v
        if self._explore == 0.0:
            return False
        self._explore_credit += v * self._explore
        if self._explore_credit < v or self._credit < -self._slack:
            return False
        self._explore_credit -= v
        return True

    cdef double _check_score(self, score) except? -1e300:
        cdef double value
        if score is None:
            raise ValueError(f"{self.name!r} is scored: take and acquire need score=, got None")
        value = score if isinstance(score, (float, int)) else check_number("score", score)
        if not -1e100 <= value <= 1e100:
            raise ValueError(f"score must be a number from -1e100 to 1e100, got {score!r}")
        return value

    @property
    def target(self):
        """Rewards to reach in a period."""
        return self._control.steering.target

    @target.setter
    def target(self, value):
        self._control.set_target(self, check_between("target", value, *TARGETS))

    @property
    def pass_rate(self):
        """The part of this node's requests that has passed of late: 0 to 1."""
        if self.requests._rate <= 0.0:
            return self.ideal_pass_rate
        return fast_min(self.passes._rate / self.requests._rate, 1.0)

    @property
    def ideal_pass_rate(self):
        """The part of the cluster's requests that must pass to stay on the line."""
        return self._control.steering.ideal_pass_rate

    @property
    def reward_rate(self):
        """Rewards per pass, as they are estimated."""
        return self._control.steering.estimated_reward_rate

    @property
    def score_cut(self):
        """The score above which requests pass."""
        return self._cut

    @property
    def lag(self):
        """Seconds by which the cluster is behind the line; negative: ahead of it."""
        return self._control.steering.lag(self._clock.unix(self._clock.local()))

    def ideal_reward(self):
        """The rewards that should be reached by now."""
        return self._control.steering.ideal_reward(self._clock.unix(self._clock.local()))

    @property
    def is_over(self):
        """Whether it lets nothing pass any more: its `end` has come, or it was removed or closed."""
        return self._control.is_over or self._control.has_ended(self._clock.local())

    def __repr__(self):
        labels = "".join(f", {value!r}" for value in self.label_values)
        return (
            f"ClusterLimiter({self.name!r}{labels}, target={self.target:g}, passed={self.passes.value():g}, "
            f"rewards={self.rewards.value():g}, pass_rate={self.pass_rate:.3g})"
        )

    # What the cluster and the steering call. None of it is part of the public interface.

    def _define(self, control, scores, double explore, counters):
        """Begin anew: as it is made, with a changed definition, or in a forked child."""
        self._lock = threading.Lock()
        self._control = control
        self._scores = scores
        self._explore = explore
        self.requests, self.passes, self.rewards = counters[:3]
        self._worthy, self._cuts = counters[3:] if scores is not None else (None, None)
        self._cut = self._cluster_cut = -INFINITY
        self._credit_at = self._clock.local()
        self._control.begin_period(self, self._credit_at)

    def _release(
        self,
        double rate,
        double start,
        bint is_single,
        double cap,
        double hold,
        double hold_until,
        double most,
        double slack,
    ):
        """Release credit at a rate from a local time on; a single unit all at once."""
        cdef double local = self._clock.local()
        self._accrue(local)
        if is_single:
            self._credit = cap if start <= local and rate > 0.0 else 0.0
        self._credit = fast_min(self._credit, cap)
        self._credit_at = fast_max(start, local)
        self._rate = rate
        self._cap = cap
        self._hold = hold
        self._hold_until = hold_until
        self._most = most
        self._slack = slack

    def _expect(self, double amount):
        """More requests than this before the next sync are a surprise, and ask for one."""
        self._surprise = self.requests._sum + amount

    def _set_cut(self, double part):
        """Choose the cut that `part` of the recent requests reach, and learn the cluster's."""
        cdef double rate, cut
        if self._scores is None:
            return
        self._scores.mark()
        self._cut = self._scores.cut(part)
        rate = self.passes.cluster_rate
        if rate > 0.0:
            # A mean of equal cuts is not quite equal to them.
            cut = self._cuts.cluster_rate / rate
            self._cluster_cut = cut - _CUT_TOLERANCE * fabs(cut)

    @property
    def _counters(self):
        """All counters that are synced."""
        if self._scores is None:
            return self.requests, self.passes, self.rewards
        return self.requests, self.passes, self.rewards, self._worthy, self._cuts

    @property
    def _share(self):
        """This node's part of the requests that may pass."""
        if self._scores is None or self._worthy.cluster_rate <= 0.0:
            return self.requests.share
        return self._worthy.share

    @property
    def _period_ends(self):
        """Local time."""
        return self._ends

    @property
    def _credit_left(self):
        return self._credit

    @property
    def _hold_left(self):
        return fast_max(self._hold, 0.0) if self._hold < INFINITY else 0.0

    def _limit_hold(self, double most):
        self._hold = fast_min(self._hold, most)

    def _follow_clock(self):
        """The cluster's time has been corrected."""
        if self._ends < INFINITY:
            self._ends = self.passes._end - self._clock.offset

    def _is_without_hold(self, double local):
        """Whether the store has forgotten what this node held."""
        return local >= self._hold_until

    def _turn_if_over(self):
        with self._lock:
            local = self._clock.local()
            if local >= self._ends:
                self._control.begin_period(self, local)

    def _turn(self, double begin, double end):
        """Begin a period, in Unix time, for the counters and the credit."""
        if begin > self.passes._begin:
            for counter in self._counters:
                (<ClusterCounter>counter).turn(begin, end)
        self._credit = 0.0
        self._ends = end - self._clock.offset

    def _end(self):
        """Let nothing pass any more."""
        self._ends = INFINITY
        self._release(0.0, 0.0, True, 0.0, 0.0, INFINITY, 0.0, 0.0)

"""`sluicegate demo limits`: every limiter under the same bursty traffic, side by side.

The traffic has no chance in it: 20 calls per second, evenly spaced, and 200 per second
for one second in six. Each burst lies across the edge of two windows, where a fixed
window counts anew. Every limiter is set to 100 per second, so that only the algorithm
makes a difference.

`LimitsDemo` is the model: a `ManualClock`, the limiters on it, and a `Row` of counters
for each. One `step` is a quarter of a second. A call that must wait passes at the time
it reserved, so asked = passed + refused + waiting after each. `report` returns the
result as data; `limits_screen.py` draws it.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from sluicegate.clock import ManualClock
from sluicegate.limits import (
    ConcurrencyLimit,
    FixedWindow,
    Keyed,
    LeakyBucket,
    RateLimited,
    RateLimiter,
    SlidingCounter,
    SlidingWindow,
    TokenBucket,
)

__all__ = [
    "BURSTING",
    "LIMIT",
    "PERIOD",
    "STEADY",
    "STEP",
    "LimitsDemo",
    "Row",
    "gates",
    "report",
    "traffic",
]

LIMIT = 100  # calls per second, for every limiter
BURST = 50  # what a bucket stores, and what a queue holds
STEADY = 20  # calls per second
BURSTING = 200  # calls per second, for one second of each period
PERIOD = 6.0
BURST_STARTS = 1.5  # seconds into the period
CALL_TAKES = 0.05  # seconds in progress, which only the ConcurrencyLimit looks at
STEP = 0.25
_ROUNDING = 1e-6  # seconds: calls this near to one second apart are not within one

_HISTORY = 400  # steps: more than any terminal is wide

_WAIT, _REFUSE = "What is too much waits", "What is too much is refused"
_USERS = "One bucket for each user"
_STORING = f"What was not used is stored: {BURST} go at once, the others at the rate."
_WARMING = "Idle means cold: a burst starts at a third of the rate and gets faster."
_LEAKY = f"A steady beat, whatever comes: {BURST} may wait, more are refused."
_BUCKET = f"The {BURST} tokens that were saved up go at once, then it is the rate."
_FIXED = "Counts anew each second: a burst across the edge gets nearly twice the limit."
_SLIDING = "Never more than the limit in any second: it remembers each call."
_COUNTER = "Two counts instead of each call: little memory, but a burst can exceed it."
_BUSY = f"Counts the calls in progress, each of which takes {CALL_TAKES:g} s."
_ANN = "ann sends the bursts, and her own bucket cuts them."
_BOB = "bob sends the steady calls at the same time, and loses none."


class Call(NamedTuple):
    at: float
    user: str


def traffic() -> Iterator[Call]:
    """All calls in order of time, without end: bob sends the steady ones, ann the bursts."""
    more = BURSTING - STEADY
    for period in itertools.count():
        start = period * PERIOD
        steady = [Call(start + (i + 0.5) / STEADY, "bob") for i in range(int(PERIOD * STEADY))]
        burst = [Call(start + BURST_STARTS + (i + 0.5) / more, "ann") for i in range(more)]
        yield from sorted(steady + burst)


@dataclass(frozen=True, slots=True)
class Gate:
    """One limiter of the demo. `ask` answers how many seconds to wait, or None: refused."""

    kind: str
    name: str
    setting: str
    note: str
    ask: Callable[[], float | None]
    user: str | None = None  # None: the calls of all


def gates(clock: ManualClock) -> list[Gate]:
    """All limiters, made for the same rate."""
    storing = RateLimiter(LIMIT, burst_seconds=BURST / LIMIT, clock=clock)
    warming = RateLimiter(LIMIT, warm_up=1.5, clock=clock)
    leaky = LeakyBucket(LIMIT, BURST, clock=clock)
    bucket = TokenBucket(LIMIT, BURST, clock=clock)
    fixed = FixedWindow(LIMIT, 1, clock=clock)
    sliding = SlidingWindow(LIMIT, 1, clock=clock)
    counter = SlidingCounter(LIMIT, 1, clock=clock)
    at_once = ConcurrencyLimit(int(LIMIT * CALL_TAKES))
    keyed = Keyed(f"{LIMIT}/second burst {BURST}", clock=clock)
    burst = f"burst {BURST}"
    return [
        Gate(_WAIT, "RateLimiter", f"stores {BURST}", _STORING, storing.reserve),
        Gate(_WAIT, "RateLimiter", "warms up", _WARMING, warming.reserve),
        Gate(_WAIT, "LeakyBucket", f"queue {BURST}", _LEAKY, _queued(leaky)),
        Gate(_REFUSE, "TokenBucket", burst, _BUCKET, _now_or_never(bucket.try_acquire)),
        Gate(_REFUSE, "FixedWindow", "per 1 s", _FIXED, _now_or_never(fixed.try_acquire)),
        Gate(_REFUSE, "SlidingWindow", "per 1 s", _SLIDING, _now_or_never(sliding.try_acquire)),
        Gate(_REFUSE, "SlidingCounter", "per 1 s", _COUNTER, _now_or_never(counter.try_acquire)),
        Gate(_REFUSE, "ConcurrencyLimit", f"{at_once.limit} at once", _BUSY, _busy(at_once, clock)),
        Gate(_USERS, "Keyed: ann", burst, _ANN, _now_or_never(lambda: keyed.allow("ann")), "ann"),
        Gate(_USERS, "Keyed: bob", burst, _BOB, _now_or_never(lambda: keyed.allow("bob")), "bob"),
    ]


def _now_or_never(passes: Callable[[], bool]) -> Callable[[], float | None]:
    return lambda: 0.0 if passes() else None


def _queued(bucket: LeakyBucket) -> Callable[[], float | None]:
    def ask() -> float | None:
        try:
            return bucket.reserve()
        except RateLimited:
            return None

    return ask


def _busy(limit: ConcurrencyLimit, clock: ManualClock) -> Callable[[], float | None]:
    ends: deque[float] = deque()

    def ask() -> float | None:
        while ends and ends[0] <= clock.now() + _ROUNDING:
            ends.popleft()
            limit.release()
        if not limit.try_acquire():
            return None
        ends.append(clock.now() + CALL_TAKES)
        return 0.0

    return ask


class _Totals(NamedTuple):
    asked: int = 0
    passed: int = 0
    refused: int = 0


class Row:
    """What came of the calls at one gate; `most` is what passed in any one second."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.asked = self.passed = self.refused = self.most = 0
        self._due: deque[float] = deque()
        self._recent: deque[float] = deque()
        self._steps = deque([_Totals()], maxlen=_HISTORY)

    @property
    def waiting(self) -> int:
        return len(self._due)

    def ask(self, call: Call) -> None:
        if self.gate.user not in (None, call.user):
            return
        self.asked += 1
        wait = self.gate.ask()
        if wait is None:
            self.refused += 1
        else:
            self._due.append(call.at + wait)

    def end_step(self, now: float) -> None:
        """Let those through whose time has come."""
        while self._due and self._due[0] <= now:
            at = self._due.popleft()
            self.passed += 1
            self._recent.append(at)
            while self._recent[0] <= at - 1.0 + _ROUNDING:
                self._recent.popleft()
            self.most = max(self.most, len(self._recent))
        self._steps.append(_Totals(self.asked, self.passed, self.refused))

    def last_second(self) -> _Totals:
        steps = list(self._steps)[-1 - int(1 / STEP) :]
        return _Totals(*(new - old for old, new in zip(steps[0], steps[-1], strict=True)))

    def passed_per_step(self) -> list[int]:
        return [new.passed - old.passed for old, new in itertools.pairwise(self._steps)]


class LimitsDemo:
    """The traffic, the limiters and their counters, in virtual time from 0."""

    def __init__(self) -> None:
        self.now = 0.0
        self._clock = ManualClock()
        self._calls = traffic()
        self._next = next(self._calls)
        self.unlimited = Row(Gate("", "no limit", "", "", lambda: 0.0))
        self.rows = [Row(gate) for gate in gates(self._clock)]

    def step(self, seconds: float = STEP) -> None:
        self.now += seconds
        while self._next.at <= self.now:
            self._clock.advance(self._next.at - self._clock.now())
            for row in (self.unlimited, *self.rows):
                row.ask(self._next)
            self._next = next(self._calls)
        for row in (self.unlimited, *self.rows):
            row.end_step(self.now)

    def run(self, seconds: float) -> None:
        """To the end at once, or as far as Ctrl-C lets it."""
        with suppress(KeyboardInterrupt):
            while self.now < seconds:
                self.step(min(STEP, seconds - self.now))


def report(demo: LimitsDemo) -> dict[str, object]:
    """The closing table, as data."""
    rows = [
        {
            "limiter": row.gate.name,
            "setting": row.gate.setting,
            "limit_per_second": LIMIT,
            "asked": row.asked,
            "passed": row.passed,
            "refused": row.refused,
            "waiting": row.waiting,
            "most_in_one_second": row.most,
        }
        for row in demo.rows
    ]
    return {"demo": "limits", "seconds": demo.now, "rows": rows}

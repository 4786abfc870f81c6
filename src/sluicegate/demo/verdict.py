"""The verdict of the demo: the counts of each second, and whether each user was held to its limit.

A second here is a slot of the central: it begins where the wall clock has a whole second. For
each user it has the limit that was in force, what the user asked for and what was admitted, on all
nodes together. Amounts are requests.

What is measured, over the seconds that are evaluated:

    over    A bucket runs beside the user: it gains the limit in each second, keeps at most the
            burst, and begins empty (full for a user who saves, or whose burst was changed under
            way). Each admitted request is taken from it; it may go below empty. The most that it
            ever was below, over the limit. A second above the limit is right if the user had left
            as much unused before, and only then. The three seconds before the first evaluated one
            count. After a failover of several centrals it begins with what was left of the full
            bucket that the user had when the traffic began. So whatever stretch of seconds is
            looked at, no more has passed in it than the limit, the burst and this.
    under   1 minus admitted over what a bucket would have let through that begins empty. Only calm
            seconds count, and of each what a short pause may have cost is taken off.

A second is calm unless the machine held up a worker or the central for LONG_PAUSE or longer in it,
or in one of the RECOVERY seconds before it: a worker that does not run asks for nothing, and then
makes up for it; what was saved meanwhile is not known here. In the same way a second is not calm in
which no central led, of several that elect a leader: a user that moves between the nodes lacks what
is granted to those it has left.
A shorter pause costs requests, too. So what must pass at the least in a calm second is reduced by
the longest pause in it or in one of the RECOVERY seconds before it: by 0.04 of it for 0.04 s. Where
more passed than that, the rest of the reduction does not excuse other seconds.
A worker that was killed and is started again has to ask first for what its requests need. What must
pass at the least is reduced by its part of what the user asks for, in the same way.
A busy machine can make calls late, but it cannot let more pass than the limit: `over` is measured
in all seconds.

Not evaluated: the warm-up, in which nodes meet the users; seconds near a change of the limit, which
takes two or three slots to be in force; seconds without a limit, or of which nothing is known.
Whole slots are measured, and not any stretch of a second: a short pause moves calls within a slot
and says nothing about the limits.

`Record` keeps the last hour.
"""

from collections import deque
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from sluicegate.demo.quota_users import User

__all__ = ["HISTORY", "LONG_PAUSE", "RECOVERY", "WARM_UP", "Check", "Record", "Second", "evaluate"]

WARM_UP = 5  # seconds
HISTORY = 3600
LONG_PAUSE = 0.1  # seconds
RECOVERY = 3  # seconds after that of a pause in which it still has an effect
_BEFORE, _AFTER = 2, 6  # seconds around the moment a change was noticed
_EVEN = 3  # seconds before the first evaluated one: the limit is in force, shares become even


@dataclass(frozen=True, slots=True)
class Second:
    """One second of one user. `limit` is None if there is none, or if nothing is known.

    `pause`: the longest for which the machine held up a worker or the central, in seconds.
    `resumed`: those of `asked` that were sent by workers which had sent nothing in one of the
    RECOVERY seconds before.
    """

    number: int
    limit: float | None
    burst_seconds: float
    asked: int
    admitted: int
    pause: float = 0.0
    resumed: int = 0

    @property
    def refused(self) -> int:
        return self.asked - self.admitted


@dataclass(frozen=True, slots=True)
class Check:
    """One measure against its goal: the most that is allowed."""

    name: str
    measured: float
    goal: float

    @property
    def is_met(self) -> bool:
        return self.measured <= self.goal


class Record:
    """The seconds of all users, in order."""

    def __init__(self, users: Sequence[User]) -> None:
        self.users = tuple(users)
        self.leaderless: Set[int] = frozenset()  # numbers of seconds in which no central led
        self._left: dict[str, float] = {}  # of the full bucket at the begin of the traffic
        self.seconds: dict[str, deque[Second]] = {
            user.name: deque(maxlen=HISTORY) for user in users
        }

    def add(self, user: User, second: Second) -> None:
        self.seconds[user.name].append(second)
        if second.number < WARM_UP - _EVEN and second.limit is not None:
            burst = second.limit * second.burst_seconds
            level = self._left.get(user.name, burst) + second.limit - second.admitted
            self._left[user.name] = min(max(level, 0.0), burst)

    def set_pause(self, number: int, pause: float) -> None:
        """A pause of a second has become known; it may be recorded already."""
        for seconds in self.seconds.values():
            index = number - seconds[0].number if seconds else -1
            if 0 <= index < len(seconds):
                seconds[index] = replace(seconds[index], pause=pause)

    def last(self, user: User) -> Second | None:
        seconds = self.seconds[user.name]
        return seconds[-1] if seconds else None

    def busy_seconds(self) -> int:
        """How many seconds after the warm-up were not calm: the same for all users."""
        seconds = list(self.seconds[self.users[0].name])
        return sum(
            second.number >= WARM_UP and pause >= LONG_PAUSE
            for second, pause in zip(seconds, _recent_pauses(seconds), strict=True)
        )

    def leaderless_seconds(self) -> int:
        """How many seconds after the warm-up were not calm because no central led."""
        return sum(
            second.number >= WARM_UP and _follows(second.number, self.leaderless)
            for second in self.seconds[self.users[0].name]
        )

    def checks(self, user: User, recent: int | None = None) -> list[Check]:
        """The verdict on a user, over all or the `recent` seconds; empty: too early to say."""
        seconds = list(self.seconds[user.name])
        first = 0
        if recent is not None and len(seconds) > recent:
            first = seconds[-recent].number
            seconds = seconds[-recent - _EVEN :]
        return evaluate(
            user,
            seconds,
            self.leaderless,
            self._left.get(user.name, 0.0) if self.leaderless else 0.0,
            first,
        )

    def is_held(self, user: User) -> bool:
        checks = self.checks(user)
        return bool(checks) and all(check.is_met for check in checks)


def evaluate(
    user: User,
    seconds: Sequence[Second],
    leaderless: Set[int] = frozenset(),
    left: float = 0.0,
    first: int = 0,
) -> list[Check]:
    """The checks for which the user has goals; empty if there is nothing to evaluate.

    `leaderless`: the numbers of the seconds in which no central led. `left`: what is in the bucket
    at first, of a user who does not save. `first`: the number of the first second to evaluate.
    """
    over = 0.0
    expected = passed = 0.0  # in calm seconds: what must pass at the least, and what did
    evaluated = calm = 0
    level: float | None = None
    least = 0.0  # what is in a bucket that began empty
    burst_seconds: float | None = None
    is_evaluated = _evaluated(seconds, first)
    for index, (second, pause) in enumerate(zip(seconds, _recent_pauses(seconds), strict=True)):
        limit = second.limit
        if limit is None or not any(is_evaluated[index : index + _EVEN + 1]):
            level = None
            continue
        burst = limit * second.burst_seconds
        if level is None:
            # A bucket that is made larger stays as full as it was; how full is not known here.
            is_new = burst_seconds not in (None, second.burst_seconds)
            level = burst if user.saves or is_new else min(left, burst)
            least = 0.0
        burst_seconds = second.burst_seconds
        level = min(level + limit - second.admitted, burst)
        if not is_evaluated[index]:
            level = max(level, 0.0)
            continue
        over = max(over, _part(-level, limit))
        evaluated += 1
        if pause >= LONG_PAUSE or _follows(second.number, leaderless):
            least = 0.0
            continue
        calm += 1
        passes = min(second.asked, limit + least)
        least = min(least + limit - passes, burst)
        excused = pause + _part(second.resumed, second.asked)
        expected += max(passes * (1.0 - excused), min(passes, second.admitted))
        passed += second.admitted
    if not evaluated:
        return []
    checks = [Check("over", over, user.goals.over)]
    if calm >= min(user.goals.min_calm_seconds, evaluated):
        checks.append(Check("under", _part(expected - passed, expected), user.goals.under))
    return checks


def _part(amount: float, whole: float) -> float:
    """A part of the whole. Of nothing, one unit is already all of it."""
    return amount / max(whole, 1.0)


def _recent_pauses(seconds: Sequence[Second]) -> list[float]:
    """Of each second, the longest pause in it or in one of the RECOVERY seconds before it."""
    pauses = [second.pause for second in seconds]
    return [max(pauses[max(index - RECOVERY, 0) : index + 1]) for index in range(len(seconds))]


def _follows(number: int, leaderless: Set[int]) -> bool:
    """Whether no central led in a second, or in one of the RECOVERY seconds before it."""
    return any(each in leaderless for each in range(number - RECOVERY, number + 1))


def _evaluated(seconds: Sequence[Second], first: int) -> list[bool]:
    evaluated = [second.number >= max(WARM_UP, first) for second in seconds]
    for index in range(1, len(seconds)):
        now, before = seconds[index], seconds[index - 1]
        if (now.limit, now.burst_seconds) != (before.limit, before.burst_seconds):
            for near in range(max(index - _BEFORE, 0), min(index + _AFTER, len(seconds))):
                evaluated[near] = False
    return evaluated

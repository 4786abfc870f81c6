"""`LimiterOptions`: the definition of a limiter, checked; two that are equal mean the same."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypedDict, cast

from sluicegate._validate import check_between, check_number, encode_utf8
from sluicegate.pacing._limiter import TARGETS
from sluicegate.pacing._score_window import ScoreWindow
from sluicegate.pacing.line import check_curve
from sluicegate.pacing.schedule import Schedule
from sluicegate.pacing.steering import Steering

__all__ = [
    "COUNTERS",
    "OWN_COUNTERS",
    "SCORED_COUNTERS",
    "Curve",
    "LimiterKeywords",
    "LimiterOptions",
    "check_name",
    "options_from",
]

Curve = tuple[float, ...] | Literal["learn"] | None

# A limiter's own counters end with these, so no other counter may.
COUNTERS = ("request", "pass", "reward")
SCORED_COUNTERS = ("worthy", "cut")
OWN_COUNTERS = (*COUNTERS, *SCORED_COUNTERS, "hour")
_LONGEST_NAME = 200  # bytes of UTF-8


class LimiterKeywords(TypedDict, total=False):
    """The keywords of `Cluster.limiter`."""

    target: float
    period: float | None
    begin: float | datetime | None
    end: float | datetime | None
    timezone: str | None
    scored: bool
    reserve: float
    curve: Curve | list[float]
    reward_rate: float
    reward_within: float
    burst_interval: float
    boost: float
    decay: float
    explore: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LimiterOptions:
    """What `Cluster.limiter` and a file of definitions say about one limiter."""

    target: float  # rewards in a period
    period: float | None = None  # seconds, aligned to the clock
    begin: float | datetime | None = None  # Unix time, instead of a period
    end: float | datetime | None = None
    timezone: str | None = None  # in which days begin
    scored: bool = False
    reserve: float = 0.0  # seconds before its end that the target should be reached
    curve: Curve | list[float] = None  # 24 weights of the hours of a day, or "learn"
    reward_rate: float = 1.0  # the first guess of rewards per pass
    reward_within: float = 0.0  # seconds after a pass in which its reward may come
    burst_interval: float = 5.0  # seconds in which a lag is made up
    boost: float = 4.0  # the most that is passed to make up a lag, as a multiple of the line
    decay: float = 0.5  # what the last ideal pass rate weighs in the next
    explore: float = 0.0  # the part of the requests below the score cut that is tried

    def __post_init__(self) -> None:
        schedule = Schedule(self.period, self.begin, self.end, self.timezone)
        if schedule.period is None and schedule.begin is None:
            raise ValueError("a limiter needs period, or begin and end, got none of them")
        self._set("begin", schedule.begin)
        self._set("end", schedule.end)
        self._set("period", schedule.period)
        self._set("timezone", schedule.zone.key)
        self._set("target", check_between("target", self.target, *TARGETS))
        self._set("reward_rate", check_between("reward_rate", self.reward_rate, 1e-9, 1e9))
        self._set("burst_interval", check_between("burst_interval", self.burst_interval, 1e-3, 1e9))
        self._set("reward_within", check_between("reward_within", self.reward_within, 0.0, 1e9))
        self._set("boost", check_between("boost", self.boost, 1.0, 1e6))
        self._set("explore", check_between("explore", self.explore, 0.0, 1.0))
        self._set("decay", check_between("decay", self.decay, 0.0, 0.999))
        self._check_reserve(schedule)
        if not isinstance(self.scored, bool):
            raise TypeError(f"scored must be True or False, got {self.scored!r}")
        if self.explore and not self.scored:
            raise ValueError(f"explore needs scored=True, got explore={self.explore!r}")
        if self.curve is not None and self.curve != "learn":
            if isinstance(self.curve, str):
                raise ValueError(f"curve must be 24 weights or 'learn', got {self.curve!r}")
            self._set("curve", check_curve(self.curve))

    def schedule(self) -> Schedule:
        return Schedule(self.period, self.begin, self.end, self.timezone)

    def scores(self) -> ScoreWindow | None:
        return ScoreWindow() if self.scored else None

    def steering(self, schedule: Schedule) -> Steering:
        curve = self.curve if isinstance(self.curve, tuple) else None
        return Steering(
            target=self.target,
            schedule=schedule,
            reserve=self.reserve,
            curve=curve,
            burst_interval=self.burst_interval,
            boost=self.boost,
            decay=self.decay,
            reward_rate=self.reward_rate,
            reward_within=self.reward_within,
        )

    def _check_reserve(self, schedule: Schedule) -> None:
        length = schedule.period
        if schedule.begin is not None and schedule.end is not None:
            length = schedule.end - schedule.begin
        reserve = check_number("reserve", self.reserve)
        if length is not None and not 0.0 <= reserve < length:
            raise ValueError(
                f"reserve must be from 0 to less than the {length:g} s of the period, "
                f"got {self.reserve!r}"
            )
        self._set("reserve", reserve)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


def options_from(keywords: LimiterKeywords) -> LimiterOptions:
    """The options of a call. Raises TypeError for a keyword that there is not."""
    unknown = keywords.keys() - LimiterKeywords.__annotations__.keys()
    if unknown:
        raise TypeError(
            f"a limiter has no option {', '.join(sorted(unknown))}; it has "
            f"{', '.join(LimiterKeywords.__annotations__)}"
        )
    if "target" not in keywords:
        raise TypeError("a limiter needs target=, got none")
    return LimiterOptions(**cast(dict[str, Any], keywords))


def check_name(what: str, name: str) -> str:
    """Return a name of at most 200 bytes of UTF-8."""
    if len(encode_utf8(what, name)) > _LONGEST_NAME:
        raise ValueError(f"{what} must have at most {_LONGEST_NAME} bytes of UTF-8, got {name!r}")
    return name

"""`Schedule`: when the periods of a counter begin and end, in Unix time.

A periodic one repeats, aligned to the clock: a minute begins with the minute, a day at midnight in
`timezone` (UTC by default), so a day with a change to summer time has 23 hours. Periods that fit
into a day begin anew at midnight; on a day of 23 or 25 hours the last one is shorter. Periods that
do not fit (5 hours) are aligned to Unix time. One with `begin` and `end` happens once. One with
neither never ends.
"""

import math
from datetime import date, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from sluicegate._validate import check_between, check_number

__all__ = ["Schedule", "Span"]

_DAY = 86_400
_OFFSET_STEP = 900  # seconds: the offsets of time zones are multiples of it
_PERIODS = (0.001, 100 * 366 * _DAY)  # seconds


class Span(NamedTuple):
    """A period: seconds of Unix time. A span without end has 0 for both."""

    begin: float
    end: float


class Schedule:
    """The periods of one counter or limiter."""

    __slots__ = ("begin", "end", "period", "zone")

    def __init__(
        self,
        period: float | None = None,
        begin: "float | datetime | None" = None,
        end: "float | datetime | None" = None,
        timezone: str | None = None,
    ) -> None:
        if period is not None and not begin is end is None:
            raise ValueError(
                "expected either period, or begin and end, "
                f"got period={period!r}, begin={begin!r} and end={end!r}"
            )
        if (begin is None) != (end is None):
            raise ValueError(f"begin and end go together, got begin={begin!r} and end={end!r}")
        self.period = None if period is None else check_between("period", period, *_PERIODS)
        self.begin = None if begin is None else _seconds("begin", begin)
        self.end = None if end is None else _seconds("end", end)
        if self.begin is not None and self.end is not None and not self.begin < self.end:
            raise ValueError(f"begin must be before end, got {begin!r} and {end!r}")
        self.zone = _zone(timezone)

    @property
    def period_zone(self) -> str:
        """The time zone, if the begin of a period depends on it and it is not UTC; else empty."""
        if self.period is None or self.zone.key == "UTC":
            return ""
        fits_day = self.period % _DAY == 0 or _DAY % self.period == 0
        return self.zone.key if fits_day and _OFFSET_STEP % self.period else ""

    @property
    def is_periodic(self) -> bool:
        return self.period is not None

    def at(self, time: float) -> Span:
        """The period of a moment. For begin and end it is always the one there is."""
        if self.begin is not None and self.end is not None:
            return Span(self.begin, self.end)
        if self.period is None:
            return Span(0.0, 0.0)
        if self.period % _DAY == 0:
            return self._days(time, int(self.period // _DAY))
        if _DAY % self.period:
            return self._aligned(time, 0.0)
        day = self._days(time, 1)
        begin, end = self._aligned(time, day.begin)
        return Span(begin, min(end, day.end))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        if self.period is not None:
            return f"Schedule(period={self.period:g}, timezone={self.zone.key!r})"
        return f"Schedule(begin={self.begin}, end={self.end}, timezone={self.zone.key!r})"

    def hour_of_day(self, time: float) -> float:
        """The hour, in `timezone`, with its fraction: 0 to 24."""
        return (time + self._utc_offset(time)) % _DAY / 3600.0

    def _values(self) -> tuple[object, ...]:
        return (self.period, self.begin, self.end, self.zone.key)

    def _aligned(self, time: float, origin: float) -> Span:
        assert self.period is not None
        begin = origin + math.floor((time - origin) / self.period) * self.period
        if time >= begin + self.period:  # the division was rounded
            begin += self.period
        return Span(begin, begin + self.period)

    def _days(self, time: float, count: int) -> Span:
        today = datetime.fromtimestamp(time, self.zone).date()
        first = today - timedelta(days=(today - date(1970, 1, 1)).days % count)
        return Span(self._midnight(first), self._midnight(first + timedelta(days=count)))

    def _midnight(self, day: date) -> float:
        return datetime(day.year, day.month, day.day, tzinfo=self.zone).timestamp()

    def _utc_offset(self, time: float) -> float:
        offset = datetime.fromtimestamp(time, self.zone).utcoffset()
        return offset.total_seconds() if offset else 0.0


def _zone(name: str | None) -> ZoneInfo:
    if name is not None and not isinstance(name, str):
        raise TypeError(f"timezone must be a name such as 'Europe/Berlin', got {name!r}")
    try:
        return ZoneInfo("UTC" if name is None else name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"timezone must be a name such as 'Europe/Berlin', got {name!r}") from None


def _seconds(name: str, value: "float | datetime") -> float:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(
                f"{name} must have a time zone, or hosts disagree on it, got {value!r}"
            )
        return value.timestamp()
    if isinstance(value, str):
        raise TypeError(f"{name} must be a datetime with a time zone or a Unix time, got {value!r}")
    number = check_number(name, value)
    if not 0.0 <= number < math.inf:
        raise ValueError(f"{name} must be a datetime or a Unix time >= 0, got {value!r}")
    return number

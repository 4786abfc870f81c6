"""`Line`: how much should be reached by when, in one period.

Straight from 0 at its begin to the target at its end, less `reserve` seconds. With a curve (24
weights, one for each hour of the day) each hour gets its weight's part of the target.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from sluicegate._validate import check_number
from sluicegate.pacing.schedule import Schedule, Span

__all__ = ["Line", "check_curve"]

_HOUR = 3600.0
_MOST_HOURS = 100_000  # eleven years


class Line:
    """The ideal line of one span, as a part of the target: 0 to 1."""

    __slots__ = ("_points", "_weights", "begin", "end")

    def __init__(
        self, span: Span, reserve: float, curve: Sequence[float] | None, schedule: Schedule
    ) -> None:
        self.begin = span.begin
        self.end = max(span.end - reserve, span.begin + 1e-3)
        self._points: list[float] = []
        self._weights: list[float] = []
        if curve is not None and (self.end - self.begin) / _HOUR <= _MOST_HOURS:
            self._follow(curve, schedule)

    def part(self, time: float) -> float:
        """The part of the target that should be reached by then."""
        if time >= self.end:
            return 1.0
        if time <= self.begin:
            return 0.0
        if not self._points:
            return (time - self.begin) / (self.end - self.begin)
        index = bisect_right(self._points, time)
        before, after = self._points[index - 1], self._points[index]
        low, high = self._weights[index - 1], self._weights[index]
        return low + (high - low) * (time - before) / (after - before)

    def time_of(self, part: float) -> float:
        """The first moment by which a part of the target should be reached."""
        if part >= 1.0:
            return self.end
        if part <= 0.0:
            return self.begin
        if not self._points:
            return self.begin + part * (self.end - self.begin)
        index = bisect_right(self._weights, part)
        before, after = self._points[index - 1], self._points[index]
        low, high = self._weights[index - 1], self._weights[index]
        return before + (part - low) / (high - low) * (after - before)

    def _follow(self, curve: Sequence[float], schedule: Schedule) -> None:
        points, amounts = [self.begin], [0.0]
        while points[-1] < self.end:
            time = points[-1]
            hour = schedule.hour_of_day(time)
            until = min(time + max((math.floor(hour) + 1 - hour) * _HOUR, 1e-3), self.end)
            amounts.append(curve[int(hour) % 24] * (until - time))
            points.append(until)
        total = math.fsum(amounts)
        if total > 0.0:
            self._points = points
            self._weights = [amount / total for amount in accumulate(amounts)]
            self._weights[-1] = 1.0


def check_curve(curve: Sequence[float]) -> tuple[float, ...]:
    """Return 24 weights as floats; they must be finite and not all 0."""
    if isinstance(curve, str) or not isinstance(curve, Sequence) or len(curve) != 24:
        raise ValueError(f"curve must be 24 weights, one for each hour of the day, got {curve!r}")
    weights = tuple(check_number("curve", weight) for weight in curve)
    if not all(0.0 <= weight <= 1e9 for weight in weights) or not any(weights):
        raise ValueError(
            f"curve must be 24 weights from 0 to 1e9, not all of them 0, got {curve!r}"
        )
    return weights

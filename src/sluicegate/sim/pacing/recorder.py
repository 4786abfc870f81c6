"""What happened in a run, in bins of time; and the figures that come out of it."""

import math
from collections import defaultdict

from sluicegate.pacing.line import Line, check_curve
from sluicegate.pacing.schedule import Schedule, Span
from sluicegate.sim.pacing.measures import Measures, PeriodFigures, Series, deviation, recovery
from sluicegate.sim.pacing.nodes import LIMITER, PacingNode
from sluicegate.sim.pacing.scenario import PacingScenario
from sluicegate.sim.pacing.scores import ScoreLog
from sluicegate.sim.pacing.store_books import StoreBooks

__all__ = ["Recorder", "counted_by_period", "lacking"]

_PASSES = f"{LIMITER}:pass"  # the counter
_BINS_OF_PERIOD = 240
_BINS_OF_RUN = 400
_DRIFT_PARTS = 20  # of a period, in which scores are compared while they drift
_BOOST = 2.0  # the limiter's default


class Recorder:
    """Requests, passes and rewards of a run."""

    def __init__(self, scenario: PacingScenario, origin: float) -> None:
        self.scenario = scenario
        finest = min(scenario.period / _BINS_OF_PERIOD, scenario.seconds / _BINS_OF_RUN)
        self.width = scenario.period / math.ceil(scenario.period / finest - 1e-9)
        # Bins begin with the period, and the first ones may be before the start.
        self._skipped = math.floor(scenario.start / self.width + 1e-9)
        self.shift = scenario.start - self._skipped * self.width
        count = math.ceil((self.shift + scenario.seconds) / self.width - 1e-9)
        self.requests = [0.0] * count
        self.passes = [0.0] * count
        self.rewards = [0.0] * count
        self.pass_rate = [0.0] * count
        self.scores: dict[tuple[int, int], ScoreLog] = defaultdict(ScoreLog)
        self.first_request = math.inf
        self.first_pass = math.inf
        self._origin = origin  # Unix time of the begin of the first period
        self._lines: dict[int, Line] = {}

    def bin(self, time: float) -> int:
        return min(int((time + self.shift) / self.width), len(self.requests) - 1)

    def series(self) -> Series:
        """The run, with the line and what was possible beside it."""
        scenario = self.scenario
        conversion = scenario.rewards.conversion
        series = Series(
            self.width, self.requests, self.passes, self.rewards, self.pass_rate, [], [], []
        )
        value = scenario.reached * scenario.target
        ideal = _Ideal(scenario, value)
        for index, (asked, passed) in enumerate(zip(self.requests, self.passes, strict=True)):
            line = self._line_of(index)
            begins, ends = self._unix(index), self._unix(index + 1)
            if index and self._period_of(index) != self._period_of(index - 1):
                value = 0.0
                ideal.begin_period()
            before = scenario.target * line.part(begins)
            after = scenario.target * line.part(ends)
            value += passed * conversion
            series.value.append(value)
            series.line.append(after)
            series.possible.append(ideal.offer(asked * conversion, before, after))
        return series

    def periods(self, series: Series, counted: dict[float, float]) -> list[PeriodFigures]:
        """`counted`: passes by the begin of their period."""
        scenario = self.scenario
        per_period = round(scenario.period / self.width)
        by_number = {
            round((begin - self._origin) / scenario.period): passes
            for begin, passes in counted.items()
        }
        found = []
        first = 0
        while first < len(self.requests):
            number = self._period_of(first)
            end = min((number + 1) * per_period - self._skipped, len(self.requests))
            bins = slice(first, end)
            far = [abs(a - b) for a, b in zip(series.value[bins], series.line[bins], strict=True)]
            gap = [
                abs(a - b) for a, b in zip(series.value[bins], series.possible[bins], strict=True)
            ]
            found.append(
                PeriodFigures(
                    number,
                    is_whole=end - first == per_period,
                    first_bin=first,
                    bins=end - first,
                    value=series.value[end - 1],
                    possible=series.possible[end - 1],
                    rewards=sum(self.rewards[bins]),
                    passes=by_number.get(number, 0.0),
                    error=sum(far) / len(far) / scenario.target,
                    error_most=max(far) / scenario.target,
                    gap=sum(gap) / len(gap) / scenario.target,
                )
            )
            first = end
        return found

    def measures(self, series: Series, periods: list[PeriodFigures], unrecorded: float) -> Measures:
        scenario, target = self.scenario, self.scenario.target
        measured = [one for one in periods if one.number >= scenario.warm_up]
        whole = [one for one in measured if one.is_whole]
        found = Measures(unrecorded=unrecorded)
        if whole:
            found.delivered = min(one.value for one in whole) / target
            found.over = max(one.rewards for one in whole) / target - 1.0
            found.over_earned = max(self._earned(one) for one in whole) / target - 1.0
        if any(one.is_whole for one in periods):
            found.off_target = max(
                abs(self._earned(one) - target) for one in periods if one.is_whole
            )
        if measured:
            found.achieved = min(self._achieved(one) for one in measured)
            found.error = max(one.error for one in measured)
            found.error_most = max(one.error_most for one in measured)
            found.gap = max(one.gap for one in measured)
            bins = slice(measured[0].first_bin, None)
            found.deviation = deviation(self.passes[bins], self.width, scenario.period)
        found.cold = periods[0].value / target
        if self.first_request < math.inf:
            found.start_syncs = (self.first_pass - self.first_request) / scenario.sync_interval
        changes = [change.at + self.shift for change in scenario.shape.changes]
        found.recovery = recovery(series, target, changes, scenario.sync_interval)
        logs = [log for (number, _), log in self.scores.items() if number >= scenario.warm_up]
        if logs:
            found.quality = min(log.quality for log in logs)
            found.tie_error = max(log.tie_error for log in logs)
        return found

    def score_window(self, time: float) -> tuple[int, int]:
        """Among which requests a choice is the best one: by period and part of it.

        Where scores drift, the best ones of a whole period would all be at its end.
        """
        periods = (time + self.scenario.start) / self.scenario.period
        number = int(periods)
        has_drift = self.scenario.scores is not None and self.scenario.scores.drift != 0.0
        return number, int((periods - number) * _DRIFT_PARTS) if has_drift else 0

    def _earned(self, period: PeriodFigures) -> float:
        return period.passes * self.scenario.rewards.conversion

    def _achieved(self, period: PeriodFigures) -> float:
        """Of what was possible in whole requests."""
        before = self.scenario.reached * self.scenario.target if period.number == 0 else 0.0
        unit = self.scenario.unit * self.scenario.rewards.conversion
        possible = math.floor((period.possible - before) / unit + 1e-6) * unit
        return (period.value - before) / possible if possible > 0.0 else 1.0

    def _unix(self, index: int) -> float:
        return self._origin + (index + self._skipped) * self.width

    def _period_of(self, index: int) -> int:
        return int((index + self._skipped + 0.5) * self.width / self.scenario.period)

    def _line_of(self, index: int) -> Line:
        number = self._period_of(index)
        if number not in self._lines:
            begin = self._origin + number * self.scenario.period
            options = self.scenario.options
            curve = options.get("curve")
            self._lines[number] = Line(
                Span(begin, begin + self.scenario.period),
                options.get("reserve", 0.0),
                None if curve is None else check_curve(curve),
                Schedule(self.scenario.period),
            )
        return self._lines[number]


class _Ideal:
    """One limiter that sees all requests: it keeps to the line, by half a request, in whole ones.

    While it is behind the line it passes `boost` times the line's slope at most. It saves as much
    as a second of that, or a sync interval if that is shorter, or one request.
    """

    def __init__(self, scenario: PacingScenario, value: float) -> None:
        self._target = scenario.target
        self._unit = scenario.unit * scenario.rewards.conversion
        self._boost = scenario.options.get("boost", _BOOST)
        per_second = self._boost * scenario.target / scenario.period
        self._most = max(self._unit, per_second * min(1.0, scenario.sync_interval))
        self._value = value
        self._credit = self._unit

    def begin_period(self) -> None:
        self._value = 0.0

    def offer(self, asked: float, before: float, after: float) -> float:
        """The value at the end of a bin, in which the line goes from one value to another."""
        unit = self._unit
        self._credit += self._boost * (after - before)
        room = min(self._target - self._value, after - self._value + 0.5 * unit)
        taken = max(math.floor(min(asked, room, self._credit) / unit + 1e-6), 0) * unit
        self._value += taken
        self._credit = min(self._credit - taken, self._most)
        return self._value


def counted_by_period(
    nodes: list[PacingNode], books: StoreBooks, earlier: dict[float, float]
) -> dict[float, float]:
    """Passes of each period less those that crashes lost.

    Both `earlier`, the passes before the run, and the result have the begins of periods as keys.
    """
    counted: dict[float, float] = defaultdict(float, earlier)
    for node in nodes:
        for begin, passes in node.counted.items():
            if node.has_crashed:
                passes = min(passes, books.told_by(node.writers, _PASSES, begin))
            counted[begin] += passes
    return dict(counted)


def lacking(
    counted: dict[float, float], books: StoreBooks, scenario: PacingScenario, origin: float
) -> float:
    """Passes that the store does not have, or has too many of, in all periods that it keeps.

    It keeps the current period and the one before. So it does not have those of which it could not
    be told in time, as it was away for longer, nor those before the run, of a clock that is slow.
    """
    stored = {begin: total for (name, begin), total in books.sums.items() if name == _PASSES}
    found = 0.0
    for begin in {**counted, **stored}:
        forgotten = begin + 2.0 * scenario.period - (origin + scenario.start)
        begins_early = begin < origin - 0.5 * scenario.period
        if begins_early or any(away <= forgotten <= back for away, back in scenario.link.outages):
            continue
        found += abs(stored.get(begin, 0.0) - counted.get(begin, 0.0))
    return found

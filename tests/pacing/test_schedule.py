from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.pacing.schedule import Schedule, Span

MIDNIGHT = datetime(2026, 3, 10, tzinfo=UTC).timestamp()
HOUR = 3600.0


@pytest.mark.parametrize(
    ("period", "time", "begin"),
    [
        (60.0, MIDNIGHT + 61.5, MIDNIGHT + 60.0),
        (3600.0, MIDNIGHT + 2 * HOUR, MIDNIGHT + 2 * HOUR),
        (86_400.0, MIDNIGHT + 23.9 * HOUR, MIDNIGHT),
        (0.5, MIDNIGHT + 0.75, MIDNIGHT + 0.5),
    ],
)
def test_periods_are_aligned_to_the_clock(period: float, time: float, begin: float) -> None:
    assert Schedule(period).at(time) == Span(begin, begin + period)


@given(st.floats(0.1, 1e6), st.floats(1e9, 2e9))
def test_every_moment_is_in_its_period(period: float, time: float) -> None:
    span = Schedule(period).at(time)
    assert span.begin <= time < span.end
    assert Schedule(period).at(span.begin + 1e-6 * period).begin == span.begin


def test_a_day_begins_at_midnight_of_its_timezone() -> None:
    noon_utc = MIDNIGHT + 12 * HOUR
    assert Schedule(86_400, timezone="Asia/Tokyo").at(noon_utc).begin == MIDNIGHT - 9 * HOUR


def test_the_day_that_loses_an_hour_has_23() -> None:
    noon = datetime(2026, 3, 29, 12, tzinfo=UTC).timestamp()  # summer time begins in Berlin
    begin, end = Schedule(86_400, timezone="Europe/Berlin").at(noon)
    assert end - begin == 23 * HOUR


def test_an_hour_follows_a_timezone_with_half_hours() -> None:
    begin, _ = Schedule(3600, timezone="Asia/Kolkata").at(MIDNIGHT)
    assert begin == MIDNIGHT - HOUR / 2


@pytest.mark.parametrize("hours", [1, 2, 5, 6, 12])
@pytest.mark.parametrize("month", [3, 10])
def test_periods_do_not_overlap_when_the_clocks_change(hours: int, month: int) -> None:
    schedule = Schedule(3600 * hours, timezone="Europe/Berlin")
    time = datetime(2026, month, 28 if month == 3 else 24, tzinfo=UTC).timestamp()
    end = schedule.at(time).end
    for _ in range(48):
        span = schedule.at(end)
        assert span.begin == end
        assert schedule.at(span.end - 1.0) == span
        end = span.end


def test_begin_and_end_are_one_period_for_ever() -> None:
    schedule = Schedule(begin=datetime.fromtimestamp(100, UTC), end=200)
    assert [schedule.at(time) for time in (0, 150, 900)] == [Span(100, 200)] * 3
    assert not schedule.is_periodic


def test_without_anything_a_counter_never_ends() -> None:
    assert Schedule().at(MIDNIGHT) == Span(0, 0)


def test_the_hour_of_the_day_is_that_of_the_timezone() -> None:
    assert Schedule(60, timezone="Asia/Kolkata").hour_of_day(MIDNIGHT) == 5.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"period": 0}, "period must be from 0.001 to .*, got 0"),
        ({"period": 60, "begin": 1, "end": 2}, "either period, or begin and end"),
        ({"begin": 1}, "begin and end go together, got begin=1 and end=None"),
        ({"begin": 2, "end": 2}, "begin must be before end, got 2 and 2"),
        ({"begin": datetime(2026, 1, 1), "end": 2e9}, "begin must have a time zone"),
        ({"begin": -1, "end": 2}, "begin must be a datetime or a Unix time >= 0, got -1"),
        ({"period": 60, "timezone": "Mars/Base"}, "such as 'Europe/Berlin', got 'Mars/Base'"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Schedule(**arguments)  # type: ignore[arg-type]

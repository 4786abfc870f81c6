from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.pacing.line import Line, check_curve
from sluicegate.pacing.schedule import Schedule, Span

MIDNIGHT = datetime(2026, 3, 10, tzinfo=UTC).timestamp()
HOUR = 3600.0
DAY = Span(MIDNIGHT, MIDNIGHT + 24 * HOUR)
UTC_DAYS = Schedule(86_400)
curves = st.lists(st.floats(0, 100), min_size=24, max_size=24).filter(lambda c: sum(c) > 1e-3)


def test_without_a_curve_the_line_is_straight() -> None:
    line = Line(Span(100, 200), 0.0, None, UTC_DAYS)
    assert [line.part(time) for time in (50, 100, 125, 200, 300)] == [0, 0, 0.25, 1, 1]


def test_a_reserve_ends_the_line_early() -> None:
    line = Line(Span(100, 200), 50.0, None, UTC_DAYS)
    assert [line.part(time) for time in (125, 150, 180)] == [0.5, 1, 1]


def test_an_hour_gets_the_part_of_its_weight() -> None:
    line = Line(DAY, 0.0, [0.0] * 8 + [1.0] * 8 + [0.0] * 7 + [2.0], UTC_DAYS)
    parts = [line.part(MIDNIGHT + hour * HOUR) for hour in (8, 12, 16, 23, 23.5, 24)]
    assert parts == pytest.approx([0, 0.4, 0.8, 0.8, 0.9, 1])


@given(curves, st.floats(0, 1), st.floats(0, 1))
def test_a_line_never_falls_and_can_be_read_both_ways(
    curve: list[float], first: float, second: float
) -> None:
    line = Line(DAY, 0.0, curve, UTC_DAYS)
    early, late = sorted([first, second])
    assert line.part(MIDNIGHT + early * 24 * HOUR) <= line.part(MIDNIGHT + late * 24 * HOUR) + 1e-12
    assert line.part(line.time_of(first)) == pytest.approx(first, abs=1e-6)


def test_a_curve_of_nothing_in_the_period_is_ignored() -> None:
    line = Line(Span(MIDNIGHT, MIDNIGHT + HOUR), 0.0, [0.0] * 23 + [1.0], UTC_DAYS)
    assert line.part(MIDNIGHT + HOUR / 2) == 0.5


@pytest.mark.parametrize("curve", [[1.0] * 23, "a" * 24, [0.0] * 24, [1.0] * 23 + [-1.0], 24])
def test_a_wrong_curve_is_refused(curve: object) -> None:
    with pytest.raises(ValueError, match="curve must be 24"):
        check_curve(curve)  # type: ignore[arg-type]

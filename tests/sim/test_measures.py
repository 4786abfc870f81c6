"""Figures from hand-made timelines: a list is what passed in each slot, a limit is 10 per slot."""

import pytest

from sluicegate.sim.measures import STEPS, Cell, Measures, jain, measure, missed


def steps(slots: list[float]) -> list[float]:
    """Everything in the first step of a slot, as with a quota that is used up at once."""
    return [amount for slot in slots for amount in [slot] + [0.0] * (STEPS - 1)]


def cell(
    admitted: list[float],
    *,
    demand: float | list[float] = 30.0,
    limit: float = 10.0,
    **more: object,
) -> Cell:
    asked = demand if isinstance(demand, list) else [demand] * len(admitted)
    allowed = [limit / STEPS] * (STEPS * len(admitted))
    return Cell("front", "alice", "requests", steps(asked), steps(admitted), allowed, **more)  # type: ignore[arg-type]


def test_a_limit_that_is_kept_in_every_slot_is_neither_over_nor_under() -> None:
    figures = measure([cell([10.0] * 70)])
    assert figures.over_1 == pytest.approx(0.0)
    assert figures.over_10 == pytest.approx(0.0)
    assert figures.over_60 == pytest.approx(0.0)
    assert figures.under == pytest.approx(0.0)
    assert figures.lowest_second == pytest.approx(1.0)
    assert figures.nothing == 0.0
    assert figures.dip == 0.0


def test_one_bad_second_shows_less_the_longer_the_window() -> None:
    figures = measure([cell([10.0] * 30 + [20.0] + [10.0] * 49)])
    assert figures.over_1 == pytest.approx(1.0)
    assert figures.over_10 == pytest.approx(0.1)
    assert figures.over_60 == pytest.approx(1 / 60)
    assert figures.over_60_units == pytest.approx(10.0)


def test_a_window_longer_than_the_run_says_nothing() -> None:
    figures = measure([cell([10.0] * 12)])
    assert figures.over_10 is not None
    assert figures.over_60 is None


def test_windows_that_begin_anywhere_see_what_aligned_ones_do_not() -> None:
    late = [0.0] * 9 + [10.0]
    early = [10.0] + [0.0] * 9
    figures = measure([Cell("s", "u", "r", [3.0] * 20, late + early, [1.0] * 20)])
    assert figures.over_1 == pytest.approx(0.0)
    assert figures.sliding_1 == pytest.approx(1.0)


def test_the_warm_up_does_not_count() -> None:
    figures = measure([cell([90.0] * 5 + [10.0] * 20)], warm_up=5.0)
    assert figures.over_1 == pytest.approx(0.0)


def test_a_burst_counts_only_when_it_is_said() -> None:
    bursting = [cell([10.0] * 5 + [25.0] + [10.0] * 5, capacity=15.0)]
    assert measure(bursting).over_1 == pytest.approx(1.5)
    assert measure(bursting, burst=True).over_1 == pytest.approx(0.0)


def test_under_is_what_could_have_passed_and_did_not() -> None:
    assert measure([cell([9.0] * 20)]).under == pytest.approx(0.1)
    assert measure([cell([8.0] * 20, demand=8.0)]).under == pytest.approx(0.0)


def test_a_spike_does_not_make_the_quiet_time_look_short() -> None:
    quiet = measure([cell([5.0] * 10 + [10.0] * 10, demand=[5.0] * 10 + [90.0] * 10)])
    assert quiet.under == pytest.approx(0.0)


def test_seconds_of_nothing_are_those_with_demand() -> None:
    passed = [10.0, 0.0, 30.0, 0.0]
    assert measure([cell(passed)]).nothing == 0.5
    assert measure([cell(passed, demand=[30.0, 0.0, 30.0, 0.0])]).nothing == 0.0
    assert measure([cell(passed)]).lowest_second == 0.0


@pytest.mark.parametrize(
    ("passed", "disturbances", "expected"),
    [
        ([10] * 20, [], None),
        ([10] * 20, [5.0], 0.0),
        ([10] * 5 + [2, 6] + [10] * 13, [5.0], 2.0),
        ([10] * 5 + [2, 6, 22] + [10] * 12, [5.0], 2.0),  # it spends what was left
        ([10] * 5 + [2, 6, 26] + [10] * 12, [5.0], 3.0),  # more than that
        ([10] * 5 + [2, 6] + [10] * 13, [5.4], 1.0),  # only whole slots after it count
        ([10] * 5 + [2] + [10] * 4 + [2, 2, 2] + [10] * 7, [5.0, 10.0], 3.0),
        ([10] * 5 + [2] + [10] * 13 + [2], [5.0], 15.0),
    ],
)
def test_slots_until_all_is_well_again(
    passed: list[float], disturbances: list[float], expected: float | None
) -> None:
    amounts = [float(amount) for amount in passed]
    measured = [cell(amounts, capacity=100.0, unit=0.0)]
    assert measure(measured, disturbances=disturbances).converged == expected


def test_a_dip_is_the_longest_row_of_bad_slots() -> None:
    assert measure([cell([10.0, 8.0, 8.0, 10.0, 8.0, 10.0])]).dip == 2.0


def test_only_who_keeps_to_his_limit_can_be_rejected_wrongly() -> None:
    modest = cell([8.0] * 10, demand=8.0, offered=100, refused=3)
    greedy = cell([10.0] * 10, demand=90.0, offered=900, refused=800)
    assert measure([modest, greedy]).rejected == pytest.approx(0.03)
    assert measure([greedy]).rejected is None


def test_of_several_users_the_worst_counts() -> None:
    figures = measure([cell([10.0] * 12), cell([12.0] * 12), cell([7.0] * 12)])
    assert figures.over_10 == pytest.approx(0.2)
    assert figures.under == pytest.approx(0.3)
    assert figures.lowest_second == pytest.approx(0.7)


def test_fairness_between_nodes() -> None:
    assert jain([5.0, 5.0, 5.0]) == pytest.approx(1.0)
    assert jain([9.0, 0.0, 0.0]) == pytest.approx(1 / 3)
    assert measure([cell([10.0] * 3, by_node={"a": 1.0, "b": 1.0})]).jain == pytest.approx(1.0)


def test_a_goal_is_met_at_its_figure_and_missed_beyond_it_or_without_one() -> None:
    figures = Measures(over_1=0.03, lowest_second=0.9, unrecorded=-1.0)
    assert missed(figures, {"over_1": 0.03, "lowest_second": 0.9}) == []
    found = missed(figures, {"over_1": 0.02, "lowest_second": 0.95, "unrecorded": 0.0, "jain": 0.9})
    assert [each.goal for each in found] == ["over_1", "lowest_second", "unrecorded", "jain"]
    assert str(found[0]) == "over_1 is 0.03, expected at most 0.02"
    assert str(found[3]) == "jain is none, expected at least 0.9"

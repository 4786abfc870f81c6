"""What the machine made late is neither an excess nor a shortfall; everything else is."""

import math

import pytest

from sluicegate.demo.pauses import Span
from tests.system.course import Course
from tests.system.fleet import without
from tests.system.outcome import assert_near, assert_served

SLOT = [30, *[10] * 17, 0, 0]  # a share of 200 that flows, with a lead of a tenth on every node
# Four nodes were stopped from 0.89 to 1.05 s: the counts are those that were measured then.
LATE = [0, 40, 11, 9, 12, 8, 11, 9, 12, 8, 12, 8, 11, 9, 12, 8, 12, 8, 0, 0]
LESS = [each // 2 for each in SLOT]
MORE = [each * 3 // 2 for each in SLOT]


def course(*slots: list[int], pauses: tuple[Span, ...] = ()) -> Course:
    admitted = [count for slot in slots for count in slot]
    return Course("ann", admitted, [20] * len(admitted), list(pauses))


def test_a_share_that_flows_is_never_much_over() -> None:
    assert course(*[SLOT] * 5).over(1, 200.0, 1, 5) == 0.0


def test_what_was_held_up_passes_later() -> None:
    slots = [SLOT, SLOT, LATE, SLOT, SLOT]
    assert course(*slots).over(1, 200.0, 1, 5) > 0.14
    assert course(*slots, pauses=((1.89, 2.05),)).over(1, 200.0, 1, 5) <= 0.05


def test_only_calm_windows_may_be_asked_for() -> None:
    slots = [SLOT, SLOT, SLOT, LATE, SLOT, SLOT, SLOT, SLOT, LATE, SLOT]
    assert course(*slots).over(1, 200.0, 0, 10, calm=True) > 0.14
    paused = course(*slots[:-2], pauses=((2.89, 3.05),))
    assert paused.over(1, 200.0, 0, 8, calm=True) == 0.0
    paused = course(SLOT, SLOT, MORE, SLOT, SLOT, SLOT, SLOT, pauses=((2.2, 2.35),))
    assert paused.over(1, 200.0, 0, 7) > 0.2
    assert paused.over(1, 200.0, 0, 7, calm=True) == 0.0
    # A pause in another slot excuses nothing.
    assert course(*slots, pauses=((2.89, 3.05),)).over(1, 200.0, 0, 10, calm=True) > 0.14


def test_what_was_held_up_elsewhere_excuses_nothing() -> None:
    slots = [SLOT, SLOT, LATE, SLOT, SLOT, SLOT]
    assert course(*slots, pauses=((0.2, 0.8),)).over(1, 200.0, 1, 6) > 0.14
    assert course(*slots, pauses=((5.0, 5.5),)).over(1, 200.0, 1, 6) > 0.14


def test_pauses_of_several_processes_at_the_same_time_count_once() -> None:
    some = course(SLOT, SLOT, pauses=((0.1, 0.4), (0.2, 0.3), (0.3, 0.6), (1.0, 1.25)))
    assert some.late(0, 2) == pytest.approx(0.75)
    assert some.late(0.5, 1.1) == pytest.approx(0.2)


def test_what_is_missing_is_missing_in_calm_slots() -> None:
    slots = [SLOT, SLOT, LESS, SLOT, SLOT, SLOT, SLOT]
    # Of half a slot's limit, 0.06 s are put down to pauses that are too short to be noted.
    assert course(*slots).under(200.0, 0, 7) == pytest.approx(0.44 / 7, abs=0.002)
    assert course(*slots, pauses=((1.9, 2.4),)).calm(0, 7) == [0, 6]
    assert course(*slots, pauses=((1.9, 2.4),)).under(200.0, 0, 7) == 0.0
    # A pause after it, or one that is too short, excuses nothing.
    assert course(*slots, pauses=((3.0, 3.5),)).under(200.0, 0, 7) > 0.1
    assert course(*slots, pauses=((2.1, 2.15),)).under(200.0, 0, 7) > 0.05


def test_a_fleet_without_a_calm_slot_is_not_excused() -> None:
    pauses = tuple((slot, slot + 0.125) for slot in range(8))
    assert_served(course(*[SLOT] * 8, pauses=pauses), 200.0, 1, 8)
    assert course(*[LESS] * 8, pauses=pauses).under(200.0, 1, 8) == 0.0
    with pytest.raises(AssertionError):
        assert_served(course(*[LESS] * 8, pauses=pauses), 200.0, 1, 8)


def test_requests_that_fall_into_the_next_slot_are_not_missing() -> None:
    late = [*SLOT[:-3], 4, 0, 0], [36, *SLOT[1:]]  # 194 and 206 of 200
    assert_near(course(SLOT, *late, SLOT), 200.0, 0, 4, least=0.98, most=1.02)
    assert course(SLOT, *late, SLOT).under(200.0, 0, 4) == 0.0


@pytest.mark.parametrize("slot", [LESS, MORE])
def test_a_fault_in_one_slot_or_a_small_one_in_all_is_not_taken_for_lateness(
    slot: list[int],
) -> None:
    with pytest.raises(AssertionError, match="ann: admitted per second"):
        assert_near(course(SLOT, slot, SLOT), 200.0, 0, 3, least=0.9, most=1.1)
    little = [[*SLOT[:-3], SLOT[-3] + (slot[0] - SLOT[0]) // 2, 0, 0]] * 8  # 3.5 % off
    with pytest.raises(AssertionError, match=r"slots=[4-8]"):
        assert_near(course(*little), 200.0, 0, 8, least=0.98, most=1.02)


def test_what_a_test_stopped_itself_is_no_pause() -> None:
    pauses = [(1.0, 2.0), (5.0, 9.5), (20.0, 21.0)]
    assert without(pauses, []) == pauses
    assert without(pauses, [(4.9, 9.0), (20.5, math.inf)]) == [(1.0, 2.0), (9.0, 9.5), (20.0, 20.5)]


def test_a_pause_before_the_central_is_lost_is_felt_while_its_quota_is_reused() -> None:
    paused = course(*[SLOT] * 20, pauses=((7.1, 7.6),))
    assert paused.calm(5, 20) == [5, 6, *range(11, 20)]
    assert paused.without_leader_from(8.3).calm(5, 20) == [5, 6, *range(13, 20)]
    assert paused.without_leader_from(12.0).calm(5, 20) == paused.calm(5, 20)
    assert paused.without_leader_from(8.3).late(0, 20) == paused.late(0, 20)


def test_a_debt_excuses_a_shortage_of_its_size_and_no_more() -> None:
    short = course(SLOT, LESS, SLOT)  # 200, 100 and 200 of a limit of 200
    assert_near(short, 200, 0, 3, least=0.9, debt=100)
    for debt in (0.0, 50.0):
        with pytest.raises(AssertionError, match=f"debt {debt:g}"):
            assert_near(short, 200, 0, 3, least=0.9, debt=debt)

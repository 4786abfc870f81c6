"""What the machine made late is told apart from what passed beyond the limit."""

from tests.system.course import PER_SECOND, Course

SLOT = [30, *[10] * 17, 0, 0]  # a share of 200 that flows, with a lead of a tenth on every node
# Four nodes were stopped from 0.89 to 1.05 s: the counts are those that were measured then.
LATE = [0, 40, 11, 9, 12, 8, 11, 9, 12, 8, 12, 8, 11, 9, 12, 8, 12, 8, 0, 0]


def course(*slots: list[int], held: dict[int, float] | None = None) -> Course:
    admitted = [count for slot in slots for count in slot]
    of_one = [(held or {}).get(place, 0.0) for place in range(len(admitted))]
    return Course("ann", admitted, [0] * len(admitted), [[0.0] * len(admitted), of_one])


def test_a_share_that_flows_is_never_much_over() -> None:
    assert course(*[SLOT] * 5).over(1, 200.0, 1, 5) == 0.0


def test_what_was_held_up_passes_later() -> None:
    slots = [SLOT, SLOT, LATE, SLOT, SLOT]
    assert course(*slots).over(1, 200.0, 1, 5) > 0.14
    assert course(*slots).over_in_time(1, 200.0, 1, 5) > 0.14
    held = {2 * PER_SECOND + 1: 0.16}
    assert course(*slots, held=held).over(1, 200.0, 1, 5) > 0.14
    assert course(*slots, held=held).over_in_time(1, 200.0, 1, 5) <= 0.05


def test_what_was_held_up_elsewhere_excuses_nothing() -> None:
    slots = [SLOT, SLOT, LATE, SLOT, SLOT, SLOT]
    assert course(*slots, held={10: 0.5}).over_in_time(1, 200.0, 1, 6) > 0.14
    assert course(*slots, held={100: 0.5}).over_in_time(1, 200.0, 1, 6) > 0.14

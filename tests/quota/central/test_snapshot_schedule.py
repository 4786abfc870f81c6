"""When a central writes its state: a table of times."""

import pytest

from sluicegate.quota.central.snapshot_schedule import SnapshotSchedule


def written(
    changes: list[int], until: int, *, copied: float = 0.0, wrote: float = 0.0
) -> list[int]:
    """The slots whose snapshot is written; it is asked in the middle of each."""
    schedule = SnapshotSchedule(0.0)
    found = []
    for slot in range(until):
        now = slot + 0.5
        changed = max((change for change in changes if change <= slot), default=-100)
        if schedule.is_due(now, slot, changed):
            schedule.begin(now, copied)
            schedule.end(now, wrote)
            found.append(slot)
    return found


@pytest.mark.parametrize(
    ("changes", "copied", "wrote", "slots"),
    [
        ([], 0.0, 0.0, [10, 20, 30]),
        ([13], 0.0, 0.0, [10, 13, 14, 15, 16, 17, 27, 37]),
        ([13, 16], 0.0, 0.0, [10, 13, 14, 15, 16, 17, 18, 19, 20, 30]),
        ([13], 0.025, 0.0, [10, 13, 16, 26, 36]),  # 1 % of 2.5 s
        ([13], 0.0, 0.4, [10, 14, 24, 34]),  # 10 % of 4 s
        ([], 0.2, 0.0, [10, 30]),  # 1 % of 20 s
    ],
)
def test_the_state_is_written_more_often_while_nodes_come_and_go(
    changes: list[int], copied: float, wrote: float, slots: list[int]
) -> None:
    assert written(changes, 39, copied=copied, wrote=wrote) == slots


def test_a_timer_that_is_a_bit_early_does_not_put_a_snapshot_off() -> None:
    schedule = SnapshotSchedule(0.0)
    assert schedule.is_due(9.95, 9, -100)
    assert not schedule.is_due(9.5, 9, -100)

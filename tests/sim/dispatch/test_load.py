"""The figures of dispatch under load, in virtual time."""

import pytest

from sluicegate.sim.dispatch.load import DropsOnlyLate, overload, padding, priorities, queues

pytestmark = pytest.mark.no_cover


@pytest.mark.parametrize("seed", range(2))
def test_nine_tenths_of_the_capacity_are_answered_in_time_at_three_times_the_load(
    seed: int,
) -> None:
    ours = overload(seed, seconds=4.0)
    assert ours.audit.violations == []
    assert ours.audit.counts["sent"] > 4000
    assert 0.9 <= ours.share <= 1.05
    others = overload(seed, core=DropsOnlyLate, seconds=4.0)
    assert others.share <= 0.19


@pytest.mark.parametrize("seed", range(3))
def test_batches_of_like_lengths_are_worth_seven_tenths_more_texts(seed: int) -> None:
    assert padding(seed, by_size=True) >= 1.7 * padding(seed, by_size=False)


@pytest.mark.parametrize("seed", range(2))
def test_background_gets_what_the_others_leave_under_sustained_overload(seed: int) -> None:
    """Twice the capacity of normal requests, and more than half of it in the background."""
    _, normal, background = priorities(seed, (0.0, 1.9, 0.6), seconds=10.0)
    assert normal >= 0.9
    assert background <= 0.05
    urgent, normal, background = priorities(seed, (0.3, 0.3, 2.0), seconds=10.0)
    assert urgent >= 0.25
    assert normal >= 0.25
    assert background >= 0.2


@pytest.mark.parametrize("seed", range(2))
def test_the_first_queue_of_a_worker_is_served_first_under_sustained_overload(seed: int) -> None:
    first, second, third = queues(seed, (2.0, 0.5, 0.5), seconds=10.0)
    assert first >= 0.9
    assert second + third <= 0.1
    # A batch is of one queue: one request of the first takes the time of a whole batch.
    first, second = queues(seed, (0.02, 2.0), seconds=20.0)
    assert first >= 0.01
    assert second >= 0.5

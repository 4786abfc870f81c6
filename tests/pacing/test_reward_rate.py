import math

import pytest

from sluicegate.pacing.reward_rate import RewardRate

SYNC = 2.0
MEMORY = 20.0


def feed(rewards: RewardRate, passes_per_second: list[float], *, rate: float, delay: float) -> None:
    """Show it so many seconds of passes, whose rewards come `delay` seconds later."""
    passes = [0.0]
    for amount in passes_per_second:
        passes.append(passes[-1] + amount)
    for second in range(0, len(passes), int(SYNC)):
        ripe = passes[max(second - int(delay), 0)]
        rewards.see(float(second), passes[second], rate * ripe, 1000.0 * ripe, 1.0, MEMORY)


def test_the_rate_is_rewards_per_pass() -> None:
    rewards = RewardRate(1.0, 0.0)
    feed(rewards, [50.0] * 100, rate=0.1, delay=0)
    assert rewards.rate == pytest.approx(0.1, rel=0.01)


def test_the_rate_follows_a_change() -> None:
    rewards = RewardRate(1.0, 0.0)
    for second in range(0, 200, 2):
        rewards.see(float(second), 50.0 * second, 5.0 * min(second, 100), 1e6, 1.0, MEMORY)
    assert rewards.rate < 0.001


@pytest.mark.parametrize("delay", [0, 8, 16, 30])
def test_late_rewards_are_compared_with_the_passes_that_brought_them(delay: int) -> None:
    rewards = RewardRate(1.0, 32.0)
    feed(rewards, [10.0 + second for second in range(120)], rate=0.1, delay=delay)
    assert rewards.rate == pytest.approx(0.1, rel=0.1)
    assert rewards.delay == pytest.approx(delay, abs=8)


def test_passes_that_wait_count_at_the_rate() -> None:
    rewards = RewardRate(1.0, 30.0)
    rewards.begin_period(0.0)
    feed(rewards, [10.0 + second for second in range(120)], rate=0.1, delay=30)
    last_passes = sum(10.0 + second for second in range(120 - round(rewards.delay), 120))
    assert rewards.to_come(math.inf) == pytest.approx(rewards.rate * last_passes, rel=0.02)


def test_passes_that_waited_at_the_begin_are_not_expected_of_this_period() -> None:
    rewards = RewardRate(0.1, 30.0)
    feed(rewards, [50.0] * 100, rate=0.1, delay=30)
    rewards.begin_period(100.0)
    assert rewards.to_come(math.inf) == 0.0
    assert rewards.to_come(0.0) > 0.0  # but those beyond the usual are


@pytest.mark.no_cover  # a day of syncs
def test_the_history_is_bounded() -> None:
    rewards = RewardRate(1.0, 30.0)
    for second in range(0, 100_000, 2):
        rewards.see(float(second), float(second), float(second), second, 1.0, MEMORY)
    assert len(rewards._times) < 300


def test_a_node_that_comes_late_takes_earlier_passes_for_even() -> None:
    rewards = RewardRate(0.1, 30.0)
    rewards.begin_period(0.0)
    for second in range(300, 320, 2):
        rewards.see(float(second), 50.0 * second, 5.0 * (second - 30), 1000.0 * second, 1.0, MEMORY)
    assert rewards.rate == pytest.approx(0.1, rel=0.05)

"""`curve="learn"`: the traffic of the day, shared through the store. Days in virtual time."""

import pytest

from sluicegate import Cluster, ClusterLimiter, ManualClock
from sluicegate.pacing.learned_curve import hourly_means
from sluicegate.stores import MemoryStore

HOUR, DAY = 3600.0, 86_400.0
MIDNIGHT = 11_574 * DAY  # UTC
EVENING = [1.0] * 18 + [5.0] * 6  # requests by hour: most in the evening


def make(
    store: MemoryStore, clock: ManualClock, timezone: str | None = None
) -> tuple[Cluster, ClusterLimiter]:
    cluster = Cluster(store, "shop", sync_interval=300.0, clock=clock)
    limiter = cluster.limiter("ads", target=2400, period=DAY, curve="learn", timezone=timezone)
    return cluster, limiter


def run(clock: ManualClock, hours: float, *nodes: tuple[Cluster, ClusterLimiter]) -> None:
    """Traffic by the hour, and a sync every five minutes."""
    for _ in range(round(hours * 12)):
        for cluster, limiter in nodes:
            hour = int(clock.now() % DAY / HOUR)
            limiter.acquire(EVENING[hour])
            cluster.sync()
        clock.advance(300.0)


def test_the_line_is_straight_until_a_whole_day_is_known_and_then_follows_it() -> None:
    clock = ManualClock(MIDNIGHT + 6 * HOUR)
    node = make(MemoryStore(), clock)
    run(clock, 17.5, node)  # until 23:30 of the first day
    assert node[1].ideal_reward() == pytest.approx(2400 * 23.5 / 24)
    run(clock, 18.5, node)  # 18:00 of the second: it has half a day before the last midnight
    assert node[1].ideal_reward() == pytest.approx(2400 * 18 / 24)
    run(clock, 24.0, node)  # 18:00 of the third
    assert node[1].ideal_reward() == pytest.approx(2400 * 18 / 48, rel=0.01)


def test_a_restarted_node_has_the_curve_with_its_second_sync() -> None:
    clock, store = ManualClock(MIDNIGHT), MemoryStore()
    nodes = [make(store, clock), make(store, clock)]
    run(clock, 60.0, *nodes)  # noon of the third day
    assert nodes[0][1].ideal_reward() == pytest.approx(2400 * 12 / 48, rel=0.01)
    new = make(store, clock)
    assert new[1].ideal_reward() == pytest.approx(2400 * 12 / 24)
    new[0].sync()
    clock.advance(300.0)
    new[0].sync()
    nodes[0][0].sync()
    assert new[1].ideal_reward() == pytest.approx(nodes[0][1].ideal_reward())


def test_hours_are_those_of_the_timezone() -> None:
    clock = ManualClock(MIDNIGHT)
    node = make(MemoryStore(), clock, timezone="Asia/Tokyo")  # nine hours ahead
    run(clock, 3 * 24 + 9.0, node)
    # It is 18:00 in Tokyo, and the evening was from 3:00 to 9:00 there.
    assert node[1].ideal_reward() == pytest.approx(2400 * (12 + 6 * 5) / 48, rel=0.01)


def test_what_is_synced_for_the_curve_stays_small() -> None:
    clock, store = ManualClock(MIDNIGHT), MemoryStore()
    node = make(store, clock)
    run(clock, 5 * 24 + 0.5, node)
    assert len(node[0].state.request(clock.now()).request.updates) == 3 + 1
    assert len(store) <= 3 + 6 * 24


def test_less_than_a_day_has_no_means() -> None:
    day = [(hour, 1.0 + hour) for hour in range(24)]
    assert hourly_means(day) is None  # the first hour may be a part of one
    assert hourly_means([(23, 7.0), *day]) == tuple(requests for _, requests in day)
    assert hourly_means([(23, 0.0), *day]) is None
    assert hourly_means([(23, 7.0), *day, (0, 5.0)]) == (3.0, *(one for _, one in day[1:]))
    assert hourly_means([(0, 0.0)] * 72) is None

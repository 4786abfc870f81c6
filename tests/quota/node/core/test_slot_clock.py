"""`SlotClock`: the leader's slots as a node estimates them from samples."""

import random

import pytest

from sluicegate.quota.node.core.slot_clock import SlotClock


def _clock(wall: float = 1000.0, slot_seconds: float = 1.0) -> SlotClock:
    return SlotClock(slot_seconds, now=0.0, wall=wall)


def test_the_wall_clock_tells_the_slot_until_a_leader_does() -> None:
    clock = _clock(wall=1000.5)
    assert not clock.has_leader_time
    assert [clock.slot(now) for now in (0.0, 0.49, 0.5, 1.5)] == [1000, 1000, 1001, 1002]
    clock.sample(1, sent=1.5, time=50.0, received=1.5)
    assert clock.has_leader_time
    assert clock.slot(1.5) == 50


@pytest.mark.parametrize(
    ("samples", "offset"),
    [
        pytest.param([(0.0, 500.0, 0.0)], 500.0, id="no way at all"),
        pytest.param([(0.0, 500.1, 0.2)], 500.0, id="the middle of the round trip"),
        pytest.param([(0.0, 500.01, 0.02), (1.0, 501.5, 1.6)], 500.0, id="the shortest counts"),
        pytest.param([(0.0, 500.5, 0.6), (1.0, 501.01, 1.02)], 500.0, id="a better one later"),
        pytest.param([(0.0, 500.0, 0.0), (1.0, 503.1, 1.2)], 502.0, id="a clock that stepped"),
    ],
)
def test_samples_tell_the_offset(samples: list[tuple[float, float, float]], offset: float) -> None:
    clock = _clock()
    for sent, time, received in samples:
        clock.sample(1, sent=sent, time=time, received=received)
    assert clock.offset == pytest.approx(offset)


def test_a_sample_counts_for_eight_only() -> None:
    clock = _clock()
    clock.sample(1, sent=0.0, time=500.0, received=0.0)
    for second in range(1, 9):
        assert clock.offset == 500.0
        clock.sample(1, sent=second, time=500.1 + second, received=second + 0.4)
    assert clock.offset == pytest.approx(499.9)


def test_a_new_leader_starts_anew_and_the_old_one_is_not_heard() -> None:
    clock = _clock()
    clock.sample(1, sent=0.0, time=500.0, received=0.0)
    clock.sample(2, sent=1.0, time=701.1, received=1.2)
    assert clock.offset == pytest.approx(700.0)
    clock.sample(1, sent=2.0, time=502.0, received=2.0)
    clock.hint(1, time=502.0, received=2.0)
    assert clock.offset == pytest.approx(700.0)


def test_a_hint_counts_until_there_is_a_sample() -> None:
    clock = _clock()
    clock.hint(1, time=500.0, received=0.5)
    assert clock.offset == 499.5
    clock.hint(1, time=501.0, received=1.1)  # was shorter on its way
    assert clock.offset == pytest.approx(499.9)
    clock.hint(1, time=501.0, received=1.9)
    assert clock.offset == pytest.approx(499.9)
    clock.sample(1, sent=2.0, time=502.1, received=2.2)
    clock.hint(1, time=512.0, received=2.2)
    assert clock.offset == pytest.approx(500.0)


@pytest.mark.parametrize("slot_seconds", [0.1, 0.3, 1.0, 7.0])
def test_a_slot_has_begun_at_its_beginning(slot_seconds: float) -> None:
    chance = random.Random(4)
    for _ in range(2000):
        clock = _clock(chance.uniform(1.6e9, 1.9e9), slot_seconds)
        slot = clock.slot(chance.uniform(0.0, 1e6))
        assert clock.slot(clock.begin(slot)) == slot
        assert clock.slot(clock.begin(slot) - 0.001 * slot_seconds) == slot - 1


def test_over_a_wavering_network_the_offset_is_right_to_half_the_shortest_way() -> None:
    chance = random.Random(7)
    clock = _clock()
    for second in range(100):
        there, back = chance.uniform(0.001, 0.3), chance.uniform(0.001, 0.3)
        received = second + there + back
        clock.sample(1, sent=second, time=500.0 + second + there, received=received)
        assert abs(clock.offset - 500.0) <= 0.3


def test_a_sample_is_not_received_before_it_was_sent() -> None:
    with pytest.raises(ValueError, match="received must not be before sent .2.0., got 1.0"):
        _clock().sample(1, sent=2.0, time=5.0, received=1.0)


@pytest.mark.parametrize("slot_seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_slot_has_a_length(slot_seconds: float) -> None:
    with pytest.raises(ValueError, match="slot_seconds must be a finite number above 0"):
        SlotClock(slot_seconds, now=0.0, wall=0.0)

from typing import Any

import pytest

from sluicegate.sim.network import KINDS, Network, Quality
from sluicegate.sim.world import World

MANY = 20_000


def carried(quality: Quality, *, count: int = MANY, kind: str = "report") -> list[float]:
    """How long each message that arrives was on its way."""
    world = World(1)
    network = Network(world, quality, slot_seconds=1.0)
    times: list[float] = []
    for number in range(count):
        world.at(10.0 * number, _send, network, kind, world, times)
    world.run(10.0 * count + 100.0)
    return times


def _send(network: Network, kind: str, world: World, times: list[float]) -> None:
    sent = world.now
    network.send("a", "b", kind, lambda source, message: times.append(world.now - sent), "hello")


def test_a_message_takes_the_delay_and_some_jitter() -> None:
    times = carried(Quality(delay=0.1, jitter=0.05), count=1000)
    assert len(times) == 1000
    assert min(times) >= 0.1 - 1e-9
    assert max(times) <= 0.15 + 1e-9
    assert sum(times) / 1000 == pytest.approx(0.125, abs=0.003)


@pytest.mark.parametrize(
    ("quality", "expected"),
    [
        (Quality(loss=0.05), 0.95),
        (Quality(double=0.05), 1.05),
        (Quality(loss=1.0), 0.0),
        (Quality(double=1.0), 2.0),
    ],
)
def test_messages_are_lost_and_doubled_as_often_as_said(quality: Quality, expected: float) -> None:
    assert len(carried(quality)) / MANY == pytest.approx(expected, abs=0.006)


def test_late_messages_are_late_by_slots() -> None:
    times = carried(Quality(late=0.1, late_slots=2))
    late = [time for time in times if time > 1.0]
    assert len(late) / MANY == pytest.approx(0.1, abs=0.01)
    assert 2.0 < min(late) < max(late) < 2.02


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_kinds_that_are_named_suffer(kind: str) -> None:
    bad = Quality(loss=1.0, kinds=frozenset({"report"}))
    assert len(carried(bad, count=10, kind=kind)) == (0 if kind == "report" else 10)


def test_messages_within_the_jitter_change_places() -> None:
    world = World(1)
    network = Network(world, Quality(delay=0.0, jitter=1.0), slot_seconds=1.0)
    heard: list[int] = []
    for number in range(20):
        network.send("a", "b", "ack", lambda source, message: heard.append(message), number)
    world.run(2.0)
    assert sorted(heard) == list(range(20))
    assert heard != sorted(heard)


STORY: list[tuple[str, Any]] = [
    ("cut", [["a", "b"], ["c"]]),
    ("hear", ("a", "b", True)),
    ("hear", ("a", "c", False)),
    ("hear", ("a", "x", False)),
    ("hear", ("x", "y", True)),
    ("cut", [["a"]]),
    ("hear", ("a", "b", False)),
    ("heal", 0),
    ("hear", ("a", "b", False)),
    ("hear", ("b", "c", True)),
    ("heal", 1),
    ("hear", ("a", "c", True)),
]


def test_partitions_cut_groups_off_until_they_heal() -> None:
    network = Network(World(), Quality(), slot_seconds=1.0)
    cuts: list[dict[str, int]] = []
    for act, what in STORY:
        if act == "cut":
            cuts.append(network.cut(what))
        elif act == "heal":
            network.heal(cuts[what])
        else:
            one, other, expected = what
            assert network.hears(one, other) is expected
            assert network.hears(other, one) is expected


def test_troubles_end_one_by_one() -> None:
    network = Network(World(), Quality(), slot_seconds=1.0)
    first, second = Quality(loss=0.1), Quality(loss=0.2)
    network.spoil(first)
    network.spoil(second)
    network.mend(first)
    assert network.quality == second
    network.mend(second)
    assert network.quality == Quality()

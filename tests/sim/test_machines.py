from typing import Any

from sluicegate.sim.machines import Machine
from sluicegate.sim.world import World


class Parrot:
    """Answers what it hears, and speaks every two seconds of its machine's clock."""

    def __init__(self, now: float) -> None:
        self.spoke = now
        self.times: list[float] = []

    def hear(self, now: float, source: str, message: Any) -> list[tuple[str, Any]]:
        return [(source, f"{message}!")]

    def speak(self, now: float) -> list[tuple[str, Any]]:
        if now < self.due(now):
            return []
        self.spoke = now
        self.times.append(now)
        return [("all", "hello")]

    def due(self, now: float) -> float:
        return self.spoke + 2.0


def machine(**clock: float) -> tuple[World, Machine, list[tuple[float, str, Any]]]:
    world = World()
    sent: list[tuple[float, str, Any]] = []

    def send(machine: Machine, target: str, message: Any) -> None:
        sent.append((round(world.now, 3), target, message))

    given = {"base": 1000.0, "skew": 0.0, "drift": 0.0, **clock}
    made = Machine("parrot", world, send, **given)
    start(made)
    return world, made, sent


def start(machine: Machine) -> Parrot:
    parrot = Parrot(machine.now())
    machine.start(parrot, parrot.hear, parrot.speak, parrot.due)
    return parrot


def test_a_process_is_woken_when_it_is_due() -> None:
    world, _, sent = machine()
    world.run(5.0)
    assert sent == [(2.0, "all", "hello"), (4.0, "all", "hello")]


def test_a_fast_clock_wakes_it_sooner() -> None:
    world, _, sent = machine(drift=1.0)
    world.run(2.5)
    assert [time for time, _, _ in sent] == [1.0, 2.0]


def test_the_wall_clock_is_skewed_and_can_be_stepped() -> None:
    world, made, _ = machine(skew=500.0)
    world.run(3.0)
    assert made.now() == 1003.0
    assert made.wall() == 503.0
    made.step(-10.0)
    assert made.wall() == 493.0
    assert made.now() == 1003.0


def test_a_frozen_machine_hears_everything_when_it_thaws() -> None:
    world, made, sent = machine()
    made.freeze()
    made.deliver("a", "one")
    made.deliver("b", "two")
    world.run(7.0)
    assert sent == []
    made.thaw()
    assert sent == [(7.0, "a", "one!"), (7.0, "b", "two!"), (7.0, "all", "hello")]
    world.run(10.0)
    assert sent[3:] == [(9.0, "all", "hello")]


def test_a_machine_that_is_down_hears_nothing_and_forgets_what_it_planned() -> None:
    world, made, sent = machine()
    acts: list[str] = []
    made.later(3.0, acts.append, "too late")
    made.stop()
    made.deliver("a", "one")
    start(made)
    made.later(3.0, acts.append, "in time")
    world.run(5.0)
    assert acts == ["in time"]
    assert [message for _, _, message in sent] == ["hello", "hello"]

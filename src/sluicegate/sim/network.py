"""What lies between the machines: delay, loss, doubling, lateness, partitions.

A message takes `delay` seconds and up to `jitter` more, so two that are sent within the jitter
may change places. Each message is lost with the probability `loss`, comes twice with `double`,
and is late by `late_slots` slots with `late`; these three befall only the `kinds` named (all if
none is). A partition cuts machines into groups that do not hear each other; who is in no group
hears those who are in none either. `sever` cuts two sets of machines off from each other alone: all
others hear both. A message that is on its way when either begins arrives.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from sluicegate.sim.world import World

__all__ = ["KINDS", "Network", "Quality"]

KINDS = ("report", "ask", "ack", "quota", "election")


@dataclass(slots=True, frozen=True)
class Quality:
    """How good a network is. Times are seconds, the others are probabilities."""

    delay: float = 0.005
    jitter: float = 0.005
    loss: float = 0.0
    double: float = 0.0
    late: float = 0.0
    late_slots: float = 2.0
    kinds: frozenset[str] = frozenset(KINDS)


class Network:
    """Carries messages between machines, which it knows by name."""

    __slots__ = (
        "_cuts",
        "_qualities",
        "_random",
        "_random_of_election",
        "_severed",
        "_slot_seconds",
        "_world",
        "lost",
        "sent",
    )

    def __init__(self, world: World, quality: Quality, slot_seconds: float) -> None:
        self._qualities = [quality]
        self.sent = 0
        self.lost = 0
        self._world = world
        self._random: Callable[[], float] = world.network.random
        self._random_of_election: Callable[[], float] = world.election.random
        self._slot_seconds = slot_seconds
        self._cuts: list[dict[str, int]] = []
        self._severed: list[tuple[frozenset[str], frozenset[str]]] = []

    def cut(self, groups: Iterable[Iterable[str]]) -> dict[str, int]:
        """Begin a partition; what is returned ends it, given to `heal`."""
        cut = {name: number for number, group in enumerate(groups) for name in group}
        self._cuts.append(cut)
        return cut

    def heal(self, cut: dict[str, int]) -> None:
        self._cuts = [other for other in self._cuts if other is not cut]

    def sever(self, ones: Iterable[str], others: Iterable[str]) -> Callable[[], None]:
        """Have some machines and some others not hear each other; what is returned ends it."""
        severed = frozenset(ones), frozenset(others)
        self._severed.append(severed)

        def mend() -> None:
            self._severed = [each for each in self._severed if each is not severed]

        return mend

    @property
    def quality(self) -> Quality:
        return self._qualities[-1]

    def spoil(self, quality: Quality) -> None:
        """Be as bad as this, whatever it was before."""
        self._qualities.append(quality)

    def mend(self, quality: Quality) -> None:
        """End what `spoil` began. Other troubles last."""
        if quality in self._qualities[1:]:
            self._qualities.reverse()
            self._qualities.remove(quality)
            self._qualities.reverse()

    def recover(self) -> None:
        """End all troubles and partitions, and lose nothing any more."""
        self._cuts = []
        self._severed = []
        self._qualities = [Quality()]

    def hears(self, one: str, other: str) -> bool:
        """Whether a message from one to the other would get through, if it is not lost."""
        return all(cut.get(one) == cut.get(other) for cut in self._cuts) and not any(
            (one in ones and other in others) or (one in others and other in ones)
            for ones, others in self._severed
        )

    def send(
        self,
        source: str,
        target: str,
        kind: str,
        deliver: Callable[[str, Any], object],
        message: Any,
    ) -> None:
        """Have `deliver(source, message)` called when the message arrives, if it does."""
        self.sent += 1
        if (self._cuts or self._severed) and not self.hears(source, target):
            self.lost += 1
            return
        quality = self._qualities[-1]
        rng = self._random if kind != "election" else self._random_of_election
        world = self._world
        arrival = world.now + quality.delay + quality.jitter * rng()
        if kind in quality.kinds:
            if quality.loss and rng() < quality.loss:
                self.lost += 1
                return
            if quality.double and rng() < quality.double:
                again = arrival + quality.delay + quality.jitter * rng()
                world.at(again, deliver, source, message)
            if quality.late and rng() < quality.late:
                arrival += quality.late_slots * self._slot_seconds
        world.at(arrival, deliver, source, message)

"""`Network`: carries messages between members, loses, doubles and delays them."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sluicegate.election.paxos.messages import Message
from sluicegate.sim.world import World

__all__ = ["Network", "Quality"]


@dataclass(frozen=True, slots=True)
class Quality:
    """Times are seconds, the others are probabilities."""

    delay: float
    """Each message takes this long, and up to as much again."""
    loss: float = 0.0
    double: float = 0.0
    late: float = 0.0
    """Of a message that comes up to `latest` seconds later than others."""
    latest: float = 0.0
    late_kinds: tuple[type, ...] = ()
    """Only these are late; all if there are none."""


class Network:
    """What a member sends itself arrives always, and next. Messages on their way pass a cut."""

    def __init__(self, world: World, quality: Quality, counts: Counter[str]) -> None:
        self.quality = quality
        self.deliver: Callable[[str, str, Message], object]
        self.cut: frozenset[tuple[str, str]] = frozenset()
        """Pairs of sender and receiver that are cut off."""
        self._world = world
        self._counts = counts

    def isolate(self, groups: Iterable[Iterable[str]]) -> None:
        """Cut the network into groups that do not hear each other."""
        cells = [set(group) for group in groups]
        self.cut = frozenset(
            (sender, to)
            for cell in cells
            for other in cells
            if cell is not other
            for sender in cell
            for to in other
        )

    def heal(self) -> None:
        self.cut = frozenset()

    def send(self, sender: str, to: str, message: Message) -> None:
        world, quality = self._world, self.quality
        if sender == to:
            world.at(world.now, self.deliver, sender, to, message)
            return
        draw = world.network.random
        if (sender, to) in self.cut or (quality.loss and draw() < quality.loss):
            self._counts["lost"] += 1
            return
        world.at(world.now + self._delay(message), self.deliver, sender, to, message)
        if quality.double and draw() < quality.double:
            self._counts["doubled"] += 1
            world.at(world.now + self._delay(message), self.deliver, sender, to, message)

    def _delay(self, message: Message) -> float:
        quality, draw = self.quality, self._world.network.random
        delay = quality.delay * (1.0 + draw())
        kinds = quality.late_kinds
        if quality.late and draw() < quality.late and (not kinds or isinstance(message, kinds)):
            self._counts["late"] += 1
            delay += draw() * quality.latest
        return delay

"""`Process`: one simulated process, which can be killed and frozen; its clock is its own."""

from collections.abc import Callable
from typing import Any

from sluicegate.sim.world import World

__all__ = ["Process"]


class Process:
    """What it does, it does with `run`: never when it is dead, and not before it is thawed."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.is_dead = False
        self.frozen_until = 0.0
        self.faulted_at = float("-inf")  # when it last was frozen, or an exchange failed
        self._offset = world.faults.uniform(0.0, 1e6)
        self._speed = 1.0 + world.faults.uniform(-5e-5, 5e-5)
        self._stalled: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    @property
    def is_frozen(self) -> bool:
        return self.world.now < self.frozen_until

    def local(self) -> float:
        """The time of its monotonic clock."""
        return self._offset + self.world.now * self._speed

    def run(self, act: Callable[..., object], *arguments: Any) -> None:
        if self.is_dead:
            return
        if self.is_frozen:
            self._stalled.append((act, arguments))
        else:
            act(*arguments)

    def after(self, delay: float, act: Callable[..., object], *arguments: Any) -> None:
        self.world.at(self.world.now + delay, self.run, act, *arguments)

    def freeze(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after `seconds`."""
        if self.is_dead or self.is_frozen:
            return
        self.frozen_until = self.world.now + seconds
        self.world.at(self.frozen_until, self._thaw)

    def kill(self) -> None:
        """kill -9."""
        self.is_dead = True

    def _thaw(self) -> None:
        self.faulted_at = self.world.now
        stalled, self._stalled = self._stalled, []
        for act, arguments in stalled:
            self.run(act, *arguments)

    def __repr__(self) -> str:
        state = "dead" if self.is_dead else "frozen" if self.is_frozen else "alive"
        return f"{type(self).__name__}({self.name}, {state})"

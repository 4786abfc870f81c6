"""A machine of the simulated cluster: a clock of its own, a process on it, and what befalls them.

Nodes and centrals are the same here. A process is told the time and hears messages; it says what
it wants sent, and when it wants to be woken next. So the machine needs of it three functions:

    hear(now, source, message)  -> messages to send, or None
    speak(now)                  -> messages to send
    due(now)                    -> when to call speak again, at the latest

which are `receive`, `outgoing` and `due` of a node, `receive`, `tick` and `due` of a central.

A machine that is down hears nothing. One that is frozen hears nothing either, but what is sent
to it waits, as in the buffers of a socket, and is heard when it thaws.

The process sees the machine's monotonic clock, `now`, which may run too fast or too slow, and has
a base of its own, so that nobody can mistake one machine's time for another's. The wall clock may
besides be skewed, and may be stepped. All times inside this file but `now` are the world's.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

from sluicegate.sim.world import World

__all__ = ["Due", "Hear", "Machine", "Send", "Speak"]

Send = Callable[["Machine", str, Any], object]
Hear = Callable[[float, str, Any], Iterable[tuple[str, Any]] | None]
Speak = Callable[[float], Iterable[tuple[str, Any]]]
Due = Callable[[float], float]
_LATE = 1e-6  # seconds: an alarm rings a bit late, or rounding would have it ring twice
_AGAIN = 1e-3


class Machine:
    """A named machine, up or down or frozen."""

    __slots__ = (
        "_alarm",
        "_base",
        "_due",
        "_hear",
        "_pace",
        "_planned",
        "_send",
        "_skew",
        "_speak",
        "_waiting",
        "_world",
        "frozen",
        "life",
        "name",
        "on_heard",
        "process",
        "tally",
    )

    def __init__(
        self, name: str, world: World, send: Send, *, base: float, skew: float, drift: float
    ) -> None:
        self.name = name
        self.process: Any = None  # what runs here; None: the machine is down
        self.frozen = False
        self.tally: dict[tuple[str, str, str], float] = {}  # consumed since its memory began
        self.on_heard: Callable[[Machine], object] | None = None  # called after each message
        self.life = 0  # how many processes have run here
        self._world = world
        self._send = send
        self._base = base
        self._pace = 1.0 + drift
        self._skew = skew
        self._alarm = math.inf  # the world's time at which it rings
        self._planned = math.inf  # the same, by the machine's clock and without delay
        self._waiting: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    @property
    def up(self) -> bool:
        return self.process is not None and not self.frozen

    def now(self) -> float:
        """The monotonic clock."""
        return self._base + self._world.now * self._pace

    def wall(self, now: float | None = None) -> float:
        """The wall clock, now or when the monotonic one said `now`."""
        return self._skew + (self.now() if now is None else now) - self._base

    def step(self, seconds: float) -> None:
        """Have the wall clock jump."""
        self._skew += seconds

    def start(self, process: Any, hear: Hear, speak: Speak, due: Due) -> None:
        self.process = process
        self._hear = hear
        self._speak = speak
        self._due = due
        self.frozen = False
        self.life += 1
        self.wake()

    def stop(self) -> None:
        """The process dies, and with it all that waited to be heard."""
        self.process = None
        self.frozen = False
        self._alarm = math.inf
        self._waiting.clear()

    def freeze(self) -> None:
        if self.process is not None:
            self.frozen = True

    def thaw(self) -> None:
        if not self.frozen:
            return
        self.frozen = False
        waiting, self._waiting = self._waiting, []
        for act, arguments in waiting:
            act(*arguments)
        self.wake()

    def deliver(self, source: str, message: Any) -> None:
        """A message arrives."""
        if self.process is None:
            return
        if self.frozen:
            self._waiting.append((self.deliver, (source, message)))
            return
        now = self._base + self._world.now * self._pace
        answers = self._hear(now, source, message)
        if answers:
            self.send(answers)
        if self.on_heard is not None:
            self.on_heard(self)
        self.attend(now)

    def later(self, seconds: float, act: Callable[..., object], *arguments: Any) -> None:
        """Plan an act of this process: it does not happen if the process has died by then, and
        waits if it is frozen."""
        self._world.at(self._world.now + seconds, self._act, self.life, act, arguments)

    def _act(self, life: int, act: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        if self.process is None or life != self.life:
            return
        if self.frozen:
            self._waiting.append((self._act, (life, act, arguments)))
            return
        act(*arguments)

    def send(self, messages: Iterable[tuple[str, Any]]) -> None:
        send = self._send
        for target, message in messages:
            send(self, target, message)

    def attend(self, now: float) -> None:
        """Ask the process when it wants to be woken, and see to it."""
        due = self._due(now)
        if due < self._planned:
            self._planned = due
            self._alarm = time = (due - self._base) / self._pace + _LATE
            self._world.at(time, self._ring, time)

    def _ring(self, time: float) -> None:
        if time != self._alarm:
            return  # another alarm came before this one and set the next
        if self.up:
            self.wake()

    def wake(self) -> None:
        now = self.now()
        self.send(self._speak(now))
        # A process that is due and says nothing is asked again, but time must pass.
        self._planned = due = max(self._due(now), now + _AGAIN)
        self._alarm = time = (due - self._base) / self._pace + _LATE
        self._world.at(time, self._ring, time)

    def __repr__(self) -> str:
        state = "down" if self.process is None else "frozen" if self.frozen else "up"
        return f"Machine({self.name}, {state}, life {self.life})"

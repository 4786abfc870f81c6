"""`Member`: one machine of an election, with a clock and a disk of its own.

Its process is killed and starts again, and is frozen and thawed. The state machines are real. What
the asyncio shell does around them (send, make durable, call again in time) is written once more.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from sluicegate.election.paxos.acceptor import Acceptor
from sluicegate.election.paxos.messages import (
    Accepted,
    Leading,
    Message,
    Promise,
    Proposal,
    Reject,
    Release,
)
from sluicegate.election.paxos.observer import Observer
from sluicegate.election.paxos.proposer import Proposer
from sluicegate.election.paxos.timing import Timing
from sluicegate.sim.election.audit import Audit
from sluicegate.sim.world import World

__all__ = ["Member", "Transport"]

_ROUNDING = 1e-9  # of a local time that is turned into true time


class Jitter(random.Random):
    """While it is eager, it draws small numbers: candidates meet, and try as early as they may."""

    is_eager = False

    def uniform(self, a: float, b: float) -> float:
        return a + (b - a) * self.random() ** (8 if self.is_eager else 1)


class Transport(Protocol):
    """Carries what a member sends, also to itself."""

    def send(self, sender: str, to: str, message: Message) -> object: ...


class Member:
    """`rate`: seconds of its clock per true second. `faults`: instead of the world's.

    `on_change` is called after each event that may have changed who leads.
    """

    def __init__(
        self,
        world: World,
        network: Transport,
        audit: Audit,
        name: str,
        members: Sequence[str],
        timing: Timing,
        *,
        is_candidate: bool,
        rate: float,
        faults: random.Random | None = None,
        on_change: Callable[[str], object] = lambda name: None,
    ) -> None:
        self.name = name
        self.rate = rate
        self.is_candidate = is_candidate
        self.is_alive = False
        self.dies_after_vote = False
        self.stops_after_win = False
        self.frozen_until = float("-inf")
        self.restart = 0  # on the disk
        self.epoch = 0  # on the disk
        self.observer = Observer(timing)
        self.proposer: Proposer | None = None
        self._acceptor: Acceptor
        self._world = world
        self._network = network
        self._audit = audit
        self._members = members
        self._timing = timing
        self._faults = faults or world.faults
        self._on_change = on_change
        self.jitter = Jitter(f"{name} {world.seed}")
        self._offset = 0.0
        self._stalled: list[tuple[str, Message]] = []
        self._timer = float("inf")  # in true time
        self.boot()

    def __repr__(self) -> str:
        state = "frozen" if self.is_frozen else "alive" if self.is_alive else "dead"
        return f"Member({self.name}, {state}, restart={self.restart}, {self.proposer})"

    @property
    def incarnation(self) -> tuple[str, int]:
        return self.name, self.restart

    @property
    def is_frozen(self) -> bool:
        return self._world.now < self.frozen_until

    @property
    def is_leader(self) -> bool:
        """What its process reads now; of a frozen one, what it would read if it were thawed."""
        return self.is_alive and self.proposer is not None and self.proposer.is_leader(self.now())

    def now(self) -> float:
        """The time of its clock."""
        return self._offset + self._world.now * self.rate

    def true_time(self, local: float) -> float:
        return (local - self._offset) / self.rate

    # Faults

    def boot(self) -> None:
        if self.is_alive:
            return
        self.is_alive = True
        self.restart += 1
        self._offset = self._faults.uniform(0.0, 1e6)
        self._timer = float("inf")
        now = self.now()
        self._acceptor = Acceptor(now, self.epoch, self._timing)
        self.observer = Observer(self._timing)
        if self.is_candidate:
            self.proposer = Proposer(
                now,
                self.name,
                self.restart,
                self._members,
                self._timing,
                self.jitter,
            )
        self._set_timer()

    def kill(self) -> None:
        """kill -9."""
        self.is_alive = False
        self.frozen_until = float("-inf")
        self._stalled.clear()

    def stop(self) -> None:
        """SIGTERM: it releases what it has, and ends."""
        if self.is_alive and not self.is_frozen:
            self._audit.stopped(self)
            if self.proposer is not None:
                self._send(self.proposer.stop())
            self.kill()

    def freeze(self, seconds: float = float("inf")) -> None:
        """SIGSTOP, and SIGCONT after `seconds`, or with `thaw`."""
        if self.is_alive and not self.is_frozen:
            self.frozen_until = self._world.now + seconds
            if seconds < float("inf"):
                self._world.at(self.frozen_until, self._thaw, self.restart)

    def thaw(self) -> None:
        """SIGCONT."""
        if self.is_frozen:
            self.frozen_until = self._world.now
            self._thaw(self.restart)

    def prod(self) -> None:
        """Let it campaign now, as if it had heard that the leader has released its lease."""
        self.expect(float("-inf"))

    def expect(self, seconds: float) -> None:
        """Let it campaign in `seconds`, as if it had heard that another leads until then."""
        if self.is_alive and not self.is_frozen and self.proposer is not None:
            self.proposer.expect(self.now(), self.now() + seconds)
            self._set_timer()

    def _thaw(self, restart: int) -> None:
        if not self.is_alive or restart != self.restart:
            return
        self._audit.thawed(self)
        stalled, self._stalled = self._stalled, []
        is_timer_first = self._faults.random() < 0.5
        if is_timer_first:
            self._tick()
        for sender, message in stalled:
            self.receive(sender, message)
        if not is_timer_first:
            self._tick()

    # Messages and time

    def receive(self, sender: str, message: Message) -> None:
        if not self.is_alive:
            return
        if self.is_frozen:
            self._stalled.append((sender, message))
            return
        now = self.now()
        if isinstance(message, Promise | Reject | Accepted):
            if self.proposer is not None:
                self._send(self.proposer.receive(now, sender, message))
                self._set_timer()
                self._on_change(self.name)
            return
        if isinstance(message, Leading | Release):
            is_news = self.observer.hear(now, message)
            if is_news and sender != self.name and self.proposer is not None:
                self.proposer.expect(now, self.observer.until)
                self._set_timer()
                self._on_change(self.name)
        reply = self._acceptor.receive(now, message)
        if reply is not None:
            self.epoch = max(self.epoch, reply.durable_epoch)
            self._network.send(self.name, sender, reply.answer)
            if self.dies_after_vote:
                self.dies_after_vote = False
                self._audit.counts["killed after a vote"] += 1
                self.kill()
                self.boot()

    def _send(self, messages: Iterable[Proposal]) -> None:
        for message in messages:
            if isinstance(message, Leading):
                self._audit.won(self, message)
            for member in self._members:
                self._network.send(self.name, member, message)
            if isinstance(message, Leading) and self.stops_after_win:
                self.stops_after_win = False
                self._audit.counts["stopped after a win"] += 1
                wait = self._timing.attempt * self._world.faults.random() / 2.0
                self._world.at(self._world.now + wait, self.stop)
                self._world.at(self._world.now + self._timing.lease, self.boot)

    def _set_timer(self) -> None:
        """One timer is enough: one that comes too early sets the next."""
        if self.proposer is None:
            return
        at = self.true_time(self.proposer.next_time) + _ROUNDING
        if at < self._timer:
            self._timer = at
            self._world.at(at, self._on_timer, self.restart, at)

    def _on_timer(self, restart: int, at: float) -> None:
        if not self.is_alive or restart != self.restart or at != self._timer:
            return
        if self.is_frozen:
            self._timer = float("inf")  # what is thawed looks at the time
        else:
            self._tick()

    def _tick(self) -> None:
        self._timer = float("inf")
        if self.proposer is not None:
            self._send(self.proposer.tick(self.now()))
            self._set_timer()
            self._on_change(self.name)

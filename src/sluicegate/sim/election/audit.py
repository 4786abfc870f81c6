"""`Audit`: what must hold in every run of an election, checked from what happens alone.

1. When a member wins or renews, no other reads that it leads: by its own deadline and clock, frozen
   or not. Since leadership begins nowhere else, no two lead at any time.
2. The epoch of a new leadership is higher than all before; a renewal keeps its own.
3. No deadline is further away than a lease on the slowest clock that is allowed.
4. A member that is thawed after a lease does not read that it leads.
5. While no majority hears each other, nobody leads for longer than a lease.
6. When the faults have ended, a leader emerges in time, it stays, and all members know it.
"""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sluicegate.election.paxos.messages import Leading
from sluicegate.election.paxos.timing import Timing
from sluicegate.sim.world import World

if TYPE_CHECKING:
    from sluicegate.sim.election.member import Member

__all__ = ["Audit"]

_ROUNDING = 1e-6


class Audit:
    def __init__(self, world: World, timing: Timing) -> None:
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []
        self.members: Sequence[Member] = ()
        self._world = world
        self._longest_lease = timing.lease / (1.0 - timing.clock_error) + _ROUNDING
        self._leader: tuple[str, int] | None = None  # the incarnation that has won last
        self._until = float("-inf")  # its deadline, in true time
        self._epoch = 0  # its epoch
        self._has_released = False

    def stopped(self, member: "Member") -> None:
        """A member has released its lease, and ends."""
        if member.incarnation == self._leader and self._world.now < self._until:
            self._has_released = True

    def won(self, member: "Member", message: Leading) -> None:
        """A majority has accepted this ballot, and the member reads that it leads."""
        now = self._world.now
        for other in self.members:
            if other is not member and other.is_leader:
                self._violate(f"{member.name} and {other.name} lead at once: {member}, {other}")
        if self._leader == member.incarnation and now < self._until:
            self.counts["renewals"] += 1
            if message.epoch != self._epoch:
                self._violate(f"{member.name} renewed epoch {self._epoch} as {message.epoch}")
        else:
            self.counts["elections"] += 1
            # Before the lease would have ended: what a release is worth.
            self.counts["hand-overs"] += self._has_released and now < self._until
            self._has_released = False
            if self._leader is not None and self._leader[0] != member.name:
                self.counts["failovers"] += 1
            if message.epoch <= self._epoch:
                self._violate(f"{member.name} leads with epoch {message.epoch} after {self._epoch}")
        self._leader, self._epoch = member.incarnation, max(self._epoch, message.epoch)
        assert member.proposer is not None
        self._until = member.true_time(member.proposer.deadline)
        if self._until > now + self._longest_lease:
            self._violate(f"{member.name} leads for {self._until - now:.3f} s")

    def thawed(self, member: "Member") -> None:
        """A member is about to run again, and has done nothing yet."""
        self.counts["thawed"] += 1
        if member.is_leader:
            self.counts["thawed as leader"] += 1
            if member.incarnation != self._leader or self._world.now > self._until + _ROUNDING:
                self._violate(f"{member.name} was thawed and reads that it leads: {member}")

    def check_nobody_leads(self) -> None:
        for member in self.members:
            if member.is_leader:
                self._violate(f"{member.name} leads without a majority: {member}")

    def check_leader(self, seconds: float) -> None:
        """The faults have ended `seconds` ago, and a leader was waited for."""
        if not any(member.is_leader for member in self.members):
            self._violate(f"nobody leads {seconds:.3f} s after the faults have ended")

    def check_stays(self, leader: "Member", epoch: int) -> None:
        """It has been calm for a lease since `leader` was first seen to lead."""
        if not leader.is_leader or self._epoch != epoch:
            self._violate(f"{leader.name} did not stay the leader in a calm network")
        for member in self.members:
            observer = member.observer
            if observer.leader(member.now()) != leader.name or observer.epoch != epoch:
                self._violate(f"{member.name} does not know that {leader.name} leads: {observer}")

    def _violate(self, what: str) -> None:
        self.violations.append(f"{self._world.now:.3f}: {what}")

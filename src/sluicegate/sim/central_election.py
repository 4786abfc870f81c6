"""The centrals of a cluster elect their leader: the real Paxos lease, in virtual time.

Each central has a member (`sim.election.member`), which runs the real proposer and acceptor. Their
messages take the cluster's network, with its delays, losses and partitions. A member is killed,
frozen and started again with its machine; its disk outlives everything. `MemberElection` is what
the central's leadership reads of it.

The audit of the election runs along: never two leaders at once, epochs only grow, and a thawed
member does not read that it leads.
"""

import math
from collections.abc import Callable

from sluicegate.election.election import Election
from sluicegate.election.paxos.messages import Message
from sluicegate.election.paxos.timing import Timing
from sluicegate.sim.election.audit import Audit
from sluicegate.sim.election.member import Member
from sluicegate.sim.network import Network
from sluicegate.sim.scenario import Scenario
from sluicegate.sim.world import World

__all__ = ["CentralElection", "MemberElection"]

_ATTEMPT = 0.1  # seconds, as in production
_DELAYS = 5  # an attempt is four messages, one after the other: a slower network needs longer ones


class MemberElection(Election):
    """A member, as an `Election`. It is told of changes, and waits for none."""

    def __init__(self, member: Member) -> None:
        self.name = member.name
        self._member = member

    @property
    def is_leader(self) -> bool:
        return self._member.is_leader

    @property
    def deadline(self) -> float:
        proposer = self._member.proposer
        return -math.inf if proposer is None else proposer.deadline

    @property
    def epoch(self) -> int:
        proposer = self._member.proposer
        return max(0 if proposer is None else proposer.epoch, self._member.observer.epoch)

    @property
    def leader(self) -> str | None:
        if self.is_leader:
            return self.name
        leader = self._member.observer.leader(self._member.now())
        return None if leader == self.name else leader

    async def changed(self) -> None:
        raise NotImplementedError("there is no event loop in virtual time")

    async def start(self) -> None:
        raise NotImplementedError("there is no event loop in virtual time")

    async def close(self) -> None:
        raise NotImplementedError("there is no event loop in virtual time")


class CentralElection:
    """`on_change` is called with the name of a central that leads now, or does so no more, or has
    heard of a new leader."""

    def __init__(
        self,
        scenario: Scenario,
        world: World,
        network: Network,
        on_change: Callable[[str], object],
    ) -> None:
        lease = scenario.lease_seconds
        slowest = scenario.network.delay + scenario.network.jitter
        attempt = min(max(_ATTEMPT, _DELAYS * slowest), lease / 4.0)
        self._timing = Timing(lease, attempt=attempt)
        self._world = world
        self._network = network
        self._on_change = on_change
        self._audit = Audit(world, self._timing)
        self._known: dict[str, tuple[bool, int]] = {}
        world.now = -2.0 * self._timing.quarantine  # they elect the first leader before the run
        self.members = {
            name: Member(
                world,
                self,
                self._audit,
                name,
                scenario.centrals,
                self._timing,
                is_candidate=True,
                rate=1.0 + scenario.clocks.drift.get(name, 0.0),
                faults=world.election,
                on_change=self._note_change,
            )
            for name in scenario.centrals
        }
        self._audit.members = list(self.members.values())
        self.views = {name: MemberElection(member) for name, member in self.members.items()}

    @property
    def violations(self) -> list[str]:
        return self._audit.violations

    def elect_first(self) -> None:
        """Go on to when the run begins, at 0. The first central leads by then."""
        for member in list(self.members.values())[1:]:
            member.expect(1.5 * self._timing.quarantine)
        self._world.run(0.0)

    def send(self, sender: str, to: str, message: Message) -> None:
        """Carry a message between two members. What one sends itself arrives always, and next."""
        receive = self.members[to].receive
        if sender == to:
            self._world.at(self._world.now, receive, sender, message)
        else:
            self._network.send(sender, to, "election", receive, message)

    def _note_change(self, name: str) -> None:
        view = self.views[name]
        state = (view.is_leader, view.epoch)
        if state != self._known.get(name):
            self._known[name] = state
            self._on_change(name)

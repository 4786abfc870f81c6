"""The two systems that a scenario is run with: "fair" is Sluicegate, "classic" the older one.

`Sluicegate` puts the real node and the real central on the machines. Its ledger may be replaced:
that is how tests show that a faulty ledger is found out.
"""

import random
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from sluicegate.election.election import Election
from sluicegate.quota.central.leadership import ElectedLeadership, EpochFloor
from sluicegate.quota.central.state import CentralState
from sluicegate.quota.ledger.ledger import Ledger
from sluicegate.quota.ledger.limit_entry import Entry
from sluicegate.quota.messages import Ask, Report
from sluicegate.quota.node.core.state import NodeState
from sluicegate.sim.classic_system import ClassicCentral, ClassicNode
from sluicegate.sim.cluster import Follower, Running, System
from sluicegate.sim.machines import Machine
from sluicegate.sim.scenario import Scenario

__all__ = ["SYSTEMS", "ClassicSystem", "MakeLedger", "Sluicegate", "make_system"]

SYSTEMS = ("fair", "classic")

MakeLedger = Callable[..., Ledger]
Users = Collection[tuple[str, str]]  # service, user

# That a node has records for.
_MOST_USERS = 10_000
_MOST_SERVICES = 64


class Sluicegate:
    """Nodes and centrals as they are."""

    name = "fair"

    def __init__(self, scenario: Scenario, users: Users, make_ledger: MakeLedger = Ledger) -> None:
        self._centrals = scenario.centrals
        self._slot_seconds = scenario.slot_seconds
        self._make_ledger = make_ledger
        # A node walks through its table in every slot, and ten tables of 10,000 users do not fit
        # in a cache. One that is at most half full treats all users alike, however large it is.
        self._max_users = min(max(1, 2 * len(users)), _MOST_USERS)
        self._max_services = _MOST_SERVICES
        if self._max_users < _MOST_USERS:  # nobody has to share a record
            self._max_services = 1

    def node(self, machine: Machine, boot: int, leader: Callable[[], str | None]) -> Running:
        state = NodeState(
            machine.name,
            boot,
            self._centrals,
            now=machine.now(),
            wall=machine.wall(),
            slot_seconds=self._slot_seconds,
            max_users=self._max_users,
            max_services=self._max_services,
        )
        return state, state.receive, state.outgoing, state.due

    def central(
        self,
        machine: Machine,
        entries: Sequence[Entry],
        snapshot: bytes | None,
        has_lease: Callable[[], bool],
    ) -> Running:
        ledger = self._make_ledger(entries, slot_seconds=self._slot_seconds)
        if snapshot is not None:
            ledger.restore(snapshot)
        state = CentralState(
            machine.name, ledger, now=machine.now(), wall=machine.wall(), has_lease=has_lease
        )

        def hear(now: float, source: str, message: Report | Ask) -> Iterable[tuple[str, Any]]:
            return state.receive(now, message)

        return state, hear, state.tick, state.due

    def follower(self, machine: Machine, election: Election) -> Follower:
        leadership = ElectedLeadership(machine.process, election, EpochFloor())
        leadership.deliver = machine.send
        return leadership

    def set_limits(self, central: Any, entries: Sequence[Entry]) -> None:
        central.ledger.set_limits(entries)

    def snapshot(self, central: Any) -> bytes:
        snapshot: bytes = central.ledger.snapshot()
        return snapshot

    def nodes_changed(self, central: Any) -> int:
        changed: int = central.ledger.nodes_changed
        return changed

    def recorded(self, central: Any, service: str, user: str, resource: str) -> float:
        recorded: float = central.ledger.recorded(service, user, resource)
        return recorded


class _ClassicFollower:
    """A classic central leads when it is elected, and forgets all it knew."""

    def __init__(self, central: ClassicCentral, election: Election) -> None:
        self._central = central
        self._election = election
        self._epoch = 0

    def has_lease(self) -> bool:
        return self._election.is_leader

    def update(self, now: float) -> None:
        if not self._election.is_leader:
            self._central.follow(now)
        elif self._election.epoch > self._epoch:
            self._epoch = self._election.epoch
            self._central.lead(now, self._epoch)


class ClassicSystem:
    """The older system."""

    name = "classic"

    def __init__(self, scenario: Scenario) -> None:
        self._slot_seconds = scenario.slot_seconds

    def node(self, machine: Machine, boot: int, leader: Callable[[], str | None]) -> Running:
        node = ClassicNode(
            machine.name,
            now=machine.now(),
            wall=machine.wall,
            leader=leader,
            slot_seconds=self._slot_seconds,
            spread=0.1 * random.Random(machine.name).random(),
        )
        return node, node.receive, node.outgoing, node.due

    def central(
        self,
        machine: Machine,
        entries: Sequence[Entry],
        snapshot: bytes | None,
        has_lease: Callable[[], bool],
    ) -> Running:
        central = ClassicCentral(
            machine.name,
            entries,
            now=machine.now(),
            wall=machine.wall(),
            slot_seconds=self._slot_seconds,
        )
        return central, central.receive, central.tick, central.due

    def follower(self, machine: Machine, election: Election) -> Follower:
        return _ClassicFollower(machine.process, election)

    def set_limits(self, central: Any, entries: Sequence[Entry]) -> None:
        central.set_limits(entries)

    def snapshot(self, central: Any) -> bytes:
        return b""  # it has nothing on disk

    def nodes_changed(self, central: Any) -> int:
        return 0

    def recorded(self, central: Any, service: str, user: str, resource: str) -> float:
        recorded: float = central.recorded(service, user, resource)
        return recorded


def make_system(
    name: str, scenario: Scenario, users: Users, make_ledger: MakeLedger | None = None
) -> System:
    """`users`: all who have traffic in the run."""
    if name == "fair":
        return Sluicegate(scenario, users, make_ledger or Ledger)
    if name == "classic":
        return ClassicSystem(scenario)
    raise ValueError(f"system must be one of {', '.join(SYSTEMS)}, got {name!r}")

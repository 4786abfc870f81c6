"""The machines of a scenario, who leads them, and what befalls them.

Several centrals elect their leader (`central_election`): the real Paxos lease tells each central
whether it leads, and the real `ElectedLeadership` makes it lead or follow. One that starts takes
the state of a peer. With `deposed_seconds` a leader does not look at its lease, and leads on for so
long after it has lost it: nodes have to see through it.

One central needs no election. It leads `election_seconds` after it has started, with an epoch one
higher.

Times are seconds since the simulation began; `FIRST_WALL` is what the wall clocks say then.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from sluicegate.election.election import Election
from sluicegate.quota.central.snapshot_schedule import SnapshotSchedule
from sluicegate.quota.ledger.limit_entry import Entry
from sluicegate.quota.messages import Ack, Ask, Quota, Report
from sluicegate.sim.audit import Audit
from sluicegate.sim.central_election import CentralElection
from sluicegate.sim.classic_system import ClassicAnswer, ClassicReport
from sluicegate.sim.machines import Due, Hear, Machine, Speak
from sluicegate.sim.network import Network
from sluicegate.sim.scenario import Scenario
from sluicegate.sim.world import World

__all__ = ["Cluster", "Follower", "Running", "System"]

FIRST_WALL = 1_800_000_000.0
_ASSIGNED = 0.001  # of a slot: an assignment is over then
_WARM_SLOTS = 10  # a central without a state gives its own to no peer before
_KINDS = {
    Report: "report",
    Ask: "ask",
    Ack: "ack",
    Quota: "quota",
    ClassicReport: "report",
    ClassicAnswer: "quota",
}

Running = tuple[Any, Hear, Speak, Due]


class Follower(Protocol):
    """Keeps a central in step with its election."""

    def has_lease(self) -> bool: ...
    def update(self, now: float) -> None: ...


class System(Protocol):
    """Makes the processes that run on the machines."""

    name: str

    def node(self, machine: Machine, boot: int, leader: Callable[[], str | None]) -> Running: ...
    def central(
        self,
        machine: Machine,
        entries: Sequence[Entry],
        snapshot: bytes | None,
        has_lease: Callable[[], bool],
    ) -> Running: ...
    def follower(self, machine: Machine, election: Election) -> Follower: ...
    def set_limits(self, central: Any, entries: Sequence[Entry]) -> None: ...
    def snapshot(self, central: Any) -> bytes: ...
    def nodes_changed(self, central: Any) -> int: ...
    def recorded(self, central: Any, service: str, user: str, resource: str) -> float: ...


class Cluster:
    """All machines of one run."""

    def __init__(
        self, scenario: Scenario, system: System, world: World, audit: Audit | None = None
    ) -> None:
        self.scenario = scenario
        self.world = world
        self.network = Network(world, scenario.network, scenario.slot_seconds)
        self.nodes: dict[str, Machine] = {}
        self.centrals: dict[str, Machine] = {}
        self.live: list[str] = []  # nodes that traffic can be sent to
        self.can_wait = system.name == "fair"  # requests can wait for an answer
        self.shaken: set[str] = set()  # nodes that were not up all the time
        # What each node has consumed since it started with an empty memory, by its boot.
        self.tallies: dict[tuple[str, int], dict[tuple[str, str, str], float]] = {}
        self.entries: Sequence[Entry] = scenario.limits
        self.leader: str | None = None
        self.epoch = 0
        self.fresh_slots: float | None = None  # the longest wait for a new leader's quota
        self.takeover: float | None = None  # the same in seconds, from when its predecessor was hit
        self._system = system
        self._audit = audit
        self._deliver: dict[str, Callable[[str, Any], object]] = {}
        self._boots: dict[str, int] = {}
        self._disks: dict[str, Any] = {}  # what is left of a machine that is down
        self._schedules: dict[str, SnapshotSchedule] = {}  # of the centrals
        self._slot_seconds = scenario.slot_seconds
        self._electing = False
        self._followers: dict[str, Follower] = {}  # of several centrals
        self._warm_since: dict[str, float] = {}  # of several centrals
        self._joined = len(scenario.nodes)
        self._wall = math.floor(FIRST_WALL / scenario.slot_seconds) * scenario.slot_seconds
        self._elected_at = 0.0
        self._hit_at: float | None = None  # when something last happened to the leader
        self._awaited: set[str] = set()
        self._writes_disks = any(
            fault.what == "mishaps" or (fault.disk and fault.what in ("crash", "restart"))
            for fault in scenario.faults
        )
        if audit is not None:
            audit.watch(self.tallies)
        self._election: CentralElection | None = None
        if len(scenario.centrals) > 1:
            self._election = CentralElection(scenario, world, self.network, self._follow_election)
            self._election.elect_first()
        for name in scenario.centrals:
            self._add(name, self.centrals)
            self._start_central(name, None)
        for name in scenario.nodes:
            self._add(name, self.nodes)
            self._start_node(name)
        if self._election is None:
            self._lead(scenario.centrals[0])
        else:
            for name in scenario.centrals:
                self._follow_election(name)
        if self._writes_disks:
            world.at((0.5 + _ASSIGNED) * scenario.slot_seconds, self._write_disks)

    # Machines

    def _add(self, name: str, kind: dict[str, Machine]) -> None:
        clocks = self.scenario.clocks
        machine = Machine(
            name,
            self.world,
            self._send,
            base=1000.0 * (len(self._deliver) + 1),
            skew=self._wall + clocks.skew.get(name, 0.0),
            drift=clocks.drift.get(name, 0.0),
        )
        kind[name] = machine
        self._deliver[name] = machine.deliver

    def machine(self, name: str) -> Machine:
        return self.nodes[name] if name in self.nodes else self.centrals[name]

    def _start_node(self, name: str) -> None:
        machine = self.nodes[name]
        self._boots[name] = boot = self._boots.get(name, 0) + 1
        machine.tally = self.tallies[name, boot] = {}
        process, hear, speak, due = self._system.node(machine, boot, lambda: self.leader)
        if self._audit is not None:
            self._audit.node_started(machine, boot)
        self._run(machine, (process, self._heard_by_node(name, hear), speak, due))

    def _start_central(self, name: str, snapshot: bytes | None) -> None:
        machine = self.centrals[name]
        self._schedules[name] = SnapshotSchedule(
            machine.now(), self.scenario.snapshot_seconds, self.scenario.snapshot_least
        )
        running = self._system.central(
            machine, self.entries, snapshot, lambda: self._has_lease(name)
        )
        process, hear, speak, due = running
        if self._audit is not None:
            warm = snapshot is not None
            self._audit.central_started(name, process, machine.wall(), warm=warm)
        if self._election is not None:
            warm_up = 0.0 if snapshot is not None else _WARM_SLOTS * self._slot_seconds
            self._warm_since[name] = self.world.now + warm_up
        self._run(machine, (process, self._heard_by_central(name, hear), speak, due))
        if self._election is not None:
            self._followers[name] = self._system.follower(machine, self._election.views[name])

    def _run(self, machine: Machine, running: Running) -> None:
        machine.start(*running)
        self._disks[machine.name] = running
        self._count_live()

    def _count_live(self) -> None:
        self.live = [name for name, machine in self.nodes.items() if machine.up]

    def _send(self, machine: Machine, target: str, message: Any) -> None:
        deliver = self._deliver.get(target)
        if deliver is None:
            raise AssertionError(f"{machine.name} sends to {target!r}, which is no machine")
        if self._audit is not None:
            self._audit.sent(machine, target, message)
        self.network.send(machine.name, target, _KINDS[type(message)], deliver, message)

    def _heard_by_node(self, name: str, hear: Hear) -> Hear:
        audit = self._audit
        machine = self.nodes[name]
        if audit is None:
            return hear

        def heard(now: float, source: str, message: Any) -> None:
            audit.node_hears(name, now, message)
            if self._awaited and type(message) is Quota:
                self._fresh(name, message)
            hear(now, source, message)
            audit.node_heard(name, machine.process)

        return heard

    def _heard_by_central(self, name: str, hear: Hear) -> Hear:
        audit = self._audit
        machine = self.centrals[name]
        if audit is None:
            return hear

        def heard(now: float, source: str, message: Any) -> Iterable[tuple[str, Any]] | None:
            audit.central_hears(name, machine.process.time(now), message)
            answers = hear(now, source, message)
            audit.central_heard(name, message)
            return answers

        return heard

    # Who leads

    def _has_lease(self, name: str) -> bool:
        """Whether a central may still lead, if it was elected. One that is alone always may."""
        if self._election is None or self.scenario.deposed_seconds:
            return True
        return self._followers[name].has_lease()

    def _follow_election(self, name: str) -> None:
        """Have a central do what its election says now."""
        machine = self.centrals.get(name)
        assert self._election is not None
        if self._audit is not None:
            self._audit.check_election(self._election.violations)
        if machine is None or not machine.up or name not in self._followers:
            return
        if machine.process.leads and not self._election.views[name].is_leader:
            machine.later(self.scenario.deposed_seconds, self._update_leadership, name)
        else:
            self._update_leadership(name)

    def _update_leadership(self, name: str) -> None:
        assert self._election is not None
        machine, view = self.centrals[name], self._election.views[name]
        now = machine.now()
        self._followers[name].update(now)
        if view.is_leader and view.epoch > self.epoch:
            self.epoch = view.epoch
            self._note_leader(name)
        elif not view.is_leader and self.leader == name:
            self.leader = None
        machine.attend(now)

    def _lead(self, name: str) -> None:
        """Have the only central lead."""
        self.epoch += 1
        machine = self.centrals[name]
        now = machine.now()
        machine.process.lead(now, self.epoch)
        self._note_leader(name)
        machine.attend(now)

    def _note_leader(self, name: str) -> None:
        self.leader = name
        machine = self.centrals[name]
        if self._audit is not None:
            self._audit.leads(name, machine.process.time(machine.now()))
        if self.epoch > 1:
            hears = self.network.hears
            self._elected_at = self.world.now
            self._awaited = {node for node in self.live if hears(name, node)}

    def _fresh(self, name: str, quota: Quota) -> None:
        """A node has heard of the new leader: from when on does its quota hold?"""
        if quota.epoch == self.epoch and quota.whole and name in self._awaited:
            self._awaited.discard(name)
            slot = quota.slot * self.scenario.slot_seconds - self._wall
            waited = max(slot, self.world.now) - self._elected_at
            slots = waited / self.scenario.slot_seconds
            self.fresh_slots = max(self.fresh_slots or 0.0, slots)
            if self._hit_at is not None:
                since_hit = waited + self._elected_at - self._hit_at
                self.takeover = max(self.takeover or 0.0, since_hit)

    def _await_start(self) -> None:
        """Something has happened: the only central leads some time after it has started."""
        if self._election is not None or self._electing or self._is_led():
            return
        self._electing = True
        self.world.at(self.world.now + self.scenario.election_seconds, self._lead_alone)

    def _lead_alone(self) -> None:
        self._electing = False
        (machine,) = self.centrals.values()
        if machine.up and not self._is_led():
            self._lead(machine.name)

    def _is_led(self) -> bool:
        return self.leader is not None and self.centrals[self.leader].up

    def _note_hit(self, name: str) -> None:
        """Something happens to a machine: if it is the leader, how long until another leads?"""
        if name == self.leader:
            self._hit_at = self.world.now

    # What befalls them

    def crash(self, name: str) -> None:
        machine = self.machine(name)
        if machine.process is None:
            return
        self._note_hit(name)
        machine.stop()
        if self._election is not None and name in self.centrals:
            self._election.members[name].kill()
            del self._followers[name]
        if name == self.leader:
            self.leader = None
        self._changed(name)

    def stop(self, name: str) -> None:
        """A central stops in good order: it writes its state, and gives its lease back."""
        machine = self.centrals[name]
        if machine.up:
            self._write_disk(name)
            if self._election is not None:
                self._election.members[name].stop()
            self.crash(name)
            for node in self.nodes.values():
                if node.process is not None and hasattr(node.process, "lose_connection"):
                    node.later(self.network.quality.delay, self._lose_connection, node, name)

    def _lose_connection(self, node: Machine, central: str) -> None:
        """A central that stops closes its connections; one that crashes may say nothing."""
        now = node.now()
        if self._audit is not None:
            self._audit.connection_lost(node.name)
        node.process.lose_connection(now, central)
        node.attend(now)

    def restart(self, name: str, disk: bool) -> None:
        """Start a machine that is down; with its disk it knows what it knew before."""
        machine = self.machine(name)
        if machine.process is not None:
            return
        if name in self.nodes:
            if disk:
                self._run(machine, self._disks[name])
            else:
                self._start_node(name)
        else:
            snapshot = self._disks.get(f"snapshot of {name}") if disk else None
            if self._election is not None:
                snapshot = self._state_of_peer(name) or snapshot
                self._election.members[name].boot()
            self._start_central(name, snapshot)
        self._changed(name)

    def _state_of_peer(self, name: str) -> bytes | None:
        """What a central that starts takes from one that is warm, the leader if it can."""
        peers = [
            peer
            for peer, machine in self.centrals.items()
            if machine.up
            and self.world.now >= self._warm_since[peer]
            and self.network.hears(peer, name)
        ]
        if not peers:
            return None
        peer = self.leader if self.leader in peers else peers[0]
        if self._audit is not None:
            self._audit.state_taken(name, peer)
        return self._system.snapshot(self.centrals[peer].process) or None

    def freeze(self, name: str) -> None:
        self._note_hit(name)
        self.machine(name).freeze()
        if self._election is not None and name in self.centrals:
            self._election.members[name].freeze()
        self._changed(name)

    def thaw(self, name: str) -> None:
        """The process hears what has waited before its member has looked at the time."""
        self.machine(name).thaw()
        if self._election is not None and name in self.centrals:
            self._election.members[name].thaw()
        self._changed(name)

    def leave(self, name: str) -> None:
        """A node stops in good order."""
        machine = self.nodes[name]
        if machine.up:
            if hasattr(machine.process, "leave"):
                machine.send(machine.process.leave(machine.now()))
            self.crash(name)

    def join(self, count: int) -> None:
        for _ in range(count):
            self._joined += 1
            name = f"node-{self._joined}"
            self._add(name, self.nodes)
            self._start_node(name)
            self.shaken.add(name)

    def cut(self, groups: Sequence[Sequence[str]]) -> dict[str, int]:
        cut = self.network.cut(groups)
        if self.leader in cut:
            self._note_hit(self.leader)
        self._await_start()
        return cut

    def sever(self, names: Sequence[str], others: Sequence[str]) -> Callable[[], None]:
        """Cut some machines off from some others; what is returned ends it."""
        for name in (*names, *others):
            self._note_hit(name)
        return self.network.sever(names, others)

    def heal(self, cut: dict[str, int]) -> None:
        self.network.heal(cut)
        self._await_start()

    def set_limits(self, entries: Sequence[Entry]) -> None:
        self.entries = entries
        if self._audit is not None:
            self._audit.limits_changed(entries)
        for machine in self.centrals.values():
            if machine.process is not None:
                self._system.set_limits(machine.process, entries)

    def _changed(self, name: str) -> None:
        if name in self.nodes:
            self.shaken.add(name)
            self._awaited.discard(name)
            self._count_live()
        self._await_start()

    def recover(self) -> None:
        """Everything that is wrong ends, but what was lost stays lost."""
        self.network.recover()
        for name in [*self.centrals, *self.nodes]:
            if self.machine(name).frozen:
                self.thaw(name)
        self._await_start()

    # Disks

    def _write_disks(self) -> None:
        """Right after an assignment, in the middle of a slot: each central writes what is due."""
        for name, machine in self.centrals.items():
            if not machine.up:
                continue
            now = machine.now()
            schedule, slot = self._schedules[name], math.floor(machine.wall() / self._slot_seconds)
            if schedule.is_due(now, slot, self._system.nodes_changed(machine.process)):
                schedule.begin(now)
                self._write_disk(name)
        self.world.at(self.world.now + self._slot_seconds, self._write_disks)

    def _write_disk(self, name: str) -> None:
        self._disks[f"snapshot of {name}"] = self._system.snapshot(self.centrals[name].process)
        if self._audit is not None:
            self._audit.snapshot_written(name)

    def recorded(self, service: str, user: str, resource: str) -> float:
        """What the leader has booked; nothing if nobody leads."""
        if self.leader is None:
            return 0.0
        process = self.centrals[self.leader].process
        return self._system.recorded(process, service, user, resource)

    def consumed_on(self, node: str, cell: tuple[str, str, str]) -> float:
        """What went through a node, in all its lives."""
        boots = range(1, self._boots[node] + 1)
        return sum(self.tallies[node, boot].get(cell, 0.0) for boot in boots)

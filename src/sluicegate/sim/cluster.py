"""The machines of a scenario, who leads them, and what befalls them.

The election is an oracle here: when the leader has died, is frozen or is cut off from most
centrals, the next one that is well leads after `election_seconds`, with an epoch one higher. How
centrals agree on that is no part of this simulation. A leader that lost its lease may go on
believing in it for `deposed_seconds`: nodes have to see through it.

Times are seconds since the simulation began; `FIRST_WALL` is what the wall clocks say then.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from sluicegate.quota.central.snapshot_schedule import SnapshotSchedule
from sluicegate.quota.ledger.limit_entry import Entry
from sluicegate.quota.messages import Ack, Ask, Quota, Report
from sluicegate.sim.audit import Audit
from sluicegate.sim.classic_system import ClassicAnswer, ClassicReport
from sluicegate.sim.machines import Due, Hear, Machine, Speak
from sluicegate.sim.network import Network
from sluicegate.sim.scenario import Scenario
from sluicegate.sim.world import World

__all__ = ["Cluster", "Running", "System"]

FIRST_WALL = 1_800_000_000.0
_ASSIGNED = 0.001  # of a slot: an assignment is over then
_KINDS = {
    Report: "report",
    Ask: "ask",
    Ack: "ack",
    Quota: "quota",
    ClassicReport: "report",
    ClassicAnswer: "quota",
}

Running = tuple[Any, Hear, Speak, Due]


class System(Protocol):
    """Makes the processes that run on the machines."""

    name: str

    def node(self, machine: Machine, boot: int, leader: Callable[[], str | None]) -> Running: ...
    def central(
        self, machine: Machine, entries: Sequence[Entry], snapshot: bytes | None
    ) -> Running: ...
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
        self._system = system
        self._audit = audit
        self._deliver: dict[str, Callable[[str, Any], object]] = {}
        self._boots: dict[str, int] = {}
        self._disks: dict[str, Any] = {}  # what is left of a machine that is down
        self._schedules: dict[str, SnapshotSchedule] = {}  # of the centrals
        self._slot_seconds = scenario.slot_seconds
        self._electing = False
        self._joined = len(scenario.nodes)
        self._wall = math.floor(FIRST_WALL / scenario.slot_seconds) * scenario.slot_seconds
        self._elected_at = 0.0
        self._awaited: set[str] = set()
        self._writes_disks = any(
            fault.what == "mishaps" or (fault.disk and fault.what in ("crash", "restart"))
            for fault in scenario.faults
        )
        if audit is not None:
            audit.watch(self.tallies)
        for name in scenario.centrals:
            self._add(name, self.centrals)
            self._start_central(name, None)
        for name in scenario.nodes:
            self._add(name, self.nodes)
            self._start_node(name)
        self._lead(scenario.centrals[0])
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
        running = self._system.central(machine, self.entries, snapshot)
        process, hear, speak, due = running
        if self._audit is not None:
            warm = snapshot is not None
            self._audit.central_started(name, process, machine.wall(), warm=warm)
        self._run(machine, (process, self._heard_by_central(name, hear), speak, due))

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

    def _lead(self, name: str) -> None:
        self.epoch += 1
        self.leader = name
        machine = self.centrals[name]
        now = machine.now()
        machine.process.lead(now, self.epoch)
        if self._audit is not None:
            self._audit.leads(name, machine.process.time(now))
        machine.attend(now)
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

    def _is_well(self, name: str) -> bool:
        """Whether a central is up and hears most of the centrals, itself among them."""
        hears = self.network.hears
        heard = 2 * sum(hears(name, other) for other in self.centrals)
        count = len(self.centrals)
        return self.centrals[name].up and (heard > count or (heard == count and self._holds(name)))

    def _holds(self, name: str) -> bool:
        return name == self.leader

    def judge(self) -> None:
        """Something has happened: is a new leader needed?"""
        if self._electing or (self.leader is not None and self._is_well(self.leader)):
            return
        self._electing = True
        self.world.at(self.world.now + self.scenario.election_seconds, self._elect)

    def _elect(self) -> None:
        self._electing = False
        if self.leader is not None and self._is_well(self.leader):
            return  # it came back before its lease was over
        names = list(self.centrals)
        first = names.index(self.leader) if self.leader is not None else -1
        for name in names[first + 1 :] + names[: first + 1]:
            if self._is_well(name):
                deposed = self.leader
                self._lead(name)
                if deposed is not None and deposed != name:
                    self.depose(deposed)
                return
        # Nobody is well. Whatever changes that calls `judge` again.

    def depose(self, name: str) -> None:
        """Tell a central that it leads no more, late if the scenario says so."""
        machine = self.centrals[name]
        if machine.process is not None:
            machine.later(self.scenario.deposed_seconds, self._follow, machine)

    def _follow(self, machine: Machine) -> None:
        if machine.name != self.leader:
            machine.process.follow(machine.now())

    # What befalls them

    def crash(self, name: str) -> None:
        machine = self.machine(name)
        if machine.process is None:
            return
        machine.stop()
        if name == self.leader:
            self.leader = None
        self._changed(name)

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
            self._start_central(name, snapshot)
        self._changed(name)

    def freeze(self, name: str) -> None:
        machine = self.machine(name)
        machine.freeze()
        self._changed(name)

    def thaw(self, name: str) -> None:
        self.machine(name).thaw()
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
        self.judge()
        return cut

    def heal(self, cut: dict[str, int]) -> None:
        self.network.heal(cut)
        self.judge()

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
        self.judge()

    def recover(self) -> None:
        """Everything that is wrong ends, but what was lost stays lost."""
        self.network.recover()
        for name in [*self.centrals, *self.nodes]:
            if self.machine(name).frozen:
                self.thaw(name)
        self.judge()

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
                self._disks[f"snapshot of {name}"] = self._system.snapshot(machine.process)
                if self._audit is not None:
                    self._audit.snapshot_written(name)
        self.world.at(self.world.now + self._slot_seconds, self._write_disks)

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

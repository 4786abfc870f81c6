"""The traffic as it meets the nodes: offers every request, and notes what became of it.

Time goes in steps of a tenth of a slot. In the middle of each, every user's requests of that
step are offered to their nodes: in the middle, so that a node whose clock is a bit off still
counts them in the right slot.

Requests that cost the same and end at once are offered together. One whose cost is drawn, or that
runs for a while, is let through on what the node expects of it, and its real cost is told when
it ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sluicegate.sim.audit import Audit, Cell
from sluicegate.sim.cluster import Cluster
from sluicegate.sim.machines import Machine
from sluicegate.sim.replay import Replay, Request
from sluicegate.sim.traffic import Stream

__all__ = ["Load", "Track"]

Steps = dict[int, float]
Key = tuple[str, str, str]  # service, user, resource


@dataclass(slots=True)
class Track:
    """What one user asked for and got, of each resource in each step; steps of nothing are left
    out."""

    demand: dict[str, Steps] = field(default_factory=dict)
    admitted: dict[str, Steps] = field(default_factory=dict)
    unit: dict[str, float] = field(default_factory=dict)  # the most that one request took
    offered: int = 0  # requests
    refused: int = 0
    even: bool = True  # whether all nodes got the same traffic

    def note(self, step: int, resource: str, unit: float, demand: float, admitted: float) -> None:
        for series, amount in (self.demand, demand), (self.admitted, admitted):
            steps = series.setdefault(resource, {})
            steps[step] = steps.get(step, 0.0) + amount
        if unit > self.unit.get(resource, 0.0):
            self.unit[resource] = unit


class Load:
    """All traffic of a run."""

    def __init__(
        self,
        cluster: Cluster,
        streams: Sequence[Stream],
        replay: Replay | None,
        audit: Audit | None,
        step_seconds: float,
        warm_up: float,
    ) -> None:
        self.tracks: dict[tuple[str, str], Track] = {}
        self._cluster = cluster
        self._streams = streams
        self._replay = replay
        self._audit = audit
        self._step_seconds = step_seconds
        self._first_counted = warm_up / step_seconds
        # Of each stream what a request costs, by the key of a tally and by the auditor's cell.
        self._keys: list[list[tuple[Key, float]]] = []
        self._cells: list[list[tuple[Cell, float]]] = []
        for stream in streams:
            service, user = stream.traffic.service, stream.traffic.user
            costs = (stream.constant_cost or {}).items()
            keys = [((service, user, resource), amount) for resource, amount in costs]
            self._keys.append(keys)
            self._cells.append(
                [] if audit is None else [(audit.cell(*key), amount) for key, amount in keys]
            )
        self._touched: dict[str, Machine] = {}
        self._turn = 0  # whose turn it is to get a line that names no node

    def offer(self, step: int) -> None:
        """Offer all requests of one step."""
        self._touched.clear()
        for number, stream in enumerate(self._streams):
            if stream.constant_cost is not None:
                self._offer_together(number, stream, step, stream.constant_cost)
            else:
                self._offer_singly(stream, step)
        if self._replay is not None:
            self._offer_replayed(self._replay, step)
        for machine in self._touched.values():
            machine.attend(machine.now())  # it may have something to ask

    def _track(self, service: str, user: str) -> Track:
        track = self.tracks.get((service, user))
        if track is None:
            track = self.tracks[service, user] = Track()
        return track

    def _offer_together(
        self, number: int, stream: Stream, step: int, costs: dict[str, float]
    ) -> None:
        service, user = stream.traffic.service, stream.traffic.user
        cluster = self._cluster
        nodes = cluster.nodes
        touched = self._touched
        audit = self._audit
        keys, cells = self._keys[number], self._cells[number]
        offered = passed = 0
        for name, count in stream.counts(cluster.world.now, self._step_seconds, cluster.live):
            if not count:
                continue
            machine = touched[name] = nodes[name]
            now = machine.now()
            admitted = machine.process.offer(now, service, user, costs, count)
            offered += count
            if admitted:
                passed += admitted
                tally = machine.tally
                for key, amount in keys:
                    tally[key] = tally.get(key, 0.0) + amount * admitted
                if audit is not None:
                    for cell, amount in cells:
                        audit.admitted(machine, now, cell, amount, admitted)
        if offered:
            track = self._track(service, user)
            track.even = track.even and stream.even
            for resource, amount in costs.items():
                track.note(step, resource, amount, amount * offered, amount * passed)
            if step >= self._first_counted:
                track.offered += offered
                track.refused += offered - passed

    def _offer_singly(self, stream: Stream, step: int) -> None:
        traffic = stream.traffic
        service, user, duration = traffic.service, traffic.user, traffic.duration
        cluster = self._cluster
        rng = cluster.world.traffic
        track = self._track(service, user)
        track.even = track.even and stream.even
        for name, count in stream.counts(cluster.world.now, self._step_seconds, cluster.live):
            machine = self._touched[name] = cluster.nodes[name]
            now = machine.now()
            for _ in range(count):
                costs = {resource: cost.draw(rng) for resource, cost in traffic.cost.items()}
                passes = machine.process.throttle(now, service, user) is None
                if passes:
                    if self._audit is not None:
                        self._audit.started(machine, now, service, user, costs)
                    if duration:
                        machine.later(duration, self._consume, machine, service, user, costs)
                    else:
                        self._consume(machine, service, user, costs)
                for resource, amount in costs.items():
                    track.note(step, resource, amount, amount, amount if passes else 0.0)
                if step >= self._first_counted:
                    track.offered += 1
                    track.refused += not passes

    def _consume(self, machine: Machine, service: str, user: str, costs: dict[str, float]) -> None:
        machine.process.consume(machine.now(), service, user, costs)
        if self._audit is not None:
            self._audit.consumed(machine, service, user, costs)
        tally = machine.tally
        for resource, amount in costs.items():
            key = (service, user, resource)
            tally[key] = tally.get(key, 0.0) + amount

    def _offer_replayed(self, replay: Replay, step: int) -> None:
        cluster = self._cluster
        for request, count in replay.of_step(step):
            name = request.node
            if name in cluster.nodes and cluster.nodes[name].up:
                self._offer_request(name, request, count, step)
                continue
            live = cluster.live
            # In turn: each gets its part of the count, and those whose turn it is one more.
            for number in range(min(count, len(live))):
                name = live[(self._turn + number) % len(live)]
                part = count // len(live) + (number < count % len(live))
                self._offer_request(name, request, part, step)
            self._turn += count

    def _offer_request(self, name: str, request: Request, count: int, step: int) -> None:
        machine = self._touched[name] = self._cluster.nodes[name]
        now = machine.now()
        service, user, amount = request.service, request.user, request.amount
        costs = {request.resource: amount}
        admitted = machine.process.offer(now, service, user, costs, count)
        key = (service, user, request.resource)
        machine.tally[key] = machine.tally.get(key, 0.0) + amount * admitted
        if self._audit is not None and admitted:
            self._audit.admitted(machine, now, self._audit.cell(*key), amount, admitted)
        track = self._track(service, user)
        track.even = False
        track.note(step, request.resource, amount, amount * count, amount * admitted)
        track.offered += count
        track.refused += count - admitted

"""The traffic as it meets the nodes: offers every request, and notes what became of it.

Either requests are offered fifty times in a slot: in the middle of each fiftieth, every user's
requests of it are offered to their nodes, so that a node whose clock is a bit off still counts them
in the right slot. Or, with `exact_arrivals`, each request is offered at its own moment. Traffic
from a file is offered in tenths of a slot, which are the steps that all figures count by.

Requests that cost the same and end at once are offered together. One whose cost is drawn, or that
runs for a while, is let through on what the node expects of it, and its real cost is told when
it ends.

What is offered is an `Offered`: it remembers when it arrived. One perfect bucket (ideal.py) sees it
then; the cluster may admit it later. Demand is noted in the step of the arrival, what passed in
the step of the admission.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sluicegate.quota.node.core._user_table import Ticket
from sluicegate.sim.audit import Audit, Cell
from sluicegate.sim.cluster import Cluster
from sluicegate.sim.ideal import Comparison
from sluicegate.sim.machines import Machine
from sluicegate.sim.replay import Replay, Request
from sluicegate.sim.scenario import limits_over_time
from sluicegate.sim.traffic import Stream

__all__ = ["Load", "Offered", "Track"]

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

    def ask(self, step: int, costs: Mapping[str, float], count: int) -> None:
        for resource, cost in costs.items():
            steps = self.demand.setdefault(resource, {})
            steps[step] = steps.get(step, 0.0) + cost * count
            self.admitted.setdefault(resource, {})
            if cost > self.unit.get(resource, 0.0):
                self.unit[resource] = cost

    def admit(self, step: int, costs: Mapping[str, float], count: int) -> None:
        for resource, cost in costs.items():
            steps = self.admitted[resource]
            steps[step] = steps.get(step, 0.0) + cost * count


@dataclass(slots=True, frozen=True)
class Offered:
    """A request on its way through the cluster, or several alike that came at once."""

    service: str
    user: str
    costs: Mapping[str, float]
    arrival: float  # seconds since the simulation began
    is_counted: bool  # whether it came after the warm-up
    expected: Mapping[str, float] | None = None  # the mean cost, if the real one is not known


@dataclass(slots=True)
class _Waiting:
    """Requests that wait for an answer of the leader."""

    request: Offered
    count: int
    number: int  # of the stream
    duration: float | None  # None: they end at once, and all cost the same


class Load:
    """All traffic of a run."""

    def __init__(
        self,
        cluster: Cluster,
        streams: Sequence[Stream],
        replay: Replay | None,
        audit: Audit | None,
        step_seconds: float,
        offer_seconds: float,
    ) -> None:
        self.tracks: dict[tuple[str, str], Track] = {}
        self.comparisons: dict[tuple[str, str], Comparison] = {}  # of users who have a limit
        self._cluster = cluster
        self._world = cluster.world
        self._streams = streams
        self._replay = replay
        self._audit = audit
        self._step_seconds = step_seconds
        self._offer_seconds = offer_seconds
        self._warm_up = 0.0 if replay is not None else cluster.scenario.warm_up
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
        self._of_user: dict[tuple[str, str], list[Stream]] = {}
        for stream in streams:
            owner = stream.traffic.service, stream.traffic.user
            self._of_user.setdefault(owner, []).append(stream)
        self._touched: dict[str, Machine] = {}
        self._turn = 0  # whose turn it is to get a line that names no node
        self._can_wait = cluster.scenario.wait and cluster.can_wait
        self._waiting: dict[str, list[_Waiting]] = {}  # by node, in the order of arrival

    # Some at a time

    def offer(self, number: int) -> None:
        """Offer the requests of the next `offer_seconds`; of a replay, those of step `number`."""
        self._touched.clear()
        for of_stream, stream in enumerate(self._streams):
            self._offer_some(of_stream, stream)
        if self._replay is not None:
            self._offer_replayed(self._replay, number)
        for machine in self._touched.values():
            machine.attend(machine.now())  # it may have something to ask

    def _offer_some(self, number: int, stream: Stream) -> None:
        cluster = self._cluster
        counts = stream.counts(self._world.now, self._offer_seconds, cluster.live)
        costs = stream.constant_cost
        if costs is None:
            for name, count in counts:
                machine = self._touched[name] = cluster.nodes[name]
                self._offer_singly(number, stream, machine, count)
            return
        there = [(name, count) for name, count in counts if count]
        total = sum(count for _, count in there)
        if not total:
            return
        request = self._arrived(stream.traffic.service, stream.traffic.user, costs, total, stream)
        for name, count in there:
            machine = self._touched[name] = cluster.nodes[name]
            self._offer_alike(number, request, machine, count)

    # At their own moments

    def begin(self, end: float) -> None:
        """Schedule the first arrival of each stream; each one schedules the next, until `end`."""
        for number, stream in enumerate(self._streams):
            self._plan_next(number, stream.arrivals(end, self._step_seconds))

    def _plan_next(self, number: int, arrivals: Iterator[float]) -> None:
        time = next(arrivals, None)
        if time is not None:
            self._world.at(time, self._arrive, number, arrivals)

    def _arrive(self, number: int, arrivals: Iterator[float]) -> None:
        stream = self._streams[number]
        cluster = self._cluster
        name = stream.place(self._world.now, cluster.live)
        if name is not None:
            machine = cluster.nodes[name]
            traffic, count = stream.traffic, stream.traffic.together
            costs = stream.constant_cost
            if costs is not None:
                request = self._arrived(traffic.service, traffic.user, costs, count, stream)
                self._offer_alike(number, request, machine, count)
            else:
                self._offer_singly(number, stream, machine, count)
            machine.attend(machine.now())
        self._plan_next(number, arrivals)

    # One request, or some that are alike

    def _offer_alike(
        self,
        number: int,
        request: Offered,
        machine: Machine,
        count: int,
        *,
        can_wait: bool = True,
        is_retry: bool = False,
    ) -> int:
        """Offer requests that cost the same and end at once; returns how many of them wait."""
        now = machine.now()
        service, user, costs = request.service, request.user, request.costs
        if self._can_wait:
            admitted: int = machine.process.offer(
                now, service, user, costs, count, can_wait=can_wait, is_retry=is_retry
            )
        else:
            admitted = machine.process.offer(now, service, user, costs, count)
        waits = admitted < 0
        if waits:
            admitted = ~admitted
        if admitted:
            tally = machine.tally
            for key, amount in self._keys[number]:
                tally[key] = tally.get(key, 0.0) + amount * admitted
            audit = self._audit
            if audit is not None:
                for cell, amount in self._cells[number]:
                    audit.admitted(machine, now, cell, amount, admitted)
            self._admitted(request, admitted)
        if not waits:
            self._refused(request, count - admitted, machine)
            return 0
        if not is_retry:
            self._wait(machine, _Waiting(request, count - admitted, number, None))
        return count - admitted

    def _offer_singly(self, number: int, stream: Stream, machine: Machine, count: int) -> None:
        """Requests whose cost is drawn, or that run for a while."""
        traffic = stream.traffic
        rng = self._world.traffic
        for _ in range(count):
            costs = {resource: cost.draw(rng) for resource, cost in traffic.cost.items()}
            request = self._arrived(traffic.service, traffic.user, costs, 1, stream)
            self._offer_one(number, request, machine, traffic.duration)

    def _offer_one(
        self,
        number: int,
        request: Offered,
        machine: Machine,
        duration: float,
        *,
        can_wait: bool = True,
        is_retry: bool = False,
    ) -> bool:
        """Offer a request whose cost is told when it ends; returns whether it waits."""
        now = machine.now()
        service, user, costs = request.service, request.user, dict(request.costs)
        ticket = None
        if self._cluster.can_wait:
            ticket = Ticket()
            refused = machine.process.throttle(
                now,
                service,
                user,
                can_wait=can_wait and self._can_wait,
                is_retry=is_retry,
                ticket=ticket,
            )
        else:
            refused = machine.process.throttle(now, service, user)
        if refused is False:
            if not is_retry:
                self._wait(machine, _Waiting(request, 1, number, duration))
            return True
        if refused is not None:
            self._refused(request, 1, machine)
            return False
        if self._audit is not None:
            self._audit.started(machine, now, service, user, costs)
        self._admitted(request, 1)
        if duration:
            machine.later(duration, self._consume, machine, service, user, costs, ticket)
        else:
            self._consume(machine, service, user, costs, ticket)
        return False

    # Waiting for an answer

    def _wait(self, machine: Machine, waiting: _Waiting) -> None:
        self._waiting.setdefault(machine.name, []).append(waiting)
        machine.on_heard = self._retry_all
        seconds: float = machine.process.wait_seconds
        machine.later(seconds, self._give_up, machine, waiting)

    def _retry_all(self, machine: Machine) -> None:
        """The node has heard something: those that wait try again, in the order of arrival.

        Behind one that still waits, others of its stream would too: they are not tried.
        """
        still = []
        short: set[int] = set()
        for waiting in self._waiting.get(machine.name, ()):
            if waiting.number not in short:
                self._retry(machine, waiting, can_wait=True)
            if waiting.count:
                still.append(waiting)
                short.add(waiting.number)
        self._waiting[machine.name] = still
        if not still:
            machine.on_heard = None

    def _retry(self, machine: Machine, waiting: _Waiting, *, can_wait: bool) -> None:
        if waiting.duration is None:
            waiting.count = self._offer_alike(
                waiting.number,
                waiting.request,
                machine,
                waiting.count,
                can_wait=can_wait,
                is_retry=True,
            )
        else:
            waiting.count = self._offer_one(
                waiting.number,
                waiting.request,
                machine,
                waiting.duration,
                can_wait=can_wait,
                is_retry=True,
            )

    def _give_up(self, machine: Machine, waiting: _Waiting) -> None:
        """The time is over: a last try."""
        if waiting.count:
            self._waiting[machine.name].remove(waiting)
            self._retry(machine, waiting, can_wait=False)
            machine.attend(machine.now())

    def _consume(
        self,
        machine: Machine,
        service: str,
        user: str,
        costs: dict[str, float],
        ticket: Ticket | None,
    ) -> None:
        if ticket is None:
            machine.process.consume(machine.now(), service, user, costs)
        else:
            machine.process.consume(machine.now(), service, user, costs, ticket)
        if self._audit is not None:
            self._audit.consumed(machine, service, user, costs)
        tally = machine.tally
        for resource, amount in costs.items():
            key = (service, user, resource)
            tally[key] = tally.get(key, 0.0) + amount

    # What became of them

    def _arrived(
        self,
        service: str,
        user: str,
        costs: Mapping[str, float],
        count: int,
        stream: Stream | None = None,
    ) -> Offered:
        """`count` requests arrive now: note the demand, and show them to the ideal."""
        now = self._world.now
        track = self.tracks.get((service, user))
        if track is None:
            track = self._meet(service, user)
        track.even = track.even and stream is not None and stream.even
        track.ask(int(now / self._step_seconds), costs, count)
        is_counted = now >= self._warm_up
        if is_counted:
            track.offered += count
        comparison = self.comparisons.get((service, user))
        expected = None
        if comparison is not None:
            if stream is not None and stream.constant_cost is None:
                expected = self._expected_cost(stream)
            comparison.offered(now, costs, count, expected)
        return Offered(service, user, costs, now, is_counted, expected)

    def _expected_cost(self, stream: Stream) -> Mapping[str, float]:
        """What a request is taken to cost of which nobody tells it: the mean of all of the user."""
        owner = stream.traffic.service, stream.traffic.user
        streams = self._of_user[owner]
        if len(streams) == 1:
            return stream.expected_cost
        rates = [each.traffic.rate.at(self._world.now) for each in streams]
        mean = {}
        for resource in stream.expected_cost:
            units = count = 0.0
            for rate, each in zip(rates, streams, strict=True):
                if resource in each.expected_cost:
                    units += rate * each.expected_cost[resource]
                    count += rate
            mean[resource] = units / count if count else stream.expected_cost[resource]
        return mean

    def _meet(self, service: str, user: str) -> Track:
        track = self.tracks[service, user] = Track()
        scenario = self._cluster.scenario
        limits = limits_over_time(scenario, service, user)
        if any(entry is not None for _, entry in limits):
            comparison = Comparison(limits, scenario.slot_seconds, self._warm_up)
            self.comparisons[service, user] = comparison
        return track

    def _admitted(self, request: Offered, count: int) -> None:
        """`count` of the requests pass now, which may be later than they arrived."""
        if count:
            now = self._world.now
            owner = request.service, request.user
            self.tracks[owner].admit(int(now / self._step_seconds), request.costs, count)
            comparison = self.comparisons.get(owner)
            if comparison is not None:
                comparison.admitted(now, request.arrival, request.costs, count, request.expected)

    def _refused(self, request: Offered, count: int, machine: Machine) -> None:
        if count and self._audit is not None:
            self._audit.refused(machine, machine.now(), request.service, request.user)
        if request.is_counted:
            self.tracks[request.service, request.user].refused += count

    # Traffic from a file

    def _offer_replayed(self, replay: Replay, step: int) -> None:
        cluster = self._cluster
        for request, count in replay.of_step(step):
            name = request.node
            if name in cluster.nodes and cluster.nodes[name].up:
                self._offer_request(name, request, count)
                continue
            live = cluster.live
            # In turn: each gets its part of the count, and those whose turn it is one more.
            for number in range(min(count, len(live))):
                name = live[(self._turn + number) % len(live)]
                part = count // len(live) + (number < count % len(live))
                self._offer_request(name, request, part)
            self._turn += count

    def _offer_request(self, name: str, request: Request, count: int) -> None:
        machine = self._touched[name] = self._cluster.nodes[name]
        now = machine.now()
        service, user, amount = request.service, request.user, request.amount
        costs = {request.resource: amount}
        offered = self._arrived(service, user, costs, count)
        admitted = machine.process.offer(now, service, user, costs, count)
        key = (service, user, request.resource)
        machine.tally[key] = machine.tally.get(key, 0.0) + amount * admitted
        if self._audit is not None and admitted:
            self._audit.admitted(machine, now, self._audit.cell(*key), amount, admitted)
        self._admitted(offered, admitted)
        self._refused(offered, count - admitted, machine)

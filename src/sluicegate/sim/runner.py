"""One run of a scenario: the traffic goes to the nodes, and all that comes of it is noted.

A load offers requests to the nodes, step by step or each at its own moment; between them messages
travel and machines wake up.

After the last step all troubles end, traffic stops, and the cluster gets ten quiet slots: then
what was admitted and what the leader has booked must be the same, but for what crashes without a
disk have lost.

    run(scenario, system="fair", seed=0) -> Result

`InvariantBroken` comes out of a run in which something was wrong at any moment, however good its
figures are.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sluicegate.sim.audit import Audit
from sluicegate.sim.cluster import Cluster
from sluicegate.sim.faults import plan
from sluicegate.sim.load import Load
from sluicegate.sim.measures import STEPS, Cell, Measures, Missed, measure, missed
from sluicegate.sim.replay import Replay
from sluicegate.sim.scenario import Scenario, all_limits, entry_of, limits_over_time, rate_of
from sluicegate.sim.systems import MakeLedger, make_system
from sluicegate.sim.traffic import Stream
from sluicegate.sim.world import World

__all__ = ["Result", "Used", "run"]

_QUIET_SLOTS = 10
_LEASES_TO_ELECT = 3  # a quarantine, an exclusion, and some attempts
_PROGRESS_STEPS = 200
_OFFERS_PER_STEP = 5  # of drawn traffic; one step of a replay is offered at once
_ROUNDING = 1e-9

Progress = Callable[[float], object]


@dataclass(slots=True)
class Used:
    """What a user asked for and got in all: what the limits would have done."""

    service: str
    user: str
    requests: int
    refused: int
    amounts: dict[str, tuple[float, float]]  # of each resource, asked for and passed

    def as_dict(self) -> dict[str, Any]:
        return {
            "service": self.service,
            "user": self.user,
            "requests": {
                "asked": self.requests,
                "passed": self.requests - self.refused,
                "refused": self.refused,
            },
            "amounts": {
                resource: {"asked": asked, "passed": passed, "refused": asked - passed}
                for resource, (asked, passed) in self.amounts.items()
            },
        }


@dataclass(slots=True)
class Result:
    """What came of a run."""

    scenario: Scenario
    system: str
    seed: int
    measures: Measures
    missed: list[Missed]
    cells: list[Cell]
    events: list[tuple[float, str]]  # what befell the cluster
    users: list[Used] = field(default_factory=list)  # of traffic from a file

    @property
    def met(self) -> bool:
        return not self.missed

    def as_dict(self) -> dict[str, Any]:
        """For JSON: the same run gives the same text."""
        document = {
            "scenario": self.scenario.name,
            "system": self.system,
            "seed": self.seed,
            "seconds": self.scenario.seconds,
            "measures": self.measures.as_dict(),
            "goals": self.scenario.goals,
            "missed": [missed._asdict() for missed in self.missed],
            "met": self.met,
        }
        if self.users:
            document["users"] = [used.as_dict() for used in self.users]
        return document


def run(
    scenario: Scenario,
    *,
    system: str = "fair",
    seed: int = 0,
    replay: Replay | None = None,
    make_ledger: MakeLedger | None = None,
    progress: Progress | None = None,
) -> Result:
    """Run a scenario once. `replay` is traffic from a file instead of the scenario's own;
    `progress` is called with the seconds that are done."""
    return _Run(scenario, system, seed, replay, make_ledger, progress).result()


class _Run:
    """The parts of one run, put together."""

    def __init__(
        self,
        scenario: Scenario,
        system: str,
        seed: int,
        replay: Replay | None,
        make_ledger: MakeLedger | None,
        progress: Progress | None,
    ) -> None:
        self._scenario = scenario
        self._system = system
        self._world = world = World(seed)
        self._audit = Audit(scenario, seed, world) if system == "fair" else None
        users = {(traffic.service, traffic.user) for traffic in scenario.traffic}
        if replay is not None:
            users = replay.users()
        self._cluster = Cluster(
            scenario, make_system(system, scenario, users, make_ledger), world, self._audit
        )
        self._streams = []
        if replay is None:
            self._streams = [Stream(traffic, world.traffic) for traffic in scenario.traffic]
        self._step_seconds = scenario.slot_seconds / STEPS
        self._steps = round(scenario.seconds / self._step_seconds)
        offers_per_step = _OFFERS_PER_STEP if replay is None else 1
        self._offer_seconds = self._step_seconds / offers_per_step
        self._offers = self._steps * offers_per_step
        self._load = Load(
            self._cluster,
            self._streams,
            replay,
            self._audit,
            self._step_seconds,
            self._offer_seconds,
        )
        self._events: list[tuple[float, str]] = []
        self._progress = progress
        self._is_replay = replay is not None

    def result(self) -> Result:
        scenario, world, cluster = self._scenario, self._world, self._cluster
        plan(cluster, lambda time, what: self._events.append((time, what)))
        if scenario.exact_arrivals and not self._is_replay:
            self._load.begin(scenario.seconds)
            self._tell_progress()
        else:
            world.at(0.5 * self._offer_seconds, self._offer, 0)
        world.run(scenario.seconds)
        cluster.recover()
        longest = max((stream.traffic.duration for stream in self._streams), default=0.0)
        election = scenario.election_seconds
        if len(scenario.centrals) > 1:
            election = _LEASES_TO_ELECT * scenario.lease_seconds
        quiet = _QUIET_SLOTS * scenario.slot_seconds + election + longest
        world.run(scenario.seconds + quiet)
        cells = self._cells()
        measures = measure(
            cells,
            slot_seconds=scenario.slot_seconds,
            warm_up=scenario.warm_up,
            disturbances=self._disturbances(),
            burst=scenario.burst,
        )
        measures.messages = cluster.network.sent
        measures.fresh = cluster.fresh_slots
        measures.takeover = cluster.takeover
        self._settle(measures)
        self._compare(measures)
        return Result(
            scenario,
            self._system,
            world.seed,
            measures,
            missed(measures, scenario.goals),
            cells,
            self._events,
            self._used() if self._is_replay else [],
        )

    def _used(self) -> list[Used]:
        """Every user, those who were refused the most requests first."""
        used = []
        for (service, user), track in self._load.tracks.items():
            amounts = {
                resource: (sum(asked.values()), sum(track.admitted[resource].values()))
                for resource, asked in track.demand.items()
            }
            used.append(Used(service, user, track.offered, track.refused, amounts))
        return sorted(used, key=lambda each: (-each.refused, -each.requests))

    def _offer(self, number: int) -> None:
        self._load.offer(number)
        if number + 1 < self._offers:
            self._world.at((number + 1.5) * self._offer_seconds, self._offer, number + 1)
        if self._progress is not None and number % (_PROGRESS_STEPS * _OFFERS_PER_STEP) == 0:
            self._progress(self._world.now)

    def _tell_progress(self) -> None:
        if self._progress is not None and self._world.now < self._scenario.seconds:
            self._progress(self._world.now)
            later = self._world.now + _PROGRESS_STEPS * self._step_seconds
            self._world.at(later, self._tell_progress)

    def _disturbances(self) -> list[float]:
        changes = {time for stream in self._streams for time in stream.traffic.changes()}
        return sorted(changes | {time for time, _ in self._events})

    def _cells(self) -> list[Cell]:
        """Every user and resource that has a limit and had traffic."""
        cells = []
        cluster = self._cluster
        for (service, user), track in self._load.tracks.items():
            for resource, demand in track.demand.items():
                allowed = self._allowed(service, user, resource)
                if allowed is None:
                    continue
                admitted = track.admitted[resource]
                steady = [name for name in cluster.nodes if name not in cluster.shaken]
                by_node = {
                    name: cluster.consumed_on(name, (service, user, resource)) for name in steady
                }
                cells.append(
                    Cell(
                        service,
                        user,
                        resource,
                        demand=[demand.get(step, 0.0) for step in range(self._steps)],
                        admitted=[admitted.get(step, 0.0) for step in range(self._steps)],
                        allowed=allowed,
                        capacity=self._capacity(service, user, resource),
                        unit=track.unit[resource],
                        offered=track.offered,
                        refused=track.refused,
                        by_node=by_node if track.even else {},
                    )
                )
        return cells

    def _allowed(self, service: str, user: str, resource: str) -> list[float] | None:
        """What the limit allows in each step; None if there never is one."""
        rates = [
            (time, entry.rates.get(resource) if entry is not None else None)
            for time, entry in limits_over_time(self._scenario, service, user)
        ]
        if all(rate is None for _, rate in rates):
            return None
        allowed: list[float] = []
        for number, (_, rate) in enumerate(rates):
            end = rates[number + 1][0] if number + 1 < len(rates) else self._scenario.seconds
            steps = round(end / self._step_seconds) - len(allowed)
            amount = math.inf if rate is None else rate * self._step_seconds
            allowed += [amount] * steps
        return allowed

    def _capacity(self, service: str, user: str, resource: str) -> float:
        entry = entry_of(self._scenario.limits, service, user)
        return entry.rates.get(resource, 0.0) * entry.burst_seconds if entry else 0.0

    def _settle(self, measures: Measures) -> None:
        """Compare what the leader has booked with what was consumed."""
        cluster = self._cluster
        if cluster.leader is None:
            return  # there are no books
        worst = lost = 0.0
        limits_of_run = all_limits(self._scenario)
        down = [name for name, machine in cluster.nodes.items() if machine.process is None]
        for service, user in self._load.tracks:
            entry = entry_of(cluster.entries, service, user)
            for resource in entry.rates if entry is not None else ():
                cell = (service, user, resource)
                if any(rate_of(limits, *cell) is None for limits in limits_of_run):
                    continue  # while the user was free, nodes did not count them
                consumed = sum(tally.get(cell, 0.0) for tally in cluster.tallies.values())
                if self._audit is not None:
                    recorded = self._audit.recorded(cluster.leader, cell)
                    gone = self._audit.lost(cluster.leader, cell, down)
                else:
                    recorded, gone = cluster.recorded(*cell), 0.0
                lost += gone
                difference = consumed - gone - recorded
                if abs(difference) <= _ROUNDING * consumed:
                    difference = 0.0
                worst = max(worst, difference, key=abs)
        measures.unrecorded = worst
        measures.lost = lost

    def _compare(self, measures: Measures) -> None:
        """Beside one perfect bucket: of several users, the worst."""
        end = self._scenario.seconds
        comparisons = self._load.comparisons.values()
        shortfalls = [comparison.shortfall(end) for comparison in comparisons]
        cheap = [comparison.cheap_shortfall(end) for comparison in comparisons]
        excesses = [comparison.excess() for comparison in comparisons]
        measures.shortfall = max((one for one in shortfalls if one is not None), default=None)
        measures.cheap_shortfall = max((one for one in cheap if one is not None), default=None)
        measures.excess = max((one for one in excesses if one is not None), default=None)

"""One run of a pacing scenario.

Requests are offered one by one, each at its own moment, between the acts of the world: syncs,
messages, late rewards, nodes that come and go. After the traffic ends there is a quiet time in
which the nodes tell the store what they have counted.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sluicegate.sim.measures import Missed
from sluicegate.sim.pacing.measures import Measures, PeriodFigures, Series, missed
from sluicegate.sim.pacing.nodes import LIMITER, PacingNode, SimulatedStore, origin_of
from sluicegate.sim.pacing.recorder import Recorder, counted_by_period, lacking
from sluicegate.sim.pacing.scenario import NodeEvent, PacingScenario
from sluicegate.sim.pacing.traffic import Arrivals
from sluicegate.sim.world import World
from sluicegate.stores.store import CounterKey, CounterUpdate

__all__ = ["Result", "run"]

_QUIET_SYNCS = 4.0  # after the traffic
_PARTS = 20  # of a run, after each of which progress is told


@dataclass(slots=True, frozen=True)
class Result:
    """One run and its figures."""

    scenario: PacingScenario
    seed: int
    measures: Measures
    periods: list[PeriodFigures]
    series: Series
    requests: int
    syncs: int

    @property
    def missed(self) -> list[Missed]:
        return missed(self.measures, self.scenario.goals)

    def as_dict(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "requests": self.requests,
            "syncs": self.syncs,
            "measures": self.measures.as_dict(),
            "periods": [period._asdict() for period in self.periods],
        }


def run(
    scenario: PacingScenario,
    *,
    seed: int = 0,
    progress: Callable[[float], object] | None = None,
) -> Result:
    """Run a scenario. `progress` is called with the seconds that are done."""
    return _Run(scenario, seed, progress).run()


class _Run:
    def __init__(
        self, scenario: PacingScenario, seed: int, progress: Callable[[float], object] | None
    ) -> None:
        self.scenario = scenario
        self.seed = seed
        self.world = World(seed)
        begin = origin_of(scenario.period)
        self._origin = begin + scenario.start  # Unix time of the start
        self.store = SimulatedStore(self.world, scenario, self._origin)
        self.recorder = Recorder(scenario, begin)
        self.requests = 0
        self._progress = progress
        self._passes = 0
        self._lives: list[PacingNode] = []  # all that there ever were
        self._nodes: dict[int, PacingNode] = {}  # the last life of each
        self._begin = begin
        decide = self._decide_scored if scenario.scores is not None else self._decide
        self._arrivals = Arrivals(
            scenario.shape,
            self.world.traffic,
            is_poisson=scenario.is_poisson,
            offer=decide,
            next_time=lambda: self.world.next_time,
        )

    def run(self) -> Result:
        scenario, world = self.scenario, self.world
        if scenario.reached:
            self._fill_store()
        for number in range(scenario.nodes):
            self._start(number)
        for event in scenario.events:
            world.at(event.at, self._happen, event)
        self._sample(0)
        self._run_until(scenario.seconds, with_traffic=True)
        back = max([end for _, end in scenario.link.outages] + [world.now])
        quiet = _QUIET_SYNCS * (scenario.sync_interval + scenario.link.timeout)
        self._run_until(back + quiet + scenario.rewards.delay[1], with_traffic=False)
        recorder = self.recorder
        earlier = {self._begin: self._reached_passes} if scenario.reached else {}
        counted = counted_by_period(self._lives, self.store.books, earlier)
        unrecorded = lacking(counted, self.store.books, scenario, self._begin)
        series = recorder.series()
        periods = recorder.periods(series, counted)
        measures = recorder.measures(series, periods, unrecorded)
        return Result(
            scenario, self.seed, measures, periods, series, self.requests, self.store.books.syncs
        )

    @property
    def _reached_passes(self) -> float:
        scenario = self.scenario
        return scenario.reached * scenario.target / scenario.rewards.conversion

    def _run_until(self, end: float, *, with_traffic: bool) -> None:
        world = self.world
        while world.now < end:
            if with_traffic:
                self._arrivals.run(end)
            world.run(min(math.nextafter(world.next_time, math.inf), end))

    def _fill_store(self) -> None:
        """Let a node that has left have reached a part of the target before the start.

        Rewards of its last passes are still to come.
        """
        scenario = self.scenario
        passes = self._reached_passes
        late = min(sum(scenario.rewards.delay) / 2.0, scenario.start)
        pending = passes * scenario.rewards.conversion * late / scenario.start
        count = int(pending / scenario.unit)
        for number in range(count):
            at = (number + 0.5) / count * late
            self.world.at(at, self._bring_reward, number % scenario.nodes)
        rewards = passes * scenario.rewards.conversion - count * scenario.unit
        sums = {"pass": passes, "reward": rewards}
        sums["request"] = passes * max(scenario.load, 1.0)
        updates = [
            CounterUpdate(
                CounterKey(
                    f"{LIMITER}:{kind}",
                    (),
                    self._begin,
                    self._begin + scenario.period,
                    scenario.period,
                ),
                total,
                max(1, int(total / scenario.unit)),
                rate=0.0,
                want=0.0,
                unit=1.0,
                ceiling=math.inf,
            )
            for kind, total in sums.items()
        ]
        self.store.fill(updates)

    def _start(self, number: int) -> None:
        life = sum(node.number == number for node in self._lives)
        node = PacingNode(number, life, self.world, self.store, self.scenario, self._origin)
        self._lives.append(node)
        self._nodes[number] = node
        self._use_nodes()

    def _use_nodes(self) -> None:
        self._arrivals.use([number for number, node in self._nodes.items() if node.is_up])

    def _happen(self, event: NodeEvent) -> None:
        node = self._nodes.get(event.node)
        if event.what in ("join", "restart"):
            if node is not None and node.is_up:
                node.crash()
            self._start(event.node)
        elif node is not None and node.is_up:
            node.leave() if event.what == "leave" else node.crash()
            self._use_nodes()

    def _decide(self, time: float, number: int) -> None:
        """Offer one request to a node."""
        scenario, recorder, node = self.scenario, self.recorder, self._nodes[number]
        self.world.now = time
        self._note_request(time)
        index = recorder.bin(time)
        recorder.requests[index] += scenario.unit
        if scenario.rewards.are_at_once:
            if node.limiter.acquire(scenario.unit):
                recorder.rewards[index] += scenario.unit
                self._note_pass(node, index, time)
        elif node.limiter.take(scenario.unit):
            self._note_pass(node, index, time)
            self._reward(node, time)

    def _decide_scored(self, time: float, number: int) -> None:
        scenario, recorder, node = self.scenario, self.recorder, self._nodes[number]
        assert scenario.scores is not None
        self.world.now = time
        self._note_request(time)
        index = recorder.bin(time)
        recorder.requests[index] += scenario.unit
        score = scenario.scores.draw(self.world.traffic, time / scenario.period)
        log = recorder.scores[recorder.score_window(time)]
        log.offered.append(score)
        at_once = scenario.rewards.are_at_once
        decide = node.limiter.acquire if at_once else node.limiter.take
        if decide(scenario.unit, score):
            log.passed.append(score)
            self._note_pass(node, index, time)
            if at_once:
                recorder.rewards[index] += scenario.unit
            else:
                self._reward(node, time)

    def _note_request(self, time: float) -> None:
        if not self.requests:
            self.recorder.first_request = time
        self.requests += 1

    def _note_pass(self, node: PacingNode, index: int, time: float) -> None:
        recorder, unit = self.recorder, self.scenario.unit
        self._passes += 1
        recorder.passes[index] += unit
        node.counted[node.limiter.passes.span[0]] += unit
        if time < recorder.first_pass:
            recorder.first_pass = time

    def _reward(self, node: PacingNode, time: float) -> None:
        rewards = self.scenario.rewards
        if rewards.brings(self.world.faults, self._passes):
            at = time + rewards.draw_delay(self.world.faults)
            self.world.at(at, self._bring_reward, node.number)

    def _bring_reward(self, number: int) -> None:
        """Where its node is gone, another one hears of it."""
        node = self._nodes[number]
        if not node.is_up:
            up = [other for other in self._nodes.values() if other.is_up]
            if not up:
                return
            node = self.world.faults.choice(up)
        node.limiter.reward(self.scenario.unit)
        if self.world.now < self.scenario.seconds:
            self.recorder.rewards[self.recorder.bin(self.world.now)] += self.scenario.unit

    def _sample(self, index: int) -> None:
        """Note the pass rate at the end of each bin."""
        recorder = self.recorder
        up = [node.limiter for node in self._nodes.values() if node.is_up]
        total = sum(limiter.requests.rate for limiter in up)
        if total > 0.0:
            rates = sum(limiter.pass_rate * limiter.requests.rate for limiter in up)
            recorder.pass_rate[index] = rates / total
        if self._progress is not None and index % (1 + len(recorder.passes) // _PARTS) == 0:
            self._progress(self.world.now)
        if index + 1 < len(recorder.passes):
            at = (index + 2) * recorder.width - recorder.shift
            self.world.at(min(at, self.scenario.seconds), self._sample, index + 1)

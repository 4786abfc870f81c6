"""A leader with our own nodes and with nodes of the original system, in virtual time.

Our own nodes and the central are the real ones without their sockets. The others are the
simulator's: they count by the slot and know an amount for each slot, or none, and then refuse
nothing. They speak the classic protocol, as JSON text. A message takes `DELAY` seconds.
"""

import heapq
import itertools
import random
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from sluicegate.quota.central.classic.protocol import ClassicReportHandler, parse
from sluicegate.quota.central.state import CentralState
from sluicegate.quota.ledger.ledger import Ledger
from sluicegate.quota.ledger.limit_entry import Entry
from sluicegate.quota.node.core.state import NodeState
from sluicegate.quota.wire import Bounds
from sluicegate.sim.classic_system import ClassicAnswer, ClassicNode, ClassicReport

__all__ = ["MixedCluster"]

DELAY = 0.005
START = 1000.0  # of all clocks
SERVICE, RESOURCE = "front", "requests"


class MixedCluster:
    """`own` and `classic` nodes, each with requests of one user at its rate per second."""

    def __init__(
        self, entry: Entry, own: Mapping[str, float], classic: Mapping[str, float], *, seed: int = 0
    ) -> None:
        self.user = entry.user
        self.now = START
        self.rates = {**own, **classic}
        self.passed: list[tuple[float, str]] = []  # time and node of each request that passed
        self.refused = dict.fromkeys(self.rates, 0)
        self.amounts: list[float] = []  # that classic nodes were told for a slot
        self.state = CentralState("central", Ledger([entry]), now=START, wall=START)
        self.state.lead(START, 1)
        self._handler = ClassicReportHandler(self.state, Bounds())
        self._own = {
            name: NodeState(name, 1, ["central"], now=START, wall=START, max_users=16)
            for name in own
        }
        self._classic = {
            name: ClassicNode(
                name,
                now=START,
                wall=lambda now: now,
                leader=lambda: "central",
                slot_seconds=1.0,
                spread=0.1 * number / len(classic),
            )
            for number, name in enumerate(classic)
        }
        self._random = random.Random(seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        for name in self.rates:
            self._at(START, lambda name=name: self._arrive(name))  # type: ignore[misc]
        self._at(START, self._tick)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, act = heapq.heappop(self._events)
            act()
        self.now = end

    def passed_between(self, begin: float, end: float, names: Mapping[str, object]) -> int:
        """How many requests passed on some of the nodes; times are seconds since the start."""
        return sum(begin <= time - START < end and name in names for time, name in self.passed)

    def most_beyond(self, rate: float, since: float) -> float:
        """The most by which a window since then held more than rate * window."""
        beyond = most = 0.0
        before = START + since
        for time, _ in self.passed:
            if time >= START + since:
                beyond = max(0.0, beyond - rate * (time - before)) + 1.0
                before = time
                most = max(most, beyond)
        return most

    def _at(self, time: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), act))

    def _later(self, act: Callable[[], None]) -> None:
        self._at(self.now + DELAY, act)

    def _arrive(self, name: str) -> None:
        """A request of the user comes, and the next one is planned."""
        if self.rates[name] > 0.0:
            node: Any = self._own.get(name) or self._classic[name]
            if self.now > START and node.offer(self.now, SERVICE, self.user, {RESOURCE: 1.0}, 1):
                self.passed.append((self.now, name))
            elif self.now > START:
                self.refused[name] += 1
        gap = self._random.expovariate(self.rates[name]) if self.rates[name] > 0.0 else 0.01
        self._at(self.now + gap, lambda: self._arrive(name))

    def _tick(self) -> None:
        """Send what is due, everywhere; every five milliseconds."""
        for own in self._own.values():
            for _, message in own.outgoing(self.now):
                self._later(lambda message=message: self._hear(message))  # type: ignore[misc]
        for name, classic in self._classic.items():
            for _, report in classic.outgoing(self.now):
                self._later(  # type: ignore[misc]
                    lambda name=name, report=report: self._hear_classic(name, report)
                )
        self._send(self.state.tick(self.now))
        self._at(self.now + DELAY, self._tick)

    def _hear(self, message: Any) -> None:
        self._send(self.state.receive(self.now, message))

    def _send(self, answers: list[Any]) -> None:
        for name, answer in answers:
            if name in self._own:
                self._later(
                    lambda name=name, answer=answer: self._own[name].receive(  # type: ignore[misc]
                        self.now, "central", answer
                    )
                )

    def _hear_classic(self, name: str, report: ClassicReport) -> None:
        text = {"node_id": report.node, "slot_number": report.slot}
        for what, counts in (("consumption", report.consumption), ("rejection", report.rejection)):
            told: dict[str, Any] = {}
            for (service, user, resource), amount in counts.items():
                told.setdefault(service, {}).setdefault(user, {})[resource] = amount
            text[what] = told
        steps = self._handler.report(self.now, parse(orjson.dumps(text)))
        while True:
            try:
                next(steps)
            except StopIteration as done:
                answer = orjson.loads(done.value)
                break
        ((slot, users),) = answer[SERVICE].items()
        self.amounts += [amounts[RESOURCE] for amounts in users.values()]
        quota = {(SERVICE, user): amounts for user, amounts in users.items()}
        self._later(
            lambda: self._classic[name].receive(
                self.now, "central", ClassicAnswer(int(slot), quota)
            )
        )

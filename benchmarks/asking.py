"""What an ask costs the central: read, granted, answered.

Many nodes have requests of the same users, and each asks for a third of them at a time, as nodes do
whose interval is half a second: a node asks for a user again when most of its credit is used up.
Within the limits all asks are granted at once; at three times the limits nodes wait, and are
told how long. The frames are binary, and written beforehand. Times are of the thread, in
nanoseconds per user of an ask.
"""

import gc
import time
from collections.abc import Iterable
from typing import NamedTuple

from benchmarks.harness import Row
from sluicegate.quota import CentralState, Entry, Ledger
from sluicegate.quota.messages import Ask, Credit, Line, Quota, Report, UserAsk
from sluicegate.quota.wire import CentralWire, NodeWire

__all__ = ["rows"]

_START = 1_800_000_000.0
_INTERVAL = 0.5
_RATE = 3.0  # requests per second of a user on a node
_PARTS = 3  # of the users, in each ask


class Costs(NamedTuple):
    """Nanoseconds per user of an ask."""

    read: float
    grant: float
    write: float

    @property
    def total(self) -> float:
        return sum(self)


class _Node:
    """A node that spends all it is granted, and both ends of its connection."""

    def __init__(self, name: str, users: Iterable[str]) -> None:
        self.name = name
        self.theirs, self.ours = NodeWire(), CentralWire()
        self.granted = dict.fromkeys(users, 0.0)
        self.used = dict.fromkeys(self.granted, 0.0)
        self._names = list(self.granted)
        self._turn = 0

    def report(self, time: float, sequence: int) -> Report:
        lines = {
            user: {"requests": Line(used, 0, int(used), used, 0.0, self.granted[user])}
            for user, used in self.used.items()
        }
        slot = int(time) - 1
        told = Report(self.name, 1, sequence, 1, sequence - 1, slot, time, {"front": lines})
        read = self.ours.read(self.theirs.write(told))
        assert isinstance(read, Report)
        return read

    def ask(self, time: float) -> bytes | str:
        wanted = int(_PARTS * _INTERVAL * _RATE) + 1
        users = {}
        for user in self._names[self._turn :: _PARTS]:
            self.used[user] = self.granted[user]
            credit = Credit(self.granted[user], 0.0, self.used[user], 1.0)
            users[user] = UserAsk(wanted, {"requests": credit})
        self._turn = (self._turn + 1) % _PARTS
        return self.theirs.write(Ask(self.name, 1, time, {"front": users}))

    def hear(self, frame: bytes | str) -> None:
        quota = self.theirs.read(frame)
        assert isinstance(quota, Quota)
        for user, shares in quota.services["front"].users.items():
            self.granted[user] = max(self.granted[user], shares["requests"].granted)


def measure(nodes: int, users: int, load: float, seconds: int = 6) -> Costs:
    """The cost of the best second, of those after the first two."""
    names = [f"user:{number}" for number in range(users)]
    rate = nodes * _RATE / load
    ledger = Ledger([Entry("front", "*", rates={"requests": rate}, burst_seconds=10.0)])
    state = CentralState("central", ledger, now=_START, wall=_START)
    state.lead(_START, 1)
    fleet = [_Node(f"node-{number}", names) for number in range(nodes)]
    by_name = {node.name: node for node in fleet}
    told = []
    for second in range(seconds):
        at = _START + second
        for node in fleet:
            state.receive(at + 0.01, node.report(at, second + 1))
        told.append(_second(state, fleet, by_name, at))
    return min(told[2:], key=lambda costs: costs.total)


def _second(
    state: CentralState, fleet: list[_Node], by_name: dict[str, _Node], begin: float
) -> Costs:
    spent = [0, 0, 0]
    rows = 0
    gc.collect()
    gc.disable()
    try:
        for turn in range(round(1.0 / _INTERVAL)):
            for number, node in enumerate(fleet):
                now = begin + 0.02 + (turn + number / len(fleet)) * _INTERVAL * 0.95
                if number % 50 == 0:
                    state.tick(now)
                frame = node.ask(now)
                times = [time.thread_time_ns()]
                ask = node.ours.read(frame)
                times.append(time.thread_time_ns())
                answers = [*state.serve(now), *state.receive(now, ask)]
                times.append(time.thread_time_ns())
                frames = [
                    (by_name[name], by_name[name].ours.write(answer))
                    for name, answer in answers
                    if isinstance(answer, Quota)
                ]
                times.append(time.thread_time_ns())
                for stage in range(3):
                    spent[stage] += times[stage + 1] - times[stage]
                assert isinstance(ask, Ask)
                rows += len(ask.users["front"])
                for asker, answer in frames:
                    asker.hear(answer)
    finally:
        gc.enable()
    return Costs(*(value / rows for value in spent))


def rows(nodes: int = 1000, users: int = 100) -> list[Row]:
    loads = ((0.75, "within the limits"), (3.0, "at three times the limits"))
    costs = [(what, measure(nodes, users, load)) for load, what in loads]
    return [
        Row(
            f"an ask, per user: read, granted, answered; {nodes:,} nodes x {users} users, {what}",
            f"{cost.total / 1e3:.2f} µs ({cost.read:.0f} + {cost.grant:.0f} + {cost.write:.0f} ns)",
            "",
            None,
            "",
            "",
            None,
        )
        for what, cost in costs
    ]

"""Nodes that spend all they are granted, for tests of the ledger alone."""

from sluicegate.quota.ledger.ledger import Ledger
from sluicegate.quota.ledger.limit_entry import Entry
from sluicegate.quota.messages import Ask, Credit, Line, Report, ServiceQuota, UserAsk

START = 1000
TICKS = 20  # of a slot: in each of them a node asks once


def entry(user: str = "u", *, burst_seconds: float = 10.0, **rates: float) -> Entry:
    return Entry("front", user, burst_seconds=burst_seconds, rates=rates or {"r": 100.0})


class Fleet:
    """`count` nodes in front of a ledger, one user and one resource, slot after slot.

    Requests cost 1 and come evenly. One that finds no credit waits for it until its slot ends; the
    node keeps its place in the queue.
    """

    def __init__(self, ledger: Ledger, count: int, *, user: str = "u", resource: str = "r") -> None:
        self.ledger = ledger
        self.user = user
        self.resource = resource
        self.slot = START
        self.names = [f"node-{i}" for i in range(count)]
        self.consumed = dict.fromkeys(self.names, 0.0)
        self.rejected = dict.fromkeys(self.names, 0)
        self.granted = dict.fromkeys(self.names, 0.0)
        self.returned = dict.fromkeys(self.names, 0.0)
        for name in self.names:
            ledger.book(START, self.report(name))

    def report(self, name: str, *, held: float = 0.0) -> Report:
        consumed = self.consumed[name]
        credit = (self.granted[name], self.returned[name])
        line = Line(consumed, self.rejected[name], int(consumed), 0.0, held, *credit)
        lines = {"front": {self.user: {self.resource: line}}} if self.slot > START else {}
        return Report(name, 1, self.slot - START + 1, 1, 0, self.slot - 1, self.slot, lines)

    def step(self, demand: dict[str, float], *, silent: tuple[str, ...] = ()) -> dict[str, float]:
        """One slot: report, ask and spend, assign. What each node admitted of its demand."""
        for name in self.names:
            if name not in silent:
                self.ledger.book(self.slot, self.report(name))
        heard = {name: wanted for name, wanted in demand.items() if name not in silent}
        admitted = dict.fromkeys(heard, 0.0)
        for tick in range(1, TICKS + 1):
            time = self.slot + (tick - 0.5) / TICKS
            self.hear(self.ledger.serve(time))
            for name, wanted in heard.items():
                pending = int(wanted * tick / TICKS) - admitted[name]
                if pending > self.credit(name):
                    self.ask(time, name, int(pending - self.credit(name)))
                spent = min(pending, int(self.credit(name) + 1e-6))
                self.consumed[name] += spent
                admitted[name] += spent
                if spent:
                    self.ask(time, name, int(pending - spent))
            if tick == TICKS // 2:
                self.ledger.assign(self.slot)
                for name in self.names:
                    self.hear({name: self.ledger.quota(self.slot, name)})
        for name, wanted in heard.items():
            self.rejected[name] += int(wanted - admitted[name])
        self.slot += 1
        return admitted

    def run(self, slots: int, demand: float) -> list[float]:
        """The same demand on all nodes: what the fleet admitted in each slot."""
        even = {name: demand / len(self.names) for name in self.names}
        return [sum(self.step(even).values()) for _ in range(slots)]

    def ask(self, time: float, name: str, requests: int) -> None:
        credit = Credit(self.granted[name], self.returned[name], self.consumed[name], 1.0)
        users = {"front": {self.user: UserAsk(requests, {self.resource: credit})}}
        self.hear(self.ledger.ask(time, Ask(name, 1, time, users)))

    def hear(self, quotas: dict[str, dict[str, ServiceQuota]]) -> None:
        for name, services in quotas.items():
            shares = services["front"].users.get(self.user, {})
            if self.resource in shares:
                told = shares[self.resource].granted
                self.granted[name] = max(self.granted[name], told)

    def credit(self, name: str) -> float:
        return self.granted[name] - self.returned[name] - self.consumed[name]

    def safe(self, name: str) -> float:
        """The safe share of the slot that comes next."""
        shares = self.ledger.quota(self.slot - 1, name)["front"].users
        return shares[self.user][self.resource].safe

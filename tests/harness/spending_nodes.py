"""Nodes that spend all they are given, for tests of the ledger alone."""

from sluicegate.quota.ledger.ledger import Ledger
from sluicegate.quota.ledger.limit_entry import Entry
from sluicegate.quota.messages import Ask, Line, Report

START = 1000


def entry(user: str = "u", *, burst_seconds: float = 10.0, **rates: float) -> Entry:
    return Entry("front", user, burst_seconds=burst_seconds, rates=rates or {"r": 100.0})


class Fleet:
    """`count` nodes in front of a ledger, one user and one resource, slot after slot."""

    def __init__(self, ledger: Ledger, count: int, *, user: str = "u", resource: str = "r") -> None:
        self.ledger = ledger
        self.user = user
        self.resource = resource
        self.slot = START
        self.names = [f"node-{i}" for i in range(count)]
        self.consumed = dict.fromkeys(self.names, 0.0)
        self.rejected = dict.fromkeys(self.names, 0)
        self.quota: dict[tuple[str, int], float] = {}
        for name in self.names:
            ledger.book(START, self.report(name))

    def report(self, name: str, *, held: float = 0.0) -> Report:
        line = Line(self.consumed[name], self.rejected[name], int(self.consumed[name]), 0.0, held)
        lines = {"front": {self.user: {self.resource: line}}} if self.slot > START else {}
        return Report(name, 1, self.slot - START + 1, 1, 0, self.slot - 1, 0.0, lines)

    def step(self, demand: dict[str, float], *, silent: tuple[str, ...] = ()) -> dict[str, float]:
        """One slot: report, spend, assign. What each node admitted of its demand."""
        admitted = {}
        for name in self.names:
            if name not in silent:
                self.ledger.book(self.slot, self.report(name))
        for name, wanted in demand.items():
            if name in silent:
                continue
            if (name, self.slot) not in self.quota:
                asked = Ask(name, 1, self.slot, 0.0, {"front": [self.user]})
                for slot, services in self.ledger.ask(self.slot, asked).items():
                    self.take(name, slot, services["front"].users)
            may = int(self.quota.get((name, self.slot), 0.0) + 1e-6)
            admitted[name] = min(wanted, may)
            self.consumed[name] += admitted[name]
            self.rejected[name] += int(wanted - admitted[name])
        self.ledger.assign(self.slot)
        for name in self.names:
            self.take(name, self.slot + 1, self.ledger.quota(self.slot, name)["front"].users)
        self.slot += 1
        return admitted

    def run(self, slots: int, demand: float) -> list[float]:
        """The same demand on all nodes: what the fleet admitted in each slot."""
        even = {name: demand / len(self.names) for name in self.names}
        return [sum(self.step(even).values()) for _ in range(slots)]

    def take(self, name: str, slot: int, users: dict) -> None:
        if self.user in users and self.resource in users[self.user]:
            self.quota[name, slot] = users[self.user][self.resource].amount

    def given(self, slot: int) -> float:
        return sum(amount for (_, of), amount in self.quota.items() if of == slot)

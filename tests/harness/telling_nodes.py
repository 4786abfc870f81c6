"""Nodes that tell the ledger their totals, one step at a time, for tests of its credit."""

from sluicegate.quota.ledger.ledger import Ledger
from sluicegate.quota.messages import Ask, Credit, Hint, Line, Report, UserAsk
from tests.harness.spending_nodes import START, entry

T0 = float(START)
NODES = ("a", "b", "c")


class Teller:
    """A node of one user, as honest as can be: it knows its totals, and says them."""

    def __init__(self, ledger: Ledger, name: str, *, cost: float = 1.0, resources=("r",)) -> None:
        self.ledger = ledger
        self.name = name
        self.boot = 1
        self.sequence = 0
        self.costs = dict.fromkeys(resources, cost)
        self.granted = dict.fromkeys(resources, 0.0)
        self.returned = dict.fromkeys(resources, 0.0)
        self.used = dict.fromkeys(resources, 0.0)
        self.hint: Hint | None = None
        self.sent = T0

    def message(self, time: float, requests: int = 0, *, waits: bool = False) -> Ask:
        resources = {
            name: Credit(self.granted[name], self.returned[name], self.used[name], cost)
            for name, cost in self.costs.items()
        }
        return Ask(
            self.name, self.boot, time, {"front": {"u": UserAsk(requests, resources, waits)}}
        )

    def report(self, slot: int, *, held: float = 0.0, **options: object) -> Report:
        self.sequence += 1
        lines = {
            name: Line(
                self.used[name] - held,
                0,
                int(self.used[name]),
                0.0,
                held,
                self.granted[name],
                self.returned[name],
            )
            for name in self.costs
        }
        return Report(
            self.name,
            self.boot,
            self.sequence,
            1,
            0,
            slot,
            slot + 1.0,
            {"front": {"u": lines}},
            **options,
        )

    def hear(self, answers: dict) -> None:
        for service in answers.get(self.name, {}).values():
            for resource, share in service.users.get("u", {}).items():
                self.granted[resource] = max(self.granted[resource], share.granted)
            self.hint = service.hints.get("u", self.hint)

    def credit(self, resource: str = "r") -> float:
        return self.granted[resource] - self.returned[resource] - self.used[resource]


class Cluster:
    """Nodes in front of a ledger; whatever the ledger says is heard at once."""

    def __init__(self, ledger: Ledger, names=NODES, *, cost: float = 1.0, resources=("r",)) -> None:
        self.ledger = ledger
        self.slot = START
        self.nodes = {name: Teller(ledger, name, cost=cost, resources=resources) for name in names}
        for node in self.nodes.values():
            ledger.book(START, Report(node.name, 1, 0, 1, 0, START - 1, 0.0, {}))

    def hear(self, answers: dict) -> dict:
        for node in self.nodes.values():
            node.hear(answers)
        return answers

    def ask(self, time: float, name: str, requests: int = 0, *, waits: bool = False) -> float:
        """What the node was granted by it."""
        node = self.nodes[name]
        before = node.granted["r"]
        self.hear(self.ledger.ask(time, node.message(time, requests, waits=waits)))
        return node.granted["r"] - before

    def drain(self, name: str) -> None:
        """The node is granted the whole bucket, and uses it at once."""
        self.ask(T0, name, 1_000_000)
        self.nodes[name].used = dict(self.nodes[name].granted)
        self.ask(T0, name)

    def serve(self, time: float) -> dict[str, float]:
        before = {name: node.granted["r"] for name, node in self.nodes.items()}
        self.hear(self.ledger.serve(time))
        return {
            name: node.granted["r"] - before[name]
            for name, node in self.nodes.items()
            if node.granted["r"] > before[name]
        }

    def end_slots(self, until: int, silent: tuple[str, ...] = ()) -> None:
        """Book the reports of the slots up to `until`, and assign."""
        for slot in range(self.slot + 1, until + 1):
            for name, node in self.nodes.items():
                if name not in silent:
                    self.ledger.book(slot, node.report(slot - 1))
            self.ledger.assign(slot)
            self.slot = slot

    def recalls(self, until: float) -> list[tuple[float, str]]:
        """Serve those that wait; (seconds from the start, node) of each recall."""
        seen = []
        while (time := self.ledger.serve_due()) < until:
            for name, services in self.hear(self.ledger.serve(time)).items():
                if services["front"].hints["u"].recall:
                    seen.append((round(time - T0, 2), name))
        return seen

    def available(self, time: float, resource: str = "r") -> float:
        value = self.ledger.available("front", "u", resource, time)
        assert value is not None
        return value


def cluster(rate: float = 100.0, burst_seconds: float = 1.0, **options) -> Cluster:
    return Cluster(Ledger([entry(r=rate, burst_seconds=burst_seconds)]), **options)

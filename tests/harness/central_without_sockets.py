"""A central without its websockets: a real ledger, limits sync and API, and a manual clock."""

from dataclasses import dataclass, field

from starlette.applications import Starlette

from sluicegate.quota import CentralState, Ledger
from sluicegate.quota.central.http.api import routes
from sluicegate.quota.central.http.metrics import CentralMetrics
from sluicegate.quota.central.http.responses import exception_handlers
from sluicegate.quota.central.leadership import SoleLeadership
from sluicegate.quota.central.limit_sources import open_source
from sluicegate.quota.central.limit_sources.sync import LimitsSync
from sluicegate.quota.central.warm_up import WarmUp
from sluicegate.quota.messages import Line, Report

__all__ = ["Connected", "SocketlessCentral"]

START = 1_000.0  # of the monotonic clock, when slot 100 is a little more than half over


@dataclass
class Connected:
    node: str | None
    kind: str = "sluicegate.v1"
    address: str = "127.0.0.1:50000"
    since: float = 1_800_000_000.0
    frames: int = 3
    last_slot: int | None = None
    quota_sent: float | None = None


@dataclass
class SocketlessCentral:
    """`limits` as for a central. Slots are `slot_seconds` long; the first is slot 100."""

    limits: object
    slot_seconds: float = 1.0
    name: str = "central-1"
    started: float = 1_800_000_000.0
    metrics: CentralMetrics = field(default_factory=CentralMetrics)
    connected: list[Connected] = field(default_factory=list)

    def __post_init__(self) -> None:
        ledger = Ledger(slot_seconds=self.slot_seconds)
        self.limits_sync = LimitsSync(open_source(self.limits), ledger)  # type: ignore[arg-type]
        self.limits_sync.load_initial()
        self.time = START
        wall = 100.6 * self.slot_seconds
        self.state = CentralState(self.name, ledger, now=self.time, wall=wall)
        self.state.lead(self.time, 7)
        self.leadership = SoleLeadership(self.state)
        self.warm_up = WarmUp(self.time, self.slot_seconds)
        self.app = Starlette(routes=routes(self), exception_handlers=exception_handlers())
        self._totals: dict[tuple[str, str, str, str], list[float]] = {}
        self._sequences: dict[str, int] = {}

    def now(self) -> float:
        return self.time

    def connections(self) -> list[Connected]:
        return self.connected

    def slot(self, traffic: dict[tuple[str, str, str, str], tuple[float, int]]) -> None:
        """The slot ends: (node, service, user, resource) -> consumed and refused in it.

        The nodes report, and the middle of the next slot passes.
        """
        slot = self.state.slot(self.time)
        nodes = {key[0] for key in traffic} | {each.node for each in self.connected if each.node}
        for node in nodes - self._sequences.keys():
            self.state.receive(self.time, self._report(node, slot - 1, {}))
        self.time += self.slot_seconds * 0.5
        for node in nodes:
            self.state.receive(self.time, self._report(node, slot, traffic))
        self.time += self.slot_seconds * 0.5
        self.state.tick(self.time)
        self.metrics.record_slot(self, slot)

    def _report(
        self, node: str, slot: int, traffic: dict[tuple[str, str, str, str], tuple[float, int]]
    ) -> Report:
        lines: dict[str, dict[str, dict[str, Line]]] = {}
        for (of_node, service, user, resource), (consumed, refused) in traffic.items():
            if of_node != node:
                continue
            total = self._totals.setdefault((node, service, user, resource), [0.0, 0.0])
            total[0] += consumed
            total[1] += refused
            line = Line(total[0], int(total[1]), int(total[0]), 0.0, 0.0)
            lines.setdefault(service, {}).setdefault(user, {})[resource] = line
        sequence = self._sequences[node] = self._sequences.get(node, 0) + 1
        return Report(node, 1, sequence, 7, sequence - 1, slot, self.time, lines)

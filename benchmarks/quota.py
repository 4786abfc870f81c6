"""A service ledger: an assignment, its growth, the booking of reports, memory; the simulator.

Users ask the nodes for three times their limits. The nodes' demands differ (a fifth each want
0.2, 0.5, 1, 3 and 10.3 times an even share), so that an assignment takes several rounds to find
the level up to which every node gets what it wants. Before each of them every node reports every
cell anew: no cell is idle. What an assignment gives our own nodes are their safe shares; credit is
granted when they ask (`benchmarks.asking`).

Only `assign` (or the booking) is timed. Times are of the thread; amounts are in requests.
"""

import gc
import math
import os
import resource
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

from benchmarks.classic import ClassicBook
from benchmarks.harness import Row, Times, in_fresh_process
from sluicegate.quota.ledger._node_table import NodeTable
from sluicegate.quota.ledger._service_ledger import ServiceLedger
from sluicegate.quota.messages import Line
from sluicegate.sim import load, run

NOTES = (
    "Times are of the thread, per cell, the best of several slots (of five runs: the simulator)."
)
NODES = [f"node-{number}" for number in range(50)]
RESOURCES = ["requests", "bytes_in", "bytes_out", "reads"]
USER_CELLS = len(NODES) * len(RESOURCES)
RATE = 1000.0  # per slot: an even share of a node is 20
CAPACITY = 10 * RATE
CELL_BYTES = 150  # what must be free to measure a cell, some to spare

Value = TypeVar("Value")

Report = dict[str, dict[str, Line]]
Counts = dict[str, dict[str, float]]


class Demand(NamedTuple):
    """What a node counts in each slot, of every user and resource."""

    consumed: int
    rejected: int


# A level of 33 takes the limit of 1,000 up: 10 nodes of each kind.
DEMANDS = [Demand(4, 0), Demand(10, 0), Demand(20, 0), Demand(33, 27), Demand(33, 173)]


def rows(cells: int = 10**6, sizes: tuple[int, ...] = (10**4, 10**5, 10**6, 10**7)) -> list[Row]:
    return [
        *assignment(cells, cells // 50),
        *growth(sizes, free_bytes()),
        *booking(cells // 10),
        *memory(cells),
        *simulator(),
    ]


def demand_of(number: int) -> Demand:
    return DEMANDS[number % len(DEMANDS)]


class Overloaded:
    """A service ledger with so many cells, slot after slot."""

    def __init__(self, cells: int) -> None:
        if cells % USER_CELLS:
            raise ValueError(f"cells must be a multiple of {USER_CELLS}, got {cells!r}")
        self._nodes = NodeTable()
        for node in NODES:
            self._nodes.add(node, 0)
        self.ledger = ServiceLedger(
            self._nodes, "fair", lambda user, name: (RATE, CAPACITY, 1), first=1
        )
        self._users = [f"user:{number}" for number in range(cells // USER_CELLS)]
        self.slot = 0  # the last that was reported

    def report(self) -> None:
        """All nodes report. Reports share their lines: millions of tuples would take minutes."""
        reports = []
        for demand in DEMANDS:
            line = self._line(demand)
            reports.append(dict.fromkeys(self._users, dict.fromkeys(RESOURCES, line)))
        self.record([reports[number % len(DEMANDS)] for number in range(len(NODES))])

    def own_reports(self) -> list[Report]:
        """Of the next slot, with strings of their own as they come out of a decoder."""
        return [
            own_keys(self._users, self._line(demand_of(number))) for number in range(len(NODES))
        ]

    def _line(self, demand: Demand) -> Line:
        slots = self.slot + 1
        consumed = slots * demand.consumed
        granted = consumed + 1.0
        return Line(float(consumed), slots * demand.rejected, consumed, 0.0, 0.0, granted)

    def record(self, reports: list[Report]) -> None:
        self.slot += 1
        for node, lines in zip(NODES, reports, strict=True):
            self.ledger.deduct(self.ledger.record(node, self.slot, lines, is_known=True))
            self._nodes.add(node, self.slot)

    def assign(self) -> None:
        self.ledger.assign(self.slot + 1)


class ClassicOverloaded:
    """The classic book under the same demand."""

    def __init__(self, cells: int) -> None:
        self.book = ClassicBook(RATE, CAPACITY)
        self._users = [f"user:{number}" for number in range(cells // USER_CELLS)]
        self.slot = 0

    def own_reports(self) -> list[tuple[Counts, Counts]]:
        demands = [demand_of(number) for number in range(len(NODES))]
        return [
            (
                own_keys(self._users, float(demand.consumed)),
                own_keys(self._users, float(demand.rejected)) if demand.rejected else {},
            )
            for demand in demands
        ]

    def report(self) -> None:
        self.record(self.own_reports())

    def record(self, reports: list[tuple[Counts, Counts]]) -> None:
        self.slot += 1
        for node, (consumption, rejection) in zip(NODES, reports, strict=True):
            self.book.record(node, self.slot, consumption, rejection)

    def assign(self) -> None:
        self.book.assign(self.slot + 1)


def own_keys(users: list[str], value: Value) -> dict[str, dict[str, Value]]:
    """Equal strings that are not identical; names of resources are one per report."""
    names = [f"{name} "[:-1] for name in RESOURCES]
    return {f"{user} "[:-1]: dict.fromkeys(names, value) for user in users}


def timed(act: Callable[[], object], cells: int) -> Times:
    """Nanoseconds per cell."""
    gc.disable()
    try:
        wall, thread = time.perf_counter_ns(), time.thread_time_ns()
        act()
        thread, wall = time.thread_time_ns() - thread, time.perf_counter_ns() - wall
    finally:
        gc.enable()
    return Times(thread / cells, wall / cells)


def assign_time(subject: Overloaded | ClassicOverloaded, cells: int) -> float:
    subject.report()
    return timed(subject.assign, cells).thread


def assignment(cells: int, peer_cells: int) -> list[Row]:
    ours, peer = Overloaded(cells), ClassicOverloaded(peer_cells)
    best = best_peer = math.inf
    for _ in range(10):
        best = min(best, assign_time(ours, cells))
        best_peer = min(best_peer, assign_time(peer, peer_cells))
    users = cells // USER_CELLS
    return [
        Row(
            f"assignment alone, 50 nodes x {users:,} users x 4 resources",
            f"{best:.1f} ns",
            f"{best_peer:.0f} ns (classic rule on dicts, {peer_cells:,} cells)",
            best_peer / best,
            f"{best_peer / best:.0f} x faster",
            "<= 30 ns",
            best <= 30,
        )
    ]


def growth(sizes: tuple[int, ...], free: int) -> list[Row]:
    """The time per cell for each size that fits into the `free` bytes, smallest first.

    The second smallest is the yardstick: the smallest may fit into the processor's cache.
    """
    sizes = tuple(sorted(sizes))
    times: dict[int, float] = {}
    for cells in sizes:
        if cells * CELL_BYTES <= free:
            subject = Overloaded(cells)
            slots = max(5, min(50, 5 * 10**6 // cells))
            times[cells] = min(assign_time(subject, cells) for _ in range(slots))
            del subject  # before the next one is made
    return [growth_row(cells, times, sizes[1], is_largest=cells == sizes[-1]) for cells in sizes]


def growth_row(cells: int, times: dict[int, float], yardstick: int, *, is_largest: bool) -> Row:
    what = f"assignment, {cells:,} cells"
    if cells not in times:
        gigabytes = cells * CELL_BYTES / 1e9
        return Row(what, f"left out: needs {gigabytes:.1f} GB free", "", None, "", "<= 2 x", None)
    ours, itself = times[cells], times[yardstick]
    return Row(
        what,
        f"{ours:.1f} ns",
        f"{itself:.1f} ns (itself, {yardstick:,} cells)",
        ours / itself,
        f"{ours / itself:.2f} x",
        "<= 2 x" if is_largest else "",
        ours <= 2 * itself if is_largest else None,
    )


def free_bytes() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * resource.getpagesize()


def booking(cells: int) -> list[Row]:
    """`record` and `deduct`, from dicts whose strings the service ledger has not seen."""
    ours, peer = Overloaded(cells), ClassicOverloaded(cells)
    ours.report()
    peer.report()
    best = best_peer = math.inf
    for _ in range(5):
        reports, peer_reports = ours.own_reports(), peer.own_reports()
        best = min(best, timed(partial(ours.record, reports), cells).thread)
        ours.assign()
        took = timed(partial(peer.record, peer_reports), cells).thread
        best_peer = min(best_peer, took)
        peer.assign()
    ratio = best_peer / best
    return [
        Row(
            f"booking reports, {cells:,} cells",
            f"{best:.0f} ns",
            f"{best_peer:.0f} ns (the same on dicts)",
            ratio,
            f"{ratio:.1f} x faster",
            "",
            None,
        )
    ]


def memory(cells: int) -> list[Row]:
    new, old = in_fresh_process(
        f"import json; from benchmarks.quota import bytes_per_cell; "
        f"print(json.dumps(bytes_per_cell({cells})))"
    )
    what = f"memory per live cell, {cells:,} cells"
    return [
        Row(what, f"{new:.0f} B", "", None, "", "<= 100 B", new <= 100),
        Row(f"{what}, and 60 slots of history", f"{old:.0f} B", "", None, "", "", None),
    ]


def bytes_per_cell(cells: int) -> tuple[float, float]:
    """What the process has grown by, after a few slots and when its history is full."""
    subject = Overloaded(cells)
    gc.collect()
    before = resident_bytes()
    grown = []
    for slots in (4, 60):
        for _ in range(slots):
            subject.report()
            subject.assign()
        gc.collect()
        grown.append((resident_bytes() - before) / cells)
    return grown[0], grown[1]


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def simulator(seconds: float = 120.0) -> list[Row]:
    """Whole runs with all invariants checked; the quiet slots after the traffic not counted."""
    scenario = replace(load("overload-3x"), seconds=seconds)
    best = min(timed(partial(run, scenario), 1).thread for _ in range(5))
    per_second = seconds / scenario.slot_seconds / (best / 1e9)
    what = "simulator, slots of a cluster of 10 nodes (overload-3x)"
    return [Row(what, f"{per_second:,.0f}/s", "", None, "", ">= 1,000/s", per_second >= 1000)]

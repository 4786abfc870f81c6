"""The central's capacity: a report in, booked, assigned, a quota out.

50 nodes report 5,000 users with 4 resources each, every one of them in every slot, under the
demand of `benchmarks.quota`: three times the limits. Beside us is the way of a classic central,
in the same run and of the same size: JSON of the standard library, dicts, the rule of six and four
tenths. The frames of the nodes are written beforehand; everything the central does with them is
timed, one node after the other as they come. What asks cost is in `benchmarks.asking`; a central
with a thousand connected nodes that report and ask is in `benchmarks.thousand_nodes`.

A cell is one (node, user, resource) in one slot. Times are of the thread, in nanoseconds per cell.
The names of users and resources are known from the slot before: what a slot costs is what counts.
"""

import gc
import json
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

import orjson

from benchmarks import asking, changing_users
from benchmarks.classic import ClassicBook
from benchmarks.harness import Row
from benchmarks.quota import CAPACITY, NODES, RATE, RESOURCES, demand_of
from benchmarks.thousand_nodes import measure
from sluicegate.quota import Entry, Ledger
from sluicegate.quota.messages import Ask, Line, Quota, Report
from sluicegate.quota.wire import CentralWire, NodeWire
from sluicegate.quota.wire.json_frames import write_classic

NOTES = "Times are of the thread, per cell, of the best of several slots."
START = 1_800_000_000
SLOTS = 6
CLASSIC_SLOTS = 3

Kind: TypeAlias = Literal["binary", "JSON", "classic JSON"]
Counts: TypeAlias = dict[str, dict[str, dict[str, int]]]
Value = TypeVar("Value")


class Stages(NamedTuple):
    """What one slot cost, in nanoseconds per cell; and bytes, per cell, in and out."""

    read: float
    book: float
    assign: float
    write: float
    bytes_in: float
    bytes_out: float

    @property
    def total(self) -> float:
        return self.read + self.book + self.assign + self.write


class Clock:
    """Thread time of the stages of a slot."""

    def __init__(self) -> None:
        self.spent = dict.fromkeys(("read", "book", "assign", "write"), 0)

    def time(self, stage: str, act: Callable[[], Value]) -> Value:
        begin = time.thread_time_ns()
        value = act()
        self.spent[stage] += time.thread_time_ns() - begin
        return value

    def stages(self, cells: int, bytes_in: int, bytes_out: int) -> Stages:
        spent = {stage: value / cells for stage, value in self.spent.items()}
        return Stages(**spent, bytes_in=bytes_in / cells, bytes_out=bytes_out / cells)


class Subject(Protocol):
    def run_slot(self) -> Stages: ...


def rows(users: int = 5_000) -> list[Row]:
    ours: dict[Kind, Stages] = {}
    kinds: tuple[Kind, ...] = ("binary", "JSON", "classic JSON")
    for kind in kinds:
        ours[kind] = best(OurCentral(kind, users), SLOTS)
    peer = best(ClassicCentral(users), CLASSIC_SLOTS)
    size = f"{len(NODES)} nodes x {users:,} users x {len(RESOURCES)} resources"
    return [
        *(capacity(f"{kind}, {size}", ours[kind], peer, _GOALS[kind]) for kind in kinds),
        *(row for kind in kinds for row in stages(kind, ours[kind], peer)),
        *asking.rows(),
        *connected(),
        changing_users.row(),
    ]


class _Before(NamedTuple):
    """The same before there was credit: a share for each slot, and no asks.

    Measured on 2026-11-17 in turns with ours, on the same quiet machine: the middle of three runs.
    """

    waited: str = "1, 11 ms"
    frames: float = 3.0
    milliseconds: float = 0.18


def connected(nodes: int = 1000, users: int = 100, slots: int = 25) -> list[Row]:
    """A real central with real connections."""
    with tempfile.TemporaryDirectory() as directory:
        answers = measure(directory, nodes=nodes, users=users, slots=slots)
    what = f"{nodes:,} connected nodes x {users} users, 1 s slots, central on one core, {slots} s"
    rows = []
    before = _Before()
    for kind, seconds, peer in (
        ("reports", answers.acks, f"{before.waited} (before)"),
        ("asks", answers.answers, ""),
    ):
        half, last = answers.part(seconds, 0.5), answers.part(seconds, 0.99)
        told = f"{half * 1e3:.0f}, {last * 1e3:.0f} ms"
        what_kind = f"{what}: answers to {kind}, p50 and p99"
        rows.append(Row(what_kind, told, peer, None, "", "<= 100 ms", last <= 0.1))
    missed = answers.missed
    milliseconds = answers.busy / nodes * 1e3
    return [
        *rows,
        Row(f"{what}: reports and quotas missed", str(missed), "0", None, "", "0", missed == 0),
        Row(
            f"{what}: frames per node and second, both ways",
            f"{answers.frames:.1f}",
            f"{before.frames:.1f} (before)",
            answers.frames / before.frames,
            f"{answers.frames / before.frames:.1f} x",
            "",
            None,
        ),
        Row(
            f"{what}: processor time of the central per node and second",
            f"{milliseconds:.2f} ms",
            f"{before.milliseconds:.2f} ms (before)",
            milliseconds / before.milliseconds,
            f"{milliseconds / before.milliseconds:.1f} x",
            "",
            None,
        ),
    ]


_GOALS: dict[Kind, float | None] = {"binary": 30, "JSON": 8, "classic JSON": None}


def capacity(what: str, ours: Stages, peer: Stages, least: float | None) -> Row:
    ratio = peer.total / ours.total
    return Row(
        f"report in, booked, assigned, quota out: {what}",
        f"{ours.total:.0f} ns",
        f"{peer.total:.0f} ns (classic way)",
        ratio,
        f"{ratio:.1f} x faster",
        "" if least is None else f">= {least:g} x",
        None if least is None else ratio >= least,
    )


def stages(kind: Kind, ours: Stages, peer: Stages) -> list[Row]:
    return [
        Row(
            f"{kind}: read, book, assign, write",
            " + ".join(f"{value:.0f}" for value in ours[:4]) + " ns",
            " + ".join(f"{value:.0f}" for value in peer[:4]) + " ns",
            None,
            "",
            "",
            None,
        ),
        Row(
            f"{kind}: bytes of a report, of a quota",
            f"{ours.bytes_in:.1f}, {ours.bytes_out:.1f} B",
            f"{peer.bytes_in:.1f}, {peer.bytes_out:.1f} B",
            None,
            "",
            "",
            None,
        ),
    ]


def best(subject: Subject, slots: int) -> Stages:
    """Of several slots after the first, which makes everything known."""
    subject.run_slot()
    return min((subject.run_slot() for _ in range(slots)), key=lambda told: told.total)


def quietly(act: Callable[[], Stages]) -> Stages:
    gc.collect()
    gc.disable()
    try:
        return act()
    finally:
        gc.enable()


class OurCentral:
    """A ledger, and a wire for each node."""

    def __init__(self, kind: Kind, users: int) -> None:
        self._kind = kind
        rates = dict.fromkeys(RESOURCES, RATE)
        entry = Entry("front", "*", rates=rates, burst_seconds=CAPACITY / RATE)
        self._ledger = Ledger([entry])
        self._users = [f"user:{number}" for number in range(users)]
        self._cells = len(NODES) * users * len(RESOURCES)
        self._nodes = [NodeWire(binary=kind == "binary") for _ in NODES]
        self._wires = [CentralWire() for _ in NODES]
        self._slot = 0

    def run_slot(self) -> Stages:
        self._slot += 1
        frames = [self._frame(number) for number in range(len(NODES))]
        if self._kind == "classic JSON":
            return quietly(lambda: self._run_classic(frames))
        return quietly(lambda: self._run(frames))

    def _frame(self, number: int) -> bytes | str:
        demand = demand_of(number)
        if self._kind == "classic JSON":
            return classic_frame(number, self._users, START + self._slot)
        slots = self._slot
        consumed = slots * demand.consumed
        line = Line(
            float(consumed),
            slots * demand.rejected,
            consumed,
            float(consumed - demand.consumed),
            0.0,
            granted=consumed + 1.0,
        )
        lines = {"front": dict.fromkeys(self._users, dict.fromkeys(RESOURCES, line))}
        report = Report(NODES[number], 1, slots, 1, slots - 1, START + slots - 1, 0.0, lines)
        return self._nodes[number].write(report)

    def _run(self, frames: list[bytes | str]) -> Stages:
        clock, slot, ledger = Clock(), START + self._slot, self._ledger
        for frame, wire in zip(frames, self._wires, strict=True):
            report = clock.time("read", partial(wire.read, frame))
            clock.time("book", partial(self._booked, report, slot))
        clock.time("assign", lambda: ledger.assign(slot))
        size = 0
        for node, wire in zip(NODES, self._wires, strict=True):
            size += clock.time("write", partial(self._told, wire, node, slot))
        return clock.stages(self._cells, sum(map(len, frames)), size)

    def _booked(self, report: Report | Ask, slot: int) -> None:
        assert isinstance(report, Report)
        self._ledger.book(slot, report)

    def _told(self, wire: CentralWire, node: str, slot: int) -> int:
        services = self._ledger.quota(slot, node)
        version = self._ledger.version
        quota = Quota("central", 1, version, slot + 1, 0.5, 50, True, 0.05, services)
        return len(wire.write(quota))

    def _run_classic(self, frames: list[bytes | str]) -> Stages:
        clock, slot, ledger = Clock(), START + self._slot, self._ledger
        size = 0
        for frame in frames:
            report = clock.time("read", partial(orjson.loads, frame))
            clock.time("book", partial(_book_classic, ledger, slot, report))
        clock.time("assign", lambda: ledger.assign(slot))
        for node in NODES:
            size += clock.time("write", partial(_classic_size, ledger, slot, node))
        return clock.stages(self._cells, sum(map(len, frames)), size)


def _book_classic(ledger: Ledger, slot: int, report: dict[str, Any]) -> None:
    consumption, rejection = report["consumption"], report["rejection"]
    ledger.book_classic(slot, report["node_id"], slot, consumption, rejection)


def _classic_size(ledger: Ledger, slot: int, node: str) -> int:
    return len(write_classic(ledger.quota(slot + 1, node), slot + 2))


def classic_frame(number: int, users: Iterable[str], slot: int) -> str:
    demand = demand_of(number)

    def counts(value: int) -> Counts:
        return {"front": dict.fromkeys(users, dict.fromkeys(RESOURCES, value))}

    return json.dumps(
        {
            "node_id": NODES[number],
            "slot_number": slot,
            "consumption": counts(demand.consumed),
            "rejection": counts(demand.rejected) if demand.rejected else {},
        }
    )


class ClassicCentral:
    """The classic way: the standard library's JSON, and dicts."""

    def __init__(self, users: int) -> None:
        self._book = ClassicBook(RATE, CAPACITY)
        self._users = [f"user:{number}" for number in range(users)]
        self._cells = len(NODES) * users * len(RESOURCES)
        self._slot = 0

    def run_slot(self) -> Stages:
        self._slot += 1
        slot = START + self._slot
        frames = [classic_frame(number, self._users, slot) for number in range(len(NODES))]
        return quietly(lambda: self._run(frames, slot))

    def _run(self, frames: list[str], slot: int) -> Stages:
        clock = Clock()
        for frame in frames:
            report = clock.time("read", partial(json.loads, frame))
            clock.time("book", partial(self._record, report))
        clock.time("assign", lambda: self._book.assign(slot))
        size = 0
        for node in NODES:
            size += clock.time("write", partial(self._told, node, slot))
        return clock.stages(self._cells, sum(map(len, frames)), size)

    def _record(self, report: dict[str, Any]) -> None:
        consumption = report["consumption"].get("front", {})
        rejection = report["rejection"].get("front", {})
        self._book.record(report["node_id"], report["slot_number"] - 1, consumption, rejection)

    def _told(self, node: str, slot: int) -> int:
        quota = self._book.quota[slot + 1].get(node, {})
        return len(json.dumps({"front": {str(slot + 1): quota}}))

"""Random clusters in which something goes wrong: any fault on top of any cluster.

`draw(seed)` takes a random cluster (random_clusters.py) and one fault, or in two of five runs a
second one within ten seconds: faults hurt most where the state of a central is older than its
nodes. In one of three runs there are three centrals, and the first fault is that of their leader:
another one takes over. What is measured begins a second before the first fault and ends twenty
seconds after the last one (and the length of a request).

    missed    seconds of the limit that passed less than one perfect bucket lets through
    excess    seconds of the limit that any window held more than limit * window + burst

Seconds of the limit, and not parts of the run: what a fault costs does not depend on how long is
measured. Clusters that are far from one bucket without any fault are left out: those of requests
that cannot wait where limits are thin, and of buckets that hold less than three requests.

    rows = run_many(range(60), jobs=2)
    print(table(rows))
"""

import math
import random
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from sluicegate.sim import random_clusters
from sluicegate.sim.audit import InvariantBroken
from sluicegate.sim.measures import STEPS
from sluicegate.sim.random_clusters import Facts
from sluicegate.sim.runner import Result, run
from sluicegate.sim.scenario import Scenario, read

__all__ = [
    "KINDS",
    "FaultyCluster",
    "Row",
    "bound_of",
    "draw",
    "is_within",
    "run_many",
    "run_one",
    "table",
]


@dataclass(slots=True, frozen=True)
class _Kind:
    """A kind of fault, and what it may cost in seconds of the limit."""

    about: str
    missed: float
    excess: float
    is_outage: bool = False  # nodes live on their shares as long as it lasts
    is_cut: bool = False  # and others have all of the limit meanwhile
    loses_savings: bool = False  # a bucket begins with a slot's refill
    is_takeover: bool = False  # of three centrals, another one leads afterwards


# The first that a run has says which row of a summary it belongs to.
KINDS = {
    "leader killed": _Kind(
        "of three centrals the leader crashes", 1.0, 0.5, True, is_takeover=True
    ),
    "leader frozen": _Kind(
        "of three centrals the leader stands still", 1.0, 0.5, True, is_takeover=True
    ),
    "leader cut off": _Kind(
        "of three centrals the leader is heard by nobody", 1.0, 0.5, True, is_takeover=True
    ),
    "leader stopped": _Kind(
        "of three centrals the leader stops in good order", 1.0, 0.5, is_takeover=True
    ),
    "central loses books": _Kind(
        "the central crashes, and is back without its disk", 2.0, 1.0, True, loses_savings=True
    ),
    "nodes replaced": _Kind("all nodes leave, and as many join", 2.0, 0.5),
    "old state": _Kind("the central is back with a state of up to 10 s before", 2.0, 1.0, True),
    "central crash": _Kind("the central crashes, and is back with its disk", 1.0, 0.5, True),
    "central freeze": _Kind("the central stands still", 1.0, 0.5, True),
    "partition": _Kind("a third of the nodes is cut off", 1.5, 0.5, True, is_cut=True),
    "network": _Kind("a twentieth of all messages is lost, late or doubled, each", 1.0, 0.5),
    "node loses memory": _Kind("a node crashes, and begins anew", 1.0, 0.5),
    "node crash": _Kind("a node crashes, and goes on where it was", 2.0, 0.5),
    "node freeze": _Kind("a node stands still", 1.0, 0.5),
    "leave": _Kind("a node stops in good order", 2.0, 0.5),
    "join": _Kind("nodes join", 1.0, 0.5),
}

_HARD = ("rare, no wait", "thin, no wait, small burst", "thin, no wait", "small bucket")
_MOST_CLUSTERS = 1_000_000
_MOST_NODES = 20  # a run of more takes too long
_SECOND = 0.4  # of all runs have a second fault
_TAKEOVERS = 1.0 / 3.0  # of all runs have three centrals, whose leader changes
_TAKEOVER_SECONDS = 3.0  # until another central leads
_AFTER_SECONDS = 20.0
_REQUESTS = 2.0  # more or less are no miss: a run may have few of them


@dataclass(slots=True, frozen=True)
class FaultyCluster:
    """A cluster that was drawn, the kinds of its faults, and the scenario."""

    seed: int
    facts: Facts
    kinds: tuple[str, ...]
    lasting: float  # seconds of the longest fault
    text: str
    scenario: Scenario

    def __str__(self) -> str:
        return f"{', then '.join(self.kinds)}\n{self.facts}"


@dataclass(slots=True, frozen=True)
class Row:
    """One run and what came of it. The figures are None if an invariant broke."""

    seed: int
    kinds: tuple[str, ...]
    lasting: float
    facts: Facts
    missed: float | None = None
    excess: float | None = None
    unrecorded: float = 0.0
    broken: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def draw(seed: int) -> FaultyCluster:
    """The cluster of this number, with its faults."""
    rng = random.Random(f"faults {seed}")
    while True:
        cluster = random_clusters.draw(rng.randrange(_MOST_CLUSTERS))
        if cluster.facts.regime not in _HARD and cluster.facts.nodes <= _MOST_NODES:
            break
    facts = cluster.facts
    others = [name for name, kind in KINDS.items() if not kind.is_takeover]
    kinds = [rng.choice(others)]
    if rng.random() < _SECOND:
        kinds.append(rng.choice(others))
    leadership = random.Random(f"takeovers {seed}")
    has_takeover = leadership.random() < _TAKEOVERS
    if has_takeover:
        kinds[0] = leadership.choice([name for name, kind in KINDS.items() if kind.is_takeover])
    at = cluster.scenario.warm_up + rng.uniform(2.0, 12.0)
    begin, end, longest = at - 1.0, at, 0.0
    lines = ""
    for kind in kinds:
        lasting = round(math.exp(rng.uniform(math.log(0.5), math.log(10.0))), 2)
        lines += _lines(rng, kind, round(at, 2), lasting, facts.nodes)
        if KINDS[kind].is_takeover:
            lasting = max(lasting, _TAKEOVER_SECONDS)
        end, longest = max(end, at + lasting), max(longest, lasting)
        at += rng.uniform(0.2, 10.0)
    seconds = math.ceil(end + _AFTER_SECONDS + facts.duration)
    text = re.sub(r"(?m)^seconds = .*$", f"seconds = {seconds}", cluster.text, count=1)
    text = re.sub(r"(?m)^warm_up = .*$", f"warm_up = {begin:.2f}", text, count=1)
    least = "snapshot_least = 10\n" if "old state" in kinds else ""
    centrals = "centrals = 3\n" if has_takeover else "centrals = 1\nelection_seconds = 0.1\n"
    text = text.replace("centrals = 1\n", f"{centrals}{least}", 1)
    text = text.replace("Random cluster", f"Random faults {seed}, cluster", 1) + lines
    scenario = read(text, file="random-faults", name="random-faults")
    return FaultyCluster(seed, facts, tuple(kinds), longest, text, scenario)


def _lines(rng: random.Random, kind: str, at: float, lasting: float, nodes: int) -> str:
    """The fault as lines of a scenario file."""
    node = f'machine = "node-{rng.randint(1, nodes)}"'
    lasts = f"seconds = {lasting}"
    everyone = f'machine = ["node-1..{nodes}"]'
    share = max(1, nodes // 3)
    whats = {
        "leader killed": ("crash", 'machine = "leader"', lasts),
        "leader frozen": ("freeze", 'machine = "leader"', lasts),
        "leader cut off": ("partition", 'groups = [["central-1"]]', lasts),
        "leader stopped": ("stop", 'machine = "leader"', lasts),
        "central loses books": ("crash", 'machine = "leader"', lasts, "disk = false"),
        "old state": ("crash", 'machine = "leader"', lasts),
        "central crash": ("crash", 'machine = "leader"', lasts),
        "central freeze": ("freeze", 'machine = "leader"', lasts),
        "partition": ("partition", f'groups = [["node-1..{share}"]]', lasts),
        "network": ("network", "loss = 0.05", "double = 0.05", "late = 0.05", lasts),
        "node loses memory": ("crash", node, lasts, "disk = false"),
        "node crash": ("crash", node, lasts),
        "node freeze": ("freeze", node, lasts),
        "leave": ("leave", node),
        "join": ("join", f"nodes = {share}"),
    }
    if kind == "nodes replaced":
        return _fault(at, "join", f"nodes = {nodes}") + _fault(at + 0.2, "leave", everyone)
    return _fault(at, *whats[kind])


def _fault(at: float, what: str, *lines: str) -> str:
    return "\n".join(["\n[[fault]]", f"at = {at:.2f}", f'what = "{what}"', *lines, ""])


def run_one(seed: int) -> Row:
    """Draw the cluster of this number and run it with the same random seed."""
    cluster = draw(seed)
    row = (seed, cluster.kinds, cluster.lasting, cluster.facts)
    try:
        result = run(cluster.scenario, seed=seed)
    except InvariantBroken as broken:
        return Row(*row, broken=str(broken))
    measures = result.measures
    return Row(
        *row,
        missed=_missed(result, cluster),
        excess=(measures.excess or 0.0) / cluster.facts.limit,
        unrecorded=measures.unrecorded or 0.0,
    )


def _missed(result: Result, cluster: FaultyCluster) -> float:
    """What one perfect bucket let through more, in seconds of the limit.

    The shortfall is a part of what that let through; what the cluster did is the rest of it.
    """
    shortfall = result.measures.shortfall or 0.0
    first = math.floor(cluster.scenario.warm_up / cluster.scenario.slot_seconds * STEPS)
    for cell in result.cells:
        if cell.resource == cluster.facts.scarcest:
            rate = cell.allowed[0] * STEPS
            if shortfall < 1.0:
                return shortfall / (1.0 - shortfall) * sum(cell.admitted[first:]) / rate
            return min(sum(cell.demand[first:]) / rate, (len(cell.demand) - first) / STEPS)
    return 0.0


def run_many(
    seeds: Sequence[int], *, jobs: int = 1, progress: Callable[[str, float], object] | None = None
) -> list[Row]:
    """Run the cluster of each seed; the rows are in the order of the seeds."""
    rows: list[Row] = []

    def note(row: Row) -> None:
        rows.append(row)
        if progress is not None:
            progress(f"random faults {row.seed}", len(rows) / len(seeds))

    if jobs == 1:
        for seed in seeds:
            note(run_one(seed))
        return rows
    with ProcessPoolExecutor(jobs) as pool:
        for row in pool.map(run_one, seeds, chunksize=2):
            note(row)
    return rows


def bound_of(row: Row) -> tuple[float, float]:
    """The most that a run may have missed, and the excess: its faults together, in seconds.

    A node that lives on its share loses what the others do not use of theirs, and with a heavy tail
    or a thin limit a whole outage may pass with nothing. What was saved is lost with the books.
    """
    facts = row.facts
    few = _REQUESTS / facts.limit
    kinds = [KINDS[kind] for kind in row.kinds]
    missed = sum(kind.missed for kind in kinds)
    excess = sum(kind.excess for kind in kinds)
    if any(kind.is_outage for kind in kinds) and not _is_steady(facts):
        missed += row.lasting
    if any(kind.loses_savings for kind in kinds):
        missed += facts.burst
    if any(kind.is_cut for kind in kinds):
        excess += row.lasting
    return missed + few, excess + few


def _is_steady(facts: Facts) -> bool:
    """Whether the traffic stays where it is, and each node has enough for its share to fit it."""
    is_even = facts.spread in ("all", "one", "weighted")
    return is_even and facts.per_node_slot >= 2.0 and facts.tail is None and facts.duration < 1.0


def is_within(row: Row) -> bool:
    """Whether no invariant broke and the run keeps its bounds."""
    if row.missed is None or row.excess is None:
        return False
    missed, excess = bound_of(row)
    return row.missed <= missed and row.excess <= excess


def table(rows: Sequence[Row]) -> str:
    """For a terminal: of each kind of fault the median and the worst."""
    lines = [
        f"{len(rows)} random clusters with faults from seed {rows[0].seed}; seconds of the limit",
        "",
        f"{'first fault':24}{'n':>5}{'missed':>10}{'worst':>10}{'seed':>7}"
        f"{'excess':>10}{'seed':>7}",
    ]
    for kind in KINDS:
        here = [row for row in rows if row.kinds[0] == kind and row.broken is None]
        if not here:
            continue
        missed = sorted((row.missed or 0.0, row.seed) for row in here)
        excess = max((row.excess or 0.0, row.seed) for row in here)
        lines.append(
            f"{kind:24}{len(here):>5}{missed[len(missed) // 2][0]:>10.2f}{missed[-1][0]:>10.2f}"
            f"{missed[-1][1]:>7}{excess[0]:>10.2f}{excess[1]:>7}"
        )
    lines += [
        f"unrecorded is not 0: seed {row.seed}"
        for row in rows
        if row.unrecorded and "central loses books" not in row.kinds
    ]
    for row in rows:
        if row.broken is not None:
            lines.append(f"BROKEN: seed {row.seed}: {row.broken}")
        elif not is_within(row):
            missed_most, excess_most = bound_of(row)
            lines.append(
                f"out of bounds: seed {row.seed} ({', then '.join(row.kinds)}): missed "
                f"{row.missed:.2f} s (bound {missed_most:.2f}), excess {row.excess:.2f} s "
                f"(bound {excess_most:.2f})"
            )
    return "\n".join(lines)

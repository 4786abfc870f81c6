"""Many random clusters, run one after the other or in several processes, and their summary.

    rows = run_many(range(200), jobs=2)
    print(table(rows))

A row is a cluster with its two figures, shortfall and excess. A broken invariant does not end the
others: it is part of its row. The summary has the distribution of each regime, since a mean hides
the user who gets nothing, and the command that shows the worst cluster again.
"""

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from sluicegate.sim.audit import InvariantBroken
from sluicegate.sim.random_clusters import REGIMES, Facts, draw
from sluicegate.sim.runner import run
from sluicegate.sim.text_report import figure

__all__ = ["Row", "Summary", "run_many", "run_one", "summaries", "table"]


@dataclass(slots=True, frozen=True)
class Row:
    """One random cluster and what came of it. The figures are None if an invariant broke."""

    facts: Facts
    shortfall: float | None = None
    excess: float | None = None
    requests: int = 0  # offered after the warm-up
    unrecorded: float = 0.0
    messages: int = 0
    broken: str | None = None
    seconds: float = field(default=0.0, compare=False)  # of a processor

    def as_dict(self) -> dict[str, Any]:
        return {
            **self.facts.as_dict(),
            "shortfall": self.shortfall,
            "excess": self.excess,
            "requests": self.requests,
            "unrecorded": self.unrecorded,
            "messages": self.messages,
            "broken": self.broken,
            "processor_seconds": self.seconds,
        }


@dataclass(slots=True, frozen=True)
class Summary:
    """The rows of one regime."""

    regime: str
    count: int
    median: float
    percentile_95: float
    percentile_99: float
    worst: float  # shortfall
    worst_seed: int
    with_excess: int  # clusters that have any
    worst_excess: float
    worst_excess_seed: int
    broken: tuple[int, ...]  # seeds

    def as_dict(self) -> dict[str, Any]:
        return {
            "about": REGIMES[self.regime],
            "clusters": self.count,
            "shortfall": {
                "median": self.median,
                "percentile_95": self.percentile_95,
                "percentile_99": self.percentile_99,
                "worst": self.worst,
                "seed": self.worst_seed,
            },
            "excess": {
                "clusters": self.with_excess,
                "worst": self.worst_excess,
                "seed": self.worst_excess_seed,
            },
            "broken": list(self.broken),
        }


def run_one(seed: int) -> Row:
    """Draw the cluster of this number and run it with the same random seed."""
    cluster = draw(seed)
    began = time.process_time()
    try:
        result = run(cluster.scenario, seed=seed)
    except InvariantBroken as broken:
        return Row(cluster.facts, broken=str(broken), seconds=time.process_time() - began)
    measures = result.measures
    return Row(
        cluster.facts,
        measures.shortfall,
        measures.excess,
        requests=result.cells[0].offered if result.cells else 0,
        unrecorded=measures.unrecorded or 0.0,
        messages=measures.messages,
        seconds=time.process_time() - began,
    )


def run_many(
    seeds: Sequence[int], *, jobs: int = 1, progress: Callable[[str, float], object] | None = None
) -> list[Row]:
    """Run the cluster of each seed; the rows are in the order of the seeds.

    `progress` is called with a text and the fraction done.
    """
    rows: list[Row] = []

    def note(row: Row) -> None:
        rows.append(row)
        if progress is not None:
            progress(f"random cluster {row.facts.seed}", len(rows) / len(seeds))

    if jobs == 1:
        for seed in seeds:
            note(run_one(seed))
        return rows
    with ProcessPoolExecutor(jobs) as pool:
        for row in pool.map(run_one, seeds, chunksize=4):
            note(row)
    return rows


def summaries(rows: Sequence[Row]) -> list[Summary]:
    """Of each regime that was drawn."""
    found = []
    for regime in REGIMES:
        here = [row for row in rows if row.facts.regime == regime]
        if not here:
            continue
        short = sorted(
            (row.shortfall, row.facts.seed) for row in here if row.shortfall is not None
        ) or [(math.nan, here[0].facts.seed)]
        most = max(
            ((row.excess, row.facts.seed) for row in here if row.excess is not None),
            default=(0.0, here[0].facts.seed),
        )
        found.append(
            Summary(
                regime,
                len(here),
                median=_percentile(short, 0.5),
                percentile_95=_percentile(short, 0.95),
                percentile_99=_percentile(short, 0.99),
                worst=short[-1][0],
                worst_seed=short[-1][1],
                with_excess=sum(bool(row.excess) for row in here),
                worst_excess=most[0],
                worst_excess_seed=most[1],
                broken=tuple(row.facts.seed for row in here if row.broken is not None),
            )
        )
    return found


def _percentile(ranked: Sequence[tuple[float, int]], part: float) -> float:
    """The least figure that at least this part of all do not exceed."""
    return ranked[max(0, math.ceil(part * len(ranked)) - 1)][0]


def table(rows: Sequence[Row]) -> str:
    """For a terminal."""
    seconds = sum(row.seconds for row in rows)
    requests = sum(row.requests for row in rows)
    lines = [
        f"{len(rows)} random clusters from seed {rows[0].facts.seed}, {requests:,} requests, "
        f"{seconds:.1f} s of a processor",
        "",
        f"{'':28}{'':>5}{'shortfall':>11}{'':>30}  {'excess, requests':>18}",
        f"{'regime':28}{'n':>5}{'median':>11}{'95th':>10}{'99th':>10}{'worst':>10}"
        f"  {'any':>8}{'worst':>10}",
    ]
    found = summaries(rows)
    for each in found:
        shortfalls = (each.median, each.percentile_95, each.percentile_99, each.worst)
        texts = [figure("shortfall", value) for value in shortfalls]
        lines.append(
            f"{each.regime:28}{each.count:>5}{texts[0]:>11}{texts[1]:>10}{texts[2]:>10}"
            f"{texts[3]:>10}  {each.with_excess:>8}{each.worst_excess:>10.3g}"
        )
    lines += ["", "the worst of each regime:"]
    for each in found:
        lines.append(f"{each.regime:28}sluicegate simulate random --seed {each.worst_seed}")
        if each.worst_excess > 0.0 and each.worst_excess_seed != each.worst_seed:
            lines.append(
                f"{'':28}sluicegate simulate random --seed {each.worst_excess_seed} (excess)"
            )
    unrecorded = [str(row.facts.seed) for row in rows if row.unrecorded]
    if unrecorded:
        lines += ["", f"unrecorded is not 0 in {len(unrecorded)}: seeds {', '.join(unrecorded)}"]
    lines += [f"BROKEN: {row.broken}" for row in rows if row.broken is not None]
    return "\n".join(lines)

"""Runs of many random pacing clusters, judged by the goals of their regime."""

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from sluicegate.sim.pacing.measures import Bounded, PeriodFigures
from sluicegate.sim.pacing.random_clusters import REGIMES, Facts, draw
from sluicegate.sim.pacing.runner import Result, run

__all__ = ["Row", "Summary", "judge", "run_many", "run_one", "summaries", "table"]

_ROUNDING = 1e-6
FIGURES = ("short", "over", "gap")


@dataclass(slots=True, frozen=True)
class Row:
    """One random cluster and its figures."""

    facts: Facts
    short: float  # part of what was possible that did not pass, less one request
    over: float  # over the target, as a part of it
    gap: float  # mean distance to what was possible, as a part of the target
    unrecorded: float
    requests: int
    syncs: int
    seconds: float = field(default=0.0, compare=False)  # of a processor

    @property
    def bounded(self) -> list[Bounded]:
        """The figures that it is judged by, and the worst that its regime may have."""
        facts, regime = self.facts, REGIMES[self.facts.regime]
        found = [
            Bounded("short", self.short, regime.short.worst, _ROUNDING),
            Bounded("over", self.over, facts.most_over, _ROUNDING),
            Bounded("gap", self.gap, regime.gap.worst, _ROUNDING),
        ]
        if facts.outage < facts.period:  # the store keeps a period and the one before it
            tolerance = _ROUNDING * (facts.target + 1.0)
            found.append(Bounded("unrecorded", self.unrecorded, 0.0, tolerance))
        return found

    @property
    def missed(self) -> list[str]:
        """The figures that are worse than the worst that its regime may have."""
        return [one.name for one in self.bounded if not one.is_met]

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "missed": self.missed}


@dataclass(slots=True, frozen=True)
class Distribution:
    """Of one figure in a regime."""

    median: float
    percentile_95: float
    worst: float
    seed: int  # of the worst


@dataclass(slots=True, frozen=True)
class Summary:
    """All clusters of one regime."""

    regime: str
    count: int
    figures: dict[str, Distribution]
    missed: tuple[int, ...]  # seeds of those that are worse than the worst may be

    @property
    def above(self) -> list[str]:
        """The bounds of the regime that are exceeded, but for those of single clusters."""
        regime = REGIMES[self.regime]
        found = [
            f"{name}: {which} {value:.4f}, expected at most {bound:g}"
            for name, bounds in (("short", regime.short), ("gap", regime.gap))
            for which, bound in bounds._asdict().items()
            if which != "worst"
            and (value := getattr(self.figures[name], which)) > bound + _ROUNDING
        ]
        return found

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def run_one(seed: int) -> Row:
    """Draw the cluster of this number and run it with the same random seed."""
    cluster = draw(seed)
    began = time.process_time()
    result = run(cluster.scenario, seed=seed)
    return judge(cluster.facts, result, time.process_time() - began)


def judge(facts: Facts, result: Result, seconds: float = 0.0) -> Row:
    """The figures by which a random cluster is judged."""
    scenario = result.scenario
    measured = [one for one in result.periods if one.number >= scenario.warm_up]
    whole = [one for one in result.periods if one.is_whole or (one.number == 0 and facts.start)]
    conversion = facts.conversion
    is_estimated = conversion < 1.0 or facts.reward_delay > 0.0
    allowed = facts.target + (facts.unit * conversion if is_estimated else 0.0)
    most = max((one.passes * conversion for one in whole), default=0.0)
    unit = facts.unit * conversion
    return Row(
        facts,
        short=max(_short(one, unit, facts) for one in measured),
        over=max(most - allowed, 0.0) / facts.target,
        gap=max(max(one.gap - unit / facts.target, 0.0) for one in measured),
        unrecorded=result.measures.unrecorded or 0.0,
        requests=result.requests,
        syncs=result.syncs,
        seconds=seconds,
    )


def _short(period: PeriodFigures, unit: float, facts: Facts) -> float:
    before = facts.start / facts.period * facts.target if period.number == 0 else 0.0
    possible = math.floor((period.possible - before) / unit + 1e-6) * unit
    if possible <= 0.0:
        return 0.0
    return max(possible - (period.value - before) - unit, 0.0) / possible


def run_many(
    seeds: Sequence[int], *, jobs: int = 1, progress: Callable[[str, float], object] | None = None
) -> list[Row]:
    """Run the cluster of each seed; the rows are in the order of the seeds."""
    rows: list[Row] = []

    def note(row: Row) -> None:
        rows.append(row)
        if progress is not None:
            progress(f"random pacing cluster {row.facts.seed}", len(rows) / len(seeds))

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
        if here:
            figures = {name: _distribution(here, name) for name in FIGURES}
            missed = tuple(row.facts.seed for row in here if row.missed)
            found.append(Summary(regime, len(here), figures, missed))
    return found


def _distribution(rows: Sequence[Row], name: str) -> Distribution:
    ranked = sorted((getattr(row, name), row.facts.seed) for row in rows)

    def percentile(part: float) -> float:
        value: float = ranked[int(part * (len(ranked) - 1))][0]
        return value

    return Distribution(percentile(0.5), percentile(0.95), *ranked[-1])


def table(rows: Sequence[Row]) -> str:
    """For a terminal."""
    seconds = sum(row.seconds for row in rows)
    requests, syncs = sum(row.requests for row in rows), sum(row.syncs for row in rows)
    lines = [
        f"{len(rows)} random pacing clusters from seed {rows[0].facts.seed}, "
        f"{requests:,} requests, {syncs:,} syncs, {seconds:.1f} s of a processor",
        "",
        f"{'regime':20}{'n':>5}" + "".join(f"{name:>9}{'95th':>9}{'worst':>9}" for name in FIGURES),
    ]
    found = summaries(rows)
    for each in found:
        cells = [
            f"{100.0 * value:>7.2f} %"
            for name in FIGURES
            for value in (
                each.figures[name].median,
                each.figures[name].percentile_95,
                each.figures[name].worst,
            )
        ]
        lines.append(f"{each.regime:20}{each.count:>5}{''.join(cells)}")
    lines += ["", "the worst of each regime:"]
    for each in found:
        for name in FIGURES:
            one = each.figures[name]
            if one.worst > 0.0:
                what = f"{each.regime}, {name}"
                lines.append(f"{what:30}sluicegate simulate pacing-random --seed {one.seed}")
    for each in found:
        lines += [f"ABOVE: {each.regime}, {what}" for what in each.above]
    for row in rows:
        if row.missed:
            what = ", ".join(f"{name} {getattr(row, name):.4g}" for name in row.missed)
            lines.append(f"MISSED: {row.facts.regime}, seed {row.facts.seed}: {what}")
    return "\n".join(lines)

"""Many swarms, and their summary."""

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor

from sluicegate.sim.election.swarm import Outcome, run

__all__ = ["EVENTS", "replay_command", "run_many", "table"]

# What must happen in many swarms: a run in which it does not proves nothing.
EVENTS = (
    *("elections", "renewals", "failovers", "hand-overs", "prods"),
    *("killed", "leaders killed", "killed after a vote"),
    *("stopped", "leaders stopped", "stopped after a win"),
    *("frozen", "leaders frozen", "thawed", "thawed as leader", "cuts", "without majority"),
    *("lost", "doubled", "late"),
)
_MOST_SHOWN = 5


def run_many(
    seeds: Sequence[int], *, jobs: int = 1, progress: Callable[[str, float], object] | None = None
) -> list[Outcome]:
    """Run the swarm of each seed; the outcomes are in the order of the seeds."""
    outcomes: list[Outcome] = []

    def note(outcome: Outcome) -> None:
        outcomes.append(outcome)
        if progress is not None:
            progress(f"random election {outcome.seed}", len(outcomes) / len(seeds))

    if jobs == 1:
        for seed in seeds:
            note(run(seed))
        return outcomes
    with ProcessPoolExecutor(jobs) as pool:
        for outcome in pool.map(run, seeds, chunksize=64):
            note(outcome)
    return outcomes


def replay_command(seed: int) -> str:
    return f"sluicegate simulate election-random --seed {seed}"


def table(outcomes: Sequence[Outcome]) -> str:
    """For a terminal: what happened, and what must not have."""
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        counts += outcome.counts
    lines = [f"{len(outcomes)} random elections from seed {outcomes[0].seed}"]
    if len(outcomes) == 1:
        lines.append(outcomes[0].facts)
    lines += ["", *(f"{name:20}{counts[name]:>12,}" for name in EVENTS), ""]
    broken = [outcome for outcome in outcomes if outcome.violations]
    for outcome in broken:
        lines.append(f"VIOLATED: {replay_command(outcome.seed)}")
        lines += [f"  {what}" for what in outcome.violations[:_MOST_SHOWN]]
        if len(outcome.violations) > _MOST_SHOWN:
            lines.append(f"  and {len(outcome.violations) - _MOST_SHOWN} more")
    if not broken:
        lines.append("never two leaders; epochs grew; a leader emerged after the faults")
    return "\n".join(lines)

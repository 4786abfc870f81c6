"""Many swarms, and their summary."""

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor

from sluicegate.sim.dispatch.swarm import Outcome, run

__all__ = ["EVENTS", "replay_command", "run_many", "table"]

# What must happen in many swarms: a run in which it does not proves nothing.
EVENTS = (
    *("sent", "enqueued", "delivered", "begun", "answered", "batches", "exchanges"),
    *("TimedOut", "Busy", "NoWorkers", "Duplicate", "HandlerFailed", "Unavailable"),
    *("cancelled", "told", "given up", "redelivered", "begun again", "clients killed"),
    *("killed", "frozen", "stopped", "recovered"),
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
            progress(f"random swarm {outcome.seed}", len(outcomes) / len(seeds))

    if jobs == 1:
        for seed in seeds:
            note(run(seed))
        return outcomes
    with ProcessPoolExecutor(jobs) as pool:
        for outcome in pool.map(run, seeds, chunksize=16):
            note(outcome)
    return outcomes


def replay_command(seed: int) -> str:
    return f"sluicegate simulate dispatch-random --seed {seed}"


def table(outcomes: Sequence[Outcome]) -> str:
    """For a terminal: what happened, and what must not have."""
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        counts += outcome.counts
    lines = [f"{len(outcomes)} random swarms of dispatch from seed {outcomes[0].seed}"]
    if len(outcomes) == 1:
        lines.append(outcomes[0].facts)
    lines += ["", *(f"{name:16}{counts[name]:>12,}" for name in EVENTS), ""]
    broken = [outcome for outcome in outcomes if outcome.violations]
    for outcome in broken:
        lines.append(f"VIOLATED: {replay_command(outcome.seed)}")
        lines += [f"  {what}" for what in outcome.violations[:_MOST_SHOWN]]
        if len(outcome.violations) > _MOST_SHOWN:
            lines.append(f"  and {len(outcome.violations) - _MOST_SHOWN} more")
    if not broken:
        lines.append("every call ended once and in time; nothing was answered twice or left behind")
    return "\n".join(lines)

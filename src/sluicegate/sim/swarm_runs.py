"""`Swarms`: many runs of one kind, each drawn from its seed, and their summary."""

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

__all__ = ["Outcome", "Swarms"]

_MOST_SHOWN = 5
_AT_ONCE = 32  # seeds that a process is given


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run: what it was, what must not have happened, and how often what did."""

    seed: int
    facts: str
    violations: list[str]
    counts: Counter[str]


@dataclass(frozen=True, slots=True)
class Swarms:
    """Runs of one kind, by `run`. `command` is the name of the simulation on the command line.

    `events`: what must happen in many of them; a run in which it does not proves nothing. `holds`:
    what is shown if no rule was violated.
    """

    command: str
    title: str
    run: Callable[[int], Outcome]
    events: Sequence[str]
    holds: str

    def run_many(
        self,
        seeds: Sequence[int],
        *,
        jobs: int = 1,
        progress: Callable[[str, float], object] | None = None,
    ) -> list[Outcome]:
        """Run that of each seed; the outcomes are in the order of the seeds."""
        outcomes: list[Outcome] = []

        def note(outcome: Outcome) -> None:
            outcomes.append(outcome)
            if progress is not None:
                progress(f"{self.command} {outcome.seed}", len(outcomes) / len(seeds))

        if jobs == 1:
            for seed in seeds:
                note(self.run(seed))
            return outcomes
        with ProcessPoolExecutor(jobs) as pool:
            for outcome in pool.map(self.run, seeds, chunksize=_AT_ONCE):
                note(outcome)
        return outcomes

    def replay_command(self, seed: int) -> str:
        return f"sluicegate simulate {self.command} --seed {seed}"

    def table(self, outcomes: Sequence[Outcome]) -> str:
        """For a terminal: what happened, and what must not have."""
        counts: Counter[str] = Counter()
        for outcome in outcomes:
            counts += outcome.counts
        lines = [f"{len(outcomes)} {self.title} from seed {outcomes[0].seed}"]
        if len(outcomes) == 1:
            lines.append(outcomes[0].facts)
        lines += ["", *(f"{name:20}{counts[name]:>12,}" for name in self.events), ""]
        broken = [outcome for outcome in outcomes if outcome.violations]
        for outcome in broken:
            lines.append(f"VIOLATED: {self.replay_command(outcome.seed)}")
            lines += [f"  {what}" for what in outcome.violations[:_MOST_SHOWN]]
            if len(outcome.violations) > _MOST_SHOWN:
                lines.append(f"  and {len(outcome.violations) - _MOST_SHOWN} more")
        if not broken:
            lines.append(self.holds)
        return "\n".join(lines)

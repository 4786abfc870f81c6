"""`sluicegate simulate` without its terminal: which runs, in which order, and the verdict.

`simulate` runs every scenario with both systems and as many random seeds as were asked for. An
invariant that breaks ends that scenario's runs and is part of its outcome: it is what one wants
to see, with all else that the other scenarios tell.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sluicegate.sim.audit import InvariantBroken
from sluicegate.sim.measures import Missed, missed
from sluicegate.sim.replay import Replay
from sluicegate.sim.runner import Result, run
from sluicegate.sim.scenario import Scenario
from sluicegate.sim.systems import SYSTEMS
from sluicegate.sim.text_report import worst

__all__ = ["Outcome", "simulate"]

Progress = Callable[[str, float], object]  # what is run, the part of all that is done


@dataclass(slots=True)
class Outcome:
    """All runs of one scenario."""

    scenario: Scenario
    results: dict[str, list[Result]] = field(default_factory=dict)
    broken: InvariantBroken | None = None

    @property
    def missed(self) -> list[Missed]:
        """The goals that ours does not meet, in the worst run."""
        fair = self.results.get("fair")
        return missed(worst(fair), self.scenario.goals) if fair else []

    @property
    def met(self) -> bool:
        return self.broken is None and not self.missed

    def as_dict(self) -> dict[str, Any]:
        return {
            "scenario": self.scenario.name,
            "title": self.scenario.title,
            "about": self.scenario.about,
            "seconds": self.scenario.seconds,
            "goals": self.scenario.goals,
            "met": self.met,
            "missed": [missed._asdict() for missed in self.missed],
            "broken": str(self.broken) if self.broken is not None else None,
            "runs": [result.as_dict() for runs in self.results.values() for result in runs],
        }


def simulate(
    scenarios: Sequence[Scenario],
    *,
    seed: int = 0,
    runs: int = 1,
    replay: Replay | None = None,
    progress: Progress | None = None,
) -> list[Outcome]:
    """Run them all. `replay` is traffic instead of their own."""
    total = sum(scenario.seconds for scenario in scenarios) * len(SYSTEMS) * runs
    done = 0.0
    outcomes = []
    for scenario in scenarios:
        outcome = Outcome(scenario)
        outcomes.append(outcome)
        for system in SYSTEMS:
            for number in range(runs):
                what = f"{scenario.name}, {system}"

                def tell(seconds: float, done: float = done, what: str = what) -> None:
                    if progress is not None:
                        progress(what, (done + seconds) / total)

                tell(0.0)
                try:
                    result = run(
                        scenario, system=system, seed=seed + number, replay=replay, progress=tell
                    )
                    outcome.results.setdefault(system, []).append(result)
                except InvariantBroken as broken:
                    outcome.broken = outcome.broken or broken
                done += scenario.seconds
    return outcomes

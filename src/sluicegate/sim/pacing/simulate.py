"""Runs of pacing scenarios, and the verdict."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sluicegate.sim.measures import Missed
from sluicegate.sim.pacing.measures import Bounded, Measures, missed, worst
from sluicegate.sim.pacing.runner import Result, run
from sluicegate.sim.pacing.scenario import PacingScenario

__all__ = ["PacingOutcome", "simulate"]

Progress = Callable[[str, float], object]  # what is run, the part of all that is done


@dataclass(slots=True)
class PacingOutcome:
    """All runs of one scenario. `bounded`: what else a random cluster is judged by."""

    scenario: PacingScenario
    results: list[Result]
    bounded: list[Bounded] = field(default_factory=list)

    @property
    def worst(self) -> Measures:
        return worst([result.measures for result in self.results])

    @property
    def missed(self) -> list[Missed]:
        """The goals that the worst run does not meet, and the bounds that are exceeded."""
        exceeded = [
            Missed(one.name, one.figure, one.most) for one in self.bounded if not one.is_met
        ]
        return missed(self.worst, self.scenario.goals) + exceeded

    @property
    def met(self) -> bool:
        return not self.missed

    def as_dict(self) -> dict[str, Any]:
        return {
            "scenario": self.scenario.name,
            "title": self.scenario.title,
            "about": self.scenario.about,
            "seconds": self.scenario.seconds,
            "goals": self.scenario.goals,
            "bounds": [one.as_dict() for one in self.bounded],
            "met": self.met,
            "missed": [missed._asdict() for missed in self.missed],
            "runs": [result.as_dict() for result in self.results],
        }


def simulate(
    scenarios: Sequence[PacingScenario],
    *,
    seed: int = 0,
    runs: int = 1,
    progress: Progress | None = None,
) -> list[PacingOutcome]:
    """Run each scenario with as many seeds, from `seed` on."""
    total = sum(scenario.seconds for scenario in scenarios) * runs
    done = 0.0
    outcomes = []
    for scenario in scenarios:
        outcome = PacingOutcome(scenario, [])
        for number in range(runs):

            def tell(seconds: float, done: float = done, what: str = scenario.name) -> None:
                if progress is not None:
                    progress(what, (done + seconds) / total)

            outcome.results.append(run(scenario, seed=seed + number, progress=tell))
            done += scenario.seconds
        outcomes.append(outcome)
    return outcomes

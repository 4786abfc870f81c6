"""All policies on the same scenario, with 1, 10 and 100 clients, and the verdict.

The goal is for scenarios with a slow server: the p99 of policies that look at calls in flight is at
most `GOAL` of that of taking turns, which knows nothing of any server.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from sluicegate.sim.balance.measures import Measures
from sluicegate.sim.balance.runner import run
from sluicegate.sim.balance.scenario import BalanceScenario, ServerEvent

__all__ = ["CLIENTS", "GOAL", "SCENARIOS", "Comparison", "Entry", "Named", "compare"]

CLIENTS = (1, 10, 100)
GOAL = 0.3
_TURNS = "round_robin"
# Policies that use reported loads are run with them, too.
_ENTRIES = (
    (_TURNS, False),
    ("weighted_random", False),
    ("consistent_hash", False),
    ("least_connections", False),
    ("least_active", False),
    ("least_active", True),
    ("peak_ewma", False),
    ("peak_ewma", True),
)
_JUDGED = ("least_active", "peak_ewma")


class Named(NamedTuple):
    """A scenario, and the most that `Comparison.ratio` may be of some policies."""

    title: str
    scenario: BalanceScenario
    goal: float | None = None


SCENARIOS = {
    "slow": Named(
        "One of 10 servers is 10 times slower",
        BalanceScenario(slow=1, load=0.6, warm_up=20.0),
        GOAL,
    ),
    "equal": Named(
        "All servers are equal, and busy", BalanceScenario(load=0.9, seconds=40.0, warm_up=10.0)
    ),
    "sink": Named(
        "One of 10 servers fails at once from second 10 to 25",
        BalanceScenario(
            load=0.6,
            warm_up=10.0,
            events=(ServerEvent(10.0, 9, "fail fast"), ServerEvent(25.0, 9, "return")),
        ),
    ),
}


class Entry(NamedTuple):
    """The figures of one policy, by the number of clients."""

    policy: str
    reports_load: bool
    measures: dict[int, Measures]

    @property
    def name(self) -> str:
        return f"{self.policy}, loads reported" if self.reports_load else self.policy


@dataclass(slots=True, frozen=True)
class Comparison:
    """All policies on one scenario."""

    name: str
    named: Named
    seed: int
    entries: Sequence[Entry]

    @property
    def goal(self) -> float | None:
        return self.named.goal

    @property
    def clients(self) -> Sequence[int]:
        return tuple(self.entries[0].measures)

    def ratio(self, entry: Entry, clients: int) -> float | None:
        """The p99 of an entry over that of taking turns."""
        p99, turns = entry.measures[clients].p99, self.entries[0].measures[clients].p99
        return None if p99 is None or turns is None else p99 / turns

    @property
    def missed(self) -> list[str]:
        """What does not meet the goal."""
        if self.goal is None:
            return []
        judged = [
            (entry, clients, self.ratio(entry, clients))
            for entry in self.entries
            if entry.policy in _JUDGED
            for clients in self.clients
        ]
        return [
            f"{entry.name} with {clients} client(s): {'-' if ratio is None else f'{ratio:.3g}'}"
            for entry, clients, ratio in judged
            if ratio is None or ratio > self.goal
        ]

    def as_dict(self) -> dict[str, Any]:
        return {
            "scenario": self.name,
            "title": self.named.title,
            "seed": self.seed,
            "goal": self.goal,
            "missed": self.missed,
            "policies": [
                {
                    "policy": entry.policy,
                    "reports_load": entry.reports_load,
                    "clients": clients,
                    "p99_ratio": self.ratio(entry, clients),
                    **measures.as_dict(),
                }
                for entry in self.entries
                for clients, measures in entry.measures.items()
            ],
        }


def compare(
    name: str,
    named: Named,
    *,
    clients: Sequence[int] = CLIENTS,
    seed: int = 0,
    progress: Callable[[str, float], object] | None = None,
) -> Comparison:
    """Run a scenario with all policies. `progress`: called with what runs, and the part done."""
    entries: list[Entry] = []
    for number, (policy, reports_load) in enumerate(_ENTRIES):
        measures = {}
        for index, count in enumerate(clients):
            if progress is not None:
                done = (number + index / len(clients)) / len(_ENTRIES)
                progress(f"{name}: {policy}", done)
            one = replace(named.scenario, clients=count, reports_load=reports_load)
            measures[count] = run(one, policy, seed=seed)
        entries.append(Entry(policy, reports_load, measures))
    return Comparison(name, named, seed, entries)

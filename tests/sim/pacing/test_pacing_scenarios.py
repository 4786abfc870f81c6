"""The table of pacing figures: every shipped scenario meets its goals, whatever the seed.

`make test` runs one random seed of each, the soak twenty.
"""

import os

import pytest

from sluicegate.sim.pacing import load, names, run
from sluicegate.sim.pacing.measures import missed, worst

# Whole clusters in virtual time, which take three times as long when they are traced.
pytestmark = [pytest.mark.no_cover, pytest.mark.timeout(600)]

SEEDS = range(20 if os.environ.get("HYPOTHESIS_PROFILE") == "soak" else 1)

# The goals of the table, which a scenario file must not quietly weaken.
TABLE = {
    "pacing-steady": {"delivered": 0.995, "over": 0.001, "error": 0.005, "deviation": 0.02},
    "pacing-cold": {"cold": 0.97, "start_syncs": 1.0},
    "pacing-target-1": {"off_target": 0.0},
    "pacing-target-5": {"off_target": 0.0},
    "pacing-target-10": {"off_target": 0.0},
    "pacing-doubled": {"recovery": 3.0},
    "pacing-halved": {"recovery": 3.0},
    "pacing-moved": {"recovery": 3.0},
    "pacing-outage": {"over": 0.05, "unrecorded": 0.0},
    "pacing-late-rewards": {"over": 0.01, "over_earned": 0.01},
    "pacing-scored": {"quality": 0.98},
    "pacing-scored-ties": {"quality": 0.98, "tie_error": 0.02},
}


@pytest.mark.parametrize("name", names())
def test_a_scenario_meets_its_goals_with_every_seed(name: str) -> None:
    scenario = load(name)
    results = [run(scenario, seed=seed) for seed in SEEDS]
    failed = {result.seed: result.missed for result in results if result.missed}
    assert missed(worst([result.measures for result in results]), scenario.goals) == [], failed


@pytest.mark.parametrize("name", TABLE)
def test_the_goals_of_the_table_are_in_the_scenario_files(name: str) -> None:
    goals = load(name).goals
    assert {goal: goals[goal] for goal in TABLE[name]} == TABLE[name]


def test_the_store_has_what_the_nodes_counted_in_every_scenario_that_says_so() -> None:
    assert all(load(name).goals["unrecorded"] == 0.0 for name in names())

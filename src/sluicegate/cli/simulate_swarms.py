"""`sluicegate simulate dispatch-random` and `election-random`: state machines under faults."""

import argparse
import json
import sys
from typing import TYPE_CHECKING

from sluicegate.cli.output import progress_bar

if TYPE_CHECKING:
    from sluicegate.sim.swarm_runs import Swarms

__all__ = ["NAMES", "run"]

NAMES = ("dispatch-random", "election-random")


def run(arguments: argparse.Namespace) -> int:
    """Run what was asked for and return the exit code."""
    for option in ("seconds", "traffic", "save", "svg", "html", "markdown"):
        if getattr(arguments, option) not in (None, False):
            arguments.parser.error(f"--{option} does not work with {arguments.scenario}")
    swarms = _swarms(arguments.scenario)
    seeds = range(arguments.seed, arguments.seed + arguments.runs)
    with progress_bar() as progress:
        outcomes = swarms.run_many(seeds, jobs=arguments.jobs, progress=progress)
    met = not any(one.violations for one in outcomes)
    if arguments.json:
        runs = [
            {"seed": one.seed, "violations": one.violations, "counts": dict(one.counts)}
            for one in outcomes
        ]
        sys.stdout.write(json.dumps({"met": met, "runs": runs}) + "\n")
    else:
        sys.stdout.write(swarms.table(outcomes) + "\n")
    return 0 if met else 1


def _swarms(name: str) -> "Swarms":
    if name == "dispatch-random":
        from sluicegate.sim.dispatch.random_runs import SWARMS
    else:
        from sluicegate.sim.election.random_runs import SWARMS
    return SWARMS

"""`sluicegate simulate dispatch-random`: workers and clients of dispatch with random faults."""

import argparse
import json
import sys

from sluicegate.cli.output import progress_bar

__all__ = ["NAME", "run"]

NAME = "dispatch-random"


def run(arguments: argparse.Namespace) -> int:
    """Run what was asked for and return the exit code."""
    from sluicegate.sim.dispatch.random_runs import run_many, table

    for option in ("seconds", "traffic", "save", "svg", "html", "markdown"):
        if getattr(arguments, option) not in (None, False):
            arguments.parser.error(f"--{option} does not work with {NAME}")
    with progress_bar() as progress:
        seeds = range(arguments.seed, arguments.seed + arguments.runs)
        outcomes = run_many(seeds, jobs=arguments.jobs, progress=progress)
    met = not any(outcome.violations for outcome in outcomes)
    if arguments.json:
        runs = [
            {"seed": one.seed, "violations": one.violations, "counts": one.counts}
            for one in outcomes
        ]
        sys.stdout.write(json.dumps({"met": met, "runs": runs}) + "\n")
    else:
        sys.stdout.write(table(outcomes) + "\n")
    return 0 if met else 1

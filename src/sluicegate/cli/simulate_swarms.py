"""`sluicegate simulate dispatch-random` and `election-random`: state machines under faults."""

import argparse
import json
import sys

from sluicegate.cli.output import progress_bar

__all__ = ["NAMES", "run"]

NAMES = ("dispatch-random", "election-random")


def run(arguments: argparse.Namespace) -> int:
    """Run what was asked for and return the exit code."""
    for option in ("seconds", "traffic", "save", "svg", "html", "markdown"):
        if getattr(arguments, option) not in (None, False):
            arguments.parser.error(f"--{option} does not work with {arguments.scenario}")
    if arguments.scenario == "dispatch-random":
        return _run_dispatch(arguments)
    return _run_election(arguments)


def _run_dispatch(arguments: argparse.Namespace) -> int:
    from sluicegate.sim.dispatch.random_runs import run_many, table

    with progress_bar() as progress:
        outcomes = run_many(_seeds(arguments), jobs=arguments.jobs, progress=progress)
    runs = [(one.seed, one.violations, dict(one.counts)) for one in outcomes]
    return _print(runs, "" if arguments.json else table(outcomes))


def _run_election(arguments: argparse.Namespace) -> int:
    from sluicegate.sim.election.random_runs import run_many, table

    with progress_bar() as progress:
        outcomes = run_many(_seeds(arguments), jobs=arguments.jobs, progress=progress)
    runs = [(one.seed, one.violations, dict(one.counts)) for one in outcomes]
    return _print(runs, "" if arguments.json else table(outcomes))


def _seeds(arguments: argparse.Namespace) -> range:
    return range(arguments.seed, arguments.seed + arguments.runs)


def _print(runs: list[tuple[int, list[str], dict[str, int]]], text: str) -> int:
    """Print `text`, or all runs as one document if there is none."""
    met = not any(violations for _, violations, _ in runs)
    if text:
        sys.stdout.write(text + "\n")
    else:
        keys = ("seed", "violations", "counts")
        document = {"met": met, "runs": [dict(zip(keys, one, strict=True)) for one in runs]}
        sys.stdout.write(json.dumps(document) + "\n")
    return 0 if met else 1

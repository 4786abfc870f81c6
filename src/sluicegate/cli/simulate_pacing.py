"""`sluicegate simulate pacing-...`: scenarios of pacing, and pacing clusters drawn at random."""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sluicegate.cli.output import progress_bar, tell_saved, tell_written, write_file
from sluicegate.errors import ConfigError

if TYPE_CHECKING:
    from sluicegate.sim.pacing.random_clusters import Facts
    from sluicegate.sim.pacing.simulate import PacingOutcome

__all__ = ["run", "write_names"]


def write_names() -> None:
    """List the scenarios."""
    from sluicegate.sim.pacing import load, names

    for name in names():
        sys.stdout.write(f"{name:24}{load(name).title}\n")


def run(arguments: argparse.Namespace) -> int:
    """Run what was asked for and return the exit code."""
    if arguments.traffic is not None:
        arguments.parser.error("--traffic does not work with pacing")
    if arguments.svg is not None and (arguments.scenario == "pacing" or arguments.runs > 1):
        arguments.parser.error("--svg draws one run of one pacing scenario")
    if arguments.scenario == "pacing-random":
        return _run_random(arguments)
    if arguments.save is not None or arguments.jobs > 1:
        option = "save" if arguments.save is not None else "jobs"
        arguments.parser.error(f"--{option} works with random and pacing-random")
    return _run_scenarios(arguments)


def _run_scenarios(arguments: argparse.Namespace) -> int:
    from sluicegate.sim.pacing import load, names

    chosen = names() if arguments.scenario == "pacing" else [arguments.scenario]
    try:
        scenarios = [load(name) for name in chosen]
        if arguments.seconds is not None:
            scenarios = [each.lasting(arguments.seconds) for each in scenarios]
    except ConfigError as error:
        arguments.parser.error(str(error))
    return _simulate(arguments, scenarios)


def _simulate(
    arguments: argparse.Namespace, scenarios: Sequence[Any], facts: "Facts | None" = None
) -> int:
    """Run scenarios, or a random cluster with these facts, and write what was asked for."""
    from sluicegate.sim.pacing.html_report import page, picture
    from sluicegate.sim.pacing.random_runs import judge
    from sluicegate.sim.pacing.simulate import simulate

    if arguments.html is not None and not write_file(arguments.html, "", "a"):
        return 1  # now, and not after a long run
    with progress_bar() as progress:
        outcomes = simulate(scenarios, seed=arguments.seed, runs=arguments.runs, progress=progress)
    if facts is not None:
        outcomes[0].bounded = judge(facts, outcomes[0].results[0]).bounded
    if arguments.html is not None and not write_file(arguments.html, page(outcomes), "w"):
        return 1
    if arguments.svg is not None:
        text = picture(outcomes[0].results[0])
        if not write_file(arguments.svg, text, "w", "the picture"):
            return 1
    code = _print(arguments, outcomes, {} if facts is None else {"facts": facts.as_dict()})
    tell_written(arguments.html, arguments.svg)
    return code


def _print(
    arguments: argparse.Namespace, outcomes: "Sequence[PacingOutcome]", more: dict[str, Any]
) -> int:
    from sluicegate.sim.pacing.text_report import markdown, plain

    met = all(outcome.met for outcome in outcomes)
    if arguments.json:
        document = {"met": met, **more}
        document["outcomes"] = [outcome.as_dict() for outcome in outcomes]
        sys.stdout.write(json.dumps(document) + "\n")
    elif arguments.markdown:
        sys.stdout.write(markdown(outcomes))
    else:
        for outcome in outcomes:
            sys.stdout.write(plain(outcome) + "\n\n")
    return 0 if met else 1


def _run_random(arguments: argparse.Namespace) -> int:
    """One random cluster as any scenario, or the summary of many."""
    from sluicegate.sim.pacing.random_clusters import draw

    if arguments.seconds is not None:
        arguments.parser.error("--seconds does not work with pacing-random")
    if arguments.runs > 1:
        return _run_many_random(arguments)
    cluster = draw(arguments.seed)
    if arguments.save is not None and not write_file(
        arguments.save, cluster.text, "w", "the scenario"
    ):
        return 1
    if not arguments.json and not arguments.markdown:
        sys.stdout.write(f"{cluster.facts}\n\n")
    code = _simulate(arguments, [cluster.scenario], cluster.facts)
    tell_saved(arguments.save, arguments.seed)
    return code


def _run_many_random(arguments: argparse.Namespace) -> int:
    from sluicegate.sim.pacing.random_runs import run_many, summaries, table

    for option in ("save", "html", "markdown"):
        if getattr(arguments, option) not in (None, False):
            arguments.parser.error(f"--{option} works with one random cluster, not with --runs")
    with progress_bar() as progress:
        seeds = range(arguments.seed, arguments.seed + arguments.runs)
        rows = run_many(seeds, jobs=arguments.jobs, progress=progress)
    met = all(not row.missed for row in rows)
    if arguments.json:
        document = {
            "met": met,
            "regimes": {each.regime: each.as_dict() for each in summaries(rows)},
            "runs": [row.as_dict() for row in rows],
        }
        sys.stdout.write(json.dumps(document) + "\n")
    else:
        sys.stdout.write(table(rows) + "\n")
    return 0 if met else 1

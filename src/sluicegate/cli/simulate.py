"""`sluicegate simulate`: runs scenarios in virtual time and prints how well the limits held.

Exit code 0 if our assignment meets all goals, 1 if not, 2 for wrong usage. `random` in place of a
scenario draws clusters instead: one, shown as any scenario, or many and their summary;
`random-faults` those in which something goes wrong. What begins with `pacing` is in
simulate_pacing.py, `dispatch-random` and `election-random` in simulate_swarms.py, `cache` in
simulate_cache.py, `balance` in simulate_balance.py.
"""

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluicegate.cli import simulate_balance, simulate_cache, simulate_pacing, simulate_swarms
from sluicegate.cli.arguments import count, integer, seconds
from sluicegate.cli.output import discard, progress_bar, tell_saved, tell_written, write_file
from sluicegate.clock import Clock
from sluicegate.errors import ConfigError

if TYPE_CHECKING:
    from sluicegate.sim.simulate import Outcome

__all__ = ["configure"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Runs a cluster in virtual time. A scenario of quotas is run with our assignment\n"
        "and with the classic one, and what passed is compared with the limits. A pacing\n"
        "scenario is run with our limiters alone, and what passed is compared with the\n"
        "line of its target. dispatch-random runs workers and clients of a queue with\n"
        "faults, and checks that every call ends once and in time. election-random runs\n"
        "members that elect a leader with faults, and checks that never two lead. cache\n"
        "replays a trace of keys and shows the hit ratio of each cache policy. balance\n"
        "runs all balancing policies on simulated servers. The exit code is 0 if ours\n"
        "meets all goals, 1 if not, 2 for wrong usage."
    )
    parser.epilog = (
        "examples:\n  sluicegate simulate --list\n  sluicegate simulate overload-3x\n"
        "  sluicegate simulate failover --seed 7 --html failover.html\n"
        "  sluicegate simulate my.toml --traffic last-week.csv --json\n"
        "  sluicegate simulate random --seed 17\n"
        "  sluicegate simulate random --runs 200 --jobs 2\n"
        "  sluicegate simulate random-faults --runs 60 --jobs 2\n"
        "  sluicegate simulate pacing-steady --html pacing.html\n"
        "  sluicegate simulate pacing-random --runs 200\n"
        "  sluicegate simulate dispatch-random --runs 500\n"
        "  sluicegate simulate election-random --runs 2000 --jobs 2\n"
        "  sluicegate simulate cache trace.csv.gz --column key --html cache.html\n"
        "  sluicegate simulate balance\n"
        "  sluicegate simulate balance --slow 2 --slow-factor 3 --load 0.7"
    )
    parser.add_argument(
        "scenario",
        nargs="?",
        metavar="SCENARIO",
        help=(
            "a name, a TOML file, all, random, random-faults, pacing, pacing-random, "
            "dispatch-random, election-random, cache, or balance"
        ),
    )
    parser.add_argument(
        "trace",
        nargs="?",
        metavar="TRACE",
        help=(
            "with cache: a file of keys, one per line, a table (.csv, .tsv; also .gz), "
            "or zipf, scan-mixed, drifting, which are generated"
        ),
    )
    parser.add_argument("--list", action="store_true", help="list the scenarios and exit")
    parser.add_argument(
        "--seed", type=integer, default=0, metavar="N", help="random seed (default: 0)"
    )
    parser.add_argument(
        "--runs",
        type=count,
        default=1,
        metavar="N",
        help="number of seeds to run; the worst result counts (default: 1)",
    )
    parser.add_argument(
        "--seconds", type=seconds, metavar="S", help="duration, instead of the scenario's own"
    )
    parser.add_argument(
        "--traffic", metavar="FILE", help="replay requests from a .csv or .jsonl file"
    )
    parser.add_argument(
        "--jobs", type=count, default=1, metavar="N", help="processes for random runs (default: 1)"
    )
    parser.add_argument("--save", metavar="FILE", help="write a random cluster as a scenario file")
    parser.add_argument(
        "--svg", metavar="FILE", help="draw the shortfall of random runs, or one run of pacing"
    )
    parser.add_argument("--html", metavar="FILE", help="write an HTML report with charts")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print one JSON document")
    output.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    simulate_cache.add_arguments(parser)
    simulate_balance.add_arguments(parser)
    _accept_trace_after_options(parser)
    parser.set_defaults(run=_run, parser=parser)


def _accept_trace_after_options(parser: argparse.ArgumentParser) -> None:
    """Find TRACE also in `simulate cache --policy lru TRACE`.

    argparse gives all optional positionals their values as soon as it meets the first one, and
    does not know the later words.
    """
    parse = parser.parse_known_args

    def parse_known_args(args: Any = None, namespace: Any = None) -> Any:
        found, unknown = parse(args, namespace)
        if found.trace is None and unknown and not unknown[0].startswith("-"):
            found.trace = unknown.pop(0)
        return found, unknown

    parser.parse_known_args = parse_known_args  # type: ignore[method-assign]


def _run(arguments: argparse.Namespace, clock: Clock) -> int:
    # What happens to simulated centrals is in the result, and is no warning to anybody.
    logger = logging.getLogger("sluicegate.quota")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        code = _run_scenarios(arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 128 + 2  # as a shell has it for SIGINT
    except BrokenPipeError:
        discard()  # the reader has closed the pipe
        return 128 + 13
    except OSError as error:
        discard()
        sys.stderr.write(f"sluicegate simulate: cannot write the result: {error}\n")
        return 1
    finally:
        logger.setLevel(level)  # for a program that calls this command


def _run_scenarios(arguments: argparse.Namespace) -> int:
    # The simulator takes a while to import; --help need not wait for it.
    from sluicegate.sim import scenario
    from sluicegate.sim.html_report import page
    from sluicegate.sim.replay import read_traffic
    from sluicegate.sim.simulate import simulate

    if arguments.list:
        for name in scenario.names():
            sys.stdout.write(f"{name:16}{scenario.load(name).title}\n")
        simulate_pacing.write_names()
        return 0
    if arguments.scenario is None:
        arguments.parser.error("expected a SCENARIO; --list shows them all")
    for part in (simulate_cache, simulate_balance):
        for option in part.OPTIONS if arguments.scenario != part.NAME else ():
            if getattr(arguments, option) is not None:
                name = option.replace("_", "-")
                arguments.parser.error(f"--{name} works with {part.NAME}")
    if arguments.scenario == simulate_cache.NAME:
        return simulate_cache.run(arguments)
    if arguments.trace is not None:
        arguments.parser.error(f"only {simulate_cache.NAME} takes a TRACE, got {arguments.trace!r}")
    if arguments.scenario in ("random", "random-faults"):
        return _run_random(arguments)
    if arguments.scenario == simulate_balance.NAME:
        return simulate_balance.run(arguments)
    if arguments.scenario in simulate_swarms.NAMES:
        return simulate_swarms.run(arguments)
    if _is_pacing(arguments.scenario):
        return simulate_pacing.run(arguments)
    for option in ("save", "svg"):
        if getattr(arguments, option) is not None:
            arguments.parser.error(f"--{option} works with random")
    if arguments.jobs > 1:
        arguments.parser.error("--jobs works with random")
    chosen = scenario.names() if arguments.scenario == "all" else [arguments.scenario]
    replay = None
    try:
        scenarios = [scenario.load(name) for name in chosen]
        if arguments.traffic is not None:
            if len(scenarios) > 1:
                raise ConfigError("--traffic works with one scenario, not with all")
            replay = read_traffic(arguments.traffic, scenarios[0])
            scenarios = [replay.scenario(scenarios[0])]
        if arguments.seconds is not None:
            scenarios = [each.lasting(arguments.seconds) for each in scenarios]
    except ConfigError as error:
        arguments.parser.error(str(error))
    if arguments.html is not None and not write_file(arguments.html, "", "a"):
        return 1  # now, and not after a long run
    with progress_bar() as progress:
        outcomes = simulate(
            scenarios,
            seed=arguments.seed,
            runs=arguments.runs,
            replay=replay,
            progress=progress,
        )
    if arguments.html is not None and not write_file(arguments.html, page(outcomes), "w"):
        return 1
    code = _print(arguments, outcomes)
    tell_written(arguments.html)
    return code


def _is_pacing(name: str) -> bool:
    """Whether it is a pacing scenario: by its name, or by what is in the file."""
    from sluicegate.sim.pacing.scenario import is_pacing

    if name.startswith("pacing") and not name.endswith(".toml"):
        return True
    try:
        return is_pacing(Path(name).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError):
        return False  # whoever loads it says what is wrong


def _run_random(arguments: argparse.Namespace) -> int:
    """One random cluster as any scenario, or the summary of many."""
    for option in ("traffic", "seconds"):
        if getattr(arguments, option) is not None:
            arguments.parser.error(f"--{option} does not work with random")
    if arguments.runs == 1:
        return _run_one_random(arguments)
    if arguments.scenario == "random-faults":
        return _run_many_random_faults(arguments)
    return _run_many_random(arguments)


def _run_one_random(arguments: argparse.Namespace) -> int:
    from sluicegate.sim import random_clusters, random_faults
    from sluicegate.sim.html_report import page
    from sluicegate.sim.simulate import simulate

    if arguments.svg is not None:
        arguments.parser.error("--svg works with many random clusters: give --runs")
    cluster: random_clusters.Cluster | random_faults.FaultyCluster
    if arguments.scenario == "random-faults":
        cluster = random_faults.draw(arguments.seed)
    else:
        cluster = random_clusters.draw(arguments.seed)
    if arguments.save is not None and not write_file(
        arguments.save, cluster.text, "w", "the scenario"
    ):
        return 1
    if arguments.html is not None and not write_file(arguments.html, "", "a"):
        return 1
    with progress_bar() as progress:
        outcomes = simulate([cluster.scenario], seed=arguments.seed, progress=progress)
    if arguments.html is not None and not write_file(arguments.html, page(outcomes), "w"):
        return 1
    if not arguments.json and not arguments.markdown:
        sys.stdout.write(f"{cluster}\n\n")
    code = _print(arguments, outcomes, {"facts": cluster.facts.as_dict()})
    tell_written(arguments.html)
    tell_saved(arguments.save, arguments.seed)
    return code


def _run_many_random(arguments: argparse.Namespace) -> int:
    from sluicegate.sim.random_runs import run_many, summaries, table
    from sluicegate.sim.space_picture import picture

    for option in ("save", "html", "markdown"):
        if getattr(arguments, option) not in (None, False):
            arguments.parser.error(f"--{option} works with one random cluster, not with --runs")
    if arguments.svg is not None and not write_file(arguments.svg, "", "a", "the picture"):
        return 1
    with progress_bar() as progress:
        seeds = range(arguments.seed, arguments.seed + arguments.runs)
        rows = run_many(seeds, jobs=arguments.jobs, progress=progress)
    if arguments.svg is not None:
        title = f"Shortfall of {len(rows)} random clusters, from seed {arguments.seed}"
        text = picture([row.as_dict() for row in rows], title)
        if not write_file(arguments.svg, text, "w", "the picture"):
            return 1
    met = all(row.broken is None for row in rows)
    if arguments.json:
        document = {
            "met": met,
            "regimes": {each.regime: each.as_dict() for each in summaries(rows)},
            "runs": [row.as_dict() for row in rows],
        }
        sys.stdout.write(json.dumps(document) + "\n")
    else:
        sys.stdout.write(table(rows) + "\n")
    tell_written(arguments.svg)
    return 0 if met else 1


def _run_many_random_faults(arguments: argparse.Namespace) -> int:
    from sluicegate.sim.random_faults import is_within, run_many, table

    for option in ("save", "html", "markdown", "svg"):
        if getattr(arguments, option) not in (None, False):
            arguments.parser.error(f"--{option} does not work with many random-faults")
    with progress_bar() as progress:
        seeds = range(arguments.seed, arguments.seed + arguments.runs)
        rows = run_many(seeds, jobs=arguments.jobs, progress=progress)
    met = all(is_within(row) for row in rows)
    if arguments.json:
        document = {"met": met, "runs": [row.as_dict() for row in rows]}
        sys.stdout.write(json.dumps(document) + "\n")
    else:
        sys.stdout.write(table(rows) + "\n")
    return 0 if met else 1


def _print(
    arguments: argparse.Namespace, outcomes: "Sequence[Outcome]", more: dict[str, Any] | None = None
) -> int:
    """Print all runs as asked for; `more` is for the JSON document."""
    from sluicegate.sim.text_report import markdown, plain

    met = all(outcome.met for outcome in outcomes)
    if arguments.json:
        document = {"met": met, **(more or {})}
        document["outcomes"] = [outcome.as_dict() for outcome in outcomes]
        sys.stdout.write(json.dumps(document) + "\n")
    elif arguments.markdown:
        results = {each.scenario.name: each.results for each in outcomes if each.results}
        sys.stdout.write(markdown(results) if results else "")
    else:
        for outcome in outcomes:
            if outcome.results:
                sys.stdout.write(plain(outcome.results) + "\n")
            if outcome.broken is not None:
                sys.stdout.write(f"BROKEN: {outcome.broken}\n")
            sys.stdout.write("\n")
    return 0 if met else 1

"""`sluicegate simulate cache TRACE`: the hit ratios of all cache policies on a trace."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sluicegate.cli.output import progress_bar, tell_written, write_file
from sluicegate.errors import ConfigError

if TYPE_CHECKING:
    from sluicegate.cache.trace_replay import Replay, TraceReplay

__all__ = ["NAME", "OPTIONS", "add_arguments", "run"]

NAME = "cache"
OPTIONS = ("capacity", "policy", "column")  # that no other scenario has
_NOT_OURS = ("seed", "runs", "seconds", "traffic", "jobs", "save", "svg")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    cache = parser.add_argument_group(f"options of {NAME}")
    cache.add_argument(
        "--capacity",
        type=_capacities,
        metavar="N,P%,...",
        help="entries, or parts of the distinct keys (default: 0.1%% to 50%%)",
    )
    cache.add_argument(
        "--policy", type=_names, metavar="NAME,...", help="policies, and optimal (default: all)"
    )
    cache.add_argument(
        "--column",
        type=_column,
        metavar="NAME_OR_NUMBER",
        help=(
            "where the keys are in a table: a name in its first line, or a number from 1 "
            "if there is no such line"
        ),
    )


def run(arguments: argparse.Namespace) -> int:
    """Replay the trace and return the exit code."""
    from sluicegate.cache.trace import Trace, read_trace
    from sluicegate.cache.trace_replay import DEFAULT_CAPACITIES, TraceReplay, policy_names
    from sluicegate.sim.cache_report import CacheReport
    from sluicegate.sim.cache_traces import TRACES

    parser = arguments.parser
    for option in _NOT_OURS:
        if getattr(arguments, option) != parser.get_default(option):
            parser.error(f"--{option} does not work with {NAME}")
    if arguments.trace is None:
        parser.error(
            f"{NAME} expects a TRACE: a file with a key per line, a table (--column), "
            f"or one of {', '.join(TRACES)}"
        )
    try:
        names = policy_names(arguments.policy)
        if arguments.trace in TRACES and arguments.column is None:
            trace = Trace(TRACES[arguments.trace]())
        else:
            trace = Trace(read_trace(arguments.trace, arguments.column))
        runs = TraceReplay(trace)
        sizes = runs.entries(arguments.capacity or DEFAULT_CAPACITIES)
    except (ConfigError, ValueError) as error:
        parser.error(str(error))
    if arguments.html is not None and not write_file(arguments.html, "", "a"):
        return 1  # now, and not after a long run
    with progress_bar() as progress:
        results = _replay(runs, names, sizes, progress)
    report = CacheReport(arguments.trace, trace, results)
    if arguments.html is not None and not write_file(arguments.html, report.page(), "w"):
        return 1
    if arguments.json:
        sys.stdout.write(json.dumps(report.as_dict()) + "\n")
    else:
        sys.stdout.write((report.markdown() if arguments.markdown else report.plain()) + "\n")
    tell_written(arguments.html)
    return 0


def _replay(
    runs: "TraceReplay",
    names: Sequence[str],
    sizes: Sequence[int],
    progress: Callable[[str, float], object] | None,
) -> "list[Replay]":
    results: list[Replay] = []
    for name in names:
        for size in sizes:
            if progress is not None:
                progress(f"{name}, {size:,}", len(results) / (len(names) * len(sizes)))
            results.append(runs.run(name, size))
    return results


def _capacities(text: str) -> list[int | float]:
    return [_capacity(one.strip()) for one in text.split(",")]


def _capacity(text: str) -> int | float:
    """Entries, or a part of the distinct keys: "1000", "0.5%"."""
    try:
        if text.endswith("%"):
            part = float(text[:-1]) / 100
            if 0.0 < part < 1.0:
                return part
        elif int(text) > 0:
            return int(text)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(
        f"expected entries (1000) or a part of the keys (0.5%, below 100%), got {text!r}"
    )


def _names(text: str) -> list[str]:
    return [one.strip() for one in text.split(",")]


def _column(text: str) -> str | int:
    return int(text) if text.isdecimal() else text

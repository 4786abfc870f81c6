"""`sluicegate simulate balance`: all balancing policies on the same servers and requests."""

import argparse
import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from sluicegate.cli.arguments import count, integer
from sluicegate.cli.arguments import seconds as positive
from sluicegate.cli.output import progress_bar

if TYPE_CHECKING:
    from sluicegate.sim.balance.comparison import Named

__all__ = ["NAME", "OPTIONS", "add_arguments", "run"]

NAME = "balance"
OPTIONS = ("clients", "servers", "slow", "slow_factor", "load")  # that no other scenario has
_NOT_OURS = ("runs", "traffic", "jobs", "save", "svg", "html")
_WARM_UP = 1 / 3  # of a duration that was asked for


def add_arguments(parser: argparse.ArgumentParser) -> None:
    balance = parser.add_argument_group(
        f"options of {NAME}", "Any of these but --clients runs one scenario in place of all."
    )
    balance.add_argument(
        "--clients", type=count, metavar="N", help="balancers (default: 1, 10 and 100)"
    )
    balance.add_argument("--servers", type=count, metavar="N", help="servers (default: 10)")
    balance.add_argument(
        "--slow", type=integer, metavar="N", help="how many of them are slow (default: 0)"
    )
    balance.add_argument(
        "--slow-factor", type=positive, metavar="F", help="how much slower (default: 10)"
    )
    balance.add_argument(
        "--load",
        type=positive,
        metavar="PART",
        help="part of what all servers can do (default: 0.6)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run what was asked for and return the exit code."""
    from sluicegate.sim.balance.comparison import CLIENTS, compare
    from sluicegate.sim.balance.text_report import markdown, plain

    for option in _NOT_OURS:
        if getattr(arguments, option) != arguments.parser.get_default(option):
            arguments.parser.error(f"--{option} does not work with {NAME}")
    chosen = _scenarios(arguments)
    clients = CLIENTS if arguments.clients is None else (arguments.clients,)
    comparisons = []
    with progress_bar() as progress:
        for number, (name, named) in enumerate(chosen.items()):

            def tell(what: str, part: float, before: int = number) -> None:
                if progress is not None:
                    progress(what, (before + part) / len(chosen))

            comparisons.append(
                compare(name, named, clients=clients, seed=arguments.seed, progress=tell)
            )
    met = not any(comparison.missed for comparison in comparisons)
    if arguments.json:
        document = {"met": met, "scenarios": [one.as_dict() for one in comparisons]}
        sys.stdout.write(json.dumps(document) + "\n")
    elif arguments.markdown:
        sys.stdout.write(markdown(comparisons))
    else:
        sys.stdout.write("\n\n".join(plain(one) for one in comparisons) + "\n")
    return 0 if met else 1


def _scenarios(arguments: argparse.Namespace) -> "dict[str, Named]":
    """The scenarios to run, by name: all there are, or the one that the options say."""
    from sluicegate.sim.balance.comparison import SCENARIOS, Named
    from sluicegate.sim.balance.scenario import BalanceScenario

    given = {
        option: getattr(arguments, option)
        for option in OPTIONS
        if option != "clients" and getattr(arguments, option) is not None
    }
    changes = {} if arguments.clients is None else {"clients": arguments.clients}
    if arguments.seconds is not None:
        changes |= {"seconds": arguments.seconds, "warm_up": _WARM_UP * arguments.seconds}
    try:
        if not given:
            return {
                name: named._replace(scenario=replace(named.scenario, **changes))
                for name, named in SCENARIOS.items()
            }
        if "slow_factor" in given and not given.get("slow"):
            raise ValueError("--slow-factor needs --slow, the number of slow servers")
        scenario = BalanceScenario(**given, **changes)
    except ValueError as error:
        arguments.parser.error(str(error))
    slow = f"{scenario.slow} of them {scenario.slow_factor:g} times slower"
    title = f"{scenario.servers} servers, {slow if scenario.slow else 'all equal'}"
    return {"given": Named(title, scenario)}

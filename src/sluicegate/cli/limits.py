"""`sluicegate limits`: lists, sets and removes the limits of a running central.

Exit code 1 if the central cannot be reached or refuses, 2 for wrong usage.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence

from sluicegate.cli.central_client import CentralClient, read_admin_token
from sluicegate.cli.output import printable
from sluicegate.clock import Clock
from sluicegate.errors import ConfigError, SluicegateError
from sluicegate.quota.ledger.limit_entry import Entry

__all__ = ["configure"]

_MOST_WARNINGS = 10


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Lists, sets and removes the limits of a running central. A change takes effect in the\n"
        "next slot. The exit code is 1 if the central cannot be reached or refuses."
    )
    parser.epilog = (
        "examples:\n  sluicegate limits list\n"
        "  sluicegate limits set front ann requests=50 traffic_up=1000000 --burst-seconds 10\n"
        "  sluicegate limits set front '*' requests=5\n"
        "  sluicegate limits remove front ann --url https://10.0.0.5:7411 --token-file tokens"
    )
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--url",
        default="http://127.0.0.1:7411",
        help="URL of the central (default: %(default)s)",
    )
    common.add_argument(
        "--token-file",
        metavar="FILE",
        help="the central's token file, or a file with only the admin token; "
        "default: the environment variable SLUICEGATE_TOKEN",
    )
    common.add_argument("--ca", metavar="FILE", help="CA certificates, instead of the system's")
    common.add_argument("--json", action="store_true", help="print the central's answer as JSON")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = actions.add_parser(
        "list",
        parents=[common],
        help="list the limits in force",
        epilog="example: sluicegate limits list --service front --json",
    )
    listing.add_argument("--service", help="only the limits of this service")
    listing.add_argument("--user", help="only the limits of this user")
    setting = actions.add_parser(
        "set",
        parents=[common],
        help="set the entry of a user",
        description="Replaces the whole entry of a user: a resource that it does not name is not "
        "limited.",
        epilog="example: sluicegate limits set front ann requests=50 traffic_up=1000000",
    )
    setting.add_argument("service", metavar="SERVICE")
    setting.add_argument(
        "user", metavar="USER", help="* stands for every user without an entry of their own"
    )
    setting.add_argument(
        "rates", metavar="RESOURCE=RATE", nargs="+", help="units per second, such as requests=50"
    )
    setting.add_argument(
        "--burst-seconds",
        type=float,
        default=10.0,
        metavar="S",
        help="seconds of unused quota that may accumulate (default: 10)",
    )
    removing = actions.add_parser(
        "remove",
        parents=[common],
        help="remove the entry of a user",
        epilog="example: sluicegate limits remove front ann",
    )
    removing.add_argument("service", metavar="SERVICE")
    removing.add_argument("user", metavar="USER")
    for action, name in ((listing, "list"), (setting, "set"), (removing, "remove")):
        action.set_defaults(run=_run, parser=action, action=name)


def _run(arguments: argparse.Namespace, clock: Clock) -> int:
    entry = None
    if arguments.action == "set":
        try:
            rates = parse_rates(arguments.rates)
            entry = Entry(arguments.service, arguments.user, arguments.burst_seconds, rates)
        except ValueError as error:
            arguments.parser.error(str(error))
    try:
        token = os.environ.get("SLUICEGATE_TOKEN") or None
        if arguments.token_file is not None:
            token = read_admin_token(arguments.token_file)
        central = CentralClient(arguments.url, token=token, ca=arguments.ca)
    except ConfigError as error:
        arguments.parser.error(str(error))
    try:
        if entry is not None:
            answer = central.set(entry)
        elif arguments.action == "remove":
            answer = central.remove(arguments.service, arguments.user)
        else:
            answer = central.limits(arguments.service, arguments.user)
    except SluicegateError as error:
        sys.stderr.write(f"sluicegate limits: {error}\n")
        return 1
    if arguments.json:
        sys.stdout.write(json.dumps(answer) + "\n")
    elif arguments.action == "remove":
        sys.stdout.write(f"removed: {arguments.service} {arguments.user}\n")
    else:
        sys.stdout.write(format_limits(answer.get("limits")))
        for warning in warnings(answer) if arguments.action == "list" else ():
            sys.stderr.write(f"sluicegate limits: {warning}\n")
    return 0


def parse_rates(words: Sequence[str]) -> dict[str, float]:
    """`["requests=50", "traffic_up=1e6"]` as rates; ValueError says which word is wrong."""
    rates: dict[str, float] = {}
    for word in words:
        resource, _, number = word.rpartition("=")
        if not resource:
            raise ValueError(f"expected RESOURCE=RATE, such as requests=50, got {word!r}")
        try:
            rate = float(number)
        except ValueError:
            raise ValueError(f"expected a number as the rate, got {word!r}") from None
        if resource in rates:
            raise ValueError(f"expected {resource!r} once, got it twice")
        rates[resource] = rate
    return rates


def format_limits(limits: object) -> str:
    """The entries as a table, one per line."""
    rows = [["SERVICE", "USER", "BURST", "PER SECOND"]]
    for limit in limits if isinstance(limits, list) else []:
        if not isinstance(limit, dict):
            continue
        rates = " ".join(
            f"{printable(name)}={printable(rate)}"
            for name, rate in limit.items()
            if name not in ("service", "user", "burst_seconds")
        )
        burst = f"{printable(limit.get('burst_seconds'))} s"
        rows.append([printable(limit.get("service")), printable(limit.get("user")), burst, rates])
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]])
        + "\n"
        for row in rows
    )


def warnings(answer: Mapping[str, object]) -> list[str]:
    """What the central reports as wrong with its limits source, one line each."""
    found = []
    if answer.get("error") is not None:
        reason = printable(answer["error"])
        found.append(f"cannot read the limits source, previous limits stay in force: {reason}")
    complaints = answer.get("complaints")
    if isinstance(complaints, list):
        found += [printable(complaint) for complaint in complaints[:_MOST_WARNINGS]]
        if len(complaints) > _MOST_WARNINGS:
            found.append(f"and {len(complaints) - _MOST_WARNINGS} more")
    return found

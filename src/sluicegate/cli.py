"""The `sluicegate` command.

Each command is a pair here: `_add_...` says what it takes, and a function of the parsed
arguments runs it and returns the exit code: 0 is fine, 1 could not be done, 2 (by
argparse) was asked wrongly. What a command does is elsewhere; this file holds the
edge: arguments, the terminal, the clock.
"""

import argparse
import contextlib
import importlib.metadata
import json
import locale
import math
import os
import signal
import sys
from typing import TYPE_CHECKING, TextIO

from sluicegate.clock import Clock, SystemClock
from sluicegate.demo import bars, limits, limits_screen
from sluicegate.errors import ConfigError, SluicegateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

__all__ = ["main"]


def main(argv: list[str] | None = None, *, clock: Clock | None = None) -> int:
    """Run one command and return its exit code. `clock` is the time in which it waits."""
    parser = argparse.ArgumentParser(
        prog="sluicegate",
        description="Keeps a fleet of servers inside its limits.",
        epilog="example:\n  sluicegate demo\n\nsluicegate COMMAND --help tells more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = f"sluicegate {importlib.metadata.version('sluicegate')}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_demo(commands)
    _add_limits(commands)
    _add_simulate(commands)
    _add_central(commands)
    _add_node(commands)
    arguments = parser.parse_args(argv)
    code: int = arguments.run(arguments, clock or SystemClock())
    return code


def _add_demo(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "demo",
        help="see a fleet held to its limits, live in the terminal",
        description="Runs a central, three end nodes of two processes each and the traffic of "
        "four users,\nand shows live how each user is held to his limit; 'limits' shows every "
        "limiter under\nthe same bursty traffic. Without a terminal only the closing table is "
        "printed. The exit\ncode of the fleet is 0 if each user was held to his limit, and 1 if "
        "not.",
        epilog="examples:\n  sluicegate demo\n  sluicegate demo limits --seconds 60\n"
        "  sluicegate demo --seconds 20 --json | python -m json.tool",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "what",
        nargs="?",
        choices=["quota", "limits"],
        default="quota",
        help="what to show: a fleet (quota, the default) or the limiters (limits)",
    )
    parser.add_argument(
        "--seconds",
        type=_seconds,
        metavar="S",
        help="how long (default: quota until Ctrl-C, and 20 without a terminal; limits 30)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the closing table as JSON, and nothing else"
    )
    parser.set_defaults(run=_demo, parser=parser)


def _demo(arguments: argparse.Namespace, clock: Clock) -> int:
    if arguments.what == "quota":
        return _demo_quota(arguments)
    demo = limits.LimitsDemo()
    seconds = 30.0 if arguments.seconds is None else arguments.seconds
    if arguments.json:
        demo.run(seconds)
        sys.stdout.write(json.dumps(limits.report(demo)) + "\n")
        return 0
    if not _is_terminal():
        demo.run(seconds)
        sys.stdout.write(bars.plain(limits_screen.summary(demo)) + "\n")
        return 0
    console = _console("sluicegate demo")
    if console is None:
        return 1
    limits_screen.show(demo, seconds, console, clock, _bars(console))
    console.print(limits_screen.summary(demo), soft_wrap=True)
    return 0


def _demo_quota(arguments: argparse.Namespace) -> int:
    from sluicegate.demo import quota_command

    if arguments.seconds is not None and arguments.seconds < quota_command.LEAST_SECONDS:
        arguments.parser.error(
            f"argument --seconds: expected {quota_command.LEAST_SECONDS} or more, so that there "
            f"is something to judge, got {arguments.seconds:g}"
        )
    console = None
    if not arguments.json and _is_terminal():
        console = _console("sluicegate demo")
        if console is None:
            return 1
    marks = bars.BLOCKS if console is None else _bars(console)
    try:
        code = quota_command.run(arguments.seconds, arguments.json, console, marks)
    except SluicegateError as error:
        sys.stderr.write(f"sluicegate demo: {error}\n")
        return 1
    except OSError as error:  # the terminal was closed, or whoever read has had enough
        _drop_output()
        try:
            sys.stderr.write(f"sluicegate demo: the result cannot be written: {error}\n")
        except OSError:
            _drop_output(sys.stderr)
        return 1
    if code == 128 + signal.SIGHUP:
        _drop_output()
        _drop_output(sys.stderr)
    return code


def _is_terminal() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def _console(who: str) -> "Console | None":
    """Rich's console; None, and a word on stderr, if Rich is not there."""
    try:
        from rich.console import Console
    except ImportError:
        sys.stderr.write(f"{who} needs rich to draw: pip install rich\n")
        return None
    return Console(highlight=False)


def _add_simulate(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "simulate",
        help="see how well limits hold in a simulated cluster, with faults",
        description="Runs a cluster in virtual time, with our assignment and with the classic one, "
        "and\ncompares what passed with the limits. The exit code is 0 if ours meets all goals of "
        "the\nscenario, 1 if not, 2 if the command makes no sense.",
        epilog="examples:\n  sluicegate simulate --list\n  sluicegate simulate overload-3x\n"
        "  sluicegate simulate failover --seed 7 --html failover.html\n"
        "  sluicegate simulate my.toml --traffic last-week.csv --json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "scenario", nargs="?", metavar="SCENARIO", help="a name, a TOML file, or all"
    )
    parser.add_argument("--list", action="store_true", help="tell the names of the scenarios")
    parser.add_argument(
        "--seed", type=_whole, default=0, metavar="N", help="of the dice (default: 0)"
    )
    parser.add_argument(
        "--runs", type=_count, default=1, metavar="N", help="so many seeds; the worst figure counts"
    )
    parser.add_argument(
        "--seconds", type=_seconds, metavar="S", help="how long, instead of what the file says"
    )
    parser.add_argument(
        "--traffic", metavar="FILE", help="traffic from a .csv or .jsonl file, such as a log"
    )
    parser.add_argument("--html", metavar="FILE", help="draw it, as a page of its own")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print one JSON document")
    output.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    parser.set_defaults(run=_simulate, parser=parser)


def _simulate(arguments: argparse.Namespace, clock: Clock) -> int:
    try:
        code = _run_scenarios(arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 128 + 2  # as a shell has it for SIGINT
    except BrokenPipeError:
        _drop_output()  # whoever read has had enough
        return 128 + 13
    except OSError as error:
        _drop_output()
        sys.stderr.write(f"sluicegate simulate: the result cannot be written: {error}\n")
        return 1


def _add_central(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    from sluicegate.quota.central import command

    parser = commands.add_parser(
        "central",
        help="run the server that gives out the quotas",
        description="Runs a central: nodes report to it what users consumed, and it gives each of "
        "them its\nshare of the limits. It prints one line when it listens, and stops on SIGTERM.",
        epilog=command.EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_arguments(parser)
    parser.set_defaults(run=_central, parser=parser)


def _central(arguments: argparse.Namespace, clock: Clock) -> int:
    from sluicegate.quota.central import command

    return command.serve(arguments)


def _add_node(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    from sluicegate.integrations import node_arguments

    parser = commands.add_parser(
        "node",
        help="put a quota in front of a service, as a reverse proxy",
        description="Runs an end node as a reverse proxy: requests that the quota covers are "
        "passed on to\nthe upstream, others are answered with 429. It counts requests and the "
        "bytes of bodies\nin both directions, prints one line when it listens, and stops on "
        "SIGTERM.",
        epilog=node_arguments.EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    node_arguments.add_arguments(parser)
    parser.set_defaults(run=_node, parser=parser)


def _node(arguments: argparse.Namespace, clock: Clock) -> int:
    try:
        from sluicegate.integrations import node_command
    except ModuleNotFoundError as missing:
        sys.stderr.write(f"sluicegate node: {missing}\n")
        return 1
    return node_command.serve(arguments)


def _drop_output(stream: TextIO | None = None) -> None:
    """What is left to be written goes nowhere; else Python would try it again at the exit."""
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, (stream or sys.stdout).fileno())
        os.close(nowhere)


def _run_scenarios(arguments: argparse.Namespace) -> int:
    # Its parts take a while to import, which other commands should not wait for.
    from sluicegate.sim import scenario
    from sluicegate.sim.command import simulate
    from sluicegate.sim.page import page
    from sluicegate.sim.replay import read_traffic
    from sluicegate.sim.table import markdown, plain

    if arguments.list:
        for name in scenario.names():
            sys.stdout.write(f"{name:16}{scenario.load(name).title}\n")
        return 0
    if arguments.scenario is None:
        arguments.parser.error("a SCENARIO is needed; --list tells which there are")
    chosen = scenario.names() if arguments.scenario == "all" else [arguments.scenario]
    replay = None
    try:
        scenarios = [scenario.load(name) for name in chosen]
        if arguments.traffic is not None:
            if len(scenarios) > 1:
                raise ConfigError("--traffic goes with one scenario, not with all")
            replay = read_traffic(arguments.traffic, scenarios[0])
            scenarios = [replay.scenario(scenarios[0])]
        if arguments.seconds is not None:
            scenarios = [each.lasting(arguments.seconds) for each in scenarios]
    except ConfigError as error:
        arguments.parser.error(str(error))
    if arguments.html is not None and not _write(arguments.html, "", "a"):
        return 1  # now, and not after a long run
    with _progress() as progress:
        outcomes = simulate(
            scenarios,
            seed=arguments.seed,
            runs=arguments.runs,
            replay=replay,
            progress=progress,
        )
    if arguments.html is not None and not _write(arguments.html, page(outcomes), "w"):
        return 1
    met = all(outcome.met for outcome in outcomes)
    if arguments.json:
        document = {"met": met, "outcomes": [outcome.as_dict() for outcome in outcomes]}
        sys.stdout.write(json.dumps(document) + "\n")
    elif arguments.markdown:
        told = {each.scenario.name: each.results for each in outcomes if each.results}
        sys.stdout.write(markdown(told) if told else "")
    else:
        for outcome in outcomes:
            if outcome.results:
                sys.stdout.write(plain(outcome.results) + "\n")
            if outcome.broken is not None:
                sys.stdout.write(f"BROKEN: {outcome.broken}\n")
            sys.stdout.write("\n")
    return 0 if met else 1


def _add_limits(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "limits",
        help="list, set and remove limits of a running central",
        description="Lists, sets and removes limits of a running central. A change holds from the\n"
        "next slot on. The exit code is 1 if the central cannot be reached or refuses.",
        epilog="examples:\n  sluicegate limits list\n"
        "  sluicegate limits set front ann requests=50 traffic_up=1000000 --burst-seconds 10\n"
        "  sluicegate limits set front '*' requests=5\n"
        "  sluicegate limits remove front ann --url https://central.example:7411 --token-file tokens",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--url",
        default="http://127.0.0.1:7411",
        help="where the central is (default: %(default)s)",
    )
    common.add_argument(
        "--token-file",
        metavar="FILE",
        help="the central's token file, or a file with the admin token alone; "
        "without it the variable SLUICEGATE_TOKEN has the token",
    )
    common.add_argument("--ca", metavar="FILE", help="whom to trust, instead of the system's CAs")
    common.add_argument("--json", action="store_true", help="print what the central answers")
    acts = parser.add_subparsers(title="what to do", metavar="ACT", required=True)
    listing = acts.add_parser(
        "list",
        parents=[common],
        help="the limits in force",
        epilog="example: sluicegate limits list --service front --json",
    )
    listing.add_argument("--service", help="only of this service")
    listing.add_argument("--user", help="only of this user")
    setting = acts.add_parser(
        "set",
        parents=[common],
        help="the whole entry of a user",
        description="Sets the whole entry of a user: what it does not name is not limited by it.",
        epilog="example: sluicegate limits set front ann requests=50 traffic_up=1000000",
    )
    setting.add_argument("service", metavar="SERVICE")
    setting.add_argument("user", metavar="USER", help="* is everyone without an entry of his own")
    setting.add_argument(
        "rates", metavar="RESOURCE=RATE", nargs="+", help="units per second, such as requests=50"
    )
    setting.add_argument(
        "--burst-seconds",
        type=float,
        default=10.0,
        metavar="S",
        help="how much unused quota may pile up (default: 10)",
    )
    removing = acts.add_parser(
        "remove",
        parents=[common],
        help="the entry of a user",
        epilog="example: sluicegate limits remove front ann",
    )
    removing.add_argument("service", metavar="SERVICE")
    removing.add_argument("user", metavar="USER")
    for act, name in ((listing, "list"), (setting, "set"), (removing, "remove")):
        act.set_defaults(run=_limits, parser=act, act=name)


def _limits(arguments: argparse.Namespace, clock: Clock) -> int:
    from sluicegate.quota.entries import Entry
    from sluicegate.quota.limits_command import (
        CentralClient,
        parse_rates,
        read_admin_token,
        table,
        warnings,
    )

    entry = None
    if arguments.act == "set":
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
        elif arguments.act == "remove":
            answer = central.remove(arguments.service, arguments.user)
        else:
            answer = central.limits(arguments.service, arguments.user)
    except SluicegateError as error:
        sys.stderr.write(f"sluicegate limits: {error}\n")
        return 1
    if arguments.json:
        sys.stdout.write(json.dumps(answer) + "\n")
    elif arguments.act == "remove":
        sys.stdout.write(f"removed: {arguments.service} {arguments.user}\n")
    else:
        sys.stdout.write(table(answer.get("limits")))
        for warning in warnings(answer) if arguments.act == "list" else ():
            sys.stderr.write(f"sluicegate limits: {warning}\n")
    return 0


def _write(path: str, text: str, mode: str) -> bool:
    try:
        with open(path, mode, encoding="utf-8") as file:
            file.write(text)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"sluicegate simulate: the page cannot be written: {error}\n")
        return False
    return True


@contextlib.contextmanager
def _progress() -> "Iterator[Callable[[str, float], object] | None]":
    """A bar on a terminal, if Rich is there to draw it: on stderr, and gone in the end."""
    if not sys.stderr.isatty():
        yield None
        return
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        yield None
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda what, part: bar.update(task, description=what, completed=part)


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}") from None


def _count(text: str) -> int:
    count = _whole(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got {text!r}")
    return count


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"expected a finite number above 0, got {text!r}")
    return seconds


def _bars(console: "Console") -> str:
    """Blocks where they can be shown. With LC_ALL=C Python writes UTF-8; that says nothing."""
    try:
        for encoding in (console.encoding, locale.getencoding()):
            bars.BLOCKS.encode(encoding)
    except UnicodeEncodeError:
        return bars.ASCII
    return bars.BLOCKS

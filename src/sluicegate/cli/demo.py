"""`sluicegate demo`: a fleet of real processes, the limiters in virtual time, a budget, a queue.

The exit code is 0 if each user was held to the limit (or the budget was spent along its line, or
the workers of the queue were kept busy), and 1 if not or if the fleet did not start. A signal that
ends it early gives 128 + its number, as in a shell; but Ctrl-C at a terminal is how a person ends
it, and gives 0.
"""

import argparse
import importlib.util
import json
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from sluicegate.cli.arguments import integer, seconds
from sluicegate.cli.output import can_show, discard, is_terminal, open_console
from sluicegate.clock import Clock
from sluicegate.demo import limits, limits_screen, pacing, pacing_screen, quota, quota_screen
from sluicegate.demo.fleet import StartCancelled
from sluicegate.demo.nginx import INSTALL
from sluicegate.demo.sparkline import ASCII, BLOCKS, plain
from sluicegate.errors import ConfigError, SluicegateError

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["configure", "run_dispatch", "run_pacing", "run_quota"]

_SECONDS_WITHOUT_TERMINAL = 20.0  # where nobody can press Ctrl-C
_PACING_SECONDS = 30.0
_DISPATCH_SECONDS = 20.0
_CENTRALS = (1, 2, 3)
# Of dispatch as `dispatch.MIN_SECONDS`, which is imported when it is needed.
_LEAST = {"quota": quota.MIN_SECONDS, "pacing": pacing.MIN_SECONDS, "dispatch": 8}
_TWO_CENTRALS = "two centrals have no fault tolerance: neither can lead without the other"
_NO_NGINX = f"no nginx with Lua found: {INSTALL}"
_NEEDED = ("orjson", "prometheus_client", "starlette", "uvicorn", "websockets")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Runs a central, three end nodes of two processes each and the traffic of six users,\n"
        "and shows live how each user is held to their limit; the last node is an nginx where\n"
        "one with Lua is installed; with --centrals 3 three centrals elect a leader, and another\n"
        "one leads when it dies; 'limits' shows every limiter under the same bursty traffic;\n"
        "'pacing' shows four nodes that spend a budget along its line, with no coordinator;\n"
        "'dispatch' shows two workers that serve a queue in batches, and clients that ask for\n"
        "three times as much. Without a terminal only the closing table is printed. The exit\n"
        "code (but of limits) is 0 if all goals were met, and 1 if not."
    )
    parser.epilog = (
        "examples:\n  sluicegate demo\n  sluicegate demo --centrals 3\n"
        "  sluicegate demo limits --seconds 60\n"
        "  sluicegate demo pacing --seconds 30\n  sluicegate demo dispatch\n"
        "  sluicegate demo --seconds 20 --json | python -m json.tool"
    )
    parser.add_argument(
        "what",
        nargs="?",
        choices=["quota", "limits", "pacing", "dispatch"],
        default="quota",
        metavar="WHAT",
        help="what to show: a fleet (quota, the default), the limiters (limits), a budget "
        "(pacing), a queue (dispatch)",
    )
    parser.add_argument(
        "--seconds",
        type=seconds,
        metavar="S",
        help="duration (default: quota until Ctrl-C, or 20 without a terminal; limits and "
        "pacing 30, dispatch 20)",
    )
    parser.add_argument(
        "--centrals",
        type=integer,
        metavar="N",
        help="quota only: how many centrals elect a leader among themselves, 1 to 3 (default: 1); "
        "two have no fault tolerance",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the closing table as JSON, and nothing else"
    )
    parser.set_defaults(run=_run, parser=parser)


def _run(arguments: argparse.Namespace, clock: Clock) -> int:
    if arguments.centrals is not None:
        _check_centrals(arguments)
    if arguments.what == "limits":
        return _run_limits(arguments, clock)
    least = _LEAST[arguments.what]
    if arguments.seconds is not None and arguments.seconds < least:
        arguments.parser.error(
            f"argument --seconds: expected {least} or more, the least that can be "
            f"judged, got {arguments.seconds:g}"
        )
    console = None
    if not arguments.json and is_terminal():
        console = open_console("sluicegate demo")
        if console is None:
            return 1
    run: dict[str, Callable[[float | None, bool, Console | None], int]] = {
        "quota": partial(run_quota, centrals=arguments.centrals or 1),
        "pacing": run_pacing,
        "dispatch": run_dispatch,
    }
    try:
        code = run[arguments.what](arguments.seconds, arguments.json, console)
    except SluicegateError as error:
        sys.stderr.write(f"sluicegate demo: {error}\n")
        return 1
    except OSError as error:  # the terminal or the pipe was closed
        discard()
        try:
            sys.stderr.write(f"sluicegate demo: cannot write the result: {error}\n")
        except OSError:
            discard(sys.stderr)
        return 1
    if code == 128 + signal.SIGHUP:
        discard()
        discard(sys.stderr)
    return code


def _check_centrals(arguments: argparse.Namespace) -> None:
    if arguments.what != "quota":
        arguments.parser.error(
            f"argument --centrals: only the demo quota has centrals, got {arguments.what}"
        )
    if arguments.centrals not in _CENTRALS:
        arguments.parser.error(f"argument --centrals: expected 1, 2 or 3, got {arguments.centrals}")


def _run_limits(arguments: argparse.Namespace, clock: Clock) -> int:
    demo = limits.LimitsDemo()
    duration = 30.0 if arguments.seconds is None else arguments.seconds
    if arguments.json:
        demo.run(duration)
        sys.stdout.write(json.dumps(limits.report(demo)) + "\n")
        return 0
    if not is_terminal():
        demo.run(duration)
        sys.stdout.write(plain(limits_screen.summary(demo)) + "\n")
        return 0
    console = open_console("sluicegate demo")
    if console is None:
        return 1
    limits_screen.show(demo, duration, console, clock, _marks(console))
    console.print(limits_screen.summary(demo), soft_wrap=True)
    return 0


def run_quota(
    duration: float | None, as_json: bool, console: "Console | None", *, centrals: int = 1
) -> int:
    """Run the fleet for `duration` seconds (None: until a signal), drawn on the console if any."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"the central needs more packages ({', '.join(missing)}): "
            f"pip install 'sluicegate[server,dashboard]'"
        )
    with quota.stop_flag() as flag:
        if console is not None:
            started = "a central" if centrals == 1 else f"{centrals} centrals"
            console.print(f"[dim]starting {started} and three nodes[/]")
        if centrals == 2:
            sys.stderr.write(f"sluicegate demo: {_TWO_CENTRALS}\n")
        try:
            with quota.QuotaDemo(flag, centrals) as demo:
                if console is not None:
                    if demo.nginx_address is None:
                        console.print(f"[dim]{_NO_NGINX}[/]", soft_wrap=True)
                    quota_screen.show(demo, duration, console, _marks(console))
                else:
                    sys.stderr.write(f"sluicegate demo: {_where(demo)}\n")
                    sys.stderr.write(f"sluicegate demo: {_where_nginx_is(demo)}\n")
                    demo.run(_SECONDS_WITHOUT_TERMINAL if duration is None else duration)
                # The fleet has the rest only while it runs.
                report = quota.report(demo, flag.number)
                closing = quota_screen.summary(demo)
        except StartCancelled:
            return _exit_code(flag.number, is_held=False, is_drawn=console is not None)
    _print(report if as_json else None, closing, console)
    return _exit_code(flag.number, is_held=bool(report["held"]), is_drawn=console is not None)


def _where(demo: quota.QuotaDemo) -> str:
    if not demo.has_several_centrals:
        return f"the central is at {demo.url}"
    centrals = ", ".join(
        f"{central.name} at {central.url} (process {central.pid}, {central.role})"
        for central in demo.centrals()
    )
    return f"the centrals are {centrals}"


def _where_nginx_is(demo: quota.QuotaDemo) -> str:
    if demo.nginx_address is None:
        return _NO_NGINX
    node = next(node for node in demo.nodes() if node.kind == "nginx")
    return f"{node.name} is nginx at http://{demo.nginx_address} (process {node.master})"


def run_pacing(
    duration: float | None,
    as_json: bool,
    console: "Console | None",
    *,
    in_memory: bool = False,
) -> int:
    """Run four nodes for `duration` seconds (None: 30), drawn on the console if any."""
    seconds = _PACING_SECONDS if duration is None else duration
    with quota.stop_flag() as flag:
        try:
            with pacing.PacingDemo(seconds, flag, in_memory=in_memory) as demo:
                if console is not None:
                    pacing_screen.show(demo, console, _marks(console))
                else:
                    demo.run()
                report = pacing.report(demo)
        except StartCancelled:
            return _exit_code(flag.number, is_held=False, is_drawn=console is not None)
        closing = pacing_screen.summary(demo)
    _print(report if as_json else None, closing, console)
    return _exit_code(flag.number, is_held=bool(report["held"]), is_drawn=console is not None)


def run_dispatch(duration: float | None, as_json: bool, console: "Console | None") -> int:
    """Run two workers and their clients for `duration` seconds (None: 20)."""
    missing = [name for name in ("hiredis", "msgspec") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"dispatch needs more packages ({', '.join(missing)}): "
            f"pip install 'sluicegate[dispatch]'"
        )
    from sluicegate.demo import dispatch, dispatch_screen

    seconds = _DISPATCH_SECONDS if duration is None else duration
    with quota.stop_flag() as flag:
        try:
            with dispatch.DispatchDemo(seconds, flag) as demo:
                if console is not None:
                    dispatch_screen.show(demo, console, _marks(console))
                else:
                    demo.run()
                report = dispatch.report(demo)
        except StartCancelled:
            return _exit_code(flag.number, is_held=False, is_drawn=console is not None)
        closing = dispatch_screen.summary(demo)
    _print(report if as_json else None, closing, console)
    return _exit_code(flag.number, is_held=bool(report["held"]), is_drawn=console is not None)


def _print(report: dict[str, object] | None, closing: str, console: "Console | None") -> None:
    """The result: as JSON if there is a report, else as the closing table."""
    if report is not None:
        sys.stdout.write(json.dumps(report) + "\n")
    elif console is None:
        sys.stdout.write(plain(closing) + "\n")
    else:
        console.print(closing, soft_wrap=True)
    sys.stdout.flush()


def _exit_code(signal_number: int | None, *, is_held: bool, is_drawn: bool) -> int:
    if signal_number is None:
        return 0 if is_held else 1
    return 0 if is_drawn and signal_number == signal.SIGINT else 128 + signal_number


def _marks(console: "Console") -> str:
    return BLOCKS if can_show(BLOCKS, console) else ASCII

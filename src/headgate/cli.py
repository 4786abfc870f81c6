"""The `headgate` command.

Each command is a pair here: `_add_...` says what it takes, and a function of the parsed
arguments runs it and returns the exit code: 0 is fine, 1 could not be done, 2 (by
argparse) was asked wrongly. What a command does is elsewhere; this file holds the
edge: arguments, the terminal, the clock.
"""

import argparse
import importlib.metadata
import json
import locale
import math
import os
import sys
from typing import TYPE_CHECKING

from headgate.clock import Clock, SystemClock
from headgate.demo import limits, limits_screen

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["main"]


def main(argv: list[str] | None = None, *, clock: Clock | None = None) -> int:
    """Run one command and return its exit code. `clock` is the time in which it waits."""
    parser = argparse.ArgumentParser(
        prog="headgate",
        description="Keeps a fleet of servers inside its limits.",
        epilog="example:\n  headgate demo\n\nheadgate COMMAND --help tells more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = f"headgate {importlib.metadata.version('headgate')}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_demo(commands)
    arguments = parser.parse_args(argv)
    code: int = arguments.run(arguments, clock or SystemClock())
    return code


def _add_demo(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "demo",
        help="see the limiters at work in the terminal",
        description="Shows every limiter under the same bursty traffic, live in the terminal.\n"
        "Without a terminal it does not wait: it prints the closing table at once.",
        epilog="examples:\n  headgate demo\n  headgate demo limits --seconds 60\n"
        "  headgate demo --json | python -m json.tool",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "what",
        nargs="?",
        choices=["limits"],
        default="limits",
        help="what to show (default: limits)",
    )
    parser.add_argument(
        "--seconds", type=_seconds, default=30.0, metavar="S", help="how long (default: 30)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the closing table as JSON, without waiting"
    )
    parser.set_defaults(run=_demo)


def _demo(arguments: argparse.Namespace, clock: Clock) -> int:
    demo = limits.LimitsDemo()
    if arguments.json:
        demo.run(arguments.seconds)
        sys.stdout.write(json.dumps(limits.report(demo)) + "\n")
        return 0
    if not sys.stdout.isatty() or os.environ.get("TERM") in ("dumb", "unknown"):
        demo.run(arguments.seconds)
        sys.stdout.write(limits_screen.plain(limits_screen.summary(demo)) + "\n")
        return 0
    try:
        from rich.console import Console
    except ImportError:
        sys.stderr.write("headgate demo needs rich to draw: pip install rich\n")
        return 1
    console = Console(highlight=False)
    limits_screen.show(demo, arguments.seconds, console, clock, _bars(console))
    console.print(limits_screen.summary(demo), soft_wrap=True)
    return 0


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
            limits_screen.BLOCKS.encode(encoding)
    except UnicodeEncodeError:
        return limits_screen.ASCII
    return limits_screen.BLOCKS

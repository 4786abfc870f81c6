"""The entry point of `sluicegate`: finds the command and imports its file, and no other.

A command is a module of this package (`nginx-conf` is nginx_conf.py) with `configure(parser)`,
which adds its arguments and sets `run`, a function of the parsed arguments and the clock that
returns the exit code: 0 success, 1 failure, 2 wrong usage (argparse). What a command does is
elsewhere; these files hold the edge: arguments, the terminal, exit codes.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from sluicegate.clock import Clock, SystemClock

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    "demo": "watch a fleet held to its limits, live in the terminal",
    "limits": "list, set and remove the limits of a running central",
    "simulate": "test how well limits hold in a simulated cluster, with faults",
    "central": "run the server that assigns quotas to nodes",
    "witness": "run a vote without a server, for the election of two centrals",
    "node": "run a reverse proxy that enforces a quota in front of a service",
    "nginx-conf": "print the configuration of an nginx that enforces a quota",
    "worker": "run a function on the batches of a queue",
    "queue": "look at a queue, drain it, retry its dead requests",
}


def main(argv: list[str] | None = None, *, clock: Clock | None = None) -> int:
    """Run one command and return its exit code. `clock` is the time in which it waits."""
    words = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(
        prog="sluicegate",
        description="Keeps a fleet of servers inside its limits.",
        epilog="example:\n  sluicegate demo\n\nsluicegate COMMAND --help shows the options of a "
        "command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    # No option of `sluicegate` itself takes a value, so the first other word is the command.
    chosen = next((word for word in words if not word.startswith("-")), None)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=summary,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        if name == chosen:
            module = name.replace("-", "_")
            importlib.import_module(f"sluicegate.cli.{module}").configure(command)
    arguments = parser.parse_args(words)
    arguments.words = words  # for a command that starts itself again
    code: int = arguments.run(arguments, clock or SystemClock())
    return code


class _Version(argparse.Action):
    """Looks up the version when it is asked for: that takes longer than a whole short command."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> NoReturn:
        version = importlib.import_module("importlib.metadata").version("sluicegate")
        sys.stdout.write(f"sluicegate {version}\n")
        parser.exit()

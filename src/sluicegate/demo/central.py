"""The demo's central: `sluicegate central` that also writes down when the machine held it up.

    python -m sluicegate.demo.central PAUSES --listen HOST:PORT --limits FILE ...

A line of the file PAUSES is the begin and the end of a pause, in seconds of the monotonic clock.
"""

import argparse
import sys
from pathlib import Path

from sluicegate.demo.pauses import PauseMeter
from sluicegate.quota.central import command


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("pauses", type=Path)
    command.add_arguments(parser)
    arguments = parser.parse_args(argv)
    with (
        arguments.pauses.open("a", buffering=1) as log,  # a line is written whole
        PauseMeter(lambda begin, end: log.write(f"{begin} {end}\n")),
    ):
        return command.serve(arguments)


if __name__ == "__main__":
    sys.exit(main())

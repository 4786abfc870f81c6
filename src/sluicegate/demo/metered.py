"""Runs a `sluicegate` command that also logs when the machine held it up.

    python -m sluicegate.demo.metered PAUSES central --listen HOST:PORT --limits FILE ...

A line of the file PAUSES is the begin and the end of a pause, in seconds of the monotonic clock.
"""

import runpy
import sys
from pathlib import Path

from sluicegate.demo.pauses import PauseMeter


def main() -> None:
    path = Path(sys.argv.pop(1))
    with path.open("a", buffering=1) as log:  # a line is written whole

        def note(begin: float, end: float) -> None:
            log.write(f"{begin} {end}\n")

        with PauseMeter(note):
            runpy.run_module("sluicegate", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
